//! Several writers at once into what each of them took ahead, in a full pool.

use engine::api::FileSystem;
use runtime::prng::Prng;
use runtime::sync::sim::{Scheduler, SimThreadTask};

use super::Ground;
use super::ahead::{Ahead, SHAPES, fill, index};
use super::freeing::number_of;

/// Cases of a run in CI; `HOLDFAST_FULL_CASES` says otherwise.
const CASES: u64 = 20;
const WRITERS: usize = 3;
/// Writes of each of them, before and after the one over its whole range.
const WRITES: u32 = 60;
/// How often the thread beside them takes what it can get.
const GRABS: u32 = 20;

fn written_together(seed: u64) {
    let mut prng = Prng::from_seed(seed);
    let shapes = u64::try_from(SHAPES.len()).expect("a few");
    let ground = Ground::new(&SHAPES[index(prng.below(shapes))]);
    let eighth = ground.available() / 8;
    let mut files: Vec<Ahead> = (0..WRITERS)
        .map(|number| {
            let share = eighth * (1 + prng.below(2));
            Ahead::new(&ground, &mut prng, &format!("ahead{number}"), share)
        })
        .collect();
    fill(&ground, "f", index(1 + prng.below(50_000)));
    fill(&ground, "g", 300);

    let taker = || {
        for number in 0..GRABS {
            fill(&ground, &format!("taken{number}-"), 5000);
            ground.pool.tick().expect("background work needs no room");
        }
    };
    let mut jobs: Vec<SimThreadTask<'_>> = vec![("taker".to_owned(), Box::new(taker))];
    for file in &mut files {
        let (mut prng, ground) = (prng.fork(), &ground);
        let writer = move || {
            file.write_about(ground, &mut prng, WRITES);
            file.write_all(ground);
            file.write_about(ground, &mut prng, WRITES);
        };
        jobs.push(("writer".to_owned(), Box::new(writer)));
    }
    Scheduler::new(seed).run(jobs);

    files.iter().for_each(|file| file.expect_content(&ground));
    ground.pool.sync().expect("what was accepted finds room");
    assert_eq!(ground.reopened().defects(), None);
}

/// Goal: what one took ahead is there for him, whoever else writes, or takes what he can get.
///
/// Method: three files, of each a range taken ahead; then data and small files until nothing is
/// accepted; then a writer to each range, with a thread that goes on filling the pool, in the order
/// that the seed chooses. No write may be refused.
#[test]
fn writers_into_what_they_took_ahead_do_not_take_it_from_each_other() {
    for seed in 0..number_of("HOLDFAST_FULL_CASES", CASES) {
        println!("seed {seed}");
        written_together(seed);
    }
}
