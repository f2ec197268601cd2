//! The HTTP routes of the page. All of them only read.

use axum::extract::{Path, Query, State};
use axum::middleware::from_fn;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::columns::{Curve, CurveOptions};
use super::error::ViewError;
use super::group::Group;
use super::lengths::{Distributions, MAX_STEPS, sample_steps};
use super::prompts::PromptTable;
use super::round::{Round, StepRecord};
use super::run::{RunDetail, RunLine};
use super::tokens::TokenView;
use super::{Shared, assets, events, host};

/// The default maximum number of points of a curve.
const POINTS: usize = 400;
/// The maximum number of points of a curve that a request may ask for.
const MAX_POINTS: usize = 4000;

type Answer<T> = Result<Json<T>, ViewError>;

/// Returns the routes of the page and of its data. With `loopback_only`, requests are refused unless their `Host` header is `localhost` or
/// a loopback address.
pub(crate) fn router(runs: Shared, loopback_only: bool) -> Router {
    let calls = Router::new()
        .route("/api/runs", get(lines))
        .route("/api/events", get(events::events))
        .route("/api/curves", get(curves))
        .route("/api/runs/{run}", get(detail))
        .route("/api/runs/{run}/steps/{step}", get(round))
        .route("/api/runs/{run}/steps/{step}/prompts/{prompt}", get(group))
        .route("/api/runs/{run}/steps/{step}/prompts/{prompt}/{sample}", get(tokens))
        .route("/api/runs/{run}/distributions", get(distributions))
        .route("/api/runs/{run}/prompts", get(prompts))
        .fallback(unknown_page);
    let router = assets::with_files(calls).with_state(runs).layer(from_fn(host::with_headers));
    if loopback_only { router.layer(from_fn(host::only_loopback)) } else { router }
}

/// Runs `read`, which reads files, on a thread that may wait for the disk, and returns its result as JSON. If `read` panics, returns an
/// error.
async fn read_blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, ViewError> + Send + 'static,
) -> Answer<T> {
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|_panicked| ViewError::internal("reading the run folder panicked".to_owned()))?
        .map(Json)
}

async fn unknown_page() -> ViewError {
    ViewError::not_found("there is no such page".to_owned())
}

async fn lines(State(runs): State<Shared>) -> Answer<Vec<RunLine>> {
    read_blocking(move || Ok(runs.run_lines())).await
}

async fn detail(State(runs): State<Shared>, Path(name): Path<String>) -> Answer<RunDetail> {
    read_blocking(move || runs.with_run(&name, |run| Ok(run.detail(&name)))).await
}

#[derive(Debug, Serialize)]
struct NamedCurve {
    run: String,
    metric: String,
    #[serde(flatten)]
    curve: Curve,
}

/// Returns the curve of each `metric` in each `run`. Both parameters may be repeated. The other parameters are the fields of
/// [`CurveOptions`].
async fn curves(
    State(runs): State<Shared>,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Answer<Vec<NamedCurve>> {
    let options = options(&pairs)?;
    read_blocking(move || {
        let values = |key: &'static str| {
            pairs.iter().filter(move |(own, _)| own == key).map(|(_, value)| value)
        };
        let mut curves = Vec::new();
        for name in values("run") {
            runs.with_run(name, |run| {
                curves.extend(values("metric").map(|metric| NamedCurve {
                    run: name.clone(),
                    metric: metric.clone(),
                    curve: Curve::of(run.columns.points(metric), options),
                }));
                Ok(())
            })?;
        }
        Ok(curves)
    })
    .await
}

fn options(pairs: &[(String, String)]) -> Result<CurveOptions, ViewError> {
    let mut options = CurveOptions { from: 0, to: u64::MAX, smoothing: 0.0, points: POINTS };
    for (key, value) in pairs {
        let is_taken = match key.as_str() {
            "run" | "metric" => true,
            "from" => value.parse().map(|from| options.from = from).is_ok(),
            "to" => value.parse().map(|to| options.to = to).is_ok(),
            "points" => value.parse().map(|points| options.points = points).is_ok(),
            "smoothing" => value.parse().map(|weight| options.smoothing = weight).is_ok(),
            _ => false,
        };
        let is_within =
            (0.0..1.0).contains(&options.smoothing) && (1..=MAX_POINTS).contains(&options.points);
        if !is_taken || !is_within {
            return Err(ViewError::bad_request(format!(
                "expected run, metric, from, to, points (1 to {MAX_POINTS}) and smoothing (0 to less than 1), found {key}={value}"
            )));
        }
    }
    Ok(options)
}

async fn round(
    State(runs): State<Shared>,
    Path((name, step)): Path<(String, u64)>,
) -> Answer<Round> {
    read_blocking(move || {
        let (folder, record, has_rollouts) = runs.with_run(&name, |run| {
            let has_rollouts = run.rollout_steps().binary_search(&step).is_ok();
            Ok((run.folder().to_owned(), StepRecord::of(&run.columns, step), has_rollouts))
        })?;
        if has_rollouts {
            Ok(Round::read(&folder, step, record)?)
        } else if record.is_empty() {
            Err(no_step(&name, step))
        } else {
            Ok(Round::without_rollouts(step, record))
        }
    })
    .await
}

/// Returns the run folder, or an error if the run has no rollouts of the step.
fn with_rollouts(runs: &Shared, name: &str, step: u64) -> Result<std::path::PathBuf, ViewError> {
    runs.with_run(name, |run| match run.rollout_steps().binary_search(&step) {
        Ok(_) => Ok(run.folder().to_owned()),
        Err(_) => Err(no_step(name, step)),
    })
}

fn no_step(name: &str, step: u64) -> ViewError {
    ViewError::not_found(format!(
        "the run `{name}` has no rollouts of step {step}; `trainer.write_rollouts` writes them"
    ))
}

async fn group(
    State(runs): State<Shared>,
    Path((name, step, prompt)): Path<(String, u64, u64)>,
) -> Answer<Group> {
    read_blocking(move || {
        let folder = with_rollouts(&runs, &name, step)?;
        Group::read(&folder, step, prompt)?.ok_or_else(|| no_prompt(step, prompt))
    })
    .await
}

async fn tokens(
    State(runs): State<Shared>,
    Path((name, step, prompt, sample)): Path<(String, u64, u64, u32)>,
) -> Answer<TokenView> {
    read_blocking(move || {
        let folder = with_rollouts(&runs, &name, step)?;
        let vocabulary = runs.vocabulary(&folder);
        let view = TokenView::read(&folder, step, (prompt, sample), &vocabulary)?;
        view.ok_or_else(|| no_prompt(step, prompt))
    })
    .await
}

fn no_prompt(step: u64, prompt: u64) -> ViewError {
    ViewError::not_found(format!("step {step} has no such response of prompt {prompt}"))
}

/// A range of steps, both ends included.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepBounds {
    #[serde(default)]
    from: u64,
    #[serde(default = "u64_max")]
    to: u64,
}

fn u64_max() -> u64 {
    u64::MAX
}

async fn distributions(
    State(runs): State<Shared>,
    Path(name): Path<String>,
    Query(range): Query<StepBounds>,
) -> Answer<Distributions> {
    read_blocking(move || {
        let (folder, steps) = runs.with_run(&name, |run| {
            Ok((run.folder().to_owned(), sample_steps(run.rollout_steps(), range.from, range.to)))
        })?;
        Ok(Distributions::read(&folder, &steps))
    })
    .await
}

/// Returns the prompts of the last steps of a range that have rollouts, at most [`MAX_STEPS`] steps.
async fn prompts(
    State(runs): State<Shared>,
    Path(name): Path<String>,
    Query(range): Query<StepBounds>,
) -> Answer<PromptTable> {
    read_blocking(move || {
        let (folder, steps) = runs.with_run(&name, |run| {
            let within = |step: &&u64| (range.from..=range.to).contains(*step);
            let mut steps: Vec<u64> =
                run.rollout_steps().iter().rev().filter(within).take(MAX_STEPS).copied().collect();
            steps.reverse();
            Ok((run.folder().to_owned(), steps))
        })?;
        Ok(PromptTable::read(&folder, &steps))
    })
    .await
}
