use rollpacker_dataflow::differential_dataflow::difference::IsZero;

use super::*;

#[test]
fn a_step_is_reduced_to_its_longest_correct_executions_and_its_kills() {
    let seconds = |seconds: u64| Nanos(seconds * 1_000_000_000);
    let ran = |took, correct, audited| Execution {
        case: 1,
        took: seconds(took),
        limit: seconds(4),
        correct,
        audited,
    };
    let mut facts = ExecutionFacts::default();
    for execution in [
        ran(3, true, false),
        ran(2, true, true),
        ran(9, false, true),
        ran(6, true, true),
        ran(4, false, false),
        ran(1, false, false),
    ] {
        facts.add(5, &execution);
    }
    assert_eq!(facts.longest, BTreeMap::from([((5, 1), Longest(6_000_000_000))]));
    assert_eq!((facts.kills, facts.audited_kills, facts.wrong_kills), (3, 2, 1));
    assert_eq!(facts.metrics()["reward/mean_limit_s"], 4.0);
}

#[test]
fn the_longest_add_up_to_their_maximum() {
    let mut longest = Longest(3);
    for other in [1, 7, 5] {
        longest.plus_equals(&Longest(other));
    }
    assert_eq!(longest, Longest(7));
    assert!(!Longest(0).is_zero(), "an execution time of 0 is an observation");
}
