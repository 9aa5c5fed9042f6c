//! Exit codes and output of `holdfast-lab`.

use crate::program::lab;

#[test]
fn nonsense_has_exit_codes_of_its_own() {
    lab(&["--help"]).expect(0);
    lab(&["frobnicate"]).expect(2);
    for (arguments, words) in [
        (&["torture", "--seeds", "0"][..], "--seeds must be"),
        (&["prove", "--only", "99999999"], "counted from 0"),
        (&["prove", "--bound", "4"], "1..=3"),
        (&["bench", "--server", "a=b"], "not a process"),
    ] {
        let refused = lab(arguments).expect(2).stderr();
        assert!(refused.contains(words), "{arguments:?}: {refused}");
    }
    let told = lab(&["--json", "torture", "--seeds", "0"]).expect(2).json();
    assert_eq!(told["exit"], 2);
}

/// Goal: seeds run, their number is told, and `--quiet` leaves the result alone.
#[test]
fn torture_runs_its_seeds() {
    let ran = lab(&["torture", "--seeds", "1", "--quiet"]).expect(0);
    assert!(ran.stdout().starts_with("1 seeds, "), "{}", ran.stdout());
    assert_eq!(ran.stderr(), "");
    let ran = lab(&["torture", "--seeds", "1"]).expect(0);
    assert!(ran.stderr().contains("1 of 1 (100%)"), "plain progress: {}", ran.stderr());
}
