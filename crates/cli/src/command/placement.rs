//! `holdfast placement`: shows and sets the disk group for the new data of files.

use serde_json::json;

use super::controlled::Opener;
use super::quota::with;
use crate::args::placement::{PlacementArgs, PlacementCommand};
use crate::exit;
use crate::output::Output;
use control::{Answer, Request};
use server::backend::Backend;

pub(crate) fn run(
    args: &PlacementArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    match &args.command {
        PlacementCommand::Set { fileset, path, placement, recursive } => {
            with(fileset, opener, true, output, |at, name| {
                let request = Request::PlacementSet {
                    fileset: name.to_owned(),
                    path: path.clone(),
                    placement: placement.to_string(),
                    is_recursive: *recursive,
                };
                let Answer::Count(changed) = at.ask(&request)? else {
                    anyhow::bail!("{}: the server answered nonsense", at.pool.display())
                };
                let line = format!("{path} has placement {placement} now, {changed} files");
                let facts = json!({ "fileset": name, "path": path,
                                    "placement": placement.to_string(), "files": changed });
                Ok((line, facts))
            })?;
        }
        PlacementCommand::Show { fileset, path } => {
            with(fileset, opener, false, output, |at, name| {
                let request =
                    Request::PlacementShow { fileset: name.to_owned(), path: path.clone() };
                let Answer::Placement(placement) = at.ask(&request)? else {
                    anyhow::bail!("{}: the server answered nonsense", at.pool.display())
                };
                let line = format!("{path} has placement {placement}");
                let facts = json!({ "fileset": name, "path": path, "placement": placement });
                Ok((line, facts))
            })?;
        }
    }
    Ok(exit::DONE)
}
