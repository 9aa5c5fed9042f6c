//! Who may ask a server for what: root, a mounter, a reader, and one who has no role.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{HOLDFAST, can_mount, first_line};

// Of users that each system knows: the helper mounts for no others.
const READER: u32 = 1;
const MOUNTER: u32 = 2;
const NOBODY: u32 = 3;

/// A served pool, until it is dropped.
struct Served {
    work: PathBuf,
    child: Child,
}

impl Served {
    fn start(work: PathBuf, arguments: &[&str]) -> Served {
        let mut child = Command::new(HOLDFAST)
            .args(["--json", "serve"])
            .args(arguments)
            .env("HOLDFAST_RUN_DIR", work.join("run"))
            .stdout(Stdio::piped())
            .stderr(fs::File::create(work.join("log")).expect("there is room"))
            .spawn()
            .expect("the program can be started");
        first_line(&mut child);
        Served { work, child }
    }

    /// Runs the program as the user `uid`; returns whether it was content, and what it said.
    fn run_as(&self, uid: u32, arguments: &[&str]) -> (bool, String) {
        let program = self.work.join("holdfast");
        let mut command = Command::new(program);
        command.args(arguments).env("HOLDFAST_RUN_DIR", self.work.join("run"));
        if uid != 0 {
            command.uid(uid).gid(uid);
        }
        let output = command.output().expect("the program can be started");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = front::fuse::mountpoint::detach(&self.work.join("mnt"));
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.work);
    }
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

/// Goal: users of the machine ask a server by what its configuration gives them, and not otherwise;
/// that is read again; each change is a line of the log. Method: the program itself, as root, as
/// two users who have roles, and as one who has none.
#[test]
fn users_ask_a_server_by_their_roles() {
    if !can_mount("users_ask_a_server_by_their_roles") {
        return;
    }
    let name = format!("holdfast-roles-{}", std::process::id());
    let work = fs::canonicalize(std::env::temp_dir()).expect("there is one").join(name);
    fs::create_dir_all(work.join("mnt")).expect("the name is new");
    fs::set_permissions(&work, fs::Permissions::from_mode(0o755)).expect("it is ours");
    // The build may lie where others may not look.
    fs::copy(HOLDFAST, work.join("holdfast")).expect("there is room");
    std::os::unix::fs::chown(work.join("mnt"), Some(MOUNTER), Some(MOUNTER)).expect("as root");
    let text = |name: &str| work.join(name).to_str().expect("the path is ASCII").to_owned();
    let (pool, config, mnt) = (text("pool.hf"), text("holdfast.toml"), text("mnt"));
    let made = Command::new(HOLDFAST).args(["create", &pool, "--size", "256M"]).output();
    assert!(made.expect("the program can be started").status.success());
    let base = format!(
        "state = \"{}\"\n[http]\nlisten = \"127.0.0.1:0\"\n[[pool]]\npath = \"{pool}\"\n",
        text("state")
    );
    let roles = format!(
        "{base}[[reader]]\nuids = [{READER}]\n[[mounter]]\nuids = [{MOUNTER}]\nfilesets = [\"a\"]\n\
         directories = [\"{mnt}\"]\n"
    );
    fs::write(&config, &roles).expect("there is room");
    let served = Served::start(work.clone(), &["--config", &config]);
    let asks = |uid: u32, arguments: &[&str]| served.run_as(uid, arguments);
    let of = |name: &str| format!("{pool}:{name}");
    let refused = |uid: u32, arguments: &[&str], words: &str| {
        let (is_done, told) = asks(uid, arguments);
        assert!(!is_done && told.contains(words), "{uid}: {arguments:?}: {told}");
    };

    assert_eq!(mode_of(&work.join("run")), 0o755);
    let sockets = fs::read_dir(work.join("run")).expect("it is ours");
    for path in sockets.map(|entry| entry.expect("it is read").path()) {
        let is_of_users = path.to_string_lossy().ends_with(".users.sock");
        assert_eq!(mode_of(&path), if is_of_users { 0o666 } else { 0o600 }, "{}", path.display());
    }
    assert!(asks(0, &["fileset", "create", &of("a")]).0, "root may do all");
    let (is_done, told) = asks(READER, &["status", &pool]);
    assert!(is_done && told.contains("health: ok") && !told.contains("pool.hf"), "{told}");
    refused(READER, &["fileset", "create", &of("b")], "a reader here");
    refused(READER, &["fileset", "list", &pool], "a reader here");
    refused(READER, &["mount", &of("a"), &mnt], "a reader here");
    for arguments in [&["status", &pool][..], &["fileset", "list", &pool]] {
        refused(NOBODY, arguments, "may ask nothing here");
    }
    let (is_done, told) = asks(NOBODY, &["status"]);
    assert!(is_done && told.contains("No pool"), "{told}");

    let root_of = |name: &str| work.join("mnt").join(name);
    refused(MOUNTER, &["mount", &of("root"), &mnt], "only a below");
    refused(MOUNTER, &["mount", &of("a"), &text("state")], "only a below");
    refused(MOUNTER, &["fileset", "delete", &of("a")], "a mounter here");
    let (is_mounted, told) = asks(MOUNTER, &["mount", &of("a"), &mnt]);
    let has_helper = Command::new("fusermount3").arg("-V").output().is_ok();
    let is_open = mode_of(Path::new("/dev/fuse")) & 0o006 == 0o006;
    if !(has_helper && is_open) {
        eprintln!(
            "\n*** SKIPPED: a mount by a mounter: needs fusermount3 and an open /dev/fuse ***\n"
        );
    }
    assert!(is_mounted == (has_helper && is_open), "{told}");
    if is_mounted {
        let as_mounter = |script: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).current_dir("/").uid(MOUNTER).gid(MOUNTER);
            shell.output().expect("there is a shell").status.success()
        };
        assert!(!as_mounter(&format!("touch {mnt}/file")), "the directory is root's");
        let (is_done, told) = asks(MOUNTER, &["unmount", &mnt]);
        assert!(is_done, "{told}");
        assert!(asks(0, &["mount", &of("a"), &mnt]).0, "root may do all");
        std::os::unix::fs::chown(root_of(""), Some(MOUNTER), Some(MOUNTER)).expect("as root");
        assert!(asks(0, &["unmount", &mnt]).0);
        let (is_done, told) = asks(MOUNTER, &["mount", &of("a"), &mnt]);
        assert!(is_done, "{told}");
        assert!(as_mounter(&format!("touch {mnt}/mine && chmod 1755 {mnt}/mine")), "it is his");
        // His kernel lets him: it is refused as he does it.
        assert!(!as_mounter(&format!("chmod 4755 {mnt}/mine")), "it runs as its owner");
        let (is_done, told) = asks(MOUNTER, &["status"]);
        assert!(is_done && told.contains(&mnt) && !told.contains("pool.hf"), "{told}");
        let (is_done, told) = asks(0, &["--json", "status"]);
        assert!(is_done && told.contains(&format!("\"mounter\":{MOUNTER}")), "{told}");
        let (is_done, told) = asks(MOUNTER, &["unmount", &mnt]);
        assert!(is_done, "{told}");
        assert!(!root_of("file").exists());
    }

    fs::write(&config, &base).expect("there is room");
    let (is_done, told) = asks(0, &["reload", &pool]);
    assert!(is_done, "{told}");
    refused(READER, &["status", &pool], "may ask nothing here");
    refused(MOUNTER, &["mount", &of("a"), &mnt], "may ask nothing here");
    let log = fs::read_to_string(work.join("log")).expect("it is ours");
    let has_line = |words: &[&str]| {
        let mut lines = log.lines().filter(|line| line.contains("holdfast::audit"));
        lines.any(|line| words.iter().all(|word| line.contains(word)))
    };
    let (root, mounter) = ("user 0", format!("user {MOUNTER}"));
    assert!(has_line(&[root, "FilesetCreate", "done"]), "{log}");
    assert!(has_line(&[root, "Reload", "done"]), "{log}");
    assert!(has_line(&[&mounter, "only a below"]), "{log}");
    assert!(!is_mounted || has_line(&[&mounter, "done"]), "{log}");
}
