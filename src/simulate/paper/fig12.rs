//! Fig. 12: rollout time with more speculation on prompts, on responses, and on both; mathematical tasks.
//!
//! The authors' repository has the script of the figure (`examples/sensitive_analysis_fig11`, `plot/plt_sensitive_squeezer.py`). It runs
//! ten iterations without training for each bar, all with RollPacker's scheduler, also the bar without speculation. The height of a bar is
//! the mean of the longest short round and the longest long round, weighted by their numbers in a period. Without long rounds, it is the
//! longest of the ten rounds. The timer of a round ends with its last reward.
//!
//! The figure states the response caps but not the jobs. The bars of 8k agree within 8 % with the bars that the repository contains for the
//! script, except for the two shortest. Both sets of bars are simulated in the way that the repository runs the script: 7B/8k, 32 prompts,
//! on 8 [A800]. The hardware was chosen with knowledge of the bar without speculation; according to the repository, the paper's evaluation
//! as a whole ran on H800. The other jobs are the jobs of section 6.1.
//!
//! [A800]: super::jobs::A800

use super::ROLLPACKER;
use super::item::Provenance::{self, Fitted, HeldOut};
use super::item::{Item, SimulatedValue};
use super::jobs::{A800, Base, MATH, QWEN_14B, QWEN_32B, REPOSITORY, REWARD_SCHEDULER};
use super::plan::Plan;
use super::runs::{GENERATION, JobId, RunSelection};

/// The bars for one response cap: the surplus of responses (`R`), of prompts (`P`) or of both, as factors, and the number of short rounds
/// in a period.
const BARS: [Bar; 8] = [
    Bar { name: "1", factors: ["1", "1"], short_rounds: 0 },
    Bar { name: "R 1.125", factors: ["1.125", "1"], short_rounds: 0 },
    Bar { name: "R 1.25", factors: ["1.25", "1"], short_rounds: 0 },
    Bar { name: "R 1.5", factors: ["1.5", "1"], short_rounds: 0 },
    Bar { name: "P 1.125", factors: ["1", "1.125"], short_rounds: 8 },
    Bar { name: "P 1.25", factors: ["1", "1.25"], short_rounds: 4 },
    Bar { name: "P 1.5", factors: ["1", "1.5"], short_rounds: 2 },
    Bar { name: "both 1.25", factors: ["1.25", "1.25"], short_rounds: 4 },
];

/// The number of rounds that the script runs for a bar.
const ITERATIONS: u32 = 10;

/// The batch size, response limit and group size of the repository's script.
const SCRIPT: &[&str] =
    &["data.train_batch_size=32", "data.max_response_length=8192", "rollout.n=8"];

/// For each response cap, its name, the job and its settings, and the seconds of [`BARS`].
const PAPER: [(&str, Base, &[&str], [f64; 8]); 4] = [
    ("8k", REPOSITORY, SCRIPT, [82.0, 77.0, 71.0, 54.0, 77.0, 72.0, 60.0, 47.0]),
    ("8k, repository", REPOSITORY, SCRIPT, [79.0, 73.0, 66.0, 36.0, 75.0, 74.0, 61.0, 34.0]),
    ("16k", QWEN_14B, MATH, [277.0, 260.0, 232.0, 115.0, 244.0, 169.0, 143.0, 88.0]),
    ("32k", QWEN_32B, MATH, [673.0, 658.0, 655.0, 265.0, 636.0, 259.0, 279.0, 170.0]),
];

/// Bars whose numbers were known when settings were chosen. The settings are the share of endless responses to a hard prompt, and the
/// hardware of the script.
const USED_FOR_FIT: [(&str, &str); 4] =
    [("32k", "R 1.25"), ("32k", "R 1.5"), ("8k", "1"), ("8k, repository", "1")];

#[derive(Clone, Copy)]
struct Bar {
    name: &'static str,
    factors: [&'static str; 2],
    short_rounds: u32,
}

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![Item::new(
        plan,
        ROLLPACKER,
        "Fig. 12",
        "section 6.3 and the script of the authors' repository: rollout time, math, longest rounds of ten iterations, weighed by period; not \
             stated: model, GPUs, batch; ours: jobs of section 6.1, but for 8k 8 A800 and 32 prompts, as in the repository",
        |item, plan| {
            for (cap, base, settings, paper) in PAPER {
                let hardware: &[&str] = if base == REPOSITORY { A800 } else { &[] };
                let settings = [settings, hardware].concat();
                bars(item, plan, cap, |plan, bar| bar.job(plan, base, &settings), paper);
            }
        },
    )]
}

fn bars(
    item: &mut Item,
    plan: &mut Plan,
    cap: &str,
    job: impl Fn(&mut Plan, Bar) -> JobId,
    paper: [f64; 8],
) {
    let jobs = BARS.map(|bar| job(plan, bar));
    let bars = || BARS.into_iter().zip(jobs).zip(paper);
    for ((bar, job), paper) in bars() {
        item.relative(format!("{cap} {}, s", bar.name), paper, provenance(cap, bar), move |runs| {
            bar.seconds(runs.of(job))
        });
    }
    let height = |((bar, job), paper): ((Bar, JobId), f64)| -> (f64, SimulatedValue) {
        (paper, Box::new(move |runs| bar.seconds(runs.of(job))))
    };
    item.order(format!("{cap} rank correlation of the bars"), bars().map(height).collect());
}

fn provenance(cap: &str, bar: Bar) -> Provenance {
    if USED_FOR_FIT.contains(&(cap, bar.name)) { Fitted } else { HeldOut }
}

impl Bar {
    fn job(self, plan: &mut Plan, base: Base, settings: &[&str]) -> JobId {
        let [responses, prompts] = self.factors;
        let period = self.short_rounds + 1;
        let own = [
            format!("schedule.eta_responses={responses}"),
            format!("schedule.eta_prompts={prompts}"),
            format!("sim.steps={}", ITERATIONS / period * period),
        ];
        let system = [REWARD_SCHEDULER, settings].concat().into_iter().map(str::to_owned);
        plan.job(base, system.chain(own))
    }

    /// Returns the height of the bar, as the script computes it.
    fn seconds(self, measured: RunSelection<'_>) -> f64 {
        let longest = |rounds: RunSelection<'_>| rounds.longest_stage(GENERATION);
        if self.short_rounds == 0 {
            return longest(measured);
        }
        let short_rounds = f64::from(self.short_rounds);
        (short_rounds * longest(measured.short()) + longest(measured.long())) / (short_rounds + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use rollpacker_operators::report::StageTimes;

    use super::super::super::outcome::{RunOutcome, StepOutcome};
    use super::super::runs::PaperRuns;
    use super::*;

    fn step(round: &str, rollout: f64, reward: f64) -> StepOutcome {
        StepOutcome {
            step: 1,
            round: round.to_owned(),
            seconds: 0.0,
            stages: StageTimes { rollout, reward, ..StageTimes::default() },
            trained_tokens: 0.0,
            trained_responses: 0.0,
            metrics: Default::default(),
        }
    }

    #[test]
    fn a_bar_weights_the_longest_rounds_by_their_counts() {
        let steps = vec![step("short", 1.0, 0.5), step("short", 3.0, 0.0), step("long", 9.0, 1.0)];
        let outcome = RunOutcome { steps, ..RunOutcome::default() };
        let runs = PaperRuns::new(vec![vec![outcome]], vec![Some(0)]);
        let seconds = |short_rounds| Bar { short_rounds, ..BARS[0] }.seconds(runs.of(JobId(0)));
        assert_eq!(seconds(2), (2.0 * 3.0 + 10.0) / 3.0);
        assert_eq!(seconds(0), 10.0);
    }
}
