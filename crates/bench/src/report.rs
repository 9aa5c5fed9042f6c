//! What a run says: medians, ranges, processor time, and ratios of pairs.

use serde::Serialize;

use crate::noise::NoiseReport;
use crate::number::to_u64;
use crate::plan::Plan;
use crate::run::{Failure, Options, Outcome, Sample, Target, TargetKind};
use crate::stats::{self, Ratio, Summary};
use crate::workload::{GROUPS, Measure, Unit};

/// Width of an interval, in parts of its ratio, from which on the ratio is marked: a goal counts as
/// reached only by a narrower one.
pub const WIDE: f64 = 0.10;

/// A run, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of the program.
    pub program: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Processors that this process may use.
    pub processors: u64,
    /// Rounds that were completed.
    pub rounds: u32,
    /// Rounds that were asked for.
    pub rounds_wanted: u32,
    /// Whether it was told to stop before it was done.
    pub was_stopped: bool,
    /// How much was done.
    pub plan: Plan,
    /// How far it may be trusted; `None`: nothing was done.
    pub noise: Option<NoiseReport>,
    /// Who took part.
    pub targets: Vec<TargetFacts>,
    /// What was measured.
    pub results: Vec<Measured>,
    /// What did not work.
    pub failures: Vec<Failure>,
}

/// A target of a run.
#[derive(Clone, Debug, Serialize)]
pub struct TargetFacts {
    /// Its name.
    pub name: String,
    /// What it is.
    pub what: String,
    /// What sort.
    pub kind: TargetKind,
}

/// One measure, with one number of client threads.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Its name.
    pub name: String,
    /// What was done.
    pub what: String,
    /// What was counted.
    pub unit: Unit,
    /// Client threads.
    pub threads: u64,
    /// What each target did.
    pub rates: Vec<Rate>,
    /// How they compare.
    pub ratios: Vec<Compared>,
}

/// What one target did.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// The target's name.
    pub target: String,
    /// Units a second, in order of rounds.
    pub samples: Vec<f64>,
    /// The same in short.
    pub per_second: Summary,
    /// Microseconds of processor time of the client for each unit: the median. For a target in this
    /// process that is all there is.
    pub client_cpu_us: f64,
    /// The same of the server's process; `None`: none is known. What the kernel does for it in
    /// threads of its own is in neither.
    pub server_cpu_us: Option<f64>,
}

/// How one target compares with another.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The target.
    pub of: String,
    /// The one that it is measured against.
    pub to: String,
    /// Its rate in parts of the other's.
    pub ratio: Ratio,
    /// Whether the interval is too wide to hold a goal against.
    pub is_wide: bool,
}

impl Report {
    /// Puts together what a run gave.
    #[must_use]
    pub fn new(
        targets: &[Target],
        options: &Options,
        outcome: &Outcome,
        noise: Option<NoiseReport>,
    ) -> Report {
        Report {
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

fn facts(target: &Target) -> TargetFacts {
    TargetFacts { name: target.name.clone(), what: target.what.clone(), kind: target.kind }
}

fn results(targets: &[Target], options: &Options, samples: &[Sample]) -> Vec<Measured> {
    let pairs = pairs(targets);
    let mut results = Vec::new();
    for measure in GROUPS.iter().flat_map(|group| group.measures) {
        // One without client threads of its own has those of its depth.
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

fn of<'a>(samples: &'a [Sample], measure: &'a Measure) -> impl Iterator<Item = &'a Sample> {
    samples.iter().filter(move |sample| sample.timed.measure.name == measure.name)
}

/// Returns who is compared with whom: each Holdfast with each that was given; without any of
/// either, all with the first.
fn pairs(targets: &[Target]) -> Vec<(usize, usize)> {
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
    targets: &[Target],
    pairs: &[(usize, usize)],
    samples: &[Sample],
    (measure, threads): (&'static Measure, usize),
) -> Measured {
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
        let cpu = |seconds: fn(&Sample) -> Option<f64>| {
            let each = mine(index)
                .filter_map(|sample| Some(seconds(sample)? * 1e6 / sample.timed.count))
                .collect::<Vec<f64>>();
            stats::summary(&each).map(|all| all.median)
        };
        rates.push(Rate {
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
        Some(Compared { of: name(of), to: name(to), ratio, is_wide })
    });
    Measured {
        name: measure.name.to_owned(),
        what: measure.what.to_owned(),
        unit: measure.unit,
        threads: to_u64(threads),
        rates,
        ratios: compared.collect(),
    }
}

fn rate_of(sample: &Sample) -> f64 {
    sample.timed.count / sample.timed.seconds
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;
    use crate::access::KernelAccess;
    use crate::run::Server;
    use crate::workload::Timed;

    fn target(name: &str, kind: TargetKind) -> Target {
        let access = Box::new(KernelAccess::new(Path::new("/"), None).expect("the root is there"));
        Target {
            name: name.to_owned(),
            what: String::new(),
            kind,
            access,
            server: Server::default(),
        }
    }

    fn sample(target: usize, round: u32, seconds: f64) -> Sample {
        let timed = Timed {
            measure: &GROUPS[0].measures[0],
            threads: 1,
            count: 100.0,
            seconds,
            client_cpu_seconds: seconds / 2.0,
            server_cpu_seconds: None,
        };
        Sample { target, round, timed }
    }

    /// A report of one measure: ours takes twice the time of the other, in eight rounds.
    pub(crate) fn example() -> Report {
        let targets = [target("fuse", TargetKind::Holdfast), target("ext4", TargetKind::Given)];
        let samples = (0..8)
            .flat_map(|round| {
                let slow = 1.0 + f64::from(round);
                [sample(0, round, 2.0 * slow), sample(1, round, slow)]
            })
            .collect();
        let outcome = Outcome { samples, rounds: 8, ..Outcome::default() };
        let plan = Plan::new(0.1);
        let options = Options { rounds: 8, plan, threads: vec![1], only: Vec::new() };
        Report::new(&targets, &options, &outcome, None)
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
