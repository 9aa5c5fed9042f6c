//! `holdfast check`: verifies a pool without changes.

use std::fmt::Write;
use std::path::Path;

use serde_json::json;

use crate::args::CheckArgs;
use crate::command::mount::members_of;
use crate::exit;
use crate::output::Output;
use server::backend::{Backend, CheckReport};

pub(crate) fn run(args: &CheckArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let mut progress = output.progress();
    let members = members_of(&args.members);
    let report = backend.check(&args.device, &members, args.memory.0, &mut |what, done, total| {
        progress.tell(what, done, total)
    });
    progress.finish();
    let report = report?;
    let has_defects = !report.defects.is_empty() || report.unlisted_count > 0;
    let is_clean = !has_defects && report.stopped.is_none();
    let checked = args.device.to_string_lossy();
    let facts = json!({ "checked": checked, "is_clean": is_clean, "report": report });
    output.fact(&text_of(&args.device, &report, is_clean), &facts);
    if let Some(stopped) = &report.stopped {
        anyhow::bail!("{}: the check did not come to its end: {stopped}", args.device.display());
    }
    Ok(if is_clean { exit::DONE } else { exit::CHECK_DEFECTS })
}

fn text_of(device: &Path, report: &CheckReport, is_clean: bool) -> String {
    let mut text = String::new();
    for defect in &report.defects {
        let _ = writeln!(text, "{}: {}", defect.code, defect.message);
    }
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    if report.unlisted_count > 0 {
        let _ = writeln!(text, "... and {} more", report.unlisted_count);
    }
    let CheckReport { pages_read, inode_count, .. } = report;
    let has_defects = !report.defects.is_empty() || report.unlisted_count > 0;
    let verdict = match (is_clean, has_defects) {
        (true, _) => "clean",
        (false, true) => "DEFECTS; nothing was changed",
        (false, false) => "NOT CHECKED TO ITS END; no defect until then",
    };
    let _ = writeln!(
        text,
        "{}: {verdict} ({inode_count} inodes, {pages_read} pages read)",
        device.display()
    );
    text
}
