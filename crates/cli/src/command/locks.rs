//! `holdfast locks`: who holds which file lock.

use super::controlled::{ControlledPool, Opener};
use crate::args::locks::{LocksArgs, LocksCommand};
use crate::exit;
use crate::output::Output;
use crate::table::Column::{Left, Right};
use control::text::printable;
use control::{Answer, LockFacts, Request, moment};
use server::backend::Backend;

pub(crate) fn run(args: &LocksArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let LocksCommand::List { pool } = &args.command;
    let at = ControlledPool::find(pool, Opener::plain(backend), false)?;
    let at = at.need_server("locks are of programs that use a mount")?;
    let Answer::Locks(locks) = at.ask(&Request::LockList {})? else {
        anyhow::bail!("{}: the server answered nonsense", at.pool.display())
    };
    let columns = [
        Left("STATE"),
        Left("MODE"),
        Left("CALL"),
        Right("PID"),
        Left("BYTES"),
        Left("SINCE"),
        Left("MOUNT"),
        Left("FILE"),
    ];
    output.list(&locks.list, "No program holds a lock.", columns, row_of);
    let listed = u64::try_from(locks.list.len()).unwrap_or(u64::MAX);
    if locks.held.saturating_add(locks.waiting) > listed {
        let (held, waiting) = (locks.held, locks.waiting);
        output.remark(&format!("{listed} of {held} held and {waiting} waiting locks are listed."));
    }
    Ok(exit::DONE)
}

fn row_of(lock: &LockFacts) -> [String; 8] {
    let state = if lock.is_waiting { "waits" } else { "held" };
    let mode = if lock.is_exclusive { "exclusive" } else { "shared" };
    let bytes = match (lock.first_byte, lock.last_byte) {
        (0, None) => "all".to_owned(),
        (first, None) => format!("{first}-"),
        (first, Some(last)) => format!("{first}-{last}"),
    };
    [
        state.to_owned(),
        mode.to_owned(),
        lock.interface.clone(),
        lock.pid.to_string(),
        bytes,
        moment(lock.since_ms / 1000),
        printable(&lock.client),
        printable(&lock.path),
    ]
}
