//! Tests of the parser of requests: valid lines, and the errors of all others.

use runtime::prng::Prng;
use serde_json::json;

use super::*;

/// Fuzzed lines without `HOLDFAST_FUZZ`.
const REQUESTS: u64 = 20_000;

fn good() -> Vec<Request> {
    let name = || "a/b".to_owned();
    let properties = Properties {
        block_bytes: Some(4096),
        is_read_only: Some(true),
        quota_bytes: Some(1 << 30),
        reservation_bytes: Some(1 << 20),
        placement: Some("striped".to_owned()),
    };
    let keep = SnapshotCounts::default();
    let export = ExportSpec {
        name: "/a".to_owned(),
        pool: None,
        fileset: Some(name()),
        dir: None,
        to: Vec::new(),
        rw: false,
        squash: SquashName::Root,
        anon: None,
        insecure: false,
        is_async: false,
    };
    vec![
        Request::FilesetList { from: 7 },
        Request::FilesetCreate { name: name(), properties },
        Request::FilesetSet { name: name(), properties: Properties::default() },
        Request::FilesetRename { name: name(), to: "c".to_owned() },
        Request::FilesetDelete { name: name() },
        Request::CloneCreate { fileset: name(), snapshot: name(), to: name() },
        Request::FilesetRestore { fileset: name(), snapshot: name() },
        Request::FilesetPromote { name: name() },
        Request::FilesetHere { name: name() },
        Request::SnapshotCreateBelow { fileset: name(), snapshot: name() },
        Request::SnapshotHold { fileset: name(), snapshot: name(), hold: name(), is_held: true },
        Request::SnapshotUnique { fileset: name(), snapshot: name() },
        Request::PoolRename { name: "tank".to_owned() },
        Request::DeviceList {},
        Request::DeviceFail { device: "0".to_owned() },
        Request::DeviceClear { device: Some("0".to_owned()) },
        Request::DeviceReplace { old: "1".to_owned(), new: "/d".into(), is_forced: true },
        Request::DeviceAttach {
            beside: "0".to_owned(),
            device: "/d".into(),
            size_bytes: Some(1 << 30),
            is_forced: false,
            is_spread: true,
            is_in_turn: false,
        },
        Request::DeviceDetach { device: "0".to_owned(), accepts_no_redundancy: true },
        Request::DeviceGrow { devices: vec!["0".to_owned()], size_bytes: Some(1 << 30) },
        Request::GroupList {},
        Request::GroupAdd(NewGroup {
            kind: "single".to_owned(),
            devices: vec!["/d".into()],
            size_bytes: Some(1 << 30),
            is_forced: false,
            roles: vec!["journal".to_owned()],
        }),
        Request::GroupRemove { group: 1 },
        Request::GroupMetadata { group: 1 },
        Request::PlacementSet {
            fileset: name(),
            path: "/a".to_owned(),
            placement: "striped".to_owned(),
            is_recursive: true,
        },
        Request::PlacementShow { fileset: name(), path: String::new() },
        Request::Scrub {},
        Request::ScrubStatus {},
        Request::Trim {},
        Request::TrimStatus {},
        Request::JobList {},
        Request::JobPause { job: 3, is_paused: false },
        Request::JobPace { job: 3, percent: Some(20) },
        Request::ExportList { after: String::new() },
        Request::ExportAdd { export },
        Request::ExportRemove { name: "/a".to_owned() },
        Request::ClientList {},
        Request::LockList {},
        Request::OperationList {},
        Request::PathList { look: 7, depth: 2, lasts_ms: 9000 },
        Request::SlowList { wish: 7, after: 3, from_us: 50_000, lasts_ms: 0 },
        Request::ScheduleSet {
            fileset: name(),
            keep: SnapshotCounts { hourly: 24, ..keep },
            is_gone: false,
        },
        Request::ScheduleList {},
        Request::ScrubScheduleSet { every: Some(ScrubEvery::Weekly) },
        Request::ScrubScheduleSet { every: None },
        Request::ScrubSchedule {},
        Request::NotifyTest {},
        Request::Reload {},
    ]
}

#[test]
fn a_request_survives_its_line_and_what_is_not_known_is_refused() {
    for request in good() {
        let mut value = serde_json::to_value(&request).expect("it is plain");
        assert_eq!(Request::parse(VERSION, value.clone()), Ok(request));
        let older = Request::parse(0, value.clone()).expect_err("another version");
        assert!(older.contains("version 0"), "{older}");
        value["more"] = json!(1);
        let refused = Request::parse(VERSION, value).expect_err("an unknown field");
        assert!(refused.contains("more"), "{refused}");
    }
    let refused = Request::parse(VERSION, json!({ "do": "burn" })).expect_err("no such thing");
    assert!(refused.contains("burn"), "{refused}");
}

/// Goal: no input panics the parser. Method: lines of valid requests with bytes changed, by seed.
#[test]
fn any_change_of_a_request_is_answered() {
    let count = std::env::var("HOLDFAST_FUZZ").ok().and_then(|text| text.parse().ok());
    let lines: Vec<Vec<u8>> =
        good().iter().map(|it| serde_json::to_vec(it).expect("it is plain")).collect();
    let mut understood = 0;
    for seed in 0..count.unwrap_or(REQUESTS) {
        let mut prng = Prng::from_seed(seed);
        let mut below = |end: usize| usize::try_from(prng.next_u64()).expect("64 bits") % end;
        let mut line = lines[below(lines.len())].clone();
        for _ in 0..=below(3) {
            let (at, other) = (below(line.len()), below(lines.len()));
            match below(3) {
                0 => line[at] = u8::try_from(below(256)).expect("a byte"),
                1 => line.truncate(at + 1),
                _ => line = [&line[..at], &lines[other]].concat(),
            }
        }
        let Ok(value) = serde_json::from_slice(&line) else { continue };
        match Request::parse(VERSION, value) {
            Ok(_) => understood += 1,
            Err(words) => assert!(words.contains("refused"), "{words}"),
        }
    }
    assert!(understood > 0, "no request was understood");
}

#[test]
fn requests_that_list_change_nothing() {
    let looks: Vec<Request> = good().into_iter().filter(|it| !it.is_change()).collect();
    let after = String::new();
    let lists = [
        Request::FilesetList { from: 7 },
        Request::DeviceList {},
        Request::GroupList {},
        Request::ScrubStatus {},
        Request::TrimStatus {},
        Request::JobList {},
        Request::ExportList { after },
        Request::ClientList {},
        Request::LockList {},
        Request::OperationList {},
        Request::PathList { look: 7, depth: 2, lasts_ms: 9000 },
        Request::SlowList { wish: 7, after: 3, from_us: 50_000, lasts_ms: 0 },
        Request::ScheduleList {},
        Request::ScrubSchedule {},
    ];
    assert_eq!(looks, lists);
}

#[test]
fn properties_are_words_and_others_are_refused() {
    let of = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        Properties::of(&words).map_err(|error| error.to_string())
    };
    let all = Properties {
        block_bytes: Some(65_536),
        is_read_only: Some(true),
        quota_bytes: Some(10 << 30),
        reservation_bytes: Some(1 << 30),
        placement: Some("1".to_owned()),
    };
    let words = ["block=64K", "readonly=on", "quota=10G", "reservation=1G", "placement=1"];
    assert_eq!(of(&words), Ok(all));
    assert_eq!(of(&["quota=none"]).map(|it| it.quota_bytes), Ok(Some(0)));
    assert_eq!(of(&[]), Ok(Properties::default()));
    for word in [
        "block",
        "block=x",
        "readonly=maybe",
        "colour=red",
        "=",
        "",
        "quota=",
        "quota=0",
        "placement=8",
        "placement=",
    ] {
        let refused = of(&[word]).expect_err("no property");
        assert!(refused.contains("block=SIZE, readonly"), "{refused}");
    }
    assert!(of(&["block=4K", "block=4K"]).is_err_and(|words| words.contains("twice")));
}
