//! A filter that answers by the number of a system call alone.
//!
//! A list of comparisons, one for each call, is what filter libraries write; the kernel then walks it for each of its calls whenever the
//! filter is installed, and that took as long as the fork before it. This one halves: ranges of numbers with the same answer, and a
//! binary search over where they begin.

use std::collections::BTreeMap;

use seccompiler::{SeccompAction, sock_filter};

/// Where `struct seccomp_data` has the number of the call.
const NUMBER: u32 = 0;

/// Numbers from `from` up to where the next range begins, and what the filter returns for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    from: u32,
    answer: u32,
}

/// The program that answers the calls in `answers` as it says there, and all others by `others`.
///
/// It does not look at the architecture: that is for a program beside it.
pub(super) fn program(
    answers: &BTreeMap<i64, SeccompAction>,
    others: SeccompAction,
) -> Vec<sock_filter> {
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER)];
    program.extend(search(&ranges(answers, others)));
    program
}

/// The ranges, the first of which begins at 0.
fn ranges(answers: &BTreeMap<i64, SeccompAction>, others: SeccompAction) -> Vec<Range> {
    let others = u32::from(others);
    let mut found = vec![Range { from: 0, answer: others }];
    for (call, answer) in answers {
        let call = u32::try_from(*call).expect("invariant: numbers of calls are small");
        push(&mut found, Range { from: call, answer: u32::from(answer.clone()) });
        found.push(Range { from: call + 1, answer: others });
    }
    found.dedup_by_key(|range| range.answer);
    found
}

/// Adds a range, in the place of one that turns out to be empty.
fn push(ranges: &mut Vec<Range>, range: Range) {
    if ranges.last().is_some_and(|last| last.from == range.from) {
        ranges.pop();
    }
    ranges.push(range);
}

/// Finds the range of the number that is loaded, and returns its answer.
fn search(ranges: &[Range]) -> Vec<sock_filter> {
    if let [Range { answer, .. }] = ranges {
        return vec![statement(libc::BPF_RET | libc::BPF_K, *answer)];
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let low = search(low);
    let skip =
        u8::try_from(low.len()).expect("invariant: there are fewer than 128 ranges in a half");
    let code = opcode(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K);
    let mut program = vec![sock_filter { code, jt: skip, jf: 0, k: high[0].from }];
    program.extend(low);
    program.extend(search(high));
    program
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: opcode(code), jt: 0, jf: 0, k }
}

fn opcode(code: u32) -> u16 {
    u16::try_from(code).expect("invariant: codes are 16 bits")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the kernel makes of a program for a call.
    fn run(program: &[sock_filter], number: u32) -> u32 {
        let mut at = 1;
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            if u32::from(code) == libc::BPF_RET | libc::BPF_K {
                return k;
            }
            at += 1 + usize::from(if number >= k { jt } else { jf });
        }
    }

    proptest! {
        #[test]
        fn every_call_gets_its_answer(
            calls in prop::collection::btree_map(0_i64..460, 0..3_usize, 0..100),
            number in 0_u32..500,
        ) {
            let actions = [SeccompAction::Allow, SeccompAction::KillProcess, SeccompAction::Errno(1)];
            let answers: BTreeMap<_, _> = calls.into_iter().map(|(call, action)| (call, actions[action].clone())).collect();
            let program = program(&answers, SeccompAction::Errno(38));
            let expected = answers.get(&i64::from(number)).cloned().unwrap_or(SeccompAction::Errno(38));
            prop_assert_eq!(run(&program, number), u32::from(expected));
        }
    }
}
