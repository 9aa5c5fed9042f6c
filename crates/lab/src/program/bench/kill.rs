//! `holdfast-lab bench kill`: kills a server under load, mounts its pool again, and compares what
//! was acknowledged with what is there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bench::access::TargetReopener;
use plotters::prelude::*;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::json;

use super::pools::{MountedPool, Pools};
use crate::program::nfs_args::BenchKillArgs;
use cli::daemon::Relaunch;
use cli::exit;
use cli::output::Output;
use control::UsageError;
use server::backend::Backend;

const POOL_BYTES: u64 = 2 << 30;
const FILE_BYTES: usize = 4 << 10;
const SECONDS_MAX: u64 = 60;
const WRITERS_MAX: usize = 64;
/// How long a writer waits before it tries again without a server.
const RETRY_TIME: Duration = Duration::from_millis(1);
const STEP_MS: u32 = 10;
const SIZE: (u32, u32) = (720, 320);
const BAR: RGBColor = RGBColor(0, 114, 178);
const MARK: RGBColor = RGBColor(213, 94, 0);

/// A file that was synced: when, by which writer, and which of its files.
type Acknowledged = (Duration, usize, u64);

#[derive(Debug, Serialize)]
struct KillReport {
    writers: usize,
    milliseconds: u32,
    killed_at_ms: u32,
    /// From the kill until `holdfast mount` has returned.
    mount_ms: u32,
    /// Longest time without an acknowledged write.
    gap_ms: u32,
    gap_begin_ms: u32,
    acknowledged: usize,
    lost: usize,
    /// Acknowledged writes of each step of [`STEP_MS`].
    steps: Vec<u32>,
}

pub(super) fn run(
    args: &BenchKillArgs,
    with: (&dyn Backend, &Relaunch),
    output: &Output,
) -> anyhow::Result<u8> {
    let (seconds, writers) = (args.seconds, args.writers);
    if !(1..=SECONDS_MAX).contains(&seconds) || !(1..=WRITERS_MAX).contains(&writers) {
        let message = format!("--seconds: 1 to {SECONDS_MAX}, --writers: 1 to {WRITERS_MAX}");
        return Err(UsageError::new(message).into());
    }
    let (_pools, mounted) = Pools::one(&args.place, POOL_BYTES, with)?;
    let report = measured(&mounted, Duration::from_secs(seconds), writers)?;
    mounted.unmount(&[]).context("the pool cannot be closed")?;
    mounted.check().context("the pool is not whole")?;
    if let Some(out) = &args.out {
        fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let path = out.join("kill.svg");
        let svg = svg_of(&report).map_err(anyhow::Error::msg)?;
        fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    output.fact(&summary(&report), &json!({ "bench_kill": report }));
    Ok(if report.lost == 0 { exit::DONE } else { exit::FAILED })
}

fn summary(report: &KillReport) -> String {
    let KillReport { mount_ms, gap_ms, acknowledged, lost, .. } = report;
    format!(
        "mounted again {mount_ms} ms after kill -9, no write acknowledged for {gap_ms} ms; of \
         {acknowledged} synced writes {lost} lost"
    )
}

fn measured(mounted: &MountedPool, time: Duration, writers: usize) -> anyhow::Result<KillReport> {
    // Not the directory itself: without a mount the writers would write below it.
    let directory = &mounted.directory().join("files");
    fs::create_dir(directory).context("the mount is written")?;
    File::open(directory)?.sync_all()?;
    let (begun, should_stop) = (Instant::now(), AtomicBool::new(false));
    let stop = &should_stop;
    let (killed, mut all) = std::thread::scope(|scope| {
        let write = |writer| scope.spawn(move || write_until(stop, directory, writer, begun));
        let running: Vec<_> = (0..writers).map(write).collect();
        wait_until(begun + time / 2);
        let killed = kill_and_mount(mounted, begun);
        wait_until(begun + time);
        stop.store(true, Ordering::Release);
        let all = running.into_iter().flat_map(|it| it.join().unwrap_or_default());
        (killed, all.collect::<Vec<Acknowledged>>())
    });
    let (killed_at, mount_time) = killed?;
    all.sort_unstable();
    let lost = all.iter().filter(|it| !is_there(directory, it.1, it.2)).count();
    let ends = all.iter().map(|it| it.0).zip(all.iter().skip(1).map(|it| it.0));
    let (gap, gap_begin) = ends.map(|(a, b)| (b - a, a)).max().unwrap_or_default();
    let milliseconds = milliseconds_of(time);
    let mut steps = vec![0; usize::try_from(milliseconds / STEP_MS)?];
    for (at, ..) in &all {
        if let Some(step) = steps.get_mut(usize::try_from(milliseconds_of(*at) / STEP_MS)?) {
            *step += 1;
        }
    }
    Ok(KillReport {
        writers,
        milliseconds,
        killed_at_ms: milliseconds_of(killed_at),
        mount_ms: milliseconds_of(mount_time),
        gap_ms: milliseconds_of(gap),
        gap_begin_ms: milliseconds_of(gap_begin),
        acknowledged: all.len(),
        lost,
        steps,
    })
}

fn milliseconds_of(time: Duration) -> u32 {
    time.as_millis().try_into().unwrap_or(u32::MAX)
}

fn wait_until(end: Instant) {
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|it| !it.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// Returns when the server was killed, and how long it took to mount the pool again.
fn kill_and_mount(mounted: &MountedPool, begun: Instant) -> anyhow::Result<(Duration, Duration)> {
    let pid = mounted.pid().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    let killed = Instant::now();
    kill_process(pid.context("the server has no number")?, Signal::KILL)?;
    mounted.mount()?;
    Ok((killed - begun, killed.elapsed()))
}

fn content(writer: usize, number: u64) -> Vec<u8> {
    format!("{writer} {number}\n").into_bytes().into_iter().cycle().take(FILE_BYTES).collect()
}

fn path_of(directory: &Path, writer: usize, number: u64) -> std::path::PathBuf {
    directory.join(format!("{writer}-{number}"))
}

fn is_there(directory: &Path, writer: usize, number: u64) -> bool {
    fs::read(path_of(directory, writer, number)).is_ok_and(|it| it == content(writer, number))
}

/// Writes and syncs a new file after the other, and returns those that were acknowledged.
fn write_until(
    should_stop: &AtomicBool,
    directory: &Path,
    writer: usize,
    begun: Instant,
) -> Vec<Acknowledged> {
    let mut done = Vec::new();
    let mut number = 0;
    while !should_stop.load(Ordering::Acquire) {
        let write = || -> io::Result<()> {
            let mut file = File::create(path_of(directory, writer, number))?;
            file.write_all(&content(writer, number))?;
            file.sync_all()
        };
        match write() {
            Ok(()) => done.push((begun.elapsed(), writer, number)),
            Err(_) => std::thread::park_timeout(RETRY_TIME),
        }
        number += 1;
    }
    done
}

fn svg_of(report: &KillReport) -> Result<String, String> {
    let mut text = String::new();
    draw(report, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw(
    report: &KillReport,
    text: &mut String,
) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let top = report.steps.iter().copied().max().unwrap_or(0) * 5 / 4 + 1;
    let title = format!(
        "kill -9 of the server under {} writers: no answer for {} ms, {} of {} synced writes lost",
        report.writers, report.gap_ms, report.lost, report.acknowledged
    );
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 15))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(0..report.milliseconds, 0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_desc("ms")
        .y_desc(format!("writes of 4 KiB synced in {STEP_MS} ms"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let (begin, end) = (report.gap_begin_ms, report.gap_begin_ms + report.gap_ms);
    let gap = Rectangle::new([(begin, 0), (end, top)], MARK.mix(0.2).filled());
    chart.draw_series(std::iter::once(gap))?;
    let bars = (0..).map(|step: u32| step * STEP_MS).zip(&report.steps);
    chart.draw_series(
        bars.map(|(at, &count)| Rectangle::new([(at, 0), (at + STEP_MS, count)], BAR.filled())),
    )?;
    let killed = report.killed_at_ms;
    let line = PathElement::new(vec![(killed, 0), (killed, top)], MARK.stroke_width(2));
    chart.draw_series(std::iter::once(line))?;
    let label = format!("kill -9; mounted again after {} ms", report.mount_ms);
    let style = ("sans-serif", 13).into_font().color(&MARK);
    chart.draw_series(std::iter::once(Text::new(label, (killed + STEP_MS, top), style)))?;
    root.present()
}
