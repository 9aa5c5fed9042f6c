//! Directory listings.

use engine::api::{Attr, Caller, DirEntry, Ino};
use rustix::io::Errno;

use super::{FuseServer, done, errno};
use crate::fuse::given::ReferencedInodes;
use crate::fuse::protocol::{ListedName, Listing, NodeId, Reply};
use crate::fuse::small::{self, SmallListing};

impl FuseServer {
    pub(super) fn read_dir(
        &self,
        caller: &Caller,
        node: NodeId,
        cookie: u64,
        with_nodes: bool,
        listing: &mut dyn Listing,
    ) -> Result<Reply<'static>, Errno> {
        let directory = self.numbers.ino_of(node);
        if self.has_small_numbers {
            let mut each = SmallListing::new(listing);
            let read = self.fs.readdir(caller, directory, small::cookie_at(cookie), &mut |entry| {
                each.add(self.listed(entry))
            });
            let is_small = each.end();
            read.map_err(|error| errno("readdir", directory, &error))?;
            return if is_small { Ok(Reply::Done) } else { Err(Errno::OVERFLOW) };
        }
        if with_nodes && !self.given().is_some_and(ReferencedInodes::is_full) {
            return self.read_dir_with_nodes(caller, directory, cookie, listing);
        }
        let mut each = |entry: &DirEntry| listing.add(self.listed(entry), None);
        done("readdir", directory, self.fs.readdir(caller, directory, cookie, &mut each))
    }

    fn read_dir_with_nodes(
        &self,
        caller: &Caller,
        directory: Ino,
        cookie: u64,
        listing: &mut dyn Listing,
    ) -> Result<Reply<'static>, Errno> {
        let mut is_empty = true;
        let mut each = |entry: &DirEntry, attr: Option<&Attr>| {
            let node = attr.map(|attr| self.node_of(attr.clone()));
            let fits = listing.add(self.listed(entry), node.as_ref());
            is_empty &= !fits;
            if let (true, Some(given), Some(node)) = (fits, self.given(), &node) {
                given.add(node.id);
            }
            fits
        };
        match self.fs.readdir_plus(caller, directory, cookie, &mut each) {
            Err(error) if is_empty => Err(errno("readdir", directory, &error)),
            // The kernel must get the references of the entries so far. Its next request gets the
            // error.
            _ => Ok(Reply::Done),
        }
    }

    fn listed<'e>(&self, entry: &'e DirEntry) -> ListedName<'e> {
        ListedName {
            name: &entry.name,
            id: self.numbers.node_of(entry.ino),
            kind: entry.kind,
            cookie: entry.cookie,
        }
    }
}
