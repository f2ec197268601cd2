//! Time limits of test cases through the reward operator, in virtual time.

mod support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use expect_test::expect;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_operators::report::{StepReport, measure};
use rollpacker_operators::reward::{AdaptiveLimits, LimitOptions, TimeLimit};
use rollpacker_operators::schedule::{Synchronous, sync};
use rollpacker_stages::reward::{
    Context, Execution, Limits, Reward, RewardError, Router, Sample, Score,
};
use support::rewarded::{Log, Rewarded};

/// A reward that runs each response on one test case, without queueing. The response is right after the number of seconds that
/// `right_after` returns, or never ends if there is none.
struct Sandbox {
    log: Log,
    right_after: fn(SampleId) -> Option<f64>,
}

impl Reward for Sandbox {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        let limits = &context.limits;
        let allowed = limits.max_run_time(0, None);
        let ended = (self.right_after)(sample.id).map(Nanos::from_secs_f64);
        let ended = ended.filter(|took| *took < allowed);
        self.log.clock.sleep(ended.unwrap_or(allowed)).await;
        let execution = limits.execution(0, None, ended.unwrap_or(allowed), ended.is_some());
        let outcome = match (execution.is_right(), execution.is_wrongly_killed()) {
            (true, _) => "right",
            (_, true) => "right too late",
            _ => "killed",
        };
        self.log.line(format_args!("{} {outcome}, limit {}", sample.id, execution.limit));
        Ok(Score { executions: vec![execution], ..Score::from(execution.is_right()) })
    }
}

/// The longest correct executions that the ledger reported, by dataset row and case.
type Known = Rc<RefCell<BTreeMap<(u64, u32), Nanos>>>;

/// Adaptive limits that learn either from executions as they happen (`learns_online`) or from the anchors of the ledger. Records the
/// anchors of the ledger in `known`.
struct ObservedLimit {
    policy: Rc<RefCell<AdaptiveLimits>>,
    known: Known,
    learns_online: bool,
}

impl TimeLimit for ObservedLimit {
    fn limits(&mut self, id: SampleId, row: u64) -> Limits {
        self.policy.borrow_mut().limits(id, row)
    }

    fn executed(&mut self, id: SampleId, row: u64, executions: &[Execution]) {
        if self.learns_online {
            self.policy.borrow_mut().executed(id, row, executions);
        }
    }

    fn set_anchor(&mut self, row: u64, case: u32, longest: Nanos) {
        self.known.borrow_mut().insert((row, case), longest);
        if !self.learns_online {
            self.policy.borrow_mut().set_anchor(row, case, longest);
        }
    }
}

/// Returns limits with an audit share of 0.2. Their seed audits only sample 1 of prompt 1 among `responses` responses to each of `prompts`
/// prompts at step 0.
fn policy(prompts: u64, responses: u32) -> AdaptiveLimits {
    let audited = |policy: &mut AdaptiveLimits, prompt, sample| {
        let id = SampleId { step: Step(0), prompt: PromptId(prompt), sample };
        policy.limits(id, prompt).audit
    };
    let options = LimitOptions { audit_share: 0.2, ..LimitOptions::default() };
    let seeded = (0..).map(|seed| AdaptiveLimits::new(options, seed).expect("in bounds"));
    let is_wanted = |policy: &mut AdaptiveLimits| {
        (0..prompts).all(|prompt| {
            (0..responses)
                .all(|sample| audited(policy, prompt, sample) == ((prompt, sample) == (1, 1)))
        })
    };
    let found = seeded.into_iter().find_map(|mut policy| is_wanted(&mut policy).then_some(policy));
    found.expect("a seed with the wanted audits")
}

struct Ran {
    log: Log,
    reports: Vec<StepReport>,
    policy: AdaptiveLimits,
    known: BTreeMap<(u64, u32), Nanos>,
}

/// Runs `prompts` prompts in steps of two, with three responses to each. Sample 0 of a prompt takes 1 s, and its test case is right after 4
/// s. `learns_online` is that of [`ObservedLimit`].
fn run(prompts: u64, learns_online: bool) -> Ran {
    let log = Log::new();
    let right_after = |id: SampleId| match (id.prompt.0 % 2, id.sample) {
        (_, 0) => Some(4.0),
        (1, 1) => Some(8.0),
        _ => None,
    };
    let router = Router::default().route("*", Sandbox { log: log.clone(), right_after });
    let config = sync::Config { prompts: 2, responses: 3, total_steps: None };
    let known = Known::default();
    let policy = Rc::new(RefCell::new(policy(2, 3)));
    let run = Rewarded {
        prompts,
        limit: Box::new(ObservedLimit {
            policy: policy.clone(),
            known: known.clone(),
            learns_online,
        }),
        seconds: Box::new(|id| match (id.prompt.0 % 2, id.sample) {
            (_, 0) => 1,
            (0, 2) => 2,
            (1, 2) => 20,
            _ => 10,
        }),
        ..Rewarded::of(&log, Synchronous::new(config).expect("valid"), router)
    };
    let reports = run.run().expect("no fault");
    let (policy, known) = (policy.borrow().clone(), known.borrow().clone());
    Ran { log, reports, policy, known }
}

// Sample 2 of prompt 0 begins before any execution is right, and sample 1 of it after; sample 1 of prompt 1 is audited.
#[test]
fn a_straggler_is_killed_at_1_5_times_the_anchor_and_an_audit_finds_a_wrong_kill() {
    let Ran { log, reports, .. } = run(2, true);
    let lines: Vec<_> = log.text().lines().map(|line| line.trim().to_owned()).collect();
    expect![[r#"
        t=5   p0.0@0 right, limit 30.000 s
        t=5   p1.0@0 right, limit 30.000 s
        t=16  p0.1@0 killed, limit 6.000 s
        t=18  p1.1@0 right too late, limit 6.000 s
        t=32  p0.2@0 killed, limit 30.000 s
        t=32  p1.2@0 killed, limit 12.000 s
        t=41  step 0 over"#]]
    .assert_eq(&lines.join("\n"));
    let metrics = measure(&reports[0]);
    let names = [
        "reward/limit_kills",
        "reward/audited_kills",
        "reward/wrong_kills",
        "reward/wrong_kill_rate",
        "reward/mean_limit_s",
        "ledger/anchored_cases",
        "ledger/mean_anchor_s",
    ];
    let mean_limit = (30.0 * 3.0 + 6.0 * 2.0 + 12.0) / 6.0;
    assert_eq!(names.map(|name| metrics[name]), [4.0, 1.0, 1.0, 1.0, mean_limit, 2.0, 6.0]);
}

/// Returns the longest correct execution of each case of a row.
fn anchors(policy: &mut AdaptiveLimits, row: u64) -> Vec<Option<Nanos>> {
    let id = SampleId { step: Step(0), prompt: PromptId(row), sample: 0 };
    policy.limits(id, row).anchors.to_vec()
}

#[test]
fn limits_learned_online_match_the_ledger_after_each_step() {
    let mut online = run(6, true);
    let learned: BTreeMap<(u64, u32), Nanos> = (0..6)
        .flat_map(|row| anchors(&mut online.policy, row).into_iter().map(move |it| (row, it)))
        .filter_map(|(row, anchor)| Some(((row, 0), anchor?)))
        .collect();
    assert_eq!(learned.len(), 6);
    assert_eq!(online.known, learned);
    // Without a second epoch its limits are T_max throughout, and the ledger computes the same limits from the executions of that epoch.
    let mut offline = run(6, false);
    let learned: Vec<_> = (0..6).map(|row| anchors(&mut offline.policy, row)).collect();
    let known: Vec<_> = (0..6).map(|row| vec![offline.known.get(&(row, 0)).copied()]).collect();
    assert_eq!(learned, known);
}

#[test]
fn a_run_repeats_to_the_nanosecond() {
    let [one, other] = [run(6, true), run(6, true)];
    assert_eq!(one.log.text(), other.log.text());
    assert_eq!(one.policy, other.policy);
}
