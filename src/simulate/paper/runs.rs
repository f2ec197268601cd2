//! The outcomes of the jobs of a plan, and the statistics that the figures of the papers show.

use super::super::outcome::{RunOutcome, StageTimes, StepOutcome};

/// The index of a job in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobId(pub(super) usize);

pub(super) struct PaperRuns {
    /// The outcomes by distinct job, one per seed.
    outcomes: Vec<Vec<RunOutcome>>,
    /// The index of each job of the plan among the distinct jobs; `None` for a job that was not run.
    of: Vec<Option<usize>>,
}

/// The steps of a job, or only the steps of one kind of round. A statistic without steps is NaN.
#[derive(Clone, Copy)]
pub(super) struct RunSelection<'a> {
    outcomes: &'a [RunOutcome],
    round: Option<&'static str>,
}

/// The name of a stage, and a function that returns the mean seconds that steps spend on it.
pub(super) type StageSeconds = (&'static str, fn(RunSelection<'_>) -> f64);

/// The seconds that the timer `step_generate` of the authors' framework measures: it ends with the last reward of a round.
pub(super) const GENERATION: fn(&StageTimes) -> f64 = |stages| stages.rollout + stages.reward;

/// The name of a kind of round, and a function that selects it.
pub(super) type RoundSelector = (&'static str, fn(RunSelection<'_>) -> RunSelection<'_>);

/// The kinds of rounds of tail batching.
pub(super) const ROUNDS: [RoundSelector; 2] =
    [("short", |measured| measured.short()), ("long", |measured| measured.long())];

impl PaperRuns {
    pub(super) fn new(outcomes: Vec<Vec<RunOutcome>>, of: Vec<Option<usize>>) -> Self {
        Self { outcomes, of }
    }

    /// Returns the steps of a job; no steps if the job was not run.
    pub(super) fn of(&self, JobId(job): JobId) -> RunSelection<'_> {
        let outcomes = self.of[job].map_or(&[][..], |index| &self.outcomes[index]);
        RunSelection { outcomes, round: None }
    }
}

impl<'a> RunSelection<'a> {
    /// Selects the short rounds, which are speculative.
    pub(super) fn short(self) -> Self {
        Self { round: Some("short"), ..self }
    }

    /// Selects the long rounds, which wait for every response.
    pub(super) fn long(self) -> Self {
        Self { round: Some("long"), ..self }
    }

    /// Returns the mean seconds of a step.
    pub(super) fn step_s(self) -> f64 {
        self.mean(|step| step.seconds)
    }

    /// Returns the standard deviation of the seconds of a step over the steps of a run, averaged over the runs.
    pub(super) fn step_deviation_s(self) -> f64 {
        mean(self.seeds().map(|run| {
            let mean_s = run.step_s();
            let squares = run.steps().map(|step| (step.seconds - mean_s).powi(2)).sum::<f64>();
            (squares / run.steps().count() as f64).sqrt()
        }))
    }

    /// Returns the mean of `of` over the steps.
    pub(super) fn mean(self, of: impl Fn(&StepOutcome) -> f64) -> f64 {
        mean(self.steps().map(of))
    }

    /// Returns the mean seconds of a stage.
    pub(super) fn stage(self, stage: fn(&StageTimes) -> f64) -> f64 {
        self.mean(|step| stage(&step.stages))
    }

    /// Returns the maximum seconds of a stage over the steps of a run, averaged over the runs; NaN without steps.
    pub(super) fn longest_stage(self, stage: fn(&StageTimes) -> f64) -> f64 {
        let longest =
            |run: Self| run.steps().map(|step| stage(&step.stages)).fold(f64::NAN, f64::max);
        mean(self.seeds().map(longest))
    }

    /// Returns the mean of a metric over the steps that have it.
    pub(super) fn metric(self, name: &str) -> f64 {
        mean(self.steps().filter_map(|step| step.metrics.get(name).copied()))
    }

    /// Returns the speed-up of a step over `baseline`, averaged over pairs of equal seeds.
    pub(super) fn speedup(self, baseline: Self) -> f64 {
        let pairs = self.seeds().zip(baseline.seeds());
        mean(pairs.map(|(own, base)| base.step_s() / own.step_s()))
    }

    /// Returns the trained responses per second.
    pub(super) fn samples_per_s(self) -> f64 {
        self.mean(|step| step.trained_responses) / self.step_s()
    }

    /// Returns the number of tokens that the given share of the trained responses, by weight, does not exceed, averaged over the runs.
    /// Includes all kinds of rounds, even if one kind is selected.
    pub(super) fn trained_quantile(self, share: f64) -> f64 {
        mean(self.outcomes.iter().map(|outcome| {
            let total: f64 = outcome.trained.values().sum();
            let mut left = share * total;
            let reached = outcome.trained.iter().find(|(_, weight)| {
                left -= **weight;
                left <= 0.0
            });
            reached.map_or(f64::NAN, |(&tokens, _)| f64::from(tokens))
        }))
    }

    fn seeds(self) -> impl Iterator<Item = Self> + 'a {
        self.outcomes.chunks(1).map(move |outcomes| Self { outcomes, ..self })
    }

    fn steps(self) -> impl Iterator<Item = &'a StepOutcome> {
        let steps = self.outcomes.iter().flat_map(|outcome| &outcome.steps);
        steps.filter(move |step| self.round.is_none_or(|round| step.round == round))
    }
}

/// Returns the mean; NaN without values.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}
