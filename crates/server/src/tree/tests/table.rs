//! Tests of archives of every form against GNU tar.
//!
//! Each archive is copied into a pool and extracted by GNU tar into a directory. The two results
//! are compared in both directions: content, kinds, modes, owners, times, links, extended
//! attributes and access lists. Without root, all files belong to the test's user.

use std::process::{Command, Stdio};

use super::*;

const FORMS: [Form; 5] = [Form::V7, Form::Ustar, Form::Gnu, Form::Pax, Form::Star];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    V7,
    Ustar,
    Gnu,
    Pax,
    Star,
}

#[derive(Clone, Copy, Debug)]
enum Style {
    Zeros,
    Spaces,
    NoEnd,
    Base256,
    LeadingZeroByte,
}

const STYLES: [Style; 5] =
    [Style::Zeros, Style::Spaces, Style::NoEnd, Style::Base256, Style::LeadingZeroByte];

#[allow(clippy::big_endian_bytes, reason = "a tar has its large numbers so")]
fn field(style: Style, number: i64, width: usize) -> Vec<u8> {
    match style {
        Style::Zeros => format!("{number:0>0$o}\0", width - 1).into_bytes(),
        Style::Spaces => format!("{number:>0$o} ", width - 1).into_bytes(),
        Style::NoEnd => format!("{number:0>0$o}", width).into_bytes(),
        Style::LeadingZeroByte => format!("\0{number:0>0$o} ", width - 2).into_bytes(),
        Style::Base256 => {
            let fill = if number < 0 { 0xff } else { 0 };
            let mut bytes = vec![fill; width - 8];
            bytes.extend(number.to_be_bytes());
            bytes[0] |= 0x80;
            bytes
        }
    }
}

/// Returns the owner of the test's files. Only root may set another owner than itself.
fn owner() -> (u32, u32) {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if uid.is_root() { (1234, 4321) } else { (uid.as_raw(), gid.as_raw()) }
}

struct TarEntrySpec<'m> {
    name: &'m [u8],
    kind: u8,
    target: &'m [u8],
    content: &'m [u8],
    mode: i64,
    mtime: i64,
    records: Vec<(String, Vec<u8>)>,
}

impl Default for TarEntrySpec<'_> {
    fn default() -> Self {
        TarEntrySpec {
            name: b"f",
            kind: b'0',
            target: b"",
            content: b"",
            mode: 0o640,
            mtime: 1_234_567_890,
            records: Vec::new(),
        }
    }
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn block(form: Form, style: Style, made: &TarEntrySpec<'_>, length: usize) -> Vec<u8> {
    let mut block = vec![0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &made.name[..made.name.len().min(100)]);
    put(
        100,
        &field(if matches!(style, Style::Base256) { Style::Zeros } else { style }, made.mode, 8),
    );
    let (uid, gid) = owner();
    put(108, &field(style, uid.into(), 8));
    put(116, &field(style, gid.into(), 8));
    let size = i64::try_from(length).expect("small");
    put(124, &field(if matches!(style, Style::Base256) { Style::Zeros } else { style }, size, 12));
    let dated = if made.mtime < 0 { Style::Base256 } else { style };
    put(136, &field(dated, made.mtime, 12));
    let is_plain = made.kind == b'0' && form == Form::V7;
    put(156, &[if is_plain { 0 } else { made.kind }]);
    put(157, &made.target[..made.target.len().min(100)]);
    match form {
        Form::V7 => {}
        Form::Ustar | Form::Pax => put(257, b"ustar\x0000"),
        Form::Gnu => put(257, b"ustar  \0"),
        Form::Star => {
            put(257, b"ustar\x0000");
            put(508, b"tar\0");
        }
    }
    if form != Form::V7 && matches!(made.kind, b'3' | b'4') {
        put(329, b"0000001\0");
        put(337, b"0000003\0");
    }
    put(148, b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn entry(form: Form, style: Style, made: &TarEntrySpec<'_>) -> Vec<u8> {
    let mut tar = Vec::new();
    let is_long = made.name.len() > 100 || made.target.len() > 100;
    let mut records: Vec<u8> =
        made.records.iter().flat_map(|(key, value)| archive::record_of(key, value)).collect();
    if is_long && matches!(form, Form::Pax | Form::Star) {
        records.extend(archive::record_of("path", made.name));
        records.extend(archive::record_of("linkpath", made.target));
    }
    if !records.is_empty() {
        let pax = TarEntrySpec { name: b"pax", kind: b'x', ..TarEntrySpec::default() };
        tar.extend(block(form, Style::Zeros, &pax, records.len()));
        tar.extend(padded(records));
    }
    if is_long && matches!(form, Form::Gnu | Form::V7 | Form::Ustar) {
        for (kind, text) in [(b'L', made.name), (b'K', made.target)] {
            let text = [text, b"\0"].concat();
            let long = TarEntrySpec { name: b"././@LongLink", kind, ..TarEntrySpec::default() };
            tar.extend(block(Form::Gnu, Style::Zeros, &long, text.len()));
            tar.extend(padded(text));
        }
    }
    tar.extend(block(form, style, made, made.content.len()));
    tar.extend(padded(made.content.to_vec()));
    tar
}

fn all() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for form in FORMS {
        for style in STYLES {
            for (case, made) in cases() {
                if case.starts_with("sparse") && matches!(form, Form::V7 | Form::Gnu) {
                    continue;
                }
                let mut tar = Vec::new();
                let directory = TarEntrySpec {
                    name: b"./",
                    kind: b'5',
                    mode: 0o755,
                    ..TarEntrySpec::default()
                };
                tar.extend(entry(form, Style::Zeros, &directory));
                for made in &made {
                    tar.extend(entry(form, style, made));
                }
                tar.extend([0; 1024]);
                all.push((format!("{form:?} {style:?} {case}"), tar));
            }
        }
    }
    all
}

fn record(key: &str, value: &[u8]) -> (String, Vec<u8>) {
    (key.to_owned(), value.to_vec())
}

fn cases() -> Vec<(&'static str, Vec<TarEntrySpec<'static>>)> {
    let long: &'static [u8] = &[b'n'; 150];
    let file = |name: &'static [u8], content: &'static [u8]| TarEntrySpec {
        name,
        content,
        ..TarEntrySpec::default()
    };
    let link = |name: &'static [u8], kind, target: &'static [u8]| TarEntrySpec {
        name,
        kind,
        target,
        ..TarEntrySpec::default()
    };
    let dated = |mtime| TarEntrySpec { mtime, ..file(b"f", b"dated") };
    let with = |records| TarEntrySpec { records, ..file(b"f", b"with") };
    let directory = |name: &'static [u8], mode| TarEntrySpec {
        name,
        kind: b'5',
        mode,
        ..TarEntrySpec::default()
    };
    vec![
        ("files", vec![file(b"empty", b""), file(b"f", b"one"), file(b"g", &[7; 512])]),
        (
            "directories",
            vec![directory(b"d/", 0o700), directory(b"d/e", 0o1777), file(b"d/e/f", b"x")],
        ),
        ("late directory", vec![file(b"d/f", b"x"), directory(b"d/", 0o750)]),
        (
            "suffix",
            vec![TarEntrySpec { name: b"d/", ..TarEntrySpec::default() }, file(b"d/f", b"x")],
        ),
        ("links", vec![file(b"f", b"x"), link(b"h", b'1', b"f"), link(b"s", b'2', b"f")]),
        ("long", vec![file(long, b"x"), link(b"s", b'2', long), link(b"h", b'1', long)]),
        ("twice", vec![file(b"f", b"one"), link(b"h", b'1', b"f"), file(b"f", b"other")]),
        ("over link", vec![file(b"g", b"x"), link(b"f", b'2', b"g"), file(b"f", b"own")]),
        ("over file", vec![file(b"d", b"x"), directory(b"d/", 0o755), file(b"d/f", b"x")]),
        ("over empty", vec![directory(b"f", 0o755), file(b"f", b"x")]),
        ("fifo", vec![link(b"p", b'6', b"")]),
        ("contiguous", vec![TarEntrySpec { kind: b'7', ..file(b"f", b"x") }]),
        ("unknown", vec![TarEntrySpec { kind: b'Z', ..file(b"f", b"x") }]),
        (
            "dump",
            vec![TarEntrySpec { kind: b'D', ..file(b"d/", b"Yf\0Dg\0\0") }, file(b"d/f", b"x")],
        ),
        ("label", vec![link(b"label", b'V', b""), file(b"f", b"x")]),
        ("before 1970", vec![dated(-157_766_400)]),
        ("zero", vec![dated(0)]),
        ("far", vec![dated(0o17_777_777_777)]),
        ("set bits", vec![TarEntrySpec { mode: 0o6755, ..file(b"f", b"x") }]),
        ("no rights", vec![TarEntrySpec { mode: 0, ..file(b"f", b"x") }]),
        ("kind in mode", vec![TarEntrySpec { mode: 0o100_644, ..file(b"f", b"x") }]),
        ("fraction", vec![with(vec![record("mtime", b"1000000000.123456789")])]),
        ("negative fraction", vec![with(vec![record("mtime", b"-1000.25")])]),
        ("size", vec![with(vec![record("size", b"4"), record("comment", b"a=b")])]),
        ("user attribute", vec![with(vec![record("SCHILY.xattr.user.a%3Db", b"v\0")])]),
        (
            "list",
            vec![with(vec![record(
                "SCHILY.acl.access",
                b"user::rw-\nuser:1001:rw-\ngroup::---\nmask::rw-\nother::---\n",
            )])],
        ),
        (
            "plain list",
            vec![with(vec![record("SCHILY.acl.access", b"user::rw-,group::r--,other::---")])],
        ),
        (
            "sparse 0.1",
            vec![with(vec![
                record("GNU.sparse.size", b"9000"),
                record("GNU.sparse.numblocks", b"2"),
                record("GNU.sparse.map", b"4096,4,9000,0"),
            ])],
        ),
        (
            "sparse 0.0",
            vec![with(vec![
                record("GNU.sparse.size", b"9000"),
                record("GNU.sparse.numblocks", b"2"),
                record("GNU.sparse.offset", b"4096"),
                record("GNU.sparse.numbytes", b"4"),
                record("GNU.sparse.offset", b"9000"),
                record("GNU.sparse.numbytes", b"0"),
            ])],
        ),
        (
            "sparse 1.0",
            vec![TarEntrySpec {
                name: b"GNUSparseFile.0/f",
                records: vec![
                    record("GNU.sparse.major", b"1"),
                    record("GNU.sparse.minor", b"0"),
                    record("GNU.sparse.name", b"f"),
                    record("GNU.sparse.realsize", b"9000"),
                ],
                content: MAP,
                ..TarEntrySpec::default()
            }],
        ),
        ("implied", vec![file(b"a/b/f", b"x")]),
    ]
}

/// A map of sparse form 1.0, with four bytes of content.
const MAP: &[u8] = &{
    let mut map = [0; 516];
    let text = b"2\n4096\n4\n9000\n0\n";
    let mut at = 0;
    while at < text.len() {
        map[at] = text[at];
        at += 1;
    }
    map[512] = b'd';
    map[513] = b'a';
    map[514] = b't';
    map[515] = b'a';
    map
};

fn has_gnu_tar() -> bool {
    let version = Command::new("tar").arg("--version").output();
    version.is_ok_and(|it| String::from_utf8_lossy(&it.stdout).contains("GNU tar"))
}

fn extract(tar: &[u8], into: &Path) {
    fs::create_dir_all(into).expect("it is new");
    let file = into.with_extension("tar");
    fs::write(&file, tar).expect("there is room");
    let mut command = Command::new("tar");
    command.args(["--numeric-owner", "--acls", "--xattrs", "--xattrs-include=*", "-xpf"]);
    let input = Stdio::null();
    command.arg(&file).arg("-C").arg(into).stdin(input).stderr(Stdio::null());
    command.status().expect("it runs");
    fs::remove_file(&file).expect("it is ours");
}

fn differences(facts: &Value) -> Vec<String> {
    let errors = facts["errors"].as_array().cloned().unwrap_or_default();
    let words = errors.iter().filter_map(Value::as_str).map(str::to_owned);
    // The time of a directory without an entry is that of the last creation in it.
    let is_implied = |words: &String| {
        ["a: ", "a/b: ", "d: "].iter().any(|name| words.starts_with(name))
            && words.contains("modification time")
    };
    words.filter(|words| !is_implied(words)).collect()
}

/// Goal: a copy-in of an archive of any form gives the same result as GNU tar.
#[test]
fn archives_come_as_gnu_tar_extracts_them() {
    if !has_gnu_tar() {
        return;
    }
    let place = TestTreeDirectory::new("table");
    let pool = pool(256 << 20);
    let fs = pool.file_system();
    let all = all();
    assert!(all.len() >= 200, "{}", all.len());
    let mut wrong = Vec::new();
    for (number, (name, tar)) in all.iter().enumerate() {
        let directory = place.path(&number.to_string());
        extract(tar, &directory);
        let inside = tree_of(&fs, &format!("/{number}"));
        let (_, word) = unpacked(tar, &inside, CopyPurpose::Copy);
        let extracted = host(&directory);
        let there = differences(&copied(&extracted, &inside, CopyPurpose::Verify));
        let back = differences(&copied(&inside, &extracted, CopyPurpose::Verify));
        if word.is_some() || !there.is_empty() || !back.is_empty() {
            wrong.push(format!("{name}: {word:?} {there:?} {back:?}"));
        }
        fs::remove_dir_all(&directory).expect("it is ours");
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    pool.close().expect("memory does not fail");
}
