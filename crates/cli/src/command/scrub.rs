//! `holdfast scrub`: holds all copies of what a pool has against each other, and repairs.

use serde_json::json;

use super::controlled::{Controlled, Opener};
use crate::args::device::ScrubArgs;
use crate::backend::Backend;
use crate::control::{Answer, Request, ScrubFacts};
use crate::exit;
use crate::output::{Output, printable};
use crate::patience::Patience;
use crate::size::ByteSize;

pub(crate) fn run(args: &ScrubArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    let at = Controlled::find(&args.pool, opener, true)?;
    let (pool, is_served) = (at.pool.display().to_string(), at.is_served());
    let begun = at.ask(&Request::Scrub {}).map(|_| ());
    // Without a server nobody else goes on with it.
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

fn wait(at: &Controlled, output: &Output) -> anyhow::Result<ScrubFacts> {
    let (mut progress, mut patience) = (output.progress(), Patience::new());
    loop {
        let Answer::Scrub(Some(found)) = at.ask(&Request::ScrubStatus {})? else {
            anyhow::bail!("{}: the scrub has ended with its server", at.pool.display());
        };
        if found.is_done {
            progress.finish();
            return Ok(found);
        }
        if let Some(waits) = &found.waits {
            let pool = at.pool.display();
            anyhow::bail!("{pool}: the scrub waits ({waits}); it goes on by itself then");
        }
        let jobs = at.jobs()?;
        let job = jobs.iter().find(|job| job.name == "scrub");
        if let Some(job) = job.filter(|job| job.is_paused || job.failure.is_some()) {
            let why = job.failure.clone().unwrap_or_else(|| "somebody paused it".to_owned());
            let (pool, id) = (at.pool.display(), job.id);
            anyhow::bail!(
                "{pool}: the scrub has stopped ({why}): `holdfast job resume {pool} {id}`"
            );
        }
        let total = job.map_or(0, |job| job.total);
        progress.tell("held against each other, in bytes", found.read_bytes, total);
        patience.wait();
    }
}

/// Says what was compared with nothing, for devices were away; empty: nothing.
fn uncompared_of(found: &ScrubFacts) -> String {
    if found.uncompared_bytes == 0 {
        return String::new();
    }
    let away: Vec<String> = found.away.iter().map(|device| printable(device)).collect();
    format!(
        "; {} of it were verified by their checksums alone, and their parity and other copies \
         compared with nothing, for {} was away: replace it or bring it back, then scrub again",
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
            if uncompared.is_empty() { "all devices" } else { "all devices that are there" };
        return format!("{pool}: {read}, the same on {there}{before}{uncompared}");
    }
    let mut text = format!(
        "{pool}: {read}; {differing} pages differ between the devices: {repaired} pages and blocks \
         were written again, {unused} are of nothing in use"
    );
    if *parities > 0 {
        text += &format!(", of {parities} runs of rows the parity was written again");
    }
    text += &before;
    text += &uncompared;
    if *lost > 0 {
        text += &format!(", of {lost} no copy verifies");
    }
    if *unread > 0 {
        text += &format!(
            ", {unread} could not be read, and may be there when their devices answer again"
        );
    }
    if *unwritten > 0 {
        text +=
            &format!(", {unwritten} are whole, and could not be written again where they are bad");
    }
    if lost + unread + unwritten > 0 {
        let names = found.names.join("\n  ");
        text += &format!(": the server's log has all, here are the first:\n  {names}");
    }
    text
}
