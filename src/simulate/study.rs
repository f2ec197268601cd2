//! Studies: a sweep with its figures, warnings and advice.

use super::advice::assumption::{self, Assumption};
use super::advice::{self, Advice, AssumptionCheck, Decision, OpenCorrelation};
use super::configuration::{ConfigurationRuns, summaries};
use super::correlation_ends::CorrelationEnds;
use super::summary::Summary;
use super::sweep::Sweep;
use super::trace::TraceSummary;

/// A function that runs the configurations of a sweep and returns them in the order of the sweep.
pub type RunSweep<'a> = dyn Fn(Sweep) -> anyhow::Result<Vec<ConfigurationRuns>> + 'a;

/// The results of a sweep.
#[derive(Clone, Debug)]
pub struct Study {
    /// The runs of the configurations. If a trace does not determine the within-prompt correlation, they are the runs at the lower end of
    /// its interval.
    pub runs: Vec<ConfigurationRuns>,
    /// The summaries of the configurations, in the same order.
    pub summaries: Vec<Summary>,
    /// Summaries of the traces that the jobs use, each once.
    pub traces: Vec<TraceSummary>,
    /// The advice for each job; empty unless it was requested.
    pub advice: Vec<Advice>,
}

impl Study {
    /// Runs `sweep` with `execute`. If a trace does not determine the within-prompt correlation, the sweep is run at both ends of its
    /// interval. With a `tolerance`, the study includes advice, which needs further runs under other assumptions. `tolerance` is the
    /// maximum relative deviation of the mean trained length from the mean length of the policy.
    ///
    /// # Errors
    /// If a run fails or has no steps, or if a job is not valid under another assumption.
    pub fn of(
        sweep: &Sweep,
        tolerance: Option<f64>,
        execute: &RunSweep<'_>,
    ) -> anyhow::Result<Self> {
        let runs = execute(sweep.clone())?;
        let mut figures = summaries(&runs)?;
        let traces = sweep.traces();
        let upper = match sweep.at_upper_correlation() {
            Some(upper) => Some(summaries(&execute(upper)?)?),
            None => None,
        };
        for (low, high) in figures.iter_mut().zip(upper.iter().flatten()) {
            low.ends = Some(CorrelationEnds::of(low, high));
        }
        let advice = match tolerance {
            Some(tolerance) => {
                let open = upper.as_deref().map(|upper| open(&traces, upper));
                let decisions = advice::decide(&runs, &figures, open, tolerance);
                let check = |decision: Decision<'_>| {
                    let checked = check_assumptions(&decision, &runs, sweep, tolerance, execute)?;
                    Ok(decision.advice(checked))
                };
                decisions.into_iter().map(check).collect::<anyhow::Result<_>>()?
            }
            None => Vec::new(),
        };
        Ok(Self { runs, summaries: figures, traces, advice })
    }
}

impl Study {
    /// Returns the warnings about what the traces do not determine and what is assumed instead, each once.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for warning in self.traces.iter().filter_map(TraceSummary::warning) {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        warnings
    }
}

/// Returns the smallest interval that contains every interval of the correlation that the traces allow, with the summaries at the upper
/// end.
fn open<'a>(traces: &[TraceSummary], upper: &'a [Summary]) -> OpenCorrelation<'a> {
    let assumed = || traces.iter().filter_map(|trace| trace.assumed);
    let low = assumed().map(|assumed| assumed.low).fold(1.0, f64::min);
    let high = assumed().map(|assumed| assumed.high).fold(0.0, f64::max);
    OpenCorrelation { low, high, upper }
}

/// Returns the choice among the nearest configurations under each of the other assumptions. Each choice is compared with the choice from
/// the first seed of the same configurations, because the other assumptions are simulated with one seed only. Returns an empty list if
/// there are no nearest configurations.
fn check_assumptions(
    decision: &Decision<'_>,
    runs: &[ConfigurationRuns],
    sweep: &Sweep,
    tolerance: f64,
    execute: &RunSweep<'_>,
) -> anyhow::Result<Vec<AssumptionCheck>> {
    let nearest = decision.nearest();
    let Some(job) = nearest.first().and_then(|&index| sweep.job_at(index)) else {
        return Ok(Vec::new());
    };
    let usual = chosen(&restrict_to(runs, &nearest), tolerance)?;
    let check = |Assumption { name, settings }: Assumption| {
        let choice = chosen(&execute(sweep.with_assumption(&nearest, &settings)?)?, tolerance)?;
        let changes = choice != usual;
        Ok(AssumptionCheck { assumption: name.to_owned(), settings, choice, changes })
    };
    assumption::all(job).into_iter().map(check).collect()
}

/// Returns the name of the configuration that is chosen for one job; `None` if there is no choice.
fn chosen(runs: &[ConfigurationRuns], tolerance: f64) -> anyhow::Result<Option<String>> {
    let figures = summaries(runs)?;
    let decisions = advice::decide(runs, &figures, None, tolerance);
    Ok(decisions.first().and_then(Decision::choice).map(str::to_owned))
}

/// Returns all configurations as configurations of a single job with only their first seed. Those at `indices` count as requested, as in
/// [`Sweep::with_assumption`].
fn restrict_to(runs: &[ConfigurationRuns], indices: &[usize]) -> Vec<ConfigurationRuns> {
    let narrow = |(index, run): (usize, &ConfigurationRuns)| ConfigurationRuns {
        job: String::new(),
        requested: indices.contains(&index),
        seeds: run.seeds.iter().take(1).copied().collect(),
        outcomes: run.outcomes.iter().take(1).cloned().collect(),
        ..run.clone()
    };
    runs.iter().enumerate().map(narrow).collect()
}
