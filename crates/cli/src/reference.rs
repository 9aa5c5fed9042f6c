//! The reference of the control protocol, made from its types: each request with its fields, its
//! command, and each answer.
//!
//! `holdfast generate` writes it as `control.md`; `docs/CONTROL.md` is a copy, which a test
//! compares.

use std::fmt::Write;

use control::{Answer, Request, VERSION};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// The command that sends each request, by the request's `do`.
const COMMANDS: &[(&str, &str)] = &[
    ("fileset-list", "fileset list tank.hf"),
    ("fileset-create", "fileset create tank.hf:home block=64K"),
    ("fileset-set", "fileset set tank.hf:home quota=10G"),
    ("fileset-rename", "fileset rename tank.hf:home tank.hf:people"),
    ("fileset-delete", "fileset delete tank.hf:home"),
    ("clone-create", "clone create tank.hf:home@monday tank.hf:trial"),
    ("fileset-restore", "fileset restore tank.hf:home@monday"),
    ("fileset-promote", "fileset promote tank.hf:trial"),
    ("fileset-here", "fileset move tank.hf:home --here"),
    ("receive-abort", "receive tank.hf:home --abort"),
    ("snapshot-create", "snapshot create tank.hf:home@monday"),
    ("snapshot-create-below", "snapshot create tank.hf:home@monday --recursive"),
    ("snapshot-hold", "snapshot hold tank.hf:home@monday backup"),
    ("snapshot-delete", "snapshot delete tank.hf:home@monday"),
    ("snapshot-unique", "snapshot list tank.hf --unique"),
    ("pool-rename", "pool rename tank.hf data"),
    ("device-list", "device list tank.hf"),
    ("device-fail", "device fail tank.hf d1.hf"),
    ("device-clear", "device clear tank.hf"),
    ("device-replace", "device replace tank.hf d1.hf d2.hf"),
    ("device-online", "device online tank.hf d1.hf"),
    ("device-add", "device add tank.hf d2.hf --spare"),
    ("device-attach", "device add tank.hf d2.hf --mirror d1.hf"),
    ("device-detach", "device remove tank.hf d1.hf"),
    ("device-remove", "device remove tank.hf d2.hf"),
    ("device-grow", "device grow tank.hf"),
    ("group-list", "group list tank.hf"),
    ("group-add", "group add tank.hf single:d2.hf"),
    ("group-remove", "group remove tank.hf 1"),
    ("group-metadata", "group metadata tank.hf 1"),
    ("scrub", "scrub tank.hf"),
    ("scrub-status", "scrub tank.hf --wait"),
    ("trim", "trim tank.hf"),
    ("trim-status", "trim tank.hf"),
    ("job-list", "job list tank.hf"),
    ("job-pause", "job pause tank.hf 1"),
    ("job-pace", "job pace tank.hf 1 20"),
    ("export-list", "export list tank.hf"),
    ("export-add", "export add tank.hf:home /home --to 10.0.0.0/8 --rw"),
    ("export-remove", "export remove tank.hf /home"),
    ("client-list", "top tank.hf"),
    ("lock-list", "locks list tank.hf"),
    ("operation-list", "top tank.hf"),
    ("path-list", "top tank.hf --depth 3"),
    ("slow-list", "trace tank.hf --slower 50ms"),
    ("schedule-set", "schedule set tank.hf:home hourly=24,daily=7"),
    ("schedule-list", "schedule list tank.hf"),
    ("scrub-schedule-set", "schedule scrub tank.hf weekly"),
    ("scrub-schedule", "schedule list tank.hf"),
    ("notify-test", "notify test tank.hf"),
    ("quota-on", "quota on tank.hf:home"),
    ("quota-off", "quota off tank.hf:home"),
    ("quota-set", "quota set tank.hf:home --user 1000 --blocks-hard 10G"),
    ("quota-grace", "quota grace tank.hf:home --blocks 7d"),
    ("quota-project", "quota project set tank.hf:home films 7"),
    ("quota-report", "quota report tank.hf:home"),
    ("placement-set", "placement set tank.hf:home films 1"),
    ("placement-show", "placement show tank.hf:home films"),
    ("reload", "reload tank.hf"),
];

/// Returns the reference as Markdown.
pub(crate) fn control_reference() -> String {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let requests = generator.subschema_for::<Request>().to_value();
    let answers = generator.subschema_for::<Answer>().to_value();
    let types = generator.take_definitions(true);
    let mut text = format!(
        "# The control protocol\n\nMade from the types in `crates/control` by `holdfast generate`. \
         Version {VERSION}.\n\nA request is a JSON object with the field `do`. A client sends it \
         as one line on the status socket of a server, or as\nthe body of \
         `POST /api/v1/pools/POOL/control` (see [OPERATIONS](OPERATIONS.md)). With `--json` a \
         command prints the\nsame facts, one object a line.\n\n## Versions\n\nEach object that a \
         command prints has the field `version`. On the status socket a request is sent with \
         its\n`version`, as `{{\"ask\":\"control\",\"version\":{VERSION},\"request\":{{...}}}}`, \
         and by HTTP the path has it: `/api/v{VERSION}`.\n\
         The status socket is the unix socket of a server in its run directory. New requests, \
         fields and words may come within\na version; none goes or changes its meaning. In an \
         answer, ignore fields that you do not know. In a request, the server\nrefuses fields \
         and words that it does not know. Another version is refused with a text that names \
         both.\nA script names the version that it was \
         written for: `holdfast fileset list tank.hf --json={VERSION}` fails if the program\nhas \
         another.\n\n## Requests\n"
    );
    for variant in variants(&requests, &types) {
        let Some(name) = variant.pointer("/properties/do/const").and_then(Value::as_str) else {
            continue;
        };
        let _ = write!(text, "\n### `{name}`\n\n{}\n", described(variant));
        if let Some(line) = command_of(name) {
            let _ = write!(text, "\nCommand: `holdfast {line}`\n");
        }
        fields(&mut text, variant, &types, &["do"]);
    }
    text +=
        "\n## Answers\n\nAn answer is the word alone, or an object whose one field is the word.\n";
    for variant in variants(&answers, &types) {
        let word = variant.get("const").and_then(Value::as_str);
        let field =
            variant.get("properties").and_then(Value::as_object).and_then(|it| it.iter().next());
        match (word, field) {
            (Some(word), _) => {
                let _ = write!(text, "\n### `{word}`\n\n{}\n", described(variant));
            }
            (None, Some((word, content))) => {
                let _ = write!(text, "\n### `{word}`\n\n{}\n", described(variant));
                let _ = write!(text, "\nContent: {}\n", type_of(content));
                fields(&mut text, content, &types, &[]);
            }
            (None, None) => {}
        }
    }
    text += "\n## Types\n";
    for (name, schema) in &types {
        if name == "Request" || name == "Answer" {
            continue;
        }
        let _ = write!(text, "\n### {name}\n\n{}\n", described(schema));
        let words: Vec<String> = variants(schema, &types)
            .filter_map(|it| {
                let word = it.get("const").and_then(Value::as_str)?;
                Some(format!("- `{word}`: {}\n", described(it)))
            })
            .collect();
        if !words.is_empty() {
            let _ = write!(text, "\n{}", words.concat());
        }
        fields(&mut text, schema, &types, &[]);
    }
    text
}

/// Returns the command that sends a request.
fn command_of(name: &str) -> Option<&'static str> {
    COMMANDS.iter().find(|(it, _)| *it == name).map(|(_, line)| *line)
}

/// Returns the schemas of the variants of an enum.
pub(crate) fn variants<'a>(
    schema: &'a Value,
    types: &'a Map<String, Value>,
) -> impl Iterator<Item = &'a Value> {
    let schema = resolved(schema, types);
    let list = schema.get("oneOf").or_else(|| schema.get("anyOf")).and_then(Value::as_array);
    list.into_iter().flatten()
}

/// Follows the reference of a schema.
pub(crate) fn resolved<'a>(schema: &'a Value, types: &'a Map<String, Value>) -> &'a Value {
    let name = schema.get("$ref").and_then(Value::as_str).and_then(|it| it.rsplit('/').next());
    name.and_then(|name| types.get(name)).unwrap_or(schema)
}

/// Returns the description of a schema as one line.
pub(crate) fn described(schema: &Value) -> String {
    let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes a table of the fields of an object.
fn fields(text: &mut String, schema: &Value, types: &Map<String, Value>, without: &[&str]) {
    let mut rows = Vec::new();
    for schema in [schema, resolved(schema, types)] {
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            continue;
        };
        for (name, field) in properties.iter().filter(|(name, _)| !without.contains(&name.as_str()))
        {
            rows.push(format!("| `{name}` | {} | {} |\n", type_of(field), described(field)));
        }
        if std::ptr::eq(schema, resolved(schema, types)) {
            break;
        }
    }
    if !rows.is_empty() {
        let _ = write!(text, "\n| field | type | meaning |\n|---|---|---|\n{}", rows.concat());
    }
}

/// Returns the type of a field in words.
fn type_of(schema: &Value) -> String {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let name = reference.rsplit('/').next().unwrap_or(reference);
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(any) = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array)
    {
        return any.iter().map(type_of).collect::<Vec<_>>().join(" or ");
    }
    if let Some(items) = schema.get("items") {
        return format!("list of {}", type_of(items));
    }
    match schema.get("type") {
        Some(Value::String(name)) => name.clone(),
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or ")
        }
        _ => "any".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::args::CliArguments;

    /// Goal: no request lacks a command, and no command is listed of a request that is gone.
    #[test]
    fn each_request_has_a_command_that_is_understood() {
        let mut generator = SchemaSettings::draft2020_12().into_generator();
        let requests = generator.subschema_for::<Request>().to_value();
        let types = generator.take_definitions(true);
        let names: BTreeSet<&str> = variants(&requests, &types)
            .filter_map(|it| it.pointer("/properties/do/const").and_then(Value::as_str))
            .collect();
        let listed: BTreeSet<&str> = COMMANDS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, listed);
        assert!(names.len() > 50, "{names:?}");
        for (name, line) in COMMANDS {
            let words = std::iter::once("holdfast").chain(line.split(' '));
            let parsed = CliArguments::try_parse_from(words);
            assert!(
                parsed.is_ok(),
                "{name}: {line}: {}",
                parsed.err().map(|it| it.to_string()).unwrap_or_default()
            );
        }
    }

    /// Goal: the document is what the types say. `HOLDFAST_WRITE_REFERENCE=1` writes it.
    #[test]
    fn the_document_is_made_from_the_types() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CONTROL.md");
        let made = control_reference();
        if std::env::var_os("HOLDFAST_WRITE_REFERENCE").is_some() {
            std::fs::write(&path, &made).expect("the checkout is ours");
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            kept == made,
            "docs/CONTROL.md is not what the types say: HOLDFAST_WRITE_REFERENCE=1 writes it"
        );
    }
}
