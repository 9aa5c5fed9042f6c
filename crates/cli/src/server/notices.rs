//! Whom the server tells when something happens to a pool: commands of `holdfast.toml`.
//!
//! # Policy
//!
//! 1. A pool that is in trouble is told once for each text of its health, and once when it is well
//!    again. One that was well when the server began is not told.
//! 2. A pool that becomes 80 or 90 % full is told once; again only when it was 5 % below.
//!
//! [`Seen::look`] decides, from a status; [`tell`] does.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How full a pool is, in percent, when that is told.
const LEVELS: [u64; 2] = [80, 90];
/// How far below it must have been to be told again.
const BELOW_PERCENT: u64 = 5;
/// How long a command may take.
const COMMAND_TIME: Duration = Duration::from_secs(30);
/// How often it is looked whether it has ended.
const COMMAND_POLL: Duration = Duration::from_millis(50);

/// Something that is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// `trouble`, `well` or `space`.
    pub(super) kind: &'static str,
    pub(super) text: String,
}

/// What was last seen of a pool.
#[derive(Debug)]
pub(super) struct Seen {
    health: String,
    level: u64,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen { health: "ok".to_owned(), level: 0 }
    }
}

impl Seen {
    /// Returns what is to be told of a pool whose status is this.
    pub(super) fn look(&mut self, status: &Value) -> Vec<Notice> {
        let mut notices = Vec::new();
        let health = status["health"].as_str().unwrap_or("ok");
        if health != self.health {
            let (kind, text) = match health {
                "ok" => ("well", format!("it is well again: it was {}", self.health)),
                trouble => ("trouble", trouble.to_owned()),
            };
            notices.push(Notice { kind, text });
            health.clone_into(&mut self.health);
        }
        let space = &status["space"];
        let bytes = |name: &str| space[name].as_u64();
        let (Some(total), Some(available)) = (bytes("total_bytes"), bytes("available_bytes"))
        else {
            return notices;
        };
        let full = u128::from(total.saturating_sub(available)) * 100 / u128::from(total.max(1));
        let full = u64::try_from(full).unwrap_or(100);
        let reached = LEVELS.into_iter().filter(|&level| full >= level).max().unwrap_or(0);
        if reached > self.level {
            let text = format!("{full} % of it are not available any more");
            notices.push(Notice { kind: "space", text });
            self.level = reached;
        } else if full + BELOW_PERCENT < self.level {
            self.level = reached;
        }
        notices
    }
}

/// Has `command` tell `notice` of the pool at `path`: by its environment. It gets no shell, and no
/// more than [`COMMAND_TIME`].
pub(super) fn tell(command: &[String], path: &str, notice: &Notice) {
    let Some((program, arguments)) = command.split_first() else { return };
    let failed = |cause: &dyn std::fmt::Display| {
        tracing::error!(program, kind = notice.kind, "a notice is not told: {cause}");
    };
    let started = Command::new(program)
        .args(arguments)
        .env("HOLDFAST_POOL", path)
        .env("HOLDFAST_EVENT", notice.kind)
        .env("HOLDFAST_TEXT", &notice.text)
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => return failed(&error),
    };
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return,
            Ok(Some(status)) => return failed(&status),
            Err(error) => return failed(&error),
            Ok(None) if begun.elapsed() > COMMAND_TIME => {
                let _ = child.kill();
                let _ = child.wait();
                return failed(&format!("it took more than {} s", COMMAND_TIME.as_secs()));
            }
            Ok(None) => std::thread::park_timeout(COMMAND_POLL),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_change_is_told_once() {
        let mut seen = Seen::default();
        let mut look = |health: &str, available: u64| {
            let space = json!({ "total_bytes": 1000, "available_bytes": available });
            let notices = seen.look(&json!({ "health": health, "space": space }));
            notices.into_iter().map(|it| it.kind).collect::<Vec<_>>()
        };
        assert!(look("ok", 900).is_empty());
        assert_eq!(look("a device is gone", 900), ["trouble"]);
        assert!(look("a device is gone", 900).is_empty());
        assert_eq!(look("two devices are gone", 900), ["trouble"]);
        assert_eq!(look("ok", 200), ["well", "space"]);
        assert!(look("ok", 195).is_empty());
        // Around the bound it is told once.
        assert!(look("ok", 205).is_empty() && look("ok", 200).is_empty());
        assert_eq!(look("ok", 90), ["space"]);
        assert!(look("ok", 500).is_empty());
        assert_eq!(look("ok", 50), ["space"]);
        assert!(Seen::default().look(&json!({})).is_empty());
    }

    #[test]
    fn a_command_is_told_by_its_environment() {
        let name = format!("holdfast-notice-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let words = ["sh", "-c", "echo $HOLDFAST_POOL $HOLDFAST_EVENT \"$HOLDFAST_TEXT\" > $0"];
        let mut command: Vec<String> = words.map(str::to_owned).to_vec();
        command.push(file.to_str().expect("it is ASCII").to_owned());
        let notice = Notice { kind: "trouble", text: "a; rm -rf $HOME".to_owned() };
        tell(&command, "/srv/pool.hf", &notice);
        let told = std::fs::read_to_string(&file).expect("it was run");
        assert_eq!(told, "/srv/pool.hf trouble a; rm -rf $HOME\n");
        std::fs::remove_file(&file).expect("it is ours");
        // What cannot be run is logged, and stops nobody.
        tell(&["/nonexistent".to_owned()], "/srv/pool.hf", &notice);
        tell(&[], "/srv/pool.hf", &notice);
    }
}
