//! `holdfast-lab papers`: repeats measurements of papers on simulated disks in virtual time.

use std::path::Path;

use anyhow::Context;
use lab::{LabReport, SawmillSize, svg_of, text_of};
use serde_json::json;

use super::paper_args::{Paper, PaperArgs};
use cli::exit;
use cli::output::Output;

pub(crate) fn run(args: &PaperArgs, output: &Output) -> anyhow::Result<u8> {
    let (report, folder) = match &args.paper {
        Paper::Sawmill { quick, output: to } => {
            let size = if *quick { SawmillSize::Small } else { SawmillSize::Full };
            (lab::sawmill(size, &mut |step| output.remark(step))?, &to.out)
        }
        Paper::Qfs { output: to } => (lab::qfs()?, &to.out),
    };
    if let Some(folder) = folder {
        write_to(folder, &report)?;
    }
    output.fact(&text_of(&report), &json!({ "lab": report }));
    let is_reached = report.goals.iter().all(lab::Goal::is_reached);
    Ok(if is_reached { exit::DONE } else { exit::FAILED })
}

fn write_to(folder: &Path, report: &LabReport) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let picture = svg_of(report).map_err(anyhow::Error::msg)?;
    let table = format!("```text\n{}```\n", text_of(report));
    let all = serde_json::to_string_pretty(report)?;
    for (kind, text) in [("md", table), ("svg", picture), ("json", all)] {
        let path = folder.join(format!("{}.{kind}", report.lab));
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
