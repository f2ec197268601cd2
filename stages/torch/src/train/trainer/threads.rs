//! The CPU threads of a trainer, each with micro-batches of its own.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

use rollpacker_stages::train::TrainError;
use tch::{Device, TchError};

use super::models::TrainerModels;
use crate::model::device::set_threads_of_this_thread;
use crate::train::Metrics;

/// The maximum number of threads that compute micro-batches of their own. Each needs memory for a gradient.
const MAX_GRADIENTS: usize = 8;

/// The name of the metric that reports the largest number of threads that were available to a call of the step.
const METRIC: &str = "trainer/threads";

/// The threads of a trainer: the configured number, or the number of threads of the devices that train if that is larger.
///
/// Micro-batches are independent, so each thread takes the next one and computes it alone. This is faster than tensor operations of several
/// threads, which wait for each other thousands of times per micro-batch. If there are fewer micro-batches than threads, or more threads
/// than [`MAX_GRADIENTS`], the tensor operations use the remaining threads. In deterministic mode they use one thread, because libtorch
/// sums in another order with another number of threads.
#[derive(Debug)]
pub(super) struct TrainerThreads {
    /// The configured number of threads.
    own: usize,
    device: Device,
    deterministic: bool,
    /// The number of threads of a device. `None` if the number of threads does not depend on the devices.
    per_device: Option<usize>,
    current: usize,
    /// The largest value of `current` in a call since the metric was last taken. A call with few micro-batches may use fewer threads.
    max: usize,
    /// `true` once a placement has set the number of devices.
    is_placed: bool,
    /// The models of each thread that has computed something; the models of the calling thread come first.
    models: Vec<TrainerModels>,
}

impl TrainerThreads {
    pub(super) fn new(own: usize, device: Device, deterministic: bool) -> Self {
        Self {
            own,
            device,
            deterministic,
            per_device: None,
            current: own,
            max: 0,
            is_placed: false,
            models: Vec::new(),
        }
    }

    pub(super) fn with_threads_per_device(self, threads: usize) -> Self {
        Self { per_device: Some(threads), ..self }
    }

    /// Sets the number of devices that train. Changes the number of threads only if `per_device` is set.
    pub(super) fn place(&mut self, devices: u32) {
        self.is_placed = true;
        let of_devices =
            self.per_device.map_or(0, |threads| threads.saturating_mul(devices as usize));
        self.current = self.own.max(of_devices);
    }

    /// Returns the number of threads that compute micro-batches if there are enough micro-batches, at most [`MAX_GRADIENTS`]. Devices other
    /// than the CPU have one queue of kernels, which one thread fills.
    pub(super) fn micro_batch_threads(&self) -> usize {
        if self.device == Device::Cpu { self.current.clamp(1, MAX_GRADIENTS) } else { 1 }
    }

    /// Makes the tensor operations of the calling thread use all threads, or a single thread in deterministic mode.
    pub(super) fn set_operation_threads(&mut self) {
        set_threads_of_this_thread(self.threads_per_operation(1));
        self.max = self.max.max(self.current);
    }

    /// Sets the models of the calling thread. Does nothing in later calls.
    pub(super) fn init_models(&mut self, models: impl FnOnce() -> TrainerModels) {
        if self.models.is_empty() {
            self.models.push(models());
        }
    }

    /// Calls `work` with each of `items` and the models of the thread that takes it. Returns the results in the order of the items.
    ///
    /// [`init_models`](Self::init_models) must have been called. Further threads end with the call.
    ///
    /// # Errors
    /// Returns an error if `work` fails, or the device runs out of memory for the models of a thread.
    pub(super) fn run<T: Send, R: Send>(
        &mut self,
        items: Vec<T>,
        work: impl Fn(&TrainerModels, T) -> Result<R, TrainError> + Sync,
    ) -> Result<Vec<R>, TrainError> {
        self.max = self.max.max(self.current);
        let used = self.prepare(items.len()).map_err(TrainError::backend("starting threads"))?;
        let operation_threads = self.threads_per_operation(used);
        let queue = Mutex::new(items.into_iter().enumerate());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = |models: &TrainerModels| -> Result<Vec<(usize, R)>, TrainError> {
            set_threads_of_this_thread(operation_threads);
            std::iter::from_fn(next).map(|(at, item)| Ok((at, work(models, item)?))).collect()
        };
        let (own, others) = self.models.split_at_mut(1);
        let mut done = thread::scope(|scope| {
            let work = &work;
            // Models can be sent to a thread but not shared with it, so the thread takes the mutable reference.
            let others = others.iter_mut().take(used - 1);
            let others: Vec<_> = others.map(|models| scope.spawn(move || work(&*models))).collect();
            let mut done = work(&own[0])?;
            for other in others {
                done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic))?);
            }
            Ok::<_, TrainError>(done)
        })?;
        done.sort_unstable_by_key(|(at, _)| *at);
        Ok(done.into_iter().map(|(_, result)| result).collect())
    }

    /// Moves the gradients of all threads into the gradients of the calling thread. Does nothing in deterministic mode, in which each
    /// gradient was added to the sums of the step when its micro-batch was done.
    pub(super) fn collect_gradients(&self) -> Result<(), TchError> {
        let Some((own, others)) = self.models.split_first().filter(|_| !self.deterministic) else {
            return Ok(());
        };
        others.iter().try_for_each(|other| own.collect(other))
    }

    /// Returns the number of threads that compute `items` micro-batches, at least 1, and creates the models that they lack.
    fn prepare(&mut self, items: usize) -> Result<usize, TchError> {
        let used = self.micro_batch_threads().min(items).max(1);
        while self.models.len() < used {
            let more = self.models[0].with_own_gradients()?;
            self.models.push(more);
        }
        Ok(used)
    }

    /// Returns the number of threads for a tensor operation while `used` threads compute micro-batches.
    fn threads_per_operation(&self, used: usize) -> usize {
        if self.deterministic { 1 } else { (self.current / used).max(1) }
    }

    /// Returns the metric of the step that ends. Empty unless a placement has set the devices.
    pub(super) fn take_metric(&mut self) -> Metrics {
        let max = std::mem::take(&mut self.max);
        let metric = self.is_placed.then(|| (METRIC.to_owned(), max as f64));
        metric.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(threads: &mut TrainerThreads) -> i32 {
        threads.set_operation_threads();
        tch::get_num_threads()
    }

    #[test]
    fn devices_add_their_threads_while_they_train() {
        let mut threads = TrainerThreads::new(1, Device::Cpu, false).with_threads_per_device(2);
        assert_eq!((used(&mut threads), threads.take_metric().len()), (1, 0));
        threads.place(2);
        assert_eq!(used(&mut threads), 4);
        threads.place(0);
        assert_eq!(used(&mut threads), 1);
        assert_eq!(threads.take_metric()[METRIC], 4.0);
        assert_eq!(used(&mut threads), 1);
        assert_eq!(threads.take_metric()[METRIC], 1.0, "the most of the step, not of the run");
    }

    #[test]
    fn without_threads_of_devices_a_placement_changes_nothing() {
        let mut threads = TrainerThreads::new(3, Device::Cpu, false);
        threads.place(8);
        assert_eq!(used(&mut threads), 3);
        assert_eq!(threads.take_metric()[METRIC], 3.0);
    }

    #[test]
    fn operations_have_one_thread_in_deterministic_mode() {
        assert_eq!(used(&mut TrainerThreads::new(3, Device::Cpu, true)), 1);
    }
    #[test]
    fn micro_batches_are_for_one_thread_on_a_gpu_and_for_few_on_a_cpu() {
        let computing = |own, device| TrainerThreads::new(own, device, false).micro_batch_threads();
        assert_eq!([1, 3, 64].map(|own| computing(own, Device::Cpu)), [1, 3, MAX_GRADIENTS]);
        assert_eq!(computing(64, Device::Cuda(0)), 1);
    }
}
