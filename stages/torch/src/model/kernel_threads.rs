//! The threads among which the kernels of this crate divide their work.
//!
//! libtorch's operations use threads of their own, which occupy their cores while they wait for the next operation. The kernels then lack
//! these cores. A thread with [`KernelThreads`] therefore computes libtorch's operations alone. [`with_libtorch_threads`] gives the cores
//! to the threads of libtorch during a call, and [`with_polling_threads`] gives them to the kernel threads.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::{ThreadPool, ThreadPoolBuilder, Yield};

use super::device::set_threads_of_this_thread;
use super::vectorized::Instructions;

/// The minimum cost of a part of a kernel's work, in multiplications. Handing a part to a thread that [polls] takes about as long as
/// this many multiplications.
///
/// [polls]: with_polling_threads()
const MIN_COST: usize = 1 << 16;

/// Number of parts for each thread. A thread has several parts, so that a thread that starts late can compute fewer parts.
const PARTS_PER_THREAD: usize = 2;

/// The threads that compute kernels together with the thread that created them. They end after this is dropped; dropping does not wait for
/// them.
///
/// The creating thread keeps its entry in the thread pool, a few kilobytes, until it ends.
#[derive(Debug)]
pub(crate) struct KernelThreads(
    #[expect(dead_code, reason = "dropping it ends the threads")] Option<ThreadPool>,
);

impl KernelThreads {
    /// Makes the kernels that the calling thread runs use `threads` threads, itself included; 0 counts as 1. Call this once per thread.
    ///
    /// If the kernels cannot run here, libtorch computes instead, and its operations use `threads` threads.
    ///
    /// # Errors
    /// Returns an error if the system cannot create the threads, or the calling thread already has kernel threads.
    pub(crate) fn for_this_thread(threads: usize) -> io::Result<Self> {
        if threads <= 1 || Instructions::detect().is_none() {
            set_threads_of_this_thread(threads);
            return Ok(Self(None));
        }
        set_threads_of_this_thread(1);
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .use_current_thread()
            .thread_name(|number| format!("kernel-{number}"));
        pool.build().map(Some).map(Self).map_err(io::Error::other)
    }
}

/// Runs `compute` with all threads of the calling thread available to libtorch's operations. Use it where libtorch's operations take much
/// of the time: for a prefill, whose attention libtorch computes, and for networks without packed weights.
pub(crate) fn with_libtorch_threads<R>(compute: impl FnOnce() -> R) -> R {
    let threads = count();
    if threads == 1 {
        return compute();
    }
    set_threads_of_this_thread(threads);
    let computed = compute();
    set_threads_of_this_thread(1);
    computed
}

/// Runs `compute` while the other kernel threads of the calling thread poll for work. If the calling thread has no other kernel threads,
/// and within [`with_libtorch_threads`], no thread polls.
///
/// A kernel of decoding takes a few microseconds, and a thread that sleeps needs several times as long to wake. While the polling threads
/// find no work, they yield to every other thread. `compute` must use rayon only through [`each`].
pub(crate) fn with_polling_threads<R>(compute: impl FnOnce() -> R) -> R {
    if count() == 1 || tch::get_num_threads() > 1 {
        return compute();
    }
    let caller = rayon::current_thread_index();
    let ended = AtomicBool::new(false);
    rayon::in_place_scope(|scope| {
        // The scope also waits for the other threads if `compute` panics.
        let _end = SetOnDrop(&ended);
        scope.spawn_broadcast(|_, thread| {
            // The caller may run this closure, too, while it waits for the parts of other threads. It must return at once then, because
            // `ended` is set only after `compute`.
            while Some(thread.index()) != caller && !ended.load(Ordering::Relaxed) {
                if rayon::yield_now() != Some(Yield::Executed) {
                    std::thread::yield_now();
                }
            }
        });
        compute()
    })
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the number of parts into which to divide work of `cost` multiplications: at least 1, and at most [`PARTS_PER_THREAD`] for each
/// kernel thread. It is 1 without other kernel threads. No part costs less than [`MIN_COST`] unless it is the only one.
pub(crate) fn part_count(cost: usize) -> usize {
    let threads = count();
    let max = if threads == 1 { 1 } else { threads * PARTS_PER_THREAD };
    max.min(cost / MIN_COST).max(1)
}

/// Splits `0..units`, which cost `cost` multiplications in total, into at most [`part_count`] ranges whose lengths differ by at most one.
/// Returns one empty range if `units` is 0.
pub(crate) fn parts(units: usize, cost: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = part_count(cost).min(units).max(1);
    (0..parts).map(move |part| part * units / parts..(part + 1) * units / parts)
}

/// Splits units with the given costs, in multiplications, into at most [`part_count`] adjacent ranges, of about the same cost. The costs
/// must be positive. Returns no ranges if there are no units.
pub(crate) fn balanced_ranges(costs: &[usize]) -> Vec<Range<usize>> {
    let total: usize = costs.iter().sum();
    let parts = part_count(total);
    let mut ranges = Vec::with_capacity(parts);
    // A range ends with the unit that reaches the next multiple of `total / parts`.
    let (mut start, mut cost, mut multiple) = (0, 0, 1);
    for (end, unit) in (1..).zip(costs) {
        cost += unit;
        if cost * parts >= multiple * total {
            ranges.push(start..end);
            start = end;
            multiple = cost * parts / total.max(1) + 1;
        }
    }
    ranges
}

/// Pairs each of `ranges`, which are ranges of units, with its part of `floats`, which has `width` numbers for each unit. The ranges must
/// be adjacent and begin with unit 0.
pub(crate) fn split(
    mut floats: &mut [f32],
    width: usize,
    ranges: impl IntoIterator<Item = Range<usize>>,
) -> impl Iterator<Item = (Range<usize>, &mut [f32])> {
    ranges.into_iter().map(move |range| {
        let (own, others) = std::mem::take(&mut floats).split_at_mut(range.len() * width);
        floats = others;
        (range, own)
    })
}

/// Calls `compute` for each part, on the kernel threads of the calling thread.
///
/// `compute` must not wait for other kernel threads, so it must call neither this function nor a function of rayon.
pub(crate) fn each<T: Send>(parts: Vec<T>, compute: impl Fn(T) + Send + Sync) {
    if parts.len() <= 1 || count() == 1 {
        return parts.into_iter().for_each(compute);
    }
    // A part is a job of its own. With a parallel iterator, a thread that has taken several parts can give one back to the caller and wait
    // for it. While it waits, it may begin to poll, which ends only after the caller has all parts; so both would wait forever.
    rayon::in_place_scope(|scope| {
        let compute = &compute;
        parts.into_iter().for_each(|part| scope.spawn(move |_| compute(part)));
    });
}

/// Returns the number of kernel threads of the calling thread, itself included; 1 if it has no others.
pub(crate) fn count() -> usize {
    rayon::current_thread_index().map_or(1, |_| rayon::current_num_threads())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashSet;
    use std::panic::catch_unwind;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use rollpacker_dataflow::clock::{Clock, Nanos, WallClock};

    use super::*;

    /// Runs `compute` without gradients on a thread with `threads` [`KernelThreads`].
    pub(crate) fn on_threads<R: Send>(threads: usize, compute: impl FnOnce() -> R + Send) -> R {
        let work = || {
            let _threads = KernelThreads::for_this_thread(threads).unwrap();
            let _no_grad = tch::no_grad_guard();
            compute()
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    #[test]
    fn small_work_and_work_of_other_threads_is_not_split() {
        let ends = |units, cost| parts(units, cost).map(|part| part.end).collect::<Vec<_>>();
        assert_eq!(ends(10, usize::MAX), [10]);
        if Instructions::detect().is_some() {
            let of = |units, cost| on_threads(2, || ends(units, cost));
            assert_eq!(of(10, 2 * MIN_COST - 1), [10]);
            assert_eq!(of(10, 3 * MIN_COST), [3, 6, 10]);
            assert_eq!(of(2, usize::MAX), [1, 2]);
            assert_eq!(of(10, usize::MAX), [2, 5, 7, 10]);
            assert_eq!(of(0, 0), [0]);
        }
    }

    /// Divides work into two parts that wait for each other, for a minute at most. Returns the number of parts and of threads seen.
    fn run_two_parts() -> (usize, usize) {
        let (seen, arrived) = (Mutex::new(HashSet::new()), AtomicUsize::new(0));
        let clock = WallClock::start();
        each(vec![1, 2], |part| {
            arrived.fetch_add(1, Ordering::Relaxed);
            while arrived.load(Ordering::Relaxed) < 2 && clock.now() < Nanos(60_000_000_000) {
                std::thread::yield_now();
            }
            seen.lock().unwrap().insert((part, std::thread::current().id()));
        });
        let seen = seen.into_inner().unwrap();
        let threads: HashSet<_> = seen.iter().map(|(_, thread)| thread).collect();
        (seen.len(), threads.len())
    }

    #[test]
    fn ranges_have_about_the_same_cost() {
        let of = |costs: &[usize]| {
            let costs: Vec<usize> = costs.iter().map(|cost| cost * MIN_COST).collect();
            on_threads(2, || balanced_ranges(&costs))
                .into_iter()
                .map(|range| range.end)
                .collect::<Vec<_>>()
        };
        assert_eq!(balanced_ranges(&[1, 2]).len(), 1);
        if Instructions::detect().is_some() {
            assert_eq!(of(&[1; 8]), [2, 4, 6, 8]);
            assert_eq!(of(&[100, 1, 1, 1, 1]), [1, 5]);
            assert_eq!(of(&[1, 1, 1, 100]), [4]);
            assert_eq!(of(&[3, 3, 3, 3, 1, 1, 1, 1]), [2, 3, 4, 8]);
            assert_eq!(of(&[]), [0; 0]);
        }
    }

    #[test]
    fn every_part_is_computed_and_several_threads_compute() {
        if Instructions::detect().is_some() {
            assert_eq!(on_threads(2, run_two_parts), (2, 2));
        }
    }

    #[test]
    fn polling_threads_compute_and_end_with_the_work() {
        if Instructions::detect().is_none() {
            return;
        }
        on_threads(2, || {
            assert_eq!(
                with_polling_threads(|| [
                    run_two_parts(),
                    with_polling_threads(run_two_parts),
                    run_two_parts()
                ]),
                [(2, 2); 3]
            );
            let panicked = catch_unwind(|| with_polling_threads(|| panic!("a kernel")));
            assert!(panicked.is_err());
            assert_eq!(with_polling_threads(run_two_parts), (2, 2));
        });
    }

    // A thread that computes a part must not begin to poll before the part ends, because the caller waits for it.
    #[test]
    fn threads_that_begin_to_poll_late_end_their_parts() {
        if Instructions::detect().is_none() {
            return;
        }
        let (ended, waits) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let clock = WallClock::start();
            on_threads(2, || {
                while clock.now() < Nanos(1_000_000_000) {
                    with_polling_threads(|| {
                        each((0..4).collect(), |part| {
                            for at in 0..100 * part {
                                std::hint::black_box(at);
                            }
                        });
                    });
                }
            });
            let _gone = ended.send(());
        });
        waits.recv_timeout(Duration::from_secs(120)).expect("the work ends");
    }

    #[test]
    fn operations_have_the_threads_only_within_with_libtorch_threads() {
        if Instructions::detect().is_some() {
            let of = on_threads(3, || {
                let within = with_libtorch_threads(tch::get_num_threads);
                [tch::get_num_threads(), within, tch::get_num_threads()]
            });
            assert_eq!(of, [1, 3, 1]);
        }
    }
}
