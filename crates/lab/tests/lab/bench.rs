//! `holdfast-lab bench` as a user sees it; on mounts it is tested by `scripts/mounted/bench.sh`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::program::{Ran, lab, lab_output};

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("bench-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        for folder in ["place", "a", "b"] {
            fs::create_dir_all(path.join(folder)).expect("a new directory");
        }
        Place(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Runs the bench on directories `a` and `b`, with `more`.
    fn bench(&self, more: &[&str]) -> Ran {
        let text = |path: PathBuf| path.display().to_string();
        let (a, b) = (text(self.path("a")), text(self.path("b")));
        let (place, a, b) = (text(self.path("place")), format!("a={a}"), format!("b={b}"));
        let mut arguments = vec!["bench", "--place", &place, "--against", &a, "--against", &b];
        arguments.extend(["--targets", "none"]);
        if !more.contains(&"--scale") {
            arguments.extend(["--scale", "0.001"]);
        }
        arguments.extend(more);
        lab(&arguments)
    }

    fn is_empty(&self, name: &str) -> bool {
        fs::read_dir(self.path(name)).expect("it is there").next().is_none()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_json(path: &Path) -> bool {
    let text = fs::read_to_string(path).expect("it was written");
    serde_json::from_str::<serde_json::Value>(&text).is_ok()
}

/// Goal: what was asked for is measured, told and written; nothing else is left.
#[test]
fn a_bench_tells_ratios_with_intervals_and_leaves_nothing() {
    let place = Place::new("whole");
    let out = place.path("out");
    let told = place.bench(&[
        "--only",
        "unlink,mixed",
        "--threads",
        "1,2",
        "--rounds",
        "6",
        "--json",
        "--out",
        &out.display().to_string(),
    ]);
    let told = told.expect(0).json();
    let results = told["bench"]["results"].as_array().expect("there are some");
    let names: Vec<_> =
        results.iter().map(|of| (of["name"].clone(), of["threads"].clone())).collect();
    let wanted = [("unlink", 1), ("unlink", 2), ("mixed", 1), ("mixed", 2)];
    assert_eq!(names, wanted.map(|(name, threads)| (name.into(), threads.into())));
    for measured in results {
        let ratio = &measured["ratios"][0];
        assert_eq!((&ratio["of"], &ratio["to"]), (&"b".into(), &"a".into()));
        let value = |name: &str| ratio["ratio"][name].as_f64().expect("a number");
        assert!(value("low") <= value("median") && value("median") <= value("high"), "{ratio}");
        assert!(value("confidence") > 0.95, "{ratio}");
        assert_eq!(measured["rates"][0]["samples"].as_array().map(Vec::len), Some(6));
    }
    assert!(told["bench"]["noise"]["verdict"].is_string());
    assert!(is_json(&out.join("bench.json")));
    assert!(fs::read_to_string(out.join("bench.svg")).expect("written").contains("mixed"));
    for folder in ["place", "a", "b"] {
        assert!(place.is_empty(folder), "{folder}");
    }
}

#[test]
fn a_directory_that_is_not_empty_is_refused_and_left_alone() {
    let place = Place::new("full");
    fs::write(place.path("b").join("thesis"), "years").expect("writable");
    let refused = place.bench(&[]).expect(1).stderr();
    assert!(refused.contains("not empty (`thesis` is in it)"), "{refused}");
    assert_eq!(fs::read(place.path("b").join("thesis")).expect("there"), b"years");
    assert!(place.is_empty("a") && place.is_empty("place"));
}

#[test]
fn nonsense_is_refused_before_anything_is_made() {
    let place = Place::new("nonsense");
    let nonsense: [(&[&str], &str); 6] = [
        (&["--only", "everything"], "--list shows them"),
        (&["--rounds", "0"], "--rounds must be"),
        (&["--scale", "11"], "--scale must be"),
        (&["--scale", "NaN"], "--scale must be"),
        (&["--threads", "0"], "--threads must be"),
        (&["--server", "a=b=c"], "not a process"),
    ];
    for (arguments, message) in nonsense {
        let refused = place.bench(arguments).expect(2).stderr();
        assert!(refused.contains(message), "{arguments:?}: {refused}");
        assert!(place.is_empty("place") && place.is_empty("a"));
    }
    let alone = lab(&["bench", "--targets", "none"]).expect(2).stderr();
    assert!(alone.contains("nothing to measure"), "{alone}");
}

/// Goal: a run that cannot fit is refused, with what it needs.
#[test]
fn a_run_that_needs_more_space_than_there_is_is_refused() {
    let place = Place::new("space");
    let (place_path, a) = (place.path("place"), place.path("a"));
    let refused = lab(&[
        "bench",
        "--place",
        &place_path.display().to_string(),
        "--against",
        &format!("a={}", a.display()),
        "--mounted",
        "one=",
    ]);
    refused.expect(2);
    let many: Vec<String> = (0..400).map(|number| format!("m{number}=-oro")).collect();
    let place_text = place_path.display().to_string();
    let mut arguments = vec!["bench", "--place", &place_text, "--targets", "none", "--scale", "10"];
    for mounted in &many {
        arguments.extend(["--mounted", mounted]);
    }
    let refused = lab(&arguments).expect(1).stderr();
    assert!(refused.contains("give a smaller --scale"), "{refused}");
    assert!(place.is_empty("place"));
}

/// Goal: a server is killed under load and serves again, nothing that was synced is lost, and there
/// is a picture of it.
#[test]
fn a_kill_under_load_is_drawn_and_loses_nothing() {
    let has_fuse = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !has_fuse || !rustix::process::geteuid().is_root() {
        eprintln!("\n*** SKIPPED: a_kill_under_load_...: needs root and /dev/fuse ***\n");
        return;
    }
    let place = Place::new("kill");
    let (at, out) = (place.path("place"), place.path("out"));
    let at = at.to_str().expect("it is ASCII");
    let words = ["--json", "bench", "kill", "--writers", "2", "--place", at, "--out"];
    let ran = lab_output(&[&words[..], &[out.to_str().expect("it is ASCII")]].concat());
    let facts: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("it is JSON");
    let facts = &facts["bench_kill"];
    assert!(ran.status.success() && facts["lost"] == 0, "{facts}");
    assert!(facts["acknowledged"].as_u64() > Some(0), "{facts}");
    assert!(fs::read_to_string(out.join("kill.svg")).expect("it is written").starts_with("<svg"));
    assert!(place.is_empty("place"));
}
