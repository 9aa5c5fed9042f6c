//! What both sides must show after every step: each name, each open file, and whether its times
//! changed.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;

use crc32c::crc32c;

use crate::calls::{SLOTS, Side, Stat, stat};
use crate::generate::NAMES;

/// Times within a day of now are not compared but for whether they changed.
const NEAR_SECONDS: i64 = 86_400;

/// What a side showed when it was last looked at.
#[derive(Default)]
pub(crate) struct Tree {
    before: BTreeMap<u64, Stat>,
}

impl Tree {
    /// Looks at every name and open file; returns what the other side must show too.
    pub(crate) fn look(&mut self, side: &Side) -> Vec<String> {
        side.enter();
        let mut texts = Vec::new();
        let mut first_names: BTreeMap<u64, String> = BTreeMap::new();
        let mut now = BTreeMap::new();
        let slots = (0..SLOTS - 2).map(|slot| (format!("#{slot}"), side.stat_of(slot)));
        let at = i64::from(libc::AT_FDCWD);
        let root = [".", ".."].into_iter();
        let names =
            root.chain(NAMES).map(|name| (name.to_owned(), stat(at, name.as_bytes(), 0).ok()));
        for (name, found) in names.chain(slots) {
            let Some(found) = found else {
                texts.push(format!("{name}: -"));
                continue;
            };
            let text = self.told(&found);
            let same = first_names.entry(found.ino).or_insert_with(|| name.clone());
            texts.push(format!("{name}: {text} ={same}"));
            now.insert(found.ino, found);
        }
        self.before = now;
        texts
    }

    fn told(&self, found: &Stat) -> String {
        let before = self.before.get(&found.ino);
        let change = |of: &dyn Fn(&Stat) -> (i64, u32)| match before {
            None => "new",
            Some(before) if of(before) == of(found) => "same",
            Some(_) => "changed",
        };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(0));
        let far = (found.mtime.0 - now).abs() > NEAR_SECONDS;
        let exact = if far { format!("{:?}", found.mtime) } else { String::new() };
        if found.kind() == libc::S_IFIFO {
            // Linux keeps no times of a pipe on a FUSE file system.
            return found.text();
        }
        let (mtime, ctime) = (change(&|stat| stat.mtime), change(&|stat| stat.ctime));
        format!("{} mtime {mtime} {exact} ctime {ctime}", found.text())
    }

    /// Content, targets and attributes of every name.
    pub(crate) fn contents(&mut self, side: &Side) -> Vec<String> {
        side.enter();
        NAMES.iter().map(|name| format!("{name}: {}", content(Path::new(name)))).collect()
    }
}

fn content(path: &Path) -> String {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return "-".to_owned() };
    let bytes = if metadata.is_symlink() {
        std::fs::read_link(path).map(|target| target.to_string_lossy().into_owned().into_bytes())
    } else if metadata.is_file() && metadata.len() <= 4 << 20 {
        std::fs::read(path)
    } else if metadata.is_dir() {
        std::fs::read_dir(path).map(|names| {
            let mut names: Vec<_> = names
                .flatten()
                .map(|name| name.file_name().to_string_lossy().into_owned())
                .collect();
            names.sort_unstable();
            names.join(" ").into_bytes()
        })
    } else {
        Ok(Vec::new())
    };
    let bytes = match bytes {
        Ok(bytes) => format!("{} bytes {:08x}", bytes.len(), crc32c(&bytes)),
        Err(error) => error.to_string(),
    };
    format!("{bytes} {}", attributes(path))
}

fn attributes(path: &Path) -> String {
    let mut room = vec![0; 65_536];
    let Ok(count) = rustix::fs::llistxattr(path, &mut room) else { return String::new() };
    let mut told = Vec::new();
    for name in room[..count].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let Ok(name) = CString::new(name) else { continue };
        let mut value = vec![0; 65_536];
        let length = rustix::fs::lgetxattr(path, &name, &mut value).unwrap_or(0);
        let crc = crc32c(&value[..length]);
        told.push(format!("{}={length}:{crc:08x}", name.to_string_lossy()));
    }
    told.sort_unstable();
    told.join(" ")
}
