//! `holdfast dump`: prints a page as text.

use crate::args::DumpArgs;
use crate::exit;
use crate::output::Output;
use server::backend::Backend;

pub(crate) fn run(args: &DumpArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let report = backend.dump(&args.device, &args.members.hints(), &args.what)?;
    output.fact(&report.text, &report.value);
    Ok(exit::DONE)
}
