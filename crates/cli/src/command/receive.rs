//! `holdfast receive`: makes or updates a fileset from a stream.

use std::fs::File;
use std::os::fd::AsFd;

use serde_json::json;

use super::controlled::{ControlledPool, Opener};
use super::send::words_of;
use super::waiting::carry;
use crate::args::transfer::ReceiveArgs;
use crate::exit;
use crate::output::Output;
use crate::progress::WorkUnit;
use control::size::ByteSize;
use control::text::printable;
use control::{Request, Transfer};
use server::backend::Backend;

pub(crate) fn run(
    args: &ReceiveArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    let at = ControlledPool::find(&args.fileset, opener, !args.dry_run)?;
    let done = receive(&at, args, output);
    at.finish(done)
}

fn receive(at: &ControlledPool, args: &ReceiveArgs, output: &Output) -> anyhow::Result<u8> {
    let fileset = at.named(&args.fileset)?;
    let (name, pool) = (printable(&fileset), at.pool.display().to_string());
    if args.abort {
        at.ask(&Request::ReceiveAbort { name: fileset })?;
        let facts = json!({ "aborted": name, "pool": pool });
        output.fact(&format!("what came to {pool}:{name} is given up"), &facts);
        return Ok(exit::DONE);
    }
    let (is_dry_run, discards_partial) = (args.dry_run, args.discard_partial);
    let request = Transfer::Receive { fileset, is_dry_run, discards_partial };
    let file = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let shown = (WorkUnit::Items("inodes"), "received", output);
    let mut facts = carry(at, &request, file, shown, "")?;
    let snapshot = printable(facts["snapshot"].as_str().unwrap_or(""));
    let words = words_of(&facts);
    facts["fileset"] = json!(name);
    facts["pool"] = json!(pool);
    let brought = facts["data_bytes"].as_u64().unwrap_or(0);
    let room = facts["available_bytes"].as_u64().filter(|room| *room < brought);
    let text = if let Some(room) = room {
        format!(
            "{pool}:{name} could receive it as {name}@{snapshot}, but there is room for {} and the \
             stream brings {}: make room, or raise the quota of the fileset",
            ByteSize(room),
            ByteSize(brought)
        )
    } else if args.dry_run {
        format!("{pool}:{name} can receive it as {name}@{snapshot}: {words}")
    } else {
        let mut text =
            format!("{pool}:{name} was received and is kept as {name}@{snapshot}: {words}");
        let snapshots = facts["snapshots"].as_array().map_or(&[][..], Vec::as_slice);
        if snapshots.len() > 1 {
            let names = snapshots.iter().filter_map(|it| it.as_str()).map(printable);
            let names: Vec<String> = names.map(|snapshot| format!("{name}@{snapshot}")).collect();
            text += &format!("\n{} streams were received: {}", names.len(), names.join(", "));
        }
        text
    };
    output.fact(&text, &facts);
    Ok(if room.is_some() { exit::FAILED } else { exit::DONE })
}
