//! The threads among which the kernels of this crate divide their work.
//!
//! libtorch's operations have threads of their own. Those wait for their next operation on a core, which the kernels then lack. A thread with
//! [`KernelThreads`] therefore computes libtorch's operations alone, except within [`with_all`].

use std::io;
use std::ops::Range;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::device::set_threads_of_this_thread;
use super::instructions::Instructions;

/// The least cost of a part of a kernel's work, in products of two numbers. Waking another thread takes about as long as so many of them.
const LEAST_COST: usize = 1 << 18;

/// Number of parts for each thread, so that one that is late gets fewer.
const PARTS_PER_THREAD: usize = 2;

/// The further threads that compute for the thread that made this, until it is dropped.
#[derive(Debug)]
pub(crate) struct KernelThreads(
    #[expect(dead_code, reason = "dropping it ends the threads")] Option<ThreadPool>,
);

impl KernelThreads {
    /// Lets the kernels and operations that the calling thread runs use `threads` threads, at least one. A thread may call this once.
    ///
    /// If the processor lacks the instructions of the kernels, libtorch computes, and has all the threads.
    ///
    /// # Errors
    /// Returns an error if the system cannot create the threads.
    pub(crate) fn of_this_thread(threads: usize) -> io::Result<Self> {
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

/// Runs `compute`, in which libtorch's operations use all threads of the calling thread.
pub(crate) fn with_all<R>(compute: impl FnOnce() -> R) -> R {
    let threads = count();
    if threads == 1 {
        return compute();
    }
    set_threads_of_this_thread(threads);
    let computed = compute();
    set_threads_of_this_thread(1);
    computed
}

/// Returns the number of parts into which it pays to divide work of `cost` products, at least one.
pub(crate) fn worthwhile(cost: usize) -> usize {
    let threads = count();
    let most = if threads == 1 { 1 } else { threads * PARTS_PER_THREAD };
    most.min(cost / LEAST_COST).max(1)
}

/// Splits `0..units` into as many ranges as are [worthwhile], whose lengths differ by at most one.
///
/// [worthwhile]: worthwhile()
pub(crate) fn parts(units: usize, cost: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = worthwhile(cost).min(units).max(1);
    (0..parts).map(move |part| part * units / parts..(part + 1) * units / parts)
}

/// Calls `compute` for each part, on several threads if there is more than one part.
pub(crate) fn each<T: Send>(parts: Vec<T>, compute: impl Fn(T) + Send + Sync) {
    if parts.len() > 1 {
        parts.into_par_iter().with_max_len(1).for_each(compute);
    } else {
        parts.into_iter().for_each(compute);
    }
}

/// Returns the number of threads of the calling thread's kernels.
fn count() -> usize {
    rayon::current_thread_index().map_or(1, |_| rayon::current_num_threads())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;

    use super::*;

    /// Runs `compute` without gradients on a thread with `threads` [`KernelThreads`].
    pub(crate) fn on_threads<R: Send>(threads: usize, compute: impl FnOnce() -> R + Send) -> R {
        let work = || {
            let _threads = KernelThreads::of_this_thread(threads).unwrap();
            let _no_grad = tch::no_grad_guard();
            compute()
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    #[test]
    fn small_work_and_that_of_other_threads_stays_whole() {
        let ends = |units, cost| parts(units, cost).map(|part| part.end).collect::<Vec<_>>();
        assert_eq!(ends(10, usize::MAX), [10]);
        if Instructions::detect().is_some() {
            let of = |units, cost| on_threads(2, || ends(units, cost));
            assert_eq!(of(10, 2 * LEAST_COST - 1), [10]);
            assert_eq!(of(10, 3 * LEAST_COST), [3, 6, 10]);
            assert_eq!(of(2, usize::MAX), [1, 2]);
            assert_eq!(of(10, usize::MAX), [2, 5, 7, 10]);
            assert_eq!(of(0, 0), [0]);
        }
    }

    #[test]
    fn every_part_is_computed_and_several_threads_compute() {
        if Instructions::detect().is_none() {
            return;
        }
        let seen = Mutex::new(HashSet::new());
        let barrier = std::sync::Barrier::new(2);
        on_threads(2, || {
            each(vec![1, 2], |part| {
                barrier.wait();
                seen.lock().unwrap().insert((part, std::thread::current().id()));
            });
        });
        let seen = seen.into_inner().unwrap();
        let threads: HashSet<_> = seen.iter().map(|(_, thread)| thread).collect();
        assert_eq!((seen.len(), threads.len()), (2, 2));
    }

    #[test]
    fn operations_have_the_threads_only_within_with_all() {
        if Instructions::detect().is_some() {
            let of = on_threads(3, || {
                let within = with_all(tch::get_num_threads);
                [tch::get_num_threads(), within, tch::get_num_threads()]
            });
            assert_eq!(of, [1, 3, 1]);
        }
    }
}
