//! The same system calls on two directories, one on a Holdfast mount and one on a file system that
//! is known: each call must have the same answer, and leave the same tree.
//!
//! ```text
//! beside HOLDFAST_DIRECTORY OTHER_DIRECTORY [FIRST_SEED [SEEDS [STEPS]]]
//! ```
//!
//! A seed makes a history of steps, whatever comes of them, so that one can be left out; a
//! difference is told with the shortest history that still has one. After each step everything that
//! stat(2) says of every name and open file is compared, and whether its times changed; at the end
//! content, targets, listings and attributes too. Exits 1 if there was a difference.
//!
//! Not compared, because they are each file system's own: numbers of inodes, sizes and offsets of
//! directories, blocks, access times, room. Not made: what `docs/SEMANTICS.md` says is different.

mod calls;
mod generate;
mod tree;

use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;

use calls::{Side, Step, become_user, set_umask};
use generate::Generator;
use runtime::prng::Prng;
use tree::Tree;

/// Supplementary groups of the users that are not the superuser.
const GROUPS: [(u32, &[u32]); 3] = [(0, &[]), (1001, &[1003]), (1002, &[])];

/// A difference, after so many steps.
struct Difference {
    step: usize,
    text: String,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [first, second, rest @ ..] = &*arguments else {
        eprintln!("usage: beside HOLDFAST_DIRECTORY OTHER_DIRECTORY [FIRST_SEED [SEEDS [STEPS]]]");
        return ExitCode::from(2);
    };
    let number = |index: usize, default: u64| {
        rest.get(index).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (seed, seeds, steps) = (number(0, 0), number(1, 1), number(2, 150));
    let places = [first.as_str(), second.as_str()];
    let mut differences = 0;
    for seed in seed..seed + seeds {
        let mut generator = Generator::new(seed);
        let mut history = generator.first_steps();
        history.extend((0..steps).map(|_| generator.step()));
        let Some(found) = run(places, seed, &history) else { continue };
        differences += 1;
        let shortest =
            shorten(places, seed, history[..=found.step.min(history.len() - 1)].to_vec());
        println!("seed {seed}:");
        for step in &shortest {
            println!("  {step}");
        }
        let again = run(places, seed, &shortest);
        println!("  {}\n", again.map_or(found.text, |found| found.text));
    }
    println!("{seeds} seeds, {differences} with a difference");
    if differences == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Leaves steps out as long as the difference stays.
fn shorten(places: [&str; 2], seed: u64, mut history: Vec<Step>) -> Vec<Step> {
    let mut part = history.len().div_ceil(2);
    while part > 0 {
        let mut from = 0;
        while from < history.len() {
            let until = (from + part).min(history.len());
            let shorter: Vec<Step> = [&history[..from], &history[until..]].concat();
            match run(places, seed, &shorter) {
                Some(found) => {
                    history = shorter;
                    history.truncate(found.step + 1);
                }
                None => from = until,
            }
        }
        part /= 2;
    }
    history
}

/// Runs a history on both sides; `None`: they are alike.
fn run(places: [&str; 2], seed: u64, history: &[Step]) -> Option<Difference> {
    // Deep, so that no link of a history leads out of it.
    let tops = places.map(|place| format!("{place}/beside-{}", std::process::id()));
    let roots = tops.clone().map(|top| format!("{top}/1/2/3/4/root"));
    set_umask(0);
    for (top, root) in tops.iter().zip(&roots) {
        let _ = std::fs::remove_dir_all(top);
        std::fs::create_dir_all(root).expect("the directory may be written to");
    }
    let result = run_in(&roots, seed, history);
    set_umask(0);
    let _ = std::env::set_current_dir("/");
    for top in &tops {
        let _ = std::fs::remove_dir_all(top);
    }
    result
}

fn run_in(roots: &[String; 2], seed: u64, history: &[Step]) -> Option<Difference> {
    let mut sides = [
        Side::new(&roots[0]).expect("a new directory can be opened"),
        Side::new(&roots[1]).expect("a new directory can be opened"),
    ];
    let mut chance = Prng::from_seed(!seed);
    for root in roots {
        let _ = std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o777));
    }
    if chance.one_in(2) {
        set_umask(0o022);
    }
    let mut user = GROUPS[0];
    let mut trees = [Tree::default(), Tree::default()];
    for (tree, side) in trees.iter_mut().zip(&sides) {
        tree.look(side);
    }
    for (index, step) in history.iter().enumerate() {
        if let Step::User(uid) = step {
            user = GROUPS.into_iter().find(|(known, _)| known == uid).unwrap_or(GROUPS[0]);
            continue;
        }
        become_user(user.0, user.1);
        let answers = [sides[0].run(step), sides[1].run(step)];
        become_user(0, &[]);
        let looks = [trees[0].look(&sides[0]), trees[1].look(&sides[1])];
        let differ = |text| Some(Difference { step: index, text });
        if answers[0] != answers[1] {
            return differ(format!("as {}: {} | {}", user.0, answers[0], answers[1]));
        }
        if step.takes_whiteout_back(&answers[1]) {
            continue;
        }
        for (ours, theirs) in looks[0].iter().zip(&looks[1]) {
            if ours != theirs {
                return differ(format!("as {}, {}: {ours} | {theirs}", user.0, answers[0]));
            }
        }
    }
    let contents = [trees[0].contents(&sides[0]), trees[1].contents(&sides[1])];
    let mut pairs = contents[0].iter().zip(&contents[1]);
    let (ours, theirs) = pairs.find(|(ours, theirs)| ours != theirs)?;
    Some(Difference { step: history.len(), text: format!("at the end: {ours} | {theirs}") })
}
