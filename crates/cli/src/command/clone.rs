//! `holdfast clone`: makes writable filesets from snapshots.

use serde_json::json;

use super::controlled::{ControlledPool, Opener};
use super::fileset::new_name;
use crate::args::clone::{CloneArgs, CloneCommand};
use crate::exit;
use crate::output::Output;
use control::Request;
use server::backend::Backend;

pub(crate) fn run(args: &CloneArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let CloneCommand::Create { snapshot, to } = &args.command;
    let new = new_name(snapshot, to, backend)?;
    let at = ControlledPool::find(snapshot, Opener { backend, members: &args.members }, true)?;
    let asked = at.named_snapshot(snapshot).and_then(|(fileset, own)| {
        let from = format!("{fileset}@{own}");
        let clone = Request::CloneCreate { fileset, snapshot: own, to: new.clone() };
        at.ask(&clone).map(|_| from)
    });
    let pool = at.pool.display().to_string();
    let from = at.finish(asked)?;
    let facts = json!({ "created": new, "from": from, "pool": pool });
    output.fact(&format!("{pool}:{new} is made, and begins as {from} is"), &facts);
    Ok(exit::DONE)
}
