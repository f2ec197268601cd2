//! Scripts of events, and the decisions they lead to, as text.
//!
//! A line is an event, or several of a kind:
//! - `prompts 0..12 [epoch 1] [math]`: prompts p0 to p11 are offered;
//! - `end`: no prompt follows;
//! - `policy 0`: the weights of step 0 are published;
//! - `stop @0 3:0..2 4..6:1`: of step 0, samples 0 and 1 of p3 and sample 1 of p4 and p5 end; `length` and `abort` likewise.
//!
//! The outcome repeats each line, followed by the decisions drained after each of its events; like ones in a row share a line. `?` says
//! that prompts are wanted.

use std::ops::Range;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::FinishReason;

use crate::schedule::{Decision, Event, Offer, Schedule};

/// Plays `script` to `schedule`.
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
        [how, step, ref samples @ ..] => {
            let step = Step(number(step.strip_prefix('@').expect("a step")));
            samples.iter().flat_map(|text| responses(step, text, reason(how))).collect()
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

fn responses(step: Step, text: &str, finish_reason: FinishReason) -> Vec<Event> {
    let (prompts, samples) = text.split_once(':').expect("prompts:samples");
    let ids = range(prompts).flat_map(|prompt| range(samples).map(move |sample| (prompt, sample)));
    let id = |(prompt, sample)| SampleId {
        step,
        prompt: PromptId(prompt),
        sample: u32::try_from(sample).unwrap(),
    };
    ids.map(|ids| Event::Response { id: id(ids), tokens: 1, finish_reason }).collect()
}

fn reason(word: &str) -> FinishReason {
    match word {
        "stop" => FinishReason::Stop,
        "length" => FinishReason::Length,
        "abort" => FinishReason::Abort,
        "pause" => FinishReason::Pause,
        _ => panic!("not a finish reason: {word}"),
    }
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
