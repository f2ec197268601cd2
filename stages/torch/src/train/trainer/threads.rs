//! The CPU threads of a trainer, which a placement can change between calls.

use super::Metrics;
use crate::model::device::set_threads_of_this_thread;

/// The metric with the largest number of threads that the calls of a step used.
const METRIC: &str = "trainer/threads";

/// The number of threads of a trainer's tensor operations: its own, or those of the devices that train if these are more.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrainerThreads {
    own: usize,
    /// The number of threads of a device. `None` if the number of threads does not depend on the devices.
    of_device: Option<usize>,
    now: usize,
    /// The largest number since the metric was last taken.
    most: usize,
    is_placed: bool,
}

impl TrainerThreads {
    pub(super) fn new(own: usize) -> Self {
        Self { own, of_device: None, now: own, most: 0, is_placed: false }
    }

    pub(super) fn with_devices_of(self, threads: usize) -> Self {
        Self { of_device: Some(threads), ..self }
    }

    /// Sets the number of devices that train.
    pub(super) fn place(&mut self, devices: u32) {
        self.is_placed = true;
        let lent = self.of_device.map_or(0, |threads| threads.saturating_mul(devices as usize));
        self.now = self.own.max(lent);
    }

    /// Makes the tensor operations of the calling thread use this number of threads.
    pub(super) fn apply(&mut self) {
        set_threads_of_this_thread(self.now);
        self.most = self.most.max(self.now);
    }

    /// Returns the metric of the step that ends. Empty unless a placement has set the devices.
    pub(super) fn take_metric(&mut self) -> Metrics {
        let most = std::mem::take(&mut self.most);
        let metric = self.is_placed.then(|| (METRIC.to_owned(), most as f64));
        metric.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(threads: &mut TrainerThreads) -> i32 {
        threads.apply();
        tch::get_num_threads()
    }

    #[test]
    fn devices_add_their_threads_while_they_train() {
        let mut threads = TrainerThreads::new(1).with_devices_of(2);
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
        let mut threads = TrainerThreads::new(3);
        threads.place(8);
        assert_eq!(used(&mut threads), 3);
        assert_eq!(threads.take_metric()[METRIC], 3.0);
    }
}
