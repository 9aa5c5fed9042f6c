//! The report of a run: medians, ranges, processor times, and paired ratios.

use serde::Serialize;

use crate::noise::NoiseReport;
use crate::number::to_u64;
use crate::plan::BenchPlan;
use crate::run::{
    BenchOptions, BenchOutcome, MeasureSample, SystemUnderTest, TargetKind, WorkloadFailure,
};
use crate::stats::{self, Ratio, SampleSummary};
use crate::workload::{GROUPS, Measure, MeasureUnit};

/// Relative width of an interval above which its ratio is too uncertain to judge a goal.
pub const WIDE: f64 = 0.10;

/// A run, as printed by `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// Program version.
    pub program: String,
    /// Kernel release.
    pub kernel: String,
    /// Processors available to this process.
    pub processors: u64,
    /// Completed rounds.
    pub rounds: u32,
    /// Requested rounds.
    pub rounds_wanted: u32,
    /// Whether the run was interrupted.
    pub was_stopped: bool,
    /// Amounts.
    pub plan: BenchPlan,
    /// Noise of the machine, or `None` without samples.
    pub noise: Option<NoiseReport>,
    /// Targets.
    pub targets: Vec<TargetFacts>,
    /// Results.
    pub results: Vec<MeasureResult>,
    /// Failed workloads.
    pub failures: Vec<WorkloadFailure>,
}

/// A target of a run.
#[derive(Clone, Debug, Serialize)]
pub struct TargetFacts {
    /// Target name.
    pub name: String,
    /// Description.
    pub what: String,
    /// Kind.
    pub kind: TargetKind,
}

/// One measure with one thread count.
#[derive(Clone, Debug, Serialize)]
pub struct MeasureResult {
    /// Measure name.
    pub name: String,
    /// Description.
    pub what: String,
    /// Unit.
    pub unit: MeasureUnit,
    /// Client threads.
    pub threads: u64,
    /// Rate of each target.
    pub rates: Vec<TargetRate>,
    /// Comparisons.
    pub ratios: Vec<TargetComparison>,
}

/// Rate of one target.
#[derive(Clone, Debug, Serialize)]
pub struct TargetRate {
    /// Target name.
    pub target: String,
    /// Units a second, by round.
    pub samples: Vec<f64>,
    /// Summary of the samples.
    pub per_second: SampleSummary,
    /// Median processor time of the client per unit, in microseconds. Includes the engine if the
    /// target is in this process.
    pub client_cpu_us: f64,
    /// Median processor time of the server process per unit, if known. Kernel threads are in
    /// neither time.
    pub server_cpu_us: Option<f64>,
}

/// Comparison of two targets.
#[derive(Clone, Debug, Serialize)]
pub struct TargetComparison {
    /// Target compared.
    pub of: String,
    /// Target of reference.
    pub to: String,
    /// Rate divided by the reference rate.
    pub ratio: Ratio,
    /// Whether the interval is too wide to judge a goal.
    pub is_wide: bool,
}

impl BenchReport {
    /// Creates the report of a run.
    #[must_use]
    pub fn new(
        targets: &[SystemUnderTest],
        options: &BenchOptions,
        outcome: &BenchOutcome,
        noise: Option<NoiseReport>,
    ) -> BenchReport {
        BenchReport {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: kernel_release(),
            processors: std::thread::available_parallelism().map_or(1, |count| to_u64(count.get())),
            rounds: outcome.rounds,
            rounds_wanted: options.rounds,
            was_stopped: outcome.was_stopped,
            plan: options.plan,
            noise,
            targets: targets.iter().map(facts).collect(),
            results: results(targets, options, &outcome.samples),
            failures: outcome.failures.clone(),
        }
    }
}

fn kernel_release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "of an unknown release".to_owned(), |text| text.trim().to_owned())
}

fn facts(target: &SystemUnderTest) -> TargetFacts {
    TargetFacts { name: target.name.clone(), what: target.what.clone(), kind: target.kind }
}

fn results(
    targets: &[SystemUnderTest],
    options: &BenchOptions,
    samples: &[MeasureSample],
) -> Vec<MeasureResult> {
    let pairs = pairs(targets);
    let mut results = Vec::new();
    for measure in GROUPS.iter().flat_map(|group| group.measures) {
        // `threads` is the queue depth for a measure without client threads.
        let mut threads: Vec<usize> = of(samples, measure).map(|s| s.timed.threads).collect();
        threads.sort_unstable_by_key(|count| {
            (options.threads.iter().position(|wanted| wanted == count), *count)
        });
        threads.dedup();
        for threads in threads {
            results.push(measured(targets, &pairs, samples, (measure, threads)));
        }
    }
    results
}

fn of<'a>(
    samples: &'a [MeasureSample],
    measure: &'a Measure,
) -> impl Iterator<Item = &'a MeasureSample> {
    samples.iter().filter(move |sample| sample.timed.measure.name == measure.name)
}

/// Returns the pairs to compare: each Holdfast target with each given one. If either kind is
/// absent, the others with the first.
fn pairs(targets: &[SystemUnderTest]) -> Vec<(usize, usize)> {
    let kind = |kind: TargetKind| {
        let found = targets.iter().enumerate().filter(move |(_, target)| target.kind == kind);
        found.map(|(index, _)| index).collect::<Vec<usize>>()
    };
    let (ours, given) = (kind(TargetKind::Holdfast), kind(TargetKind::Given));
    if ours.is_empty() || given.is_empty() {
        return (1..targets.len()).map(|index| (index, 0)).collect();
    }
    ours.iter().flat_map(|&of| given.iter().map(move |&to| (of, to))).collect()
}

fn measured(
    targets: &[SystemUnderTest],
    pairs: &[(usize, usize)],
    samples: &[MeasureSample],
    (measure, threads): (&'static Measure, usize),
) -> MeasureResult {
    let mine = |index: usize| {
        of(samples, measure)
            .filter(move |sample| sample.target == index && sample.timed.threads == threads)
    };
    let name = |index: usize| targets.get(index).map_or(String::new(), |t| t.name.clone());
    let rates_of = |index| mine(index).map(rate_of).collect::<Vec<f64>>();
    let mut rates = Vec::new();
    for index in 0..targets.len() {
        let samples = rates_of(index);
        let Some(per_second) = stats::summary(&samples) else { continue };
        let cpu = |seconds: fn(&MeasureSample) -> Option<f64>| {
            let each = mine(index)
                .filter_map(|sample| Some(seconds(sample)? * 1e6 / sample.timed.count))
                .collect::<Vec<f64>>();
            stats::summary(&each).map(|all| all.median)
        };
        rates.push(TargetRate {
            target: name(index),
            samples,
            per_second,
            client_cpu_us: cpu(|s| Some(s.timed.client_cpu_seconds)).unwrap_or(0.0),
            server_cpu_us: cpu(|s| s.timed.server_cpu_seconds),
        });
    }
    let compared = pairs.iter().filter_map(|&(of, to)| {
        let ratio = stats::ratio(&rates_of(of), &rates_of(to))?;
        let is_wide = ratio.width() > WIDE || ratio.confidence < stats::CONFIDENCE;
        Some(TargetComparison { of: name(of), to: name(to), ratio, is_wide })
    });
    MeasureResult {
        name: measure.name.to_owned(),
        what: measure.what.to_owned(),
        unit: measure.unit,
        threads: to_u64(threads),
        rates,
        ratios: compared.collect(),
    }
}

fn rate_of(sample: &MeasureSample) -> f64 {
    sample.timed.count / sample.timed.seconds
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;
    use crate::access::KernelAccess;
    use crate::run::ServerProcess;
    use crate::workload::PhaseTiming;

    fn target(name: &str, kind: TargetKind) -> SystemUnderTest {
        let access = Box::new(KernelAccess::new(Path::new("/"), None).expect("the root is there"));
        SystemUnderTest {
            name: name.to_owned(),
            what: String::new(),
            kind,
            access,
            server: ServerProcess::default(),
        }
    }

    fn sample(target: usize, round: u32, seconds: f64) -> MeasureSample {
        let timed = PhaseTiming {
            measure: &GROUPS[0].measures[0],
            threads: 1,
            count: 100.0,
            seconds,
            client_cpu_seconds: seconds / 2.0,
            server_cpu_seconds: None,
        };
        MeasureSample { target, round, timed }
    }

    /// A report of one measure in eight rounds, in which ours takes twice as long.
    pub(crate) fn example() -> BenchReport {
        let targets = [target("fuse", TargetKind::Holdfast), target("ext4", TargetKind::Given)];
        let samples = (0..8)
            .flat_map(|round| {
                let slow = 1.0 + f64::from(round);
                [sample(0, round, 2.0 * slow), sample(1, round, slow)]
            })
            .collect();
        let outcome = BenchOutcome { samples, rounds: 8, ..BenchOutcome::default() };
        let plan = BenchPlan::new(0.1);
        let options = BenchOptions { rounds: 8, plan, threads: vec![1], only: Vec::new() };
        BenchReport::new(&targets, &options, &outcome, None)
    }

    #[test]
    fn a_ratio_is_that_of_the_pairs_however_the_machine_slows_down() {
        let report = example();
        let [measured] = report.results.as_slice() else { panic!("{report:?}") };
        assert_eq!(measured.rates[0].samples.len(), 8);
        assert_eq!(measured.rates[1].per_second.most, 100.0);
        assert_eq!(measured.rates[1].client_cpu_us, 22_500.0);
        let [compared] = measured.ratios.as_slice() else { panic!("{measured:?}") };
        assert_eq!((compared.of.as_str(), compared.to.as_str()), ("fuse", "ext4"));
        assert_eq!((compared.ratio.median, compared.is_wide), (0.5, false));
    }

    #[test]
    fn who_is_compared_with_whom() {
        use TargetKind::{Given, Holdfast};
        let ours = [target("a", Holdfast), target("b", Holdfast)];
        assert_eq!(pairs(&ours), [(1, 0)]);
        let given = [target("a", Given), target("b", Given), target("c", Given)];
        assert_eq!(pairs(&given), [(1, 0), (2, 0)]);
        let both = [target("a", Holdfast), target("b", Given), target("c", Given)];
        assert_eq!(pairs(&both), [(0, 1), (0, 2)]);
    }
}
