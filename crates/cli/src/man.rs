//! Man pages beside those of the commands: `mount.holdfast(8)` and `holdfast.toml(5)`.
//!
//! The keys of `holdfast.toml` are those of the types that read it.

use clap_mangen::roff::{Roff, bold, italic, roman};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::reference::{described, resolved, variants};

/// Words of `-o` of this file system's own, as the parser has them.
const MOUNT_WORDS: [(&str, &str); 11] = [
    ("ro", "Mount read-only. The default for a snapshot"),
    ("rw", "Mount read-write"),
    ("remount", "Change ro, noatime, noexec, nodev and nosuid of the mount that is there"),
    (
        "allow_other",
        "Let other users in. The default for root; others need user_allow_other in \
     /etc/fuse.conf",
    ),
    ("noxattr", "No extended attributes, access lists and capabilities, and fewer messages"),
    (
        "inode32",
        "Inode numbers below 2^32, for programs of 32 bits. A file with a larger number is \
     EOVERFLOW",
    ),
    (
        "share",
        "The fileset may have other mounts with this option, and exports. Each sees changes \
     of the others at an open, and within a second otherwise",
    ),
    ("direct_io", "The kernel keeps nothing of any file"),
    (
        "direct_io=marked",
        "The kernel keeps nothing of files whose attribute \
     user.holdfast.direct_io is on",
    ),
    ("discard", "Discard free space, of block devices too"),
    ("nodiscard", "Discard no free space. By default it is discarded in files with holes only"),
];

fn page(title: &str, section: &str, name: &str) -> Roff {
    let mut roff = Roff::new();
    let version = concat!("Holdfast ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [title, section, "", version]);
    roff.control("SH", ["NAME"]).text([roman(name)]);
    roff
}

fn entry(roff: &mut Roff, word: &str, kind: &str, meaning: &str) {
    roff.control("TP", []).text([bold(word), roman(" "), italic(kind)]).text([roman(meaning)]);
}

/// Returns `mount.holdfast(8)`.
pub(crate) fn mount_page() -> String {
    let mut roff = page("mount.holdfast", "8", "mount.holdfast - mount a fileset of a pool");
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold("mount -t holdfast"), roman(" [-o "), italic("OPTIONS"), roman("] ")]);
    roff.text([italic("POOL"), roman("[:"), italic("FILESET"), roman("[@"), italic("SNAPSHOT")]);
    roff.text([roman("]] "), italic("DIRECTORY")]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(
        "mount(8) calls this helper for the type holdfast, and for fuse.holdfast as \
         mount.fuse.holdfast. It runs `holdfast mount POOL DIRECTORY --daemon -o OPTIONS`. The \
         first mount opens the pool; later ones of its filesets are handed to the same server. \
         Without a fileset it is the first one, root. umount(8) ends a mount.",
    )]);
    roff.control("PP", []).text([roman("A line of /etc/fstab:")]);
    roff.control("PP", []).text([bold("/srv/pool.hf:home  /home  holdfast  noatime,nofail  0  0")]);
    roff.control("SH", ["OPTIONS"]);
    for (word, meaning) in MOUNT_WORDS {
        entry(&mut roff, word, "", meaning);
    }
    roff.control("PP", []).text([roman(
        "The flags of mount(8) mean what they mean there: noexec, nodev, nosuid, noatime, \
         nodiratime, sync, dirsync, lazytime, nosymfollow, user, owner and their opposites. Words \
         for mount(8) and systemd have no effect here: defaults, auto, nofail, _netdev, x-..., \
         comment=... Another word is refused.",
    )]);
    roff.control("PP", []).text([roman(
        "Cache, deadlines and members are options of the command: see holdfast-mount(1). The \
         first mount of a pool, or its server, says them.",
    )]);
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman("As of mount(8): 0 mounted, 1 wrong arguments, 32 not mounted.")]);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("holdfast-mount(1), holdfast.toml(5), mount(8), fstab(5)")]);
    roff.render()
}

/// Returns `holdfast.toml(5)`.
pub(crate) fn config_page() -> String {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let file = server::hub::config::schema(&mut generator).to_value();
    let types = generator.take_definitions(true);
    let mut roff = page("holdfast.toml", "5", "holdfast.toml - configuration of a server");
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(
        "`holdfast serve --config FILE` reads it at its start, and `holdfast reload` and SIGHUP \
         again: exports, schedules, notices and roles change in use, the rest with the next start. \
         `holdfast serve --config FILE --check` names line and column of what is wrong. An unknown \
         key is an error. Relative paths are from the directory of the file. The units read \
         /etc/holdfast/holdfast.toml.",
    )]);
    let keys = |schema: &Value| -> Map<String, Value> {
        let found = resolved(schema, &types).get("properties").and_then(Value::as_object).cloned();
        found.unwrap_or_default()
    };
    let section_of = |field: &Value| -> Option<(bool, Value)> {
        let element = field.get("items");
        let table = element.unwrap_or_else(|| non_null(field));
        let is_table = resolved(table, &types).get("properties").is_some();
        is_table.then(|| (element.is_some(), table.clone()))
    };
    let mut write = |heading: &str, about: &str, keys: &Map<String, Value>| {
        roff.control("SH", [heading]).text([roman(about)]);
        for (key, field) in keys.iter().filter(|(_, field)| section_of(field).is_none()) {
            let meaning = format!("{}{}", described(field), words_of(field, &types));
            entry(&mut roff, key, &type_of(field), &meaning);
        }
    };
    let all = keys(&file);
    write("KEYS OF THE SERVER", "Before the first section.", &all);
    for (name, field) in &all {
        if let Some((is_repeated, table)) = section_of(field) {
            let heading = if is_repeated { format!("[[{name}]]") } else { format!("[{name}]") };
            write(&heading, &described(field), &keys(&table));
        }
    }
    roff.control("SH", ["EXAMPLE"]).control("nf", []);
    for line in include_str!("../../../packaging/holdfast.toml").lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []).control("SH", ["SEE ALSO"]);
    roff.text([roman("holdfast-serve(1), holdfast-reload(1), holdfast-mount(1)")]);
    roff.render()
}

/// Returns the schema of an optional value without its `null`.
fn non_null(schema: &Value) -> &Value {
    let any = schema.get("anyOf").and_then(Value::as_array);
    any.and_then(|all| all.iter().find(|it| it.get("$ref").is_some())).unwrap_or(schema)
}

fn type_of(schema: &Value) -> String {
    let kind = match non_null(schema).get("type") {
        Some(Value::Array(kinds)) => kinds.iter().find(|kind| *kind != "null"),
        kind => kind,
    };
    match kind.and_then(Value::as_str) {
        Some("array") => {
            let element = schema.get("items").map(type_of);
            format!("list of {}", element.unwrap_or_else(|| "numbers".to_owned()))
        }
        Some("integer") => "number".to_owned(),
        Some(kind) => kind.to_owned(),
        None => "string".to_owned(),
    }
}

/// Returns the words of an enumeration, for the end of its description.
fn words_of(schema: &Value, types: &Map<String, Value>) -> String {
    let words = variants(non_null(schema), types).filter_map(|it| {
        let word = it.get("const").and_then(Value::as_str)?;
        Some(format!(" {word}: {}.", described(it)))
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use front::fuse::MountOptions;
    use server::hub::config::Config;

    use super::*;

    /// Returns the words between backquotes.
    fn quoted(text: &str) -> BTreeSet<String> {
        text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    /// Goal: the page has the words that the parser has, and no other.
    #[test]
    fn the_options_of_a_mount_are_those_of_the_parser() {
        let refused = MountOptions::new("").apply("frobnicate").expect_err("there is none");
        let known = refused.to_string();
        let known = known.split_once("known are ").expect("it lists them").1;
        let known = known.split(", and the flags").next().unwrap_or_default();
        let known: BTreeSet<&str> = known.split(", ").collect();
        let listed: BTreeSet<&str> = MOUNT_WORDS.iter().map(|(word, _)| *word).collect();
        assert_eq!(known, listed);
        for (word, _) in MOUNT_WORDS {
            MountOptions::new("").apply(word).expect(word);
        }
    }

    /// Goal: the page has the keys that a configuration takes, and no other. Method: the error
    /// about an unknown key names all that are known.
    #[test]
    fn the_keys_of_the_page_are_those_of_the_parser() {
        let page = config_page();
        let path = std::env::temp_dir().join(format!("holdfast-man-{}.toml", std::process::id()));
        let known = |before: &str| {
            std::fs::write(&path, format!("{before}frobnicate = 1\n")).expect("there is room");
            let refused = Config::read(&path).expect_err("there is none").to_string();
            quoted(refused.split_once("expected").expect("it lists them").1)
        };
        let sections = known("");
        let mut count = 0;
        for part in
            page.split("\n.SH ").filter(|it| it.starts_with("[") || it.starts_with("\"KEYS"))
        {
            let section = part.lines().next().unwrap_or_default().trim_matches('"');
            let is_top = section.starts_with("KEYS");
            let keys = if is_top { sections.clone() } else { known(&format!("{section}\n")) };
            let of_page =
                part.lines().filter_map(|line| line.strip_prefix("\\fB")?.split('\\').next());
            let of_page: BTreeSet<String> = of_page.map(str::to_owned).collect();
            let is_section = |key: &String| page.contains(&format!("[{key}]"));
            let mut keys: BTreeSet<String> =
                keys.into_iter().filter(|key| !is_top || !is_section(key)).collect();
            // Refused, with the command that does the same.
            if section == "[[notify]]" {
                assert!(keys.remove("mail") && keys.remove("sendmail"));
            }
            assert_eq!(keys, of_page, "{section}");
            assert!(part.lines().all(|line| line.trim() != "\\fR"), "{part}");
            count += 1;
        }
        assert_eq!(count, 9, "{page}");
        std::fs::remove_file(&path).expect("it is ours");
    }
}
