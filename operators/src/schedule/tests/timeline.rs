//! A text format for scripts of events and the resulting decisions.
//!
//! Each line is an event, or several events of one kind:
//! - `prompts 0..12 [epoch 1] [math]`: prompts p0 to p11 are offered;
//! - `end`: no prompt follows;
//! - `policy 0`: the weights of step 0 are published;
//! - `stop @0 3:0..2 4..6:1`: samples 0 and 1 of p3, and sample 1 of p4 and p5, of step 0 end; `length`, `abort` and `pause` likewise;
//!   `stop 7 @0 3:0` gives the response 7 tokens instead of 1;
//! - `score 0.5 @0 3:0..2`: samples 0 and 1 of p3 have a reward of 0.5.
//!
//! The result repeats each line, followed by the decisions drained after each of its events; consecutive similar decisions share a line.
//! A line `?` means that the schedule wants prompts after the events.

use std::ops::Range;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::FinishReason;

use crate::schedule::{Decision, Event, Offer, Schedule};

/// Plays `script` on `schedule` and returns the result.
pub(super) fn play(schedule: &mut dyn Schedule, script: &str) -> String {
    let mut text = String::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        text += &format!("> {line}\n");
        let mut decisions = Vec::new();
        for event in events(line) {
            schedule.on(Nanos(0), event);
            decisions.extend(std::iter::from_fn(|| schedule.poll()));
        }
        decisions.chunk_by(alike).for_each(|like| text += &format!("  {}\n", render(like)));
        if schedule.wants_prompts() {
            text += "  ?\n";
        }
    }
    text
}

fn events(line: &str) -> Vec<Event> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["prompts", ids, ref rest @ ..] => prompts(range(ids), rest),
        ["end"] => vec![Event::EndOfPrompts],
        ["policy", step] => vec![Event::Policy { step: Step(number(step)) }],
        ["score", score, step, ref samples @ ..] => {
            let score = score.parse().expect("a reward");
            ids(step, samples).into_iter().map(|id| Event::Scored { id, score }).collect()
        }
        [how, step, ref samples @ ..] if step.starts_with('@') => {
            responses(how, 1, ids(step, samples))
        }
        [how, tokens, step, ref samples @ ..] => {
            let tokens = u32::try_from(number(tokens)).unwrap();
            responses(how, tokens, ids(step, samples))
        }
        _ => panic!("not an event: {line}"),
    }
}

fn prompts(ids: Range<u64>, rest: &[&str]) -> Vec<Event> {
    let (epoch, domain) = match *rest {
        ["epoch", epoch] => (number(epoch), ""),
        ["epoch", epoch, domain] => (number(epoch), domain),
        [domain] => (0, domain),
        _ => (0, ""),
    };
    let epoch = u32::try_from(epoch).unwrap();
    ids.map(|id| {
        Event::Prompt(Offer { prompt: PromptId(id), row: id, epoch, domain: domain.into() })
    })
    .collect()
}

fn responses(how: &str, tokens: u32, ids: Vec<SampleId>) -> Vec<Event> {
    let finish_reason: FinishReason = how.parse().unwrap();
    ids.into_iter().map(|id| Event::Response { id, tokens, finish_reason }).collect()
}

fn ids(step: &str, samples: &[&str]) -> Vec<SampleId> {
    let step = Step(number(step.strip_prefix('@').expect("a step")));
    let of = |text: &&str| {
        let (prompts, samples) = text.split_once(':').expect("prompts:samples");
        let samples = range(samples);
        range(prompts).flat_map(move |prompt| samples.clone().map(move |sample| (prompt, sample)))
    };
    let id = |(prompt, sample)| SampleId {
        step,
        prompt: PromptId(prompt),
        sample: u32::try_from(sample).unwrap(),
    };
    samples.iter().flat_map(of).map(id).collect()
}

fn range(text: &str) -> Range<u64> {
    match text.split_once("..") {
        Some((start, end)) => number(start)..number(end),
        None => number(text)..number(text) + 1,
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

fn alike(one: &Decision, next: &Decision) -> bool {
    match (one, next) {
        (
            Decision::Launch { samples: a, reason: r, .. },
            Decision::Launch { samples: b, reason: s, .. },
        ) => (a, r) == (b, s),
        (Decision::Abort { reason: a, .. }, Decision::Abort { reason: b, .. })
        | (Decision::Pause { reason: a, .. }, Decision::Pause { reason: b, .. })
        | (Decision::Defer { reason: a, .. }, Decision::Defer { reason: b, .. })
        | (Decision::Reject { reason: a, .. }, Decision::Reject { reason: b, .. }) => a == b,
        _ => false,
    }
}

fn render(like: &[Decision]) -> String {
    let all: Vec<String> = like.iter().map(subject).collect();
    match &like[0] {
        Decision::Launch { samples, reason, .. } => {
            format!("launch {}..{} of {} ({reason})", samples.start, samples.end, all.join(" "))
        }
        Decision::Abort { reason, .. } => format!("abort {} ({reason})", all.join(" ")),
        Decision::Pause { reason, .. } => format!("pause {} ({reason})", all.join(" ")),
        Decision::Defer { reason, .. } => format!("defer {} ({reason})", all.join(" ")),
        Decision::Reject { reason, .. } => format!("reject {} ({reason})", all.join(" ")),
        one => one.to_string(),
    }
}

fn subject(decision: &Decision) -> String {
    match decision {
        Decision::Abort { id, .. } | Decision::Pause { id, .. } => id.to_string(),
        Decision::Launch { prompt, .. }
        | Decision::Admit { prompt, .. }
        | Decision::Defer { prompt, .. }
        | Decision::Reject { prompt, .. } => prompt.to_string(),
        Decision::Open { .. }
        | Decision::Close { .. }
        | Decision::Finish
        | Decision::Fail { .. } => String::new(),
    }
}
