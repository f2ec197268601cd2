//! A text format for scripts of events and the resulting placements.
//!
//! Each line is an event, or several events of one kind:
//! - `policy 0`, `close 0`, `drained 0`: the event for step 0; `open 0 long`: its round opens as a long one;
//! - `at 7`: the time is 7 seconds since the start;
//! - `launch @0 0..8 x 2 of 10`: two samples of each of p0 to p7 are launched, with prompts of 10 tokens;
//! - `stop @0 3:0..2 tokens 40 [preempted 1 | resumed 30]`: samples 0 and 1 of p3 end after 40 tokens; `length`, `abort`, `pause` likewise;
//! - `admit @0 3..5 x 2`: p3 and p4 are admitted with two responses each.
//!
//! The result repeats each line, followed by the decisions that the policy made after each of its events.

use std::ops::Range;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::FinishReason;

use crate::placement::{Event, PlacementPolicy};
use crate::wire::decision::RoundKind;

/// Plays `script` on `policy` and returns the result.
pub(super) fn play(policy: &mut dyn PlacementPolicy, script: &str) -> String {
    let (mut text, mut now) = (String::new(), Nanos(0));
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        text += &format!("> {line}\n");
        if let Some(seconds) = line.strip_prefix("at ") {
            now = Nanos::from_secs_f64(seconds.parse().unwrap());
            continue;
        }
        for event in events(line) {
            policy.on(now, event);
            std::iter::from_fn(|| policy.poll()).for_each(|next| text += &format!("  {next}\n"));
        }
    }
    text
}

fn events(line: &str) -> Vec<Event> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["policy", step] => vec![Event::Policy { step: Step(number(step)) }],
        ["open", step, round] => {
            vec![Event::Opened { step: Step(number(step)), round: kind(round) }]
        }
        ["close", step] => vec![Event::Closed { step: Step(number(step)) }],
        ["drained", step] => vec![Event::Drained { step: Step(number(step)) }],
        ["launch", step, prompts, "x", samples, "of", length] => range(prompts)
            .map(|id| Event::Launched {
                step: at(step),
                prompt: PromptId(id),
                samples: small(samples),
                prompt_length: small(length),
            })
            .collect(),
        ["admit", step, prompts, "x", samples] => range(prompts)
            .map(|id| Event::Admitted {
                step: at(step),
                prompt: PromptId(id),
                samples: small(samples),
            })
            .collect(),
        [how, step, ids, "tokens", tokens] => responses(how, at(step), ids, small(tokens), 0, 0),
        [how, step, ids, "tokens", tokens, "preempted", times] => {
            responses(how, at(step), ids, small(tokens), 0, small(times))
        }
        [how, step, ids, "tokens", tokens, "resumed", resumed] => {
            responses(how, at(step), ids, small(tokens), small(resumed), 0)
        }
        _ => panic!("not an event: {line}"),
    }
}

fn responses(
    how: &str,
    step: Step,
    ids: &str,
    tokens: u32,
    resumed: u32,
    preemptions: u32,
) -> Vec<Event> {
    let (prompts, samples) = ids.split_once(':').expect("prompts:samples");
    let finish_reason: FinishReason = how.parse().unwrap();
    let ids = range(prompts).flat_map(|prompt| range(samples).map(move |sample| (prompt, sample)));
    ids.map(|(prompt, sample)| Event::Response {
        id: SampleId { step, prompt: PromptId(prompt), sample: u32::try_from(sample).unwrap() },
        tokens,
        resumed,
        finish_reason,
        preemptions,
    })
    .collect()
}

fn kind(word: &str) -> RoundKind {
    match word {
        "full" => RoundKind::Full,
        "short" => RoundKind::Short,
        "long" => RoundKind::Long,
        _ => panic!("not a round: {word}"),
    }
}

fn at(step: &str) -> Step {
    Step(number(step.strip_prefix('@').expect("a step")))
}

fn range(text: &str) -> Range<u64> {
    match text.split_once("..") {
        Some((start, end)) => number(start)..number(end),
        None => number(text)..number(text) + 1,
    }
}

fn small(text: &str) -> u32 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}
