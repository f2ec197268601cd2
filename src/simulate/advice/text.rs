//! Advice in sentences.

use super::super::correlation_ends::LowHigh;
use super::super::interval::{HELD_OUT_ERROR, SpeedupInterval};
use super::super::stat::SeedStat;
use super::super::summary::{MIN_ESS, Summary};
use super::super::table::{percent, range, ratio};
use super::candidate::{Candidate, ChosenCandidate};
use super::{AssumptionCheck, ChoiceAtEnd, Decision};

/// Returns the advice as lines: the choice first and the bounds of a choice last. Between them are the configurations that cannot be
/// separated from the fastest one, the fastest configuration, and the choices at the ends of the correlation and under other assumptions.
/// Lines that do not apply are left out.
pub(super) fn of(decision: &Decision<'_>, assumptions: &[AssumptionCheck]) -> String {
    let mut lines = vec![choice(decision)];
    lines.extend(decision.chosen.as_ref().and_then(overlap));
    lines.extend(unbounded(decision));
    lines.extend(ends(decision));
    lines.extend(changes(decision, assumptions));
    lines.push(bounds(decision));
    let prefix = match decision.job.as_str() {
        "" => String::new(),
        job => format!("For {job}: "),
    };
    format!("{prefix}{}", lines.join("\n"))
}

fn choice(decision: &Decision<'_>) -> String {
    match &decision.chosen {
        Some(ChosenCandidate { choice, .. }) => format!(
            "Choose {}: {}. It is on-policy; {}.",
            choice.label(),
            speedup_text(choice),
            cost_text(choice),
        ),
        None => "No configuration is within the bounds of a choice.".to_owned(),
    }
}

/// Lists the configurations that the simulator cannot separate from the fastest one, and explains why the choice is preferred. Returns
/// `None` if the choice is the only one.
fn overlap(chosen: &ChosenCandidate<'_>) -> Option<String> {
    let ChosenCandidate { choice, equivalent } = chosen;
    if equivalent.is_empty() {
        return None;
    }
    let mut near: Vec<&Candidate<'_>> = equivalent.iter().chain([choice]).collect();
    near.sort_by(|a, b| b.speed().total_cmp(&a.speed()));
    let named = |one: &Candidate<'_>| format!("{} {}", one.label(), speed(one));
    let named: Vec<String> = near.into_iter().map(named).collect();
    Some(format!(
        "The intervals of these overlap that of the first, so the simulator cannot tell which is faster: {}. Of them {}",
        named.join(", "),
        preference(choice, equivalent),
    ))
}

fn preference(choice: &Candidate<'_>, equivalent: &[Candidate<'_>]) -> String {
    let label = choice.label();
    let cost = choice.cost();
    let next = equivalent.iter().map(Candidate::cost).min();
    let reason = match next {
        Some(next) if next.bias > cost.bias => "has the least bias",
        Some(next) if next.waste > cost.waste => {
            "discards the fewest tokens of those of equal bias"
        }
        Some(next) if next.settings > cost.settings => {
            "needs the fewest settings of those of equal bias and waste"
        }
        _ => "is the fastest of those of equal bias, waste and number of settings",
    };
    format!("{label} {reason}.")
}

/// Describes the fastest configuration regardless of its bias, or states that the choice is the fastest. Returns `None` if the fastest
/// configuration has low bias but is not the choice.
fn unbounded(decision: &Decision<'_>) -> Option<String> {
    let fastest = decision.fastest()?;
    let choice = decision.chosen.as_ref().map(|chosen| chosen.choice);
    if fastest.is_low(decision.tolerance) {
        let is_chosen = choice.is_none_or(|choice| choice.index == fastest.index);
        return is_chosen.then(|| "No other configuration has shorter steps.".to_owned());
    }
    let stale = match fastest.summary.setup.staleness {
        _ if fastest.summary.on_policy => String::new(),
        0 => "; it resumes responses of earlier steps, so some tokens were sampled by earlier weights".to_owned(),
        1 => "; its tokens were sampled by weights up to one step older".to_owned(),
        steps => format!("; its tokens were sampled by weights up to {steps} steps older"),
    };
    let overlaps = choice.is_some_and(|choice| choice.interval().overlaps(fastest.interval()));
    let sure = if overlaps { "; its interval overlaps that of the choice" } else { "" };
    Some(format!(
        "Without the bounds, {} has the shortest steps: {}, but {}{stale}{sure}.",
        fastest.label(),
        speedup_text(fastest),
        cost_text(fastest),
    ))
}

/// States the choices at both ends of the within-prompt correlation. Returns `None` if the correlation has only one value.
fn ends(decision: &Decision<'_>) -> Option<String> {
    let [low, high] = &decision.ends[..] else { return None };
    let shown = |end: &ChoiceAtEnd| end.choice.clone().unwrap_or_else(|| "none".to_owned());
    if low.choice == high.choice && low.choice.as_deref() == decision.choice() {
        return Some(format!(
            "The choice is the same at both ends of the within-prompt correlation, {:.2} and {:.2}.",
            low.correlation, high.correlation,
        ));
    }
    if low.choice == high.choice {
        return Some(format!(
            "Each end of the within-prompt correlation on its own would choose {}.",
            shown(low)
        ));
    }
    let each = format!(
        "with {:.2} it would be {}, with {:.2} {}",
        low.correlation,
        shown(low),
        high.correlation,
        shown(high),
    );
    Some(match decision.choice() {
        Some(choice) => format!(
            "The choice depends on the within-prompt correlation of lengths: {each}. {choice} is of low bias at both ends. Record several responses \
             to each prompt to determine it."
        ),
        None => format!(
            "The choice depends on the within-prompt correlation of lengths: {each}; none is of low bias at both ends. Record several responses to \
             each prompt to determine it."
        ),
    })
}

/// Lists the assumptions that change the choice, and the assumptions that do not. Returns `None` without a choice or without checked
/// assumptions.
fn changes(decision: &Decision<'_>, assumptions: &[AssumptionCheck]) -> Option<String> {
    decision.choice()?;
    let (changed, same): (Vec<_>, Vec<_>) = assumptions.iter().partition(|one| one.changes);
    let named = |one: &&AssumptionCheck| format!("{} ({})", one.assumption, one.settings.join(" "));
    let sentences = changed.iter().map(|one| {
        let choice = one.choice.as_deref().unwrap_or("none");
        format!("With {} it would be {choice}.", named(one))
    });
    let kept = (!same.is_empty()).then(|| {
        let names: Vec<String> = same.iter().map(named).collect();
        format!("It stays the same with {}.", names.join(", with "))
    });
    let all: Vec<String> = sentences.chain(kept).collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// States the conditions that a choice must meet, and the errors that the intervals include.
fn bounds(decision: &Decision<'_>) -> String {
    let seeds = decision.candidates.iter().map(|one| one.summary.seeds).min().unwrap_or(0);
    let spread = match seeds {
        0 | 1 => "; the spread over seeds is unknown with one seed".to_owned(),
        seeds => format!(", and two standard errors over {seeds} seeds"),
    };
    format!(
        "Bounds of a choice: on-policy, a mean trained length within {} of the policy's, an effective sample size of at least {MIN_ESS}. \
         Intervals allow for the error of step-time ratios on held-out measurements, {}{spread}.",
        percent(decision.tolerance),
        percent(HELD_OUT_ERROR),
    )
}

fn speedup_text(candidate: &Candidate<'_>) -> String {
    let tokens = at_both_ends(candidate, |summary| summary.token_speedup);
    format!(
        "steps of {} s, {} times as fast as plain sync, and {} times the trained tokens per second of its baseline",
        range(step_seconds(candidate), |seconds| format!("{seconds:.0}")),
        speed(candidate),
        tokens.map_or("-".to_owned(), |tokens| range(tokens, ratio)),
    )
}

/// Formats the speed-up over plain `sync` with its interval.
fn speed(candidate: &Candidate<'_>) -> String {
    let SpeedupInterval { low, high } = candidate.interval();
    let mean = at_both_ends(candidate, |summary| summary.speedup_over_sync);
    let mean = mean.map_or("-".to_owned(), |mean| range(mean, ratio));
    format!("{mean} [{} to {}]", ratio(low), ratio(high))
}

fn cost_text(candidate: &Candidate<'_>) -> String {
    let of_policy = |of: fn(&Summary) -> Option<SeedStat>| match at_both_ends(candidate, of) {
        Some(values) => format!("{} of the policy's", range(values, ratio)),
        None => "not known".to_owned(),
    };
    let discarded = at_both_ends(candidate, |summary| summary.bias.discarded);
    format!(
        "the mean trained length is {}, the 99th percentile {}, and {} of the sampled tokens are discarded",
        of_policy(|summary| summary.bias.mean_ratio),
        of_policy(|summary| summary.bias.p99_ratio),
        range(discarded.unwrap_or(LowHigh { low: 0.0, high: 0.0 }), percent),
    )
}

fn step_seconds(candidate: &Candidate<'_>) -> LowHigh {
    let seconds = |summary: &Summary| summary.step_s.mean;
    let low = seconds(candidate.summary);
    LowHigh { low, high: candidate.upper.map_or(low, seconds) }
}

/// Returns a figure at both ends; the same value twice if there is no upper end, and `None` if the figure is not known at an end.
fn at_both_ends(
    candidate: &Candidate<'_>,
    of: fn(&Summary) -> Option<SeedStat>,
) -> Option<LowHigh> {
    let low = of(candidate.summary)?.mean;
    let high = match candidate.upper {
        Some(upper) => of(upper)?.mean,
        None => low,
    };
    Some(LowHigh { low, high })
}
