//! `holdfast send`: writes a stream of a snapshot.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;

use serde_json::Value;

use super::controlled::{ControlledPool, Opener};
use super::waiting::carry;
use crate::args::transfer::SendArgs;
use crate::exit;
use crate::output::Output;
use crate::progress::WorkUnit;
use control::{Transfer, UsageError};
use server::backend::Backend;

pub(crate) fn run(args: &SendArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    if std::io::stdout().is_terminal() {
        let snapshot = args.snapshot.display();
        let message = format!(
            "a stream is not for a terminal: send it to a file (`holdfast send {snapshot} > FILE`) \
             or to `holdfast receive`"
        );
        return Err(UsageError::new(message).into());
    }
    let opener = Opener { backend, members: &args.members };
    let at = ControlledPool::find(&args.snapshot, opener, false)?;
    let sent = send(&at, args, output);
    let totals = at.finish(sent)?;
    // Standard output has the stream, so facts go elsewhere.
    if output.is_json() {
        writeln!(std::io::stderr(), "{totals}")?;
    } else {
        output.remark(&format!("sent {}", words_of(&totals)));
    }
    Ok(exit::DONE)
}

fn send(at: &ControlledPool, args: &SendArgs, output: &Output) -> anyhow::Result<Value> {
    let (fileset, snapshot) = at.named_snapshot(&args.snapshot)?;
    let from = args.from.as_deref().map(|from| from.trim_start_matches('@').to_owned());
    let request = Transfer::Send { fileset, snapshot, from, resume: args.resume.clone() };
    let file = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    let continues = "Where the stream was received, `holdfast receive` tells how to continue; else \
                     run the command again";
    carry(at, &request, file, (WorkUnit::Items("inodes"), "sent", output), continues)
}

pub(super) fn words_of(totals: &Value) -> String {
    let of = |name: &str| totals[name].as_u64().unwrap_or(0);
    let (anodes, removed, bytes) = (of("anodes"), of("removed"), of("data_bytes"));
    format!(
        "{anodes} inodes, {removed} removals, {bytes} bytes of data in {} records",
        of("records")
    )
}
