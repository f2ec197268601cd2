use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};

use super::{Curriculum, CurriculumOptions, JudgedPrompts, Judgement};

fn curriculum(options: CurriculumOptions) -> Curriculum {
    Curriculum::new(options, 7).expect("valid")
}

fn unexplored() -> CurriculumOptions {
    CurriculumOptions { exploration: 0.0, ..CurriculumOptions::default() }
}

/// Records a group with these scores for the prompt and row `row`.
fn train(curriculum: &mut Curriculum, step: u64, row: u64, scores: &[f64]) {
    let (step, prompt) = (Step(step), PromptId(row));
    curriculum.on_open(step);
    let samples: Vec<u32> = (0..).take(scores.len()).collect();
    curriculum.on_admit(step, prompt, row, samples.clone());
    for (sample, score) in samples.into_iter().zip(scores) {
        curriculum.on_score(SampleId { step, prompt, sample }, *score);
    }
    curriculum.on_close(step);
}

#[test]
fn bounds_are_exclusive() {
    let options = CurriculumOptions { min_pass_rate: 0.25, max_pass_rate: 0.75, ..unexplored() };
    let mut curriculum = curriculum(options);
    let groups = [[0.0; 4], [0.0, 0.0, 0.0, 1.0], [0.0, 2.0, 0.5, 1.0], [0.0, 1.0, 1.0, 1.0]];
    for (row, scores) in (0..).zip(&groups) {
        train(&mut curriculum, 0, row, scores);
    }
    let judged: Vec<Judgement> =
        (0..5).map(|row| curriculum.judge(Step(1), 1, row).expect("drawn")).collect();
    let expected = [
        Judgement::TooHard,
        Judgement::TooHard,
        Judgement::InBounds,
        Judgement::TooEasy,
        Judgement::Untried,
    ];
    assert_eq!(judged, expected);
    let rates: Vec<Option<f64>> = (0..5).map(|row| curriculum.pass_rate(row)).collect();
    assert_eq!(rates, [Some(0.0), Some(0.25), Some(0.5), Some(0.75), None]);
}

#[test]
fn results_are_used_after_the_staleness_even_if_they_are_known_earlier() {
    let mut curriculum = curriculum(unexplored()).with_staleness(2);
    train(&mut curriculum, 4, 0, &[1.0, 1.0]);
    for step in [4, 5, 6] {
        let judged = curriculum.judge(Step(step), 0, 0).expect("drawn");
        assert_eq!(judged, Judgement::Untried, "step {step}");
    }
    assert_eq!(curriculum.judge(Step(7), 0, 0).expect("drawn before"), Judgement::TooEasy);
}

#[test]
fn groups_that_were_not_scored_completely_leave_the_history_unchanged() {
    let mut curriculum = curriculum(unexplored());
    train(&mut curriculum, 0, 1, &[1.0, 0.0]);
    train(&mut curriculum, 1, 1, &[1.0, f64::NAN]);
    let (step, prompt) = (Step(1), PromptId(9));
    // Scores of a deferred prompt, and a late score of a response that was not admitted.
    curriculum.on_score(SampleId { step, prompt, sample: 0 }, 1.0);
    curriculum.on_score(SampleId { step, prompt: PromptId(1), sample: 5 }, 1.0);
    assert_eq!(curriculum.judge(Step(2), 0, 1).expect("drawn"), Judgement::InBounds);
    assert_eq!(curriculum.judge(Step(2), 0, 9).expect("drawn"), Judgement::Untried);
}

#[test]
fn a_rejected_group_without_variance_counts_with_its_scores() {
    let mut curriculum = curriculum(unexplored());
    let (step, prompt) = (Step(0), PromptId(3));
    curriculum.on_open(step);
    for sample in 0..2 {
        curriculum.on_score(SampleId { step, prompt, sample }, 1.0);
    }
    curriculum.on_reject(step, prompt, 3);
    curriculum.on_score(SampleId { step, prompt, sample: 2 }, 0.0);
    curriculum.on_close(step);
    assert_eq!(curriculum.judge(Step(1), 1, 3).expect("drawn later"), Judgement::TooEasy);
}

#[test]
fn an_epoch_that_is_skipped_entirely_is_an_error() {
    let mut curriculum = curriculum(unexplored());
    train(&mut curriculum, 0, 0, &[1.0, 1.0]);
    train(&mut curriculum, 0, 1, &[0.0, 0.0]);
    for row in 0..2 {
        assert!(!curriculum.judge(Step(1), 1, row).expect("not over").is_drawn());
    }
    let error = curriculum.judge(Step(1), 2, 0).expect_err("all skipped").to_string();
    assert_eq!(
        error,
        "the curriculum skipped all 2 prompts of epoch 1: 1 are too easy (pass rate of at least 1) and 1 are too hard (at most 0); \
         set data.curriculum.exploration above 0, or widen min_pass_rate and max_pass_rate"
    );
    assert!(curriculum.clone().end_of_epoch().is_ok(), "the error is reported once");
}

/// The round of step 1 trains on a prompt of the epoch before, after it has skipped the first prompt of the epoch.
#[test]
fn a_skipped_epoch_in_which_a_result_was_used_does_not_end_the_run() {
    let mut curriculum = curriculum(unexplored());
    train(&mut curriculum, 0, 0, &[1.0, 1.0]);
    train(&mut curriculum, 0, 1, &[0.0, 0.0]);
    assert_eq!(curriculum.judge(Step(1), 1, 0).expect("not over"), Judgement::TooEasy);
    train(&mut curriculum, 1, 0, &[1.0, 0.0]);
    assert_eq!(curriculum.judge(Step(2), 1, 1).expect("not over"), Judgement::TooHard);
    assert_eq!(curriculum.judge(Step(2), 2, 0).expect("it may be drawn"), Judgement::InBounds);
    train(&mut curriculum, 2, 0, &[1.0, 1.0]);
    for (row, epoch) in [(1, 2), (0, 3), (1, 3)] {
        assert!(!curriculum.judge(Step(3), epoch, row).expect("not over").is_drawn());
    }
    assert!(curriculum.end_of_epoch().is_err(), "no result was used during epoch 3");
}

#[test]
fn with_exploration_a_later_epoch_may_draw_what_one_skipped() {
    let mut seldom = curriculum(CurriculumOptions { exploration: 0.02, ..unexplored() });
    train(&mut seldom, 0, 0, &[0.0, 0.0]);
    let mut drawn = (1..500).map(|epoch| seldom.judge(Step(1), epoch, 0).expect("no error"));
    let first = drawn.position(Judgement::is_drawn).expect("one is explored");
    assert!(first > 0, "some epochs are skipped");
    let mut never = curriculum(CurriculumOptions { exploration: 1e-12, ..unexplored() });
    train(&mut never, 0, 0, &[0.0, 0.0]);
    let judged = (1..).find_map(|epoch| never.judge(Step(1), epoch, 0).err());
    let error = judged.expect("it ends").to_string();
    assert!(
        error.contains("of epoch 1000:") && error.contains("exploration above 0.000000000001"),
        "{error}"
    );
}

#[test]
fn options_out_of_range_are_named() {
    let default = CurriculumOptions::default();
    for (options, key) in [
        (CurriculumOptions { min_pass_rate: -0.1, ..default }, "min_pass_rate"),
        (CurriculumOptions { min_pass_rate: f64::NAN, ..default }, "min_pass_rate"),
        (CurriculumOptions { min_pass_rate: 0.5, max_pass_rate: 0.5, ..default }, "max_pass_rate"),
        (CurriculumOptions { max_pass_rate: 1.1, ..default }, "max_pass_rate"),
        (CurriculumOptions { exploration: 1.0, ..default }, "exploration"),
        (CurriculumOptions { pass_score: f64::INFINITY, ..default }, "pass_score"),
    ] {
        assert_eq!(options.validated().expect_err("out of range").key, key);
    }
}

proptest! {
    /// Checks the judgement of each row against the last result of the row, the counts of judgements, and that a serialized curriculum is
    /// read back unchanged.
    #[test]
    fn prompts_are_judged_by_their_last_result(
        groups in prop::collection::vec((0..12_u64, prop::collection::vec(0..3_u32, 1..5)), 0..80),
        exploration in 0.0..0.9_f64,
        seed: u64,
    ) {
        let options = CurriculumOptions { exploration, ..CurriculumOptions::default() };
        let mut curriculum = Curriculum::new(options, seed).expect("valid");
        let mut last: BTreeMap<u64, f64> = BTreeMap::new();
        for (step, (row, scores)) in (0..).zip(&groups) {
            let scores: Vec<f64> = scores.iter().map(|&score| f64::from(score) / 2.0).collect();
            train(&mut curriculum, step, *row, &scores);
            let passed = scores.iter().filter(|&&score| score >= 1.0).count();
            last.insert(*row, passed as f64 / scores.len() as f64);
        }
        let (step, mut counts) = (Step(groups.len() as u64), JudgedPrompts::default());
        for row in 0..12 {
            let judgement = curriculum.judge(step, 1, row).expect("one epoch");
            counts.add(judgement);
            let expected: BTreeSet<&str> = match last.get(&row) {
                None => ["Untried"].into(),
                Some(&rate) if rate <= 0.0 => ["TooHard", "Explored"].into(),
                Some(&rate) if rate >= 1.0 => ["TooEasy", "Explored"].into(),
                Some(_) => ["InBounds"].into(),
            };
            prop_assert!(expected.contains(format!("{judgement:?}").as_str()), "{judgement:?}");
        }
        prop_assert_eq!(counts.drawn() + counts.skipped(), 12);
        prop_assert_eq!(&counts, curriculum.totals());
        let read: Curriculum =
            serde_json::from_str(&serde_json::to_string(&curriculum).expect("written")).expect("read");
        prop_assert_eq!(read, curriculum);
    }
}

#[test]
fn too_easy_prompts_are_drawn_with_the_exploration_share() {
    let options = CurriculumOptions { exploration: 0.2, ..CurriculumOptions::default() };
    let mut curriculum = curriculum(options);
    (0..2000).for_each(|row| train(&mut curriculum, 0, row, &[1.0]));
    for row in 0..2000 {
        curriculum.judge(Step(1), 1, row).expect("one epoch");
    }
    let JudgedPrompts { explored, too_easy, .. } = *curriculum.totals();
    assert_eq!(explored + too_easy, 2000);
    assert!((350..450).contains(&explored), "{explored}");
}
