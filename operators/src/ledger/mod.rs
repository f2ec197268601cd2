//! The ledger: small facts of a run that are revised as it goes, and what they say of the lengths that were trained on.
//!
//! A schedule that keeps what ends first trains on shorter responses than the policy samples. The ledger holds both distributions and
//! compares them at every step. Facts are counts by key, maintained by differential dataflow at the times of the steps: lengths
//! observed and trained, the history of each dataset row, the prompts that wait. Tokens and texts never enter it. The facts of a step
//! are added up before they are handed over, so its cost is that of the distinct lengths and rows, not of the responses.
//!
//! # Whose length distribution
//! That of the policy over the prompts as they are read: each prompt counts alike, whatever a schedule launches of it.
//! Two things make a plain product-limit estimate over all launched responses err, by 10 to 40 % of the mean on the workloads below:
//!
//! - *Long prompts are launched twice.* What was cut when a round was full is launched again later, so that the prompts which are long
//!   on average weigh double. The new draws of a prompt therefore enter late: they are at risk only beyond the longest tokens that the
//!   prompt was observed at before, and stand for the continuation of what was cut there ([`Survival::observe_from`]).
//! - *A response that is cut because its siblings were done* comes from a prompt of short responses, and what it would have become is
//!   not what other responses of its length become: the cut is informative. No estimator repairs this, since no response of such a
//!   prompt is ever seen beyond its cut; two policies that differ only there give the same data.
//!
//! The mean so estimated, over the true one, in simulated runs of 160 steps of 128 prompts with 8 responses (two runs agree within
//! 0.03; cap 16,384 tokens; lognormal lengths around 800 with the given deviations of the logarithm between and within prompts, and the
//! two-mode workload of the RollPacker paper's job):
//!
//! | lengths | `eta_responses = 1`, plain | with late entry | `eta = (1.25, 1.25)`, plain | with late entry |
//! |---|---|---|---|---|
//! | two modes | 1.13 | 1.01 | 1.25 | 1.11 |
//! | 0 between, 1 within | 1.00 | 1.00 | 1.00 | 1.00 |
//! | 0.7, 0.7 | 1.18 | 1.01 | 1.28 | 1.14 |
//! | 0.95, 0.3 | 1.29 | 1.02 | 1.41 | 1.19 |
//!
//! So without surplus responses the estimate is within 2 %. With them it is an upper bound for the mean, and the ledger reports the lower
//! one beside it: the mean if each response cut by its own group had ended with the next token. The truth lies between. A gamma frailty
//! (0.8 to 1.5 of the mean) and a mixture over classes of prompts (0.94 to 1.16) were tried in its place, and erred more or in both directions.
//!
//! # The gradient
//! A group-relative gradient is a sum over pairs of responses to a prompt, and a pair is whole or cut by its longer response. So what a
//! schedule does to it is estimated over pairs as it is over lengths. Over the true ratio, without surplus responses, `bias/gradient_ratio`
//! is 0.92 to 1.10 on workloads like those above, and 1.15 for a score that depends on the longest fiftieth of the responses alone; with
//! them the truth lies between `bias/gradient_ratio` and `bias/gradient_ratio_high`. Both are left out where the policy's product is less than three times
//! its standard error. `docs/bias.md` has the figures.
//!
//! # Columns
//! | name | what |
//! |---|---|
//! | `bias/policy_mean`, `bias/policy_mean_low` | mean length of the policy, tokens, and its lower bound; equal without surplus responses |
//! | `bias/mean_ratio`, `bias/mean_ratio_high` | trained mean over each of these, over the run so far |
//! | `bias/step_mean_ratio` | mean trained in this step over `bias/policy_mean` |
//! | `bias/p90_ratio`, `bias/p99_ratio` | quantiles, trained over policy; absent while aborts hide the policy's |
//! | `bias/share_above_{n}/trained`, `/policy` | share of responses longer than `n`: a quarter, half and three quarters of the cap; at the cap, of those that reach it |
//! | `bias/inclusion/{lo}_{hi}` | trained share over policy share of lengths in `[lo, hi)` |
//! | `bias/ess` | effective sample size over trained responses, `(sum w)^2 / (n sum w^2)` |
//! | `bias/length_advantage`, `bias/length_advantage_trained` | covariance of score and length within a prompt, score times tokens: the policy's, and that of the trained groups |
//! | `bias/gradient_ratio`, `bias/gradient_ratio_high` | the latter over the former, and over its estimate if pairs that were cut by their own group had ended there |
//! | `bias/weighted_...` | the ratios and inclusions with responses counted by weight, once a weight differs from 1 |
//! | `ledger/rows`, `ledger/launches_per_row` | dataset rows launched, and responses launched to each |
//! | `ledger/between_row_share` | share of the variance of whole lengths that lies between rows: what a history of rows can foretell |
//! | `ledger/pass_rate` | mean score of trained responses |
//! | `ledger/waiting_prompts`, `ledger/mean_wait`, `ledger/longest_wait` | deferred prompts, and the steps that they have waited |
//! | `ledger/anchored_cases`, `ledger/mean_anchor_s` | test cases with a correct execution, and the mean of the longest of each |

mod anchors;
mod bias;
mod by_step;
mod facts;
mod graph;
mod known;
mod known_anchors;
mod known_pairs;
mod pairs;
mod told;

use rollpacker_dataflow::batch::BatchStream;

use crate::resume::Resumable;
use crate::survival::Survival;

pub use anchors::{Anchors, anchors};
pub use bias::Trained;
pub(crate) use known::KnownFacts;
pub(crate) use known_anchors::KnownAnchors;

/// The streams that the ledger learns from.
pub struct Recorded<'scope> {
    /// Every response, aborted ones too.
    pub responses: BatchStream<'scope>,
    /// The groups that were trained on.
    pub groups: BatchStream<'scope>,
    /// What the schedule decided.
    pub decisions: BatchStream<'scope>,
    /// Steps at the start of which lengths and rows are left out; 0: all count. Who waits is known from the first step on.
    pub warmup_steps: u64,
    /// What it keeps in snapshots, and goes on from.
    pub resumable: Resumable<'scope>,
}

/// Keeps the ledger; gives, for each step, batches of [`METRICS`](rollpacker_dataflow::schema::METRICS).
///
/// `cap` is the longest response that the engine samples, tokens: shares are reported at its quarters.
#[must_use]
pub fn ledger(recorded: Recorded<'_>, cap: u32) -> BatchStream<'_> {
    graph::ledger(recorded, cap)
}

/// What is compared: the policy's lengths and the trained ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lengths {
    /// The policy's.
    pub policy: Survival,
    /// The policy's, if responses that were cut by their own group had ended there: a lower bound.
    pub policy_low: Survival,
    /// Those trained on.
    pub trained: Trained,
}

#[cfg(test)]
mod tests;
