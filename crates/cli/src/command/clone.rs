//! `holdfast clone`: takes, shows and deletes clones of filesets.

use std::path::Path;

use serde_json::json;

use super::controlled::Controlled;
use crate::args::clone::{CloneArgs, CloneCommand};
use crate::backend::Backend;
use crate::control::{FilesetFacts, Request};
use crate::exit;
use crate::output::{Output, printable};

pub(crate) fn run(args: &CloneArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    match &args.command {
        CloneCommand::Create { clone: argument } => {
            let at = Controlled::find(argument, backend, true)?;
            let asked = at.named_clone(argument).and_then(|(fileset, clone)| {
                let name = format!("{fileset}@{clone}");
                at.ask(&Request::CloneCreate { fileset, clone }).map(|_| name)
            });
            let pool = at.pool.display().to_string();
            let name = at.finish(asked)?;
            let facts = json!({ "created": name, "pool": pool });
            output.fact(&format!("{pool}:{name} is taken"), &facts);
        }
        CloneCommand::Delete { clone: argument, wait: must_wait } => {
            let at = Controlled::find(argument, backend, true)?;
            let done = delete(&at, argument, *must_wait, output);
            at.finish(done)?;
        }
        CloneCommand::List { fileset } => {
            let at = Controlled::find(fileset, backend, false)?;
            // The directory of a mount stands for the fileset that it shows, or for that clone's.
            let of = at.fileset.as_deref().map(|name| name.split('@').next().unwrap_or(name));
            let start = of.map(|name| format!("{name}@"));
            let all = at.filesets();
            let mut all = at.finish(all)?;
            all.retain(|it| {
                it.is_clone && start.as_ref().is_none_or(|start| it.name.starts_with(start))
            });
            all.sort_by_key(|it| it.created_seconds);
            all.iter().for_each(|clone| output.fact(&line_of(clone), &json!(clone)));
        }
    }
    Ok(exit::DONE)
}

fn delete(
    at: &Controlled,
    argument: &Path,
    must_wait: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let (fileset, clone) = at.named_clone(argument)?;
    let (name, pool) = (format!("{fileset}@{clone}"), at.pool.display().to_string());
    at.ask(&Request::CloneDelete { fileset, clone })?;
    let facts = json!({ "deleted": name, "pool": pool });
    output.fact(&format!("{pool}:{name} is deleted"), &facts);
    if must_wait { super::fileset::wait(at, output) } else { Ok(()) }
}

fn line_of(clone: &FilesetFacts) -> String {
    let served = if clone.is_mounted { ", served here" } else { "" };
    format!("{}  {} inodes{served}", printable(&clone.name), clone.inodes)
}
