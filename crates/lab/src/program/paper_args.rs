//! Arguments of `papers`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast-lab papers sawmill --quick\n  \
                        holdfast-lab papers sawmill --out results  (sawmill.md, .svg, .json)\n  \
                        holdfast-lab papers qfs --json")]
pub(crate) struct PaperArgs {
    /// Which measurements
    #[command(subcommand)]
    pub(crate) paper: Paper,
}

/// Which measurements.
#[derive(Debug, Subcommand)]
pub(crate) enum Paper {
    /// Raw disks, a striped RAID-5 that updates in place, and Holdfast in RAID-5 (Shirriff 1995,
    /// chapter 6): disks of then, a modern disk and an SSD, requests of 512 bytes to 4 MB
    Sawmill {
        /// Only the paper's disks and three sizes of request
        #[arg(long)]
        quick: bool,
        #[command(flatten)]
        output: PaperOutput,
    },
    /// Two streams on two disks, each with one to itself or both striped over both (QFS, table 3)
    Qfs {
        #[command(flatten)]
        output: PaperOutput,
    },
}

/// Where a lab's report goes besides the terminal.
#[derive(Debug, Args)]
pub(crate) struct PaperOutput {
    /// Also write the report as a table, a picture and JSON there: NAME.md, NAME.svg, NAME.json
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
