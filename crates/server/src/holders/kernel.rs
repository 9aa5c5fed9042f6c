//! Uses of a device or file by the kernel, for which no lock exists: mounts, swap, stacked devices,
//! loop devices.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use front::fuse::mountpoint::{self, MOUNT_TYPE, MountEntry};
use storage::device::LoopBacking;

use crate::named::{is_source_of, pools_in};
use control::text::printable;

const NAMED_MAX: usize = 4;
/// Bound on chains of loop devices. A longer chain is a cycle.
const CHAIN_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
struct KernelUse {
    what: String,
    way: String,
}

/// Returns the kernel's uses of `path`, as text after "in use", with the remedy.
pub(crate) fn kernel_uses(path: &Path) -> Option<String> {
    let stat = fs::metadata(path).ok()?;
    let loops = loops(Some(path));
    let uses: Vec<KernelUse> = match stat.file_type().is_block_device() {
        true => {
            let beside = beside(stat.rdev(), &loops, &mut Vec::new());
            uses_of_device(stat.rdev()).into_iter().chain(beside).collect()
        }
        false => {
            let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            shown_by(&loops, |it| it.shows((stat.dev(), stat.ino()), &whole)).collect()
        }
    };
    told(&uses)
}

/// Returns the uses that block an exclusive open of a device. Loop devices with the same bytes do
/// not block it.
pub(crate) fn kernel_claims(path: &Path) -> Option<String> {
    let stat = fs::metadata(path).ok().filter(|stat| stat.file_type().is_block_device())?;
    told(&uses_of_device(stat.rdev()))
}

pub(crate) fn file_behind(path: &Path) -> Option<PathBuf> {
    let stat = fs::metadata(path).ok().filter(|stat| stat.file_type().is_block_device())?;
    let number = number_of(stat.rdev());
    loops(None).into_iter().find(|it| it.number == number).map(|it| it.path)
}

/// Whether two paths lead to one device: the same file, the same device number, a loop device and
/// its whole backing file, or two paths to one disk.
pub(crate) fn is_one_device(first: &Path, other: &Path) -> bool {
    let (Ok(own), Ok(others)) = (fs::metadata(first), fs::metadata(other)) else { return false };
    let is_block = |stat: &fs::Metadata| stat.file_type().is_block_device();
    let shown = |device: &fs::Metadata, file: &fs::Metadata, path: &Path| {
        let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let number = number_of(device.rdev());
        let mut loops = loops(Some(path)).into_iter().filter(|it| it.number == number);
        loops
            .any(|it| (it.start, it.length) == (0, 0) && it.shows((file.dev(), file.ino()), &whole))
    };
    match (is_block(&own), is_block(&others)) {
        (false, false) => (own.dev(), own.ino()) == (others.dev(), others.ino()),
        (true, false) => shown(&own, &others, other),
        (false, true) => shown(&others, &own, first),
        (true, true) => {
            let disk = disk_of(own.rdev());
            own.rdev() == others.rdev()
                || disk.is_some() && disk == disk_of(others.rdev())
                || show_the_same(first, own.rdev(), others.rdev())
        }
    }
}

fn show_the_same(path: &Path, first: u64, other: u64) -> bool {
    let loops = loops(Some(path));
    let of = |rdev: u64| loops.iter().find(|it| it.number == number_of(rdev));
    let part = |it: &LoopAttachment| (it.start, it.length);
    of(first).zip(of(other)).is_some_and(|(own, it)| own.is_of_same(it) && part(own) == part(it))
}

/// Returns a disk's WWID, which all its paths share, and the partition.
fn disk_of(rdev: u64) -> Option<(String, String)> {
    let folder = folder_of(rdev);
    let part = fs::read_to_string(folder.join("partition")).unwrap_or_default();
    let disk = if part.is_empty() { folder } else { folder.join("..") };
    let read = |name: &str| fs::read_to_string(disk.join(name)).ok();
    let name = read("wwid").or_else(|| read("device/wwid"))?;
    (!name.trim().is_empty()).then(|| (name.trim().to_owned(), part.trim().to_owned()))
}

/// Whether another device, such as multipath, is stacked on a block device. Then only the upper
/// device can be used.
pub(crate) fn is_below_another(path: &Path) -> bool {
    let stat = fs::metadata(path).ok().filter(|stat| stat.file_type().is_block_device());
    stat.is_some_and(|stat| entries(&folder_of(stat.rdev()).join("holders")).next().is_some())
}

/// Returns the mount point of the Holdfast mount of `source` that contains `path`. If `path` is a
/// loop device, its backing file counts. The file need not exist.
pub(crate) fn mount_from(path: &Path, source: &Path) -> Option<PathBuf> {
    let path = file_behind(path).unwrap_or_else(|| path.to_owned());
    let folder = || Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?));
    let whole = fs::canonicalize(&path).ok().or_else(folder)?;
    let mounts = mountpoint::mounts().unwrap_or_default();
    let mount = mount_of(&mounts, &whole)?;
    let source = source.to_string_lossy();
    let is_it = mount.kind == mountpoint::MOUNT_TYPE && is_source_of(&mount.source, &source);
    is_it.then(|| mount.directory.clone())
}

fn told(uses: &[KernelUse]) -> Option<String> {
    let named = uses.get(..NAMED_MAX).unwrap_or(uses);
    let list = |of: fn(&KernelUse) -> &str, between: &str| {
        let all: Vec<&str> = named.iter().map(of).collect();
        all.join(between)
    };
    let (what, way) = (list(|it| &it.what, " and "), list(|it| &it.way, "; "));
    (!uses.is_empty()).then(|| format!("{what}: {way}, or name another device"))
}

fn number_of(rdev: u64) -> String {
    format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev))
}

fn uses_of_device(rdev: u64) -> Vec<KernelUse> {
    let folder = folder_of(rdev);
    let numbers = with_parts(rdev);
    let is_of = |device: &str, kind: &str, source: &str| {
        let is_source = |source: &str| {
            // Only `/dev` paths are looked up, because a lookup in a mount with a dead server could
            // hang.
            let stat = fs::metadata(source).ok().filter(|stat| stat.file_type().is_block_device());
            stat.is_some_and(|stat| numbers.contains(&number_of(stat.rdev())))
        };
        // Some file systems report an anonymous device number, so the source is compared too.
        // Only sources of this file system may be names of pools.
        let is_named =
            || pools_in(source).any(|pool| pool.starts_with("/dev/") && is_source(&pool));
        numbers.iter().any(|number| number == device)
            || source.starts_with("/dev/") && is_source(source)
            || kind == MOUNT_TYPE && is_named()
    };
    let mounts = mountpoint::mounts().unwrap_or_default().into_iter();
    let mounted =
        mounts.filter(|mount| is_of(&mount.device, &mount.kind, &mount.source)).map(|mount| {
            let directory = printable(&mount.directory.display().to_string());
            KernelUse {
                what: format!(
                    "as the file system ({}) mounted on {directory}",
                    printable(&mount.kind)
                ),
                way: format!("unmount that first (`umount {directory}`)"),
            }
        });
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let swaps = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let swaps: Vec<String> = swaps.filter(|name| is_of("", "swap", name)).map(printable).collect();
    let swapped = swaps.into_iter().map(|name| KernelUse {
        what: "as swap space".to_owned(),
        way: format!("end that first (`swapoff {name}`)"),
    });
    let above = entries(&folder.join("holders")).filter_map(|holder| {
        let name = fs::read_to_string(holder.join("dm/name")).ok();
        let own = holder.file_name()?.to_str()?.to_owned();
        let name = name.map(|name| format!(" ({})", printable(name.trim()))).unwrap_or_default();
        Some(KernelUse {
            what: format!("by the device {}{name} above it", printable(&own)),
            way: "take that apart first".to_owned(),
        })
    });
    mounted.chain(swapped).chain(above).collect()
}

fn folder_of(rdev: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}", number_of(rdev)))
}

fn with_parts(rdev: u64) -> Vec<String> {
    let parts = entries(&folder_of(rdev)).filter(|part| part.join("partition").exists());
    let parts = parts.filter_map(|part| fs::read_to_string(part.join("dev")).ok());
    parts.map(|part| part.trim().to_owned()).chain([number_of(rdev)]).collect()
}

/// Returns other uses of a block device's bytes: loop devices on it, on its partitions or on its
/// disk. For a loop device also other loop devices on its file, and all uses of its backing device.
/// `seen` holds the devices visited.
fn beside(rdev: u64, loops: &[LoopAttachment], seen: &mut Vec<String>) -> Vec<KernelUse> {
    let number = number_of(rdev);
    if seen.len() >= CHAIN_MAX || seen.contains(&number) {
        return Vec::new();
    }
    let folder = folder_of(rdev);
    let is_part = folder.join("partition").exists();
    let whole = is_part.then(|| fs::read_to_string(folder.join("../dev")).ok()).flatten();
    let whole = whole.map_or_else(|| number.clone(), |whole| whole.trim().to_owned());
    let mut family = with_parts(rdev);
    family.push(whole.clone());
    seen.extend([number, whole.clone()]);
    let is_new = |it: &LoopAttachment| !seen.contains(&it.number);
    let is_on = |it: &LoopAttachment| {
        let below = it.block_device().map(number_of);
        below.is_some_and(|below| family.contains(&below))
    };
    let mut uses: Vec<KernelUse> = shown_by(loops, |it| is_new(it) && is_on(it)).collect();
    let Some(own) = loops.iter().find(|it| it.number == whole) else { return uses };
    if own.backing.is_some_and(|backing| backing.is_part_of_locked(&own.path)) {
        let below = printable(&own.path.display().to_string());
        uses.push(KernelUse {
            what: format!("by whoever has locked {below}, of which it is a part"),
            way: "end that first".to_owned(),
        });
    }
    uses.extend(shown_by(loops, |it| is_new(it) && it.is_of_same(own) && it.overlaps(own)));
    if let Some(below) = own.block_device() {
        uses.extend(uses_of_device(below));
        uses.extend(beside(below, loops, seen));
    }
    uses
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LoopAttachment {
    name: String,
    number: String,
    /// `None` for a file on a remote file system, where an access could hang.
    backing: Option<LoopBacking>,
    /// Path of the backing file when it was attached.
    path: PathBuf,
    start: u64,
    /// Length in bytes. 0 means to the end.
    length: u64,
}

impl LoopAttachment {
    fn end(&self) -> u64 {
        if self.length == 0 { u64::MAX } else { self.start.saturating_add(self.length) }
    }

    fn overlaps(&self, other: &LoopAttachment) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// Whether the backing file is this inode. If the inode is unknown, whether it has this `path`.
    fn shows(&self, (file_system, inode): (u64, u64), path: &Path) -> bool {
        let is_it = |backing: LoopBacking| backing.is_file(file_system, inode);
        self.backing.map_or_else(|| self.path == path, is_it)
    }

    fn is_of_same(&self, other: &LoopAttachment) -> bool {
        match (self.backing, other.backing) {
            (Some(own), Some(other)) => own.is_of_same(&other),
            (None, _) | (_, None) => self.path == other.path,
        }
    }

    fn block_device(&self) -> Option<u64> {
        self.backing.and_then(|backing| backing.block_device())
    }
}

fn shown_by(
    loops: &[LoopAttachment],
    is_it: impl Fn(&LoopAttachment) -> bool,
) -> impl Iterator<Item = KernelUse> {
    let as_use = |it: &LoopAttachment| {
        let (name, above) = (&it.name, uses_above(&it.number));
        let above = above.map(|above| format!(", which is in use {above}")).unwrap_or_default();
        KernelUse {
            what: format!("by {name}, a loop device that shows it{above}"),
            way: format!("detach that then (`losetup -d {name}`)"),
        }
    };
    loops.iter().filter(move |it| is_it(it)).map(as_use)
}

fn uses_above(number: &str) -> Option<String> {
    let (major, minor) = number.split_once(':')?;
    let rdev = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    let uses = uses_of_device(rdev);
    let what: Vec<&str> = uses.iter().map(|it| it.what.as_str()).collect();
    (!what.is_empty()).then(|| what.join(" and "))
}

/// Type prefixes of file systems with a remote or user-space server, which may not answer.
const OF_OTHERS: [&str; 9] =
    ["fuse", "nfs", "cifs", "smb", "ceph", "9p", "virtiofs", "afs", "lustre"];

fn mount_of<'m>(mounts: &'m [MountEntry], path: &Path) -> Option<&'m MountEntry> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.directory));
    // Of mounts on one directory, the last one is on top.
    above.max_by_key(|mount| mount.directory.components().count())
}

/// Returns the device number of the file system of `path`, if that has a remote or user-space
/// server. Bind mounts have the same number, and so compare equal.
fn file_system_of_others<'m>(mounts: &'m [MountEntry], path: &Path) -> Option<&'m str> {
    let mount = mount_of(mounts, path)?;
    OF_OTHERS.iter().any(|kind| mount.kind.starts_with(kind)).then_some(&*mount.device)
}

/// Returns the attached loop devices. Opening one makes the kernel access the backing file, which
/// may hang on a file system with a server. Such a backing file is therefore identified by path
/// alone, unless its file system is that of `path`, which has just answered.
fn loops(path: Option<&Path>) -> Vec<LoopAttachment> {
    let mounts = mountpoint::mounts().unwrap_or_default();
    // This lookup shows that the file system of `path` answers.
    let whole = path.and_then(|path| fs::canonicalize(path).ok());
    let asked = whole.and_then(|path| file_system_of_others(&mounts, &path));
    let attached = |folder: PathBuf| {
        let read = |name: &str| fs::read(folder.join(name)).ok();
        let mut path = read("loop/backing_file")?;
        // Only the last newline ends the name. The name itself may contain newlines.
        path.pop_if(|last| *last == b'\n');
        let path = PathBuf::from(OsString::from_vec(path));
        let name = format!("/dev/{}", folder.file_name()?.to_str()?);
        let text = |name: &str| Some(String::from_utf8(read(name)?).ok()?.trim().to_owned());
        let bytes = |name: &str| text(name).and_then(|it| it.parse().ok()).unwrap_or(0);
        // Read from sysfs, because the device node may be missing or not readable here.
        let (start, length) = (bytes("loop/offset"), bytes("loop/sizelimit"));
        let number = text("dev")?;
        let of_others = file_system_of_others(&mounts, &path);
        if of_others.is_some() && of_others != asked {
            return Some(LoopAttachment { number, backing: None, path, name, start, length });
        }
        let named = || LoopBacking::named(&path, start, length);
        let backing = LoopBacking::of(Path::new(&name)).or_else(named)?;
        let LoopBacking { start, length, .. } = backing;
        Some(LoopAttachment { number, backing: Some(backing), path, name, start, length })
    };
    entries(Path::new("/sys/block")).filter_map(attached).collect()
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the mount table alone shows whether a file system may hang.
    #[test]
    fn who_may_never_answer_is_known_by_the_mounts() {
        let mount = |id: u64, directory: &str, kind: &str| MountEntry {
            id,
            directory: PathBuf::from(directory),
            kind: kind.to_owned(),
            source: "x".to_owned(),
            options: Default::default(),
            device: format!("0:{}", id % 10),
        };
        let mounts = [
            mount(1, "/", "ext4"),
            mount(2, "/far", "nfs4"),
            mount(3, "/far/near", "xfs"),
            mount(4, "/pool", "fuse.holdfast"),
            mount(5, "/under", "fuse"),
            mount(6, "/under", "tmpfs"),
            mount(14, "/bound/here", "fuse.holdfast"),
        ];
        let of = |path: &str| file_system_of_others(&mounts, Path::new(path));
        assert_eq!(of("/far/a"), Some("0:2"));
        assert_eq!(of("/pool/d/a"), Some("0:4"));
        assert_eq!(of("/bound/here/d/a"), of("/pool/d/a"), "it is the same by another way");
        for near in ["/a", "/far/near/a", "/farther/a", "/under/a", "relative"] {
            assert_eq!(of(near), None, "{near}");
        }
    }

    #[test]
    fn what_uses_a_device_is_followed_by_what_to_do() {
        assert_eq!(told(&[]), None);
        let uses = |what: &str| KernelUse { what: what.to_owned(), way: format!("end {what}") };
        let words = told(&[uses("a"), uses("b")]).expect("there are two");
        assert_eq!(words, "a and b: end a; end b, or name another device");
    }
}
