//! A seccomp filter that decides only by the number of a system call.
//!
//! Filter libraries generate a list of comparisons, one for each call. When a filter is installed, the kernel evaluates it for every number
//! of a system call. With such a list, this took as long as forking the process. This filter instead uses a binary search over ranges of
//! numbers that have the same answer.

use std::collections::BTreeMap;

use seccompiler::{SeccompAction, sock_filter};

/// The offset of the call number in `struct seccomp_data`.
const CALL_NUMBER_OFFSET: u32 = 0;

/// A range of call numbers, from `from` up to the beginning of the next range, and the filter's answer for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    from: u32,
    answer: u32,
}

/// Returns the program that answers the calls in `answers` as given, and all other calls with `others`.
///
/// The program does not check the architecture. Another program must check it.
pub(super) fn program(
    answers: &BTreeMap<i64, SeccompAction>,
    others: SeccompAction,
) -> Vec<sock_filter> {
    let mut program =
        vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, CALL_NUMBER_OFFSET)];
    program.extend(binary_search(&ranges(answers, others)));
    program
}

/// Returns ranges that cover all numbers, in ascending order from 0.
fn ranges(answers: &BTreeMap<i64, SeccompAction>, others: SeccompAction) -> Vec<Range> {
    let others = u32::from(others);
    let mut found = vec![Range { from: 0, answer: others }];
    for (call, answer) in answers {
        let call = u32::try_from(*call).expect("invariant: numbers of calls are small");
        push_range(&mut found, Range { from: call, answer: u32::from(answer.clone()) });
        found.push(Range { from: call + 1, answer: others });
    }
    found.dedup_by_key(|range| range.answer);
    found
}

/// Appends a range. Replaces the last range if it is empty, that is, if both begin at the same number.
fn push_range(ranges: &mut Vec<Range>, range: Range) {
    if ranges.last().is_some_and(|last| last.from == range.from) {
        ranges.pop();
    }
    ranges.push(range);
}

/// Returns the instructions that find the range of the loaded number by binary search and return its answer.
fn binary_search(ranges: &[Range]) -> Vec<sock_filter> {
    if let [Range { answer, .. }] = ranges {
        return vec![statement(libc::BPF_RET | libc::BPF_K, *answer)];
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let low = binary_search(low);
    let skip =
        u8::try_from(low.len()).expect("invariant: there are fewer than 128 ranges in a half");
    let code = opcode(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K);
    let mut program = vec![sock_filter { code, jt: skip, jf: 0, k: high[0].from }];
    program.extend(low);
    program.extend(binary_search(high));
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

    /// Interprets a program as the kernel does.
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
