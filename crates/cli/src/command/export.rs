//! `holdfast export` and `holdfast reload`: exports of a running server.

use serde_json::json;
use server::facts::export_rules;

use super::controlled::{ControlledPool, Opener};
use crate::args::ReloadArgs;
use crate::args::export::{ExportArgs, ExportCommand};
use crate::exit;
use crate::output::Output;
use crate::table::Column::{IfAny, Left};
use control::text::printable;
use control::{ExportFacts, ExportSource, ExportSpec, Request, UsageError};
use server::backend::Backend;

pub(crate) fn run(args: &ExportArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let argument = args.command.path();
    let at = ControlledPool::find(argument, Opener::plain(backend), false)?
        .need_server("exports are of a server")?;
    if at.snapshot.is_some() {
        let message = format!("{}: a snapshot is not exported by itself", argument.display());
        return Err(UsageError::new(message).into());
    }
    let pool = at.pool.display().to_string();
    match &args.command {
        ExportCommand::Add { name, to, rw, squash, anon, dir, insecure, is_async, .. } => {
            let export = ExportSpec {
                name: name.clone(),
                pool: None,
                fileset: at.fileset.clone(),
                dir: dir.clone(),
                to: to.clone(),
                rw: *rw,
                squash: (*squash).into(),
                anon: *anon,
                insecure: *insecure,
                is_async: *is_async,
            };
            let rules = export_rules(&export).map_err(UsageError::new)?;
            at.ask(&Request::ExportAdd { export })?;
            let exports = at.exports()?;
            let is_it = |it: &&ExportFacts| it.export.name == rules.name && it.not_served.is_none();
            let added = exports.iter().find(is_it);
            let mount = added.map_or("", |it| it.mount.as_str());
            let facts = json!({ "exported": rules.name, "pool": pool, "mount": mount });
            output.fact(&format!("{} is exported\n{mount}", printable(&rules.name)), &facts);
        }
        ExportCommand::List { .. } => {
            let exports = at.exports()?;
            let columns = [
                Left("EXPORT"),
                Left("FILESET"),
                Left("ACCESS"),
                Left("CLIENTS"),
                Left("SQUASH"),
                IfAny("NOTES"),
                Left("MOUNT"),
            ];
            output.list(&exports, "Nothing is exported.", columns, row_of);
        }
        ExportCommand::Remove { name, .. } => {
            at.ask(&Request::ExportRemove { name: name.clone() })?;
            let facts = json!({ "removed": name, "pool": pool });
            let name = printable(name);
            // The removed export may have hidden one of the configuration with the same name.
            let is_there = at.exports()?.iter().any(|it| printable(&it.export.name) == name);
            let text = if is_there {
                format!("{name} is kept no more; holdfast.toml exports it still")
            } else {
                format!("{name} is exported no more")
            };
            output.fact(&text, &facts);
        }
    }
    Ok(exit::DONE)
}

pub(crate) fn reload(
    args: &ReloadArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let at = ControlledPool::find(&args.pool, Opener::plain(backend), false)?;
    let at = at.need_server("a configuration is of a server")?;
    at.ask(&Request::Reload {})?;
    let pool = at.pool.display().to_string();
    output.fact("The configuration is read again", &json!({ "reloaded": pool }));
    Ok(exit::DONE)
}

fn row_of(facts: &ExportFacts) -> [String; 7] {
    let ExportSpec { name, fileset, dir, to, rw, squash, anon, insecure, is_async, .. } =
        &facts.export;
    let mut exported = fileset.clone().unwrap_or_else(|| "?".to_owned());
    if let Some(directory) = dir {
        exported += &format!(" {directory}");
    }
    let networks = if to.is_empty() { "this machine".to_owned() } else { to.join(",") };
    let mut notes = Vec::new();
    notes.extend(anon.map(|(uid, gid)| format!("nobody is {uid}:{gid}")));
    notes.extend(insecure.then(|| "any port".to_owned()));
    notes.extend(is_async.then(|| "async".to_owned()));
    let by = match facts.by {
        ExportSource::Kept => None,
        ExportSource::Default => Some("as nothing else is said"),
        ExportSource::CommandLine => Some("until the server ends"),
        ExportSource::Configuration => Some("by holdfast.toml"),
    };
    notes.extend(by.map(str::to_owned));
    notes.extend(facts.not_served.as_ref().map(|why| format!("not served: {why}")));
    [
        name.clone(),
        exported,
        if *rw { "rw" } else { "ro" }.to_owned(),
        networks,
        json!(squash).as_str().unwrap_or("?").to_owned(),
        notes.join(", "),
        facts.mount.clone(),
    ]
}
