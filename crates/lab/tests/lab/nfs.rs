//! `holdfast-lab bench nfs` on a server of this machine.

use std::fs;

use crate::program::{Serving, holdfast, lab_output};

/// Goal: a server is put under each mix of calls, and is left as it was. Method: the program serves
/// a pool and measures it; a second run finds nothing of the first in its way.
#[test]
fn a_server_is_put_under_mixes_of_calls() {
    let name = format!("holdfast-bench-nfs-{}", std::process::id());
    let work = std::env::temp_dir().join(name);
    fs::create_dir_all(&work).expect("the name is new");
    let pool = work.join("pool.hf").to_str().expect("it is ASCII").to_owned();
    let (state, out) = (work.join("state"), work.join("out"));
    assert!(holdfast(&["create", &pool, "--size", "256M"]).status.success());
    let (state, out_text) = (state.display().to_string(), out.display().to_string());
    let export = ["--export", "/a:rw,squash=none,insecure", "--export", "/b:ro,insecure"];
    let serve = [&[&*pool, "--nfs", "127.0.0.1:0", "--state", &*state][..], &export].concat();
    let serving = Serving::start(&serve);
    let (_, rest) = serving.line.split_once("\"nfs\":\"").expect("it says where");
    let address = rest.split('"').next().expect("it is quoted").to_owned();
    let bench = |more: &[&str]| {
        let few = ["--seconds", "1", "--clients", "2", "--files", "5"];
        lab_output(&[&["--json", "bench", "nfs", &*address][..], more, &few].concat())
    };
    for (mix, procedures) in [("laddis", 10), ("sfs97", 14)] {
        let ran = bench(&["/a", "--mix", mix, "--out", &out_text]);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
        let facts: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("it is JSON");
        let facts = &facts["bench_nfs"];
        let steps = facts["steps"].as_array().expect("a list");
        assert_eq!((steps.len(), facts["mix"].as_str()), (7, Some(mix)));
        assert!(steps.iter().all(|step| step["throughput"].as_f64() > Some(0.0)), "{facts}");
        // Below what the server can do it is offered what was said, give or take a busy machine.
        let (offered, reached) = (&steps[1]["offered"], &steps[1]["throughput"]);
        let (offered, reached) = (offered.as_f64(), reached.as_f64());
        let (offered, reached) = (offered.expect("a number"), reached.expect("a number"));
        assert!(reached < offered * 1.5, "{reached} of {offered}");
        let seen = steps[0]["procedures"].as_array().expect("a list").len();
        assert!((procedures - 3..=procedures).contains(&seen), "{mix}: {seen} procedures");
        let written = |name: &str| fs::read_to_string(out.join(name)).expect("it is written");
        assert!(written("bench-nfs.svg").starts_with("<svg"));
        assert!(written("bench-nfs.md").contains("USENIX") || mix == "sfs97");
        assert!(written("bench-nfs.json").contains("p99_ms"));
    }
    for (more, words) in [
        (&["/none"][..], "the export must be there"),
        (&["/b"], "the export must"),
        (&["/a", "--seed", "x"], "invalid value"),
    ] {
        let ran = bench(more);
        let text = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
        assert!(!ran.status.success() && text.contains(words), "{more:?}: {text}");
    }
    let ran = lab_output(&["bench", "nfs", &address, "/a", "--clients", "0"]);
    assert_eq!(ran.status.code(), Some(2), "{}", String::from_utf8_lossy(&ran.stderr));
    let (_, port) = address.rsplit_once(':').expect("it has a port");
    serving.end();
    let ran = lab_output(&["bench", "nfs", &format!("127.0.0.1:{port}"), "/a"]);
    let text = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(!ran.status.success() && text.contains("is it reached?"), "{text}");
    assert!(holdfast(&["check", &pool]).status.success());
    fs::remove_dir_all(&work).expect("nothing uses it");
}
