//! `holdfast export` and `holdfast reload`: what a running server exports, changed and shown.

use serde_json::json;

use super::controlled::{Controlled, Opener};
use crate::args::ReloadArgs;
use crate::args::export::{ExportArgs, ExportCommand};
use crate::backend::Backend;
use crate::control::{ExportFacts, ExportSource, ExportSpec, Request};
use crate::exit::{self, UsageError};
use crate::output::{Output, printable};

pub(crate) fn run(args: &ExportArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let argument = args.command.path();
    let at = Controlled::find(argument, Opener::plain(backend), false)?
        .need_server("exports are of a server")?;
    if at.clone.is_some() {
        let message = format!("{}: a clone is not exported by itself", argument.display());
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
                squash: *squash,
                anon: *anon,
                insecure: *insecure,
                is_async: *is_async,
            };
            let rules = export.rules().map_err(UsageError::new)?;
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
            if exports.is_empty() {
                output.remark("Nothing is exported.");
            }
            exports.iter().for_each(|export| output.fact(&lines_of(export), &json!(export)));
        }
        ExportCommand::Remove { name, .. } => {
            at.ask(&Request::ExportRemove { name: name.clone() })?;
            let facts = json!({ "removed": name, "pool": pool });
            let name = printable(name);
            // What a command has added may have stood behind one of the configuration.
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

/// `holdfast reload`.
pub(crate) fn reload(
    args: &ReloadArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let at = Controlled::find(&args.pool, Opener::plain(backend), false)?;
    let at = at.need_server("a configuration is of a server")?;
    at.ask(&Request::Reload {})?;
    let pool = at.pool.display().to_string();
    output.fact("The configuration is read again", &json!({ "reloaded": pool }));
    Ok(exit::DONE)
}

/// Returns an export in two lines: what it is, and how it is mounted.
fn lines_of(facts: &ExportFacts) -> String {
    let ExportSpec { name, fileset, dir, to, rw, squash, anon, insecure, is_async, .. } =
        &facts.export;
    let mut line = format!("{}  {}", printable(name), printable(fileset.as_deref().unwrap_or("?")));
    if let Some(directory) = dir {
        line += &format!(" {}", printable(directory));
    }
    line += if *rw { ", rw" } else { ", ro" };
    let networks = if to.is_empty() { "this machine".to_owned() } else { to.join(" ") };
    line += &format!(", to {networks}, squash {}", json!(squash).as_str().unwrap_or("?"));
    if let Some((uid, gid)) = anon {
        line += &format!(", nobody is {uid}:{gid}");
    }
    for (is_on, word) in [(*insecure, "any port"), (*is_async, "async")] {
        line += if is_on { ", " } else { "" };
        line += if is_on { word } else { "" };
    }
    line += match facts.by {
        ExportSource::Kept => "",
        ExportSource::Default => " (as nothing else is said)",
        ExportSource::CommandLine => " (until the server ends)",
        ExportSource::Configuration => " (holdfast.toml)",
    };
    match &facts.not_served {
        None => format!("{line}\n  {}", printable(&facts.mount)),
        Some(why) => format!("{line}\n  not served: {}", printable(why)),
    }
}
