//! `holdfast send`: a stream of a clone.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;

use serde_json::Value;

use super::controlled::{Controlled, Opener};
use crate::args::transfer::SendArgs;
use crate::backend::Backend;
use crate::exit::{self, UsageError};
use crate::output::Output;
use crate::transfer::Transfer;

pub(crate) fn run(args: &SendArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    if std::io::stdout().is_terminal() {
        let clone = args.clone.display();
        let message = format!(
            "a stream is not for a terminal: send it to a file (`holdfast send {clone} > FILE`) or \
             to `holdfast receive`"
        );
        return Err(UsageError::new(message).into());
    }
    let opener = Opener { backend, members: &args.members };
    let at = Controlled::find(&args.clone, opener, false)?;
    let sent = send(&at, args, output);
    let totals = at.finish(sent)?;
    // Standard output has the stream.
    if output.is_json() {
        writeln!(std::io::stderr(), "{totals}")?;
    } else {
        output.remark(&format!("sent {}", words_of(&totals)));
    }
    Ok(exit::DONE)
}

fn send(at: &Controlled, args: &SendArgs, output: &Output) -> anyhow::Result<Value> {
    let (fileset, clone) = at.named_clone(&args.clone)?;
    let from = args.from.as_deref().map(|from| from.trim_start_matches('@').to_owned());
    let request = Transfer::Send { fileset, clone, from, resume: args.resume.clone() };
    let file = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    let mut progress = output.progress();
    let sent = at.transfer(&request, file, &mut |done, total| {
        progress.tell("inodes", done, total);
        true
    });
    progress.finish();
    sent
}

/// Returns what a stream had as people read it.
pub(super) fn words_of(totals: &Value) -> String {
    let of = |name: &str| totals[name].as_u64().unwrap_or(0);
    let (anodes, removed, bytes) = (of("anodes"), of("removed"), of("data_bytes"));
    format!(
        "{anodes} inodes, {removed} removals, {bytes} bytes of data in {} records",
        of("records")
    )
}
