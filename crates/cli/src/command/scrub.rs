//! `holdfast scrub`: compares all copies in a pool and repairs bad ones.

use serde_json::json;

use super::controlled::{ControlledPool, Opener};
use super::waiting::JobWait;
use crate::args::device::ScrubArgs;
use crate::exit;
use crate::output::Output;
use crate::progress::WorkUnit;
use control::size::ByteSize;
use control::text::printable;
use control::{Answer, Request, ScrubFacts};
use server::backend::Backend;

pub(crate) fn run(args: &ScrubArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    let at = ControlledPool::find(&args.pool, opener, true)?;
    let (pool, is_served) = (at.pool.display().to_string(), at.is_served());
    let begun = at.ask(&Request::Scrub {}).map(|_| ());
    // Without a server, the scrub would stop when this command ends.
    let must_wait = args.wait || !is_served;
    let found = begun.and_then(|()| if must_wait { wait(&at, output).map(Some) } else { Ok(None) });
    let Some(found) = at.finish(found)? else {
        let facts = json!({ "scrubbing": pool });
        output.fact(&format!("{pool}: a scrub is under way: `holdfast job list {pool}`"), &facts);
        return Ok(exit::DONE);
    };
    output.fact(&text_of(&pool, &found), &json!(found));
    Ok(if (found.lost, found.unread, found.unwritten) == (0, 0, 0) {
        exit::DONE
    } else {
        exit::FAILED
    })
}

fn wait(at: &ControlledPool, output: &Output) -> anyhow::Result<ScrubFacts> {
    let mut waiting = JobWait::new(output)?;
    loop {
        let Answer::Scrub(Some(found)) = at.ask(&Request::ScrubStatus {})? else {
            anyhow::bail!("{}: the scrub has ended with its server", at.pool.display());
        };
        if found.is_done {
            waiting.finish();
            return Ok(found);
        }
        if let Some(waits) = &found.waits {
            let pool = at.pool.display();
            anyhow::bail!("{pool}: the scrub waits ({waits}); it continues by itself after that");
        }
        let jobs = at.jobs()?;
        let job = jobs.iter().find(|job| job.name == "scrub");
        waiting.step(at, (WorkUnit::Bytes(""), "scrubbed"), job)?;
    }
}

/// Reports the bytes that were verified only by checksum, because a device is absent.
fn uncompared_of(found: &ScrubFacts) -> String {
    if found.uncompared_bytes == 0 {
        return String::new();
    }
    let away: Vec<String> = found.away.iter().map(|device| printable(device)).collect();
    format!(
        "; {} were verified by checksum only, without parity or a second copy, because of missing \
         devices: {}. Bring them back or replace them, then scrub again",
        ByteSize(found.uncompared_bytes),
        away.join(", ")
    )
}

fn text_of(pool: &str, found: &ScrubFacts) -> String {
    let before = match found.read_before {
        0 => String::new(),
        bytes => format!(
            "; {} of these before the pool was mounted this time: the log of then has what was \
             found there",
            ByteSize(bytes)
        ),
    };
    let ScrubFacts { differing, repaired, lost, unread, unwritten, unused, parities, .. } = found;
    let read = ByteSize(found.read_bytes);
    let uncompared = uncompared_of(found);
    if (*differing, *repaired, *lost, *unread, *unwritten) == (0, 0, 0, 0, 0) {
        let there =
            if uncompared.is_empty() { "all devices" } else { "all devices that are online" };
        return format!("{pool}: {read}, the same on {there}{before}{uncompared}");
    }
    let mut text = format!(
        "{pool}: {read}; {differing} pages differ between the devices: {repaired} pages and blocks \
         were written again, {unused} are unused"
    );
    if *parities > 0 {
        text += &format!(", parity rewritten in {parities} ranges of rows");
    }
    text += &before;
    if *lost > 0 {
        text += &format!(", no copy verifies of {lost} pages and blocks");
    }
    if *unread > 0 {
        text += &format!(
            ", {unread} could not be read, and may be good when their devices answer again"
        );
    }
    if *unwritten > 0 {
        text += &format!(", {unwritten} have a good copy, but the bad one could not be rewritten");
    }
    text += &uncompared;
    if lost + unread + unwritten > 0 {
        let names = found.names.join("\n  ");
        text += &format!(". The server's log names all of them; the first are:\n  {names}");
    }
    text
}
