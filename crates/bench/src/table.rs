//! Formats a report as a table: a line per measure and target, ratios with intervals.

use std::fmt::Write;

use crate::noise::{NoiseLevel, NoiseReport};
use crate::report::{BenchReport, MeasureResult, TargetComparison};
use crate::stats::CONFIDENCE;
use crate::workload::GROUPS;

/// Formats a report as a table that is also Markdown.
#[must_use]
pub fn text_of(report: &BenchReport) -> String {
    let mut text = head(report);
    text.push_str(
        "\n| measure | threads | target | median | range | unit | client CPU, us | \
         server CPU, us | ratio [interval] |\n|---|---:|---|---:|---:|---|---:|---:|---|\n",
    );
    for measured in &report.results {
        rows(&mut text, measured);
    }
    text.push_str(&foot(report));
    text
}

fn head(report: &BenchReport) -> String {
    let mut text = String::new();
    let BenchReport { program, kernel, processors, rounds, rounds_wanted, plan, .. } = report;
    let _ = writeln!(
        text,
        "holdfast {program}, Linux {kernel}, {processors} processors; {rounds} of {rounds_wanted} \
         rounds at scale {}",
        plan.scale
    );
    for target in &report.targets {
        let _ = writeln!(text, "- {}: {}", target.name, target.what);
    }
    if let Some(noise) = &report.noise {
        let _ = writeln!(text, "- {}", noise_line(noise));
    }
    text
}

/// Describes the noise of a run.
#[must_use]
pub fn noise_line(noise: &NoiseReport) -> String {
    let verdict = match noise.verdict {
        NoiseLevel::Quiet => "quiet",
        NoiseLevel::Restless => "restless: small differences may be the machine's",
        NoiseLevel::TooNoisy => "TOO NOISY TO TELL: run it again when nothing else runs",
    };
    let load = noise.load.map_or_else(String::new, |load| format!(", load {load:.1}"));
    format!(
        "machine: {verdict} (a loop of {:.1} ms took {:.1} to {:.1}, spread {:.0} %; 16 synced \
         writes {:.1} ms, {:.1} to {:.1}, spread {:.0} %{load})",
        noise.spin_ms.median,
        noise.spin_ms.least,
        noise.spin_ms.most,
        noise.spin_spread * 100.0,
        noise.write_ms.median,
        noise.write_ms.least,
        noise.write_ms.most,
        noise.write_spread * 100.0,
    )
}

fn rows(text: &mut String, measured: &MeasureResult) {
    for rate in &measured.rates {
        let compared = measured.ratios.iter().filter(|compared| compared.of == rate.target);
        let ratios: Vec<String> = compared.map(ratio).collect();
        let server = rate.server_cpu_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} to {} | {} | {:.1} | {server} | {} |",
            measured.name,
            measured.threads,
            rate.target,
            number(rate.per_second.median),
            number(rate.per_second.least),
            number(rate.per_second.most),
            measured.unit.rate(),
            rate.client_cpu_us,
            ratios.join(", "),
        );
    }
}

fn ratio(compared: &TargetComparison) -> String {
    let ratio = &compared.ratio;
    let mark = if compared.is_wide { "~" } else { "" };
    // At least two significant digits of a median of 0.01 or more.
    let digits = if ratio.median < 0.095 { 3 } else { 2 };
    let [median, low, high] =
        [ratio.median, ratio.low, ratio.high].map(|value| format!("{value:.digits$}"));
    format!("{mark}{median} x {} [{low}, {high}]", compared.to)
}

fn foot(report: &BenchReport) -> String {
    let mut text = String::new();
    let ratios = || report.results.iter().flat_map(|measured| &measured.ratios);
    if let Some(first) = ratios().next() {
        let least = ratios().map(|c| c.ratio.confidence).fold(first.ratio.confidence, f64::min);
        let _ = writeln!(
            text,
            "\nRatios are medians of pairs of the same round. Their intervals hold the true median \
             with {:.0} % or more{}. ~ marks one that is too wide to hold a goal against.",
            least * 100.0,
            if least < CONFIDENCE { " (from six rounds on: 95 %)" } else { "" }
        );
    }
    for failure in &report.failures {
        let _ = writeln!(
            text,
            "\n{} could not do `{}`: {}",
            failure.target, failure.workload, failure.cause
        );
    }
    if report.was_stopped {
        let _ = writeln!(text, "\nStopped before it was done.");
    }
    text
}

/// Formats a rate with three or four significant digits.
fn number(value: f64) -> String {
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), ""), |parts| parts);
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() { grouped } else { format!("{grouped}.{fraction}") }
}

/// Lists the workloads, for `--list`.
#[must_use]
pub fn list() -> String {
    let mut text = String::new();
    for group in GROUPS {
        let threads = if group.is_threaded { ", with --threads" } else { "" };
        let _ = writeln!(text, "{}{threads}", group.name);
        for measure in group.measures {
            let _ = writeln!(text, "  {:<20} {}", measure.name, measure.what);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report;

    #[test]
    fn a_ratio_is_never_shown_without_its_interval() {
        let text = text_of(&report::tests::example());
        let row = text.lines().find(|line| line.contains("| fuse |")).expect("it took part");
        assert!(row.ends_with("| 0.50 x ext4 [0.50, 0.50] |"), "{row}");
        assert_eq!(text.matches(" x ").count(), text.matches(" [0.").count());
        let cells = |line: &str| line.matches('|').count();
        let rows: Vec<_> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert!(rows.iter().all(|row| cells(row) == 10), "{text}");
    }

    #[test]
    fn numbers_are_grouped() {
        let shown = [1_234_567.8, 999.6, 12.34, 1.234, 0.0].map(number);
        assert_eq!(shown, ["1,234,568", "1,000", "12.3", "1.23", "0.00"]);
    }

    #[test]
    fn the_list_has_every_measure() {
        let list = list();
        for measure in GROUPS.iter().flat_map(|group| group.measures) {
            assert!(list.contains(&format!("  {} ", measure.name)), "{}", measure.name);
        }
    }
}
