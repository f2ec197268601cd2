//! Tests of the section `[schedule]`.

use rollpacker_operators::schedule::{ScheduleError, Synchronous, sync};
use rollpacker_stages::catalog::NoOptions;

use super::*;
use crate::recipe::schedule::{ScheduleSection, ScheduleSize};

#[test]
fn an_error_of_a_schedule_names_the_written_key() {
    let check = |overrides: &[&str], expected: Expect| check_error("", overrides, expected);
    check(
        &["schedule.eta_prompts=0.5"],
        expect!["key `schedule.eta_prompts`: expected a number from 1 to 1000, found 0.5"],
    );
    check(
        &["schedule.eta_prompts=many"],
        expect![[r#"key `schedule.eta_prompts`: expected a number, found "many""#]],
    );
    check(
        &["schedule.eta_prompts=inf"],
        expect!["key `schedule.eta_prompts`: expected a finite number, found inf"],
    );
    check(
        &["schedule.name=frontier_group"],
        expect!["key `schedule.order`: expected a value, found nothing"],
    );
    check(&["schedule.prompts=4"], expect!["unknown key `schedule.prompts`"]);
    check(
        &["schedule.quotas={math = 3}"],
        expect!["key `schedule.quotas`: expected a sum of 16, the prompts of a round, found 3"],
    );
    check(
        &["schedule.quotas={math = 0}"],
        expect!["key `schedule.quotas.math`: expected at least 1, found 0"],
    );
    check(
        &["schedule.selection=weighted", "schedule.eta_responses=2"],
        expect![
            "key `schedule.selection`: cannot be combined with `eta_responses = 2`: weights cannot correct for responses that are aborted because of surplus responses"
        ],
    );
    check(
        &[
            "schedule.filter_zero_variance={max_generated_batches = 0, on_exhausted = \"smaller_step\"}",
        ],
        expect![
            "key `schedule.filter_zero_variance.max_generated_batches`: expected at least 1, found 0"
        ],
    );
    check(
        &[
            "schedule.name=sorted",
            "schedule.group_size=2",
            "schedule.mode=on_policy",
            "schedule.carry_over=true",
        ],
        expect![[
            r#"key `schedule.carry_over`: cannot be combined with `mode = "on_policy"`: the next load would be aborted"#
        ]],
    );
    check(
        &[
            "schedule.name=dynamic",
            "schedule.max_generated_batches=2",
            "schedule.on_exhausted=smaller_step",
            "rollout.n=1",
        ],
        expect![
            "key `rollout.n`: expected at least 2, for rewards to vary within a group, found 1"
        ],
    );
}

#[test]
fn an_error_of_the_number_of_steps_names_the_key_of_the_run() {
    let schedules = Schedules::default().with("endless", |_: NoOptions| {
        Err::<Synchronous, _>(ScheduleError::bound("total_steps", "at least 1", 0))
    });
    let section = ScheduleSection { schedules, ..ScheduleSection::named("endless") };
    let size = ScheduleSize { prompts: 2, responses: 3, slots: 6, total_steps: Some(4) };
    let error = section.build(size).err().map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(error, "key `trainer.total_training_steps`: expected at least 1, found 0");
}

#[test]
fn a_schedule_may_require_what_other_sections_set() {
    #[derive(serde::Deserialize)]
    struct Options {
        prompts: usize,
        responses: u32,
        total_steps: u64,
    }
    let schedules = Schedules::default().with("counted", |options: Options| {
        let Options { prompts, responses, total_steps } = options;
        Synchronous::new(sync::Config { prompts, responses, total_steps: Some(total_steps) })
    });
    let section = ScheduleSection { schedules, ..ScheduleSection::named("counted") };
    let size = ScheduleSize { prompts: 2, responses: 3, slots: 6, total_steps: Some(4) };
    section.build(size).expect("built");
}

#[test]
fn overriding_the_schedule_drops_the_keys_of_the_previous_one() {
    let file = "[schedule]\nname = \"tail_batching\"\neta_prompts = 1.5";
    let recipe = read(file, &["schedule.name=sync"]).expect("valid");
    assert!(recipe.raw.schedule.options.is_empty());
    let same = read(file, &["schedule.name=tail_batching"]).expect("valid");
    assert_eq!(same.raw.schedule.options.len(), 1);
}
