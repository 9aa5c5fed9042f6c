//! Options of mount(8): those of every file system, `remount`, and the tools that read the table of
//! mounts.

use std::fs;
use std::io::Write;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Signal, kill_process};

use crate::packaged::{mount_helper, options_of};
use crate::several::{other, pid_of, refused};
use crate::{HOLDFAST, Mounted, can_mount, errno, write};

/// Runs `script` as root in a mount namespace where mount(8) finds the helper of the package, and
/// the program. Returns what it says; `None`: this system has no overlay to do that with.
fn by_mount(mounted: &Mounted, with_helper: bool, script: &str) -> Option<String> {
    let helper = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/mount.holdfast");
    let helpers = if with_helper { "mount.holdfast mount.fuse.holdfast" } else { "" };
    let work = mounted.work.display();
    // The layers are in memory: an overlay is none of another.
    let begin = format!(
        "mkdir -p {work}/layers; mount -t tmpfs layers {work}/layers || exit 77
         cd {work}/layers; mkdir upper work
         mount -t overlay -o lowerdir=/usr/sbin,upperdir=upper,workdir=work o /usr/sbin || exit 77
         rm -f /usr/sbin/mount.holdfast /usr/sbin/mount.fuse.holdfast
         for name in {helpers}; do install -m755 {helper} /usr/sbin/$name; done
         ln -sf {HOLDFAST} /usr/sbin/holdfast; cd {work}; set -e
         trap 'umount -l {work}/mnt {work}/other 2>/dev/null || true' EXIT"
    );
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", &format!("{begin}\n{script}")])
        .env("HOLDFAST_RUN_DIR", &mounted.work)
        .output()
        .expect("unshare is there");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.code() == Some(77) {
        eprintln!("\n*** SKIPPED: no overlay for /usr/sbin: {text} ***\n");
        return None;
    }
    assert!(output.status.success(), "{script}: {text}");
    Some(text)
}

/// Goal: the words of mount(8) that are for every file system are honoured, or mean nothing here; a
/// line of /proc/mounts that is copied into /etc/fstab mounts the same again.
#[test]
fn what_mount_has_for_every_file_system_mounts() {
    if !can_mount("what_mount_has_for_every_file_system_mounts") {
        return;
    }
    let mounted = Mounted::new();
    let a = format!("{}:a", mounted.text("pool.hf"));
    mounted.holdfast(&["fileset", "create", &a]);
    mounted.unmount();
    let words = "noatime nodiratime relatime strictatime lazytime nosymfollow discard nodiscard \
                 iversion silent auto nofail _netdev user,exec owner x-a=b comment=x seclabel";
    for words in words.split_whitespace() {
        let done = mount_helper(&mounted, &a, &["-o", words]);
        assert!(done.status.success(), "{words}: {}", String::from_utf8_lossy(&done.stderr));
        let shown = options_of(&mounted).expect("it is mounted");
        let has = |word: &str| shown.split(',').any(|it| it == word);
        if ["noatime", "nodiratime", "lazytime", "nosymfollow"].contains(&words) {
            assert!(has(words), "{words}: {shown}");
        }
        let is_by_users = words == "user,exec" || words == "owner";
        assert_eq!((has("nosuid"), has("nodev"), has("noexec")), (is_by_users, is_by_users, false));
        mounted.unmount();
        // As the kernel writes it.
        let done = mount_helper(&mounted, &a, &["-o", &shown]);
        assert!(done.status.success(), "{shown}: {}", String::from_utf8_lossy(&done.stderr));
        // The kernel shows `strictatime` by the lack of a word, as of every file system.
        let again = options_of(&mounted).expect("it is mounted");
        assert_eq!(again, if words == "strictatime" { again.clone() } else { shown });
        mounted.unmount();
    }
    let done = mount_helper(&mounted, &a, &["-o", "rw,mand"]);
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(told.contains("no mandatory locks"), "{told}");
    assert_eq!(done.status.code(), Some(1), "{told}");
    let gone = mount_helper(&mounted, &mounted.text("no-pool"), &["-o", "rw"]);
    assert_eq!(gone.status.code(), Some(32), "mount(8) says: not mounted");
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: by `nodiratime` a listing renews no access time of a directory; a read does one of a file.
#[test]
fn nodiratime_is_of_directories_alone() {
    if !can_mount("nodiratime_is_of_directories_alone") {
        return;
    }
    use std::os::unix::fs::MetadataExt as _;
    let mounted = Mounted::with(&["-o", "nodiratime"]);
    fs::create_dir(mounted.path("d")).expect("there is room");
    write(&mounted.path("d/f"), b"data");
    let old = fs::FileTimes::new().set_accessed(std::time::SystemTime::UNIX_EPOCH);
    let times = |name: &str| {
        let file = fs::File::open(mounted.path(name)).expect("it is there");
        file.set_times(old).expect("it is root's");
        let _ = fs::read_dir(mounted.path(name)).map(Iterator::count);
        let _ = fs::read(mounted.path(name));
        mounted.path(name).metadata().expect("it is there").atime()
    };
    assert_eq!(times("d"), 0);
    assert!(times("d/f") > 0);
    mounted.holdfast(&["mount", &mounted.text("mnt"), "-o", "remount,diratime"]);
    assert!(times("d") > 0);
    mounted.holdfast(&["mount", &mounted.text("mnt"), "-o", "remount,noatime"]);
    assert_eq!((times("d"), times("d/f")), (0, 0));
    mounted.finish();
}

/// Goal: `remount,ro` is refused while a file is open to be written, then makes all durable that
/// was acknowledged, and ends changes; a killed server loses nothing of it. `remount,rw` begins
/// them again.
#[test]
fn a_read_only_remount_flushes_and_ends_changes() {
    if !can_mount("a_read_only_remount_flushes_and_ends_changes") {
        return;
    }
    // Nothing is committed by age.
    let mounted = Mounted::with(&["--commit-interval", "60m"]);
    let (pool, root) = (mounted.text("pool.hf"), mounted.text("mnt"));
    let mut open = fs::File::create(mounted.path("open")).expect("there is room");
    open.write_all(b"open").expect("there is room");
    refused(&mounted, &["mount", &pool, &root, "-o", "remount,ro"], "open to be written");
    open.write_all(b" still").expect("it stays as it was");
    drop(open);
    for number in 0..50 {
        write(&mounted.path(&format!("f{number}")), &vec![number; 10_000]);
    }
    mounted.holdfast(&["mount", &pool, &root, "-o", "remount,ro"]);
    assert!(options_of(&mounted).is_some_and(|it| it.starts_with("ro,")));
    let rofs = Errno::ROFS.raw_os_error();
    assert_eq!(errno(fs::write(mounted.path("new"), b"")), rofs);
    assert_eq!(errno(fs::remove_file(mounted.path("f1"))), rofs);
    // What is not given stays as it was.
    mounted.holdfast(&["mount", &root, "-o", "remount,noexec"]);
    let shown = options_of(&mounted).expect("it is mounted");
    assert!(shown.starts_with("ro,") && shown.contains("noexec"), "{shown}");
    kill_process(pid_of(&mounted), Signal::KILL).expect("it is ours");
    mounted.mount(&[]);
    assert_eq!(fs::read(mounted.path("open")).expect("it was synced"), b"open still");
    for number in 0..50 {
        let bytes = fs::read(mounted.path(&format!("f{number}"))).expect("it was synced");
        assert_eq!(bytes, vec![number; 10_000]);
    }
    refused(&mounted, &["mount", &root, "-o", "remount,ro,share"], "stays as it was");
    write(&mounted.path("new"), b"it stayed");
    // A copy on another directory is the same mount.
    let copy = other(&mounted);
    let at = mounted.text("other");
    rustix::mount::mount_bind(&root, &at).expect("root may");
    mounted.holdfast(&["mount", &at, "-o", "remount,ro"]);
    assert_eq!(errno(fs::write(mounted.path("new"), b"")), rofs);
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).expect("it is not in use");
    drop(copy);
    mounted.holdfast(&["mount", &root, "-o", "remount,rw"]);
    write(&mounted.path("new"), b"new");
    for fixed in ["share", "direct_io", "noxattr", "discard"] {
        let words = format!("-o {fixed} is for a new mount");
        refused(&mounted, &["mount", &root, "-o", &format!("remount,{fixed}")], &words);
    }
    refused(&mounted, &["mount", &mounted.text("."), "-o", "remount,ro"], "no Holdfast mount");
    // What the kernel has held back is written first.
    mounted.remount(&["--writeback-cache", "--commit-interval", "60m"]);
    write(&mounted.path("held"), &[7; 100_000]);
    mounted.holdfast(&["mount", &root, "-o", "remount,ro"]);
    kill_process(pid_of(&mounted), Signal::KILL).expect("it is ours");
    mounted.mount(&[]);
    assert_eq!(fs::read(mounted.path("held")).expect("it was synced"), [7; 100_000]);
    mounted.remount(&["-o", "ro"]);
    refused(&mounted, &["mount", &root, "-o", "remount,rw"], "open to be read only");
    assert_eq!(errno(fs::write(mounted.path("new"), b"")), rofs);
    mounted.finish();
}

/// Goal: mount(8) and findmnt(8) find a mount by what /etc/fstab calls it, and `mount -a` mounts
/// nothing twice; `remount` of a directory alone reaches the server.
#[test]
fn mount_knows_what_is_mounted() {
    if !can_mount("mount_knows_what_is_mounted") {
        return;
    }
    let mounted = Mounted::new();
    let (pool, work) = (mounted.text("pool.hf"), mounted.work.display());
    let a = format!("{pool}:a");
    mounted.holdfast(&["fileset", "create", &a]);
    mounted.holdfast(&["snapshot", "create", &format!("{a}@c")]);
    mounted.unmount();
    for source in [&*pool, &a, &format!("{a}@c")] {
        let script = format!(
            "echo '{source} {work}/mnt holdfast defaults,nofail 0 0' >{work}/fstab
             mount -T {work}/fstab -a; mount -T {work}/fstab -a
             test $(grep -c ' {work}/mnt ' /proc/self/mounts) = 1
             findmnt -n -S {source} -T {work}/mnt
             test \"$(findmnt -no SOURCE {work}/mnt)\" = {source}
             test \"$(df --output=source {work}/mnt | tail -n 1)\" = {source}
             grep ' {work}/mnt ' /proc/self/mounts >{work}/fstab
             mount -o remount,ro {work}/mnt
             ! touch {work}/mnt/x
             holdfast unmount {work}/mnt
             mount -T {work}/fstab -a; findmnt -no OPTIONS {work}/mnt
             holdfast unmount {work}/mnt"
        );
        if by_mount(&mounted, true, &script).is_none() {
            break;
        }
    }
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: where the package's helper is not, mount.fuse3(8) finds the program, which understands it,
/// for a mount and a remount.
#[test]
fn mount_fuse_calls_the_program() {
    let has_helper = std::path::Path::new("/usr/sbin/mount.fuse").exists();
    if !can_mount("mount_fuse_calls_the_program") || !has_helper {
        return;
    }
    let mounted = Mounted::new();
    let (pool, work) = (mounted.text("pool.hf"), mounted.work.display());
    mounted.unmount();
    let script = format!(
        "mount -t fuse.holdfast -o noatime,nodev {pool} {work}/mnt
         findmnt -no OPTIONS {work}/mnt | grep nodev | grep noatime
         touch {work}/mnt/f
         mount -o remount,ro {work}/mnt; ! touch {work}/mnt/x
         grep -q 'remounted.*is_read_only=true' {work}/*.log
         mount -i -o remount,rw {work}/mnt; touch {work}/mnt/x
         holdfast unmount {work}/mnt"
    );
    by_mount(&mounted, false, &script);
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: `share` in /etc/fstab does what `--shared` does: mount(8) keeps `shared` for itself.
#[test]
fn share_lets_two_lines_of_fstab_mount_one_fileset() {
    if !can_mount("share_lets_two_lines_of_fstab_mount_one_fileset") {
        return;
    }
    let mounted = Mounted::new();
    let (pool, work) = (mounted.text("pool.hf"), mounted.work.display());
    mounted.unmount();
    let script = format!(
        "mkdir -p {work}/other
         echo '{pool} {work}/mnt holdfast share 0 0' >{work}/fstab
         echo '{pool} {work}/other holdfast share,noatime 0 0' >>{work}/fstab
         mount -T {work}/fstab -a; mount -T {work}/fstab -a
         echo data >{work}/mnt/f; test \"$(cat {work}/other/f)\" = data
         mount -T {work}/fstab -o remount,ro {work}/other; ! touch {work}/other/x
         echo more >{work}/mnt/f; test \"$(cat {work}/other/f)\" = more
         holdfast unmount {work}/other; holdfast unmount {work}/mnt; rmdir {work}/other"
    );
    by_mount(&mounted, true, &script);
    mounted.mount(&[]);
    mounted.finish();
}
