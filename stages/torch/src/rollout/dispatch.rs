//! Assigns responses to the instances of an engine.

use std::collections::BTreeMap;

use rollpacker_dataflow::step::SampleId;

/// The assignment of the responses in flight to the instances of an engine. The first instances are placed, and only placed instances take
/// responses.
///
/// A response goes to the placed instance with the fewest responses, the first among equals. When its instance is released, the response
/// keeps its assignment until the instance has handed it over; then it is sent again. While no instance is placed, responses are held.
#[derive(Debug)]
pub(super) struct Dispatch<T> {
    assignments: BTreeMap<SampleId, Assignment>,
    /// Number of responses in flight, by instance.
    loads: Vec<usize>,
    /// Number of instances that take responses: the first of `loads`.
    placed: usize,
    /// Responses that are held until an instance is placed, in the order in which they were sent.
    held: Vec<(SampleId, T)>,
}

/// The location of a response in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Assignment {
    /// The instance that has the response; `None` if the response is held, or was aborted and no instance has it.
    instance: Option<usize>,
    aborted: bool,
}

/// The action that the caller of [`Dispatch::send`] must take for a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route<T> {
    /// The response must be sent to the instance with this index.
    To(usize, T),
    /// The response must be reported as aborted, because it was aborted before it could be sent.
    Ends(T),
}

/// The instance that must handle an abort, or the reason why no instance must.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Abort<T> {
    /// The instance that has the response.
    Of(usize),
    /// No instance: the response was held and ends now.
    Held(T),
    /// No instance: the response is not in flight, or it was aborted before and no instance has it.
    Unknown,
}

impl<T> Dispatch<T> {
    /// Creates a dispatch without responses, in which all `instances` are placed.
    pub(super) fn new(instances: usize) -> Self {
        Self {
            assignments: BTreeMap::new(),
            loads: vec![0; instances],
            placed: instances,
            held: Vec::new(),
        }
    }

    pub(super) fn held(&self) -> impl Iterator<Item = &T> {
        self.held.iter().map(|(_, response)| response)
    }

    pub(super) fn placed(&self) -> usize {
        self.placed
    }

    /// Assigns a response to the placed instance with the fewest responses, and returns [`Route::To`] with this instance. Returns
    /// [`Route::Ends`] if the response was aborted before. If no instance is placed, holds the response and returns `None`.
    pub(super) fn send(&mut self, id: SampleId, response: T) -> Option<Route<T>> {
        let assignment =
            self.assignments.entry(id).or_insert(Assignment { instance: None, aborted: false });
        if assignment.aborted {
            return Some(Route::Ends(response));
        }
        let placed = self.loads[..self.placed].iter().enumerate();
        let Some((instance, _)) = placed.min_by_key(|(_, load)| **load) else {
            self.held.push((id, response));
            return None;
        };
        assignment.instance = Some(instance);
        self.loads[instance] += 1;
        Some(Route::To(instance, response))
    }

    /// Assigns a response again after its instance has handed it over. Returns the same values as [`send`](Self::send).
    pub(super) fn send_again(&mut self, id: SampleId, response: T) -> Option<Route<T>> {
        self.release(id);
        self.send(id, response)
    }

    /// Marks a response as aborted. Removes and returns the response if it is held.
    pub(super) fn abort(&mut self, id: SampleId) -> Abort<T> {
        let Some(assignment) = self.assignments.get_mut(&id) else { return Abort::Unknown };
        assignment.aborted = true;
        if let Some(instance) = assignment.instance {
            return Abort::Of(instance);
        }
        let held = self.held.iter().position(|(held, _)| *held == id);
        held.map_or(Abort::Unknown, |at| Abort::Held(self.held.remove(at).1))
    }

    /// Removes a response that has ended.
    pub(super) fn end(&mut self, id: SampleId) {
        self.release(id);
        self.assignments.remove(&id);
    }

    /// Places the first `instances` instances. Returns the instances that must hand over their responses, and the held responses, which the
    /// caller must send. With 0 instances, the held responses stay held and none are returned.
    pub(super) fn place(
        &mut self,
        instances: usize,
    ) -> (std::ops::Range<usize>, Vec<(SampleId, T)>) {
        let released = instances..self.placed.max(instances);
        self.placed = instances;
        let held = if instances > 0 { std::mem::take(&mut self.held) } else { Vec::new() };
        (released, held)
    }

    pub(super) fn clear(&mut self) {
        self.assignments.clear();
        self.held.clear();
        self.loads.fill(0);
    }

    /// Removes a response from the load of its instance.
    fn release(&mut self, id: SampleId) {
        let assignment = self.assignments.get_mut(&id);
        if let Some(instance) = assignment.and_then(|assignment| assignment.instance.take()) {
            self.loads[instance] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sample: u32) -> SampleId {
        SampleId { sample, ..SampleId::default() }
    }

    fn sent(dispatch: &mut Dispatch<u32>, sample: u32) -> Option<Route<u32>> {
        dispatch.send(id(sample), sample)
    }

    fn send_all(dispatch: &mut Dispatch<u32>, samples: std::ops::Range<u32>) {
        for sample in samples {
            assert!(matches!(sent(dispatch, sample), Some(Route::To(..))));
        }
    }

    #[test]
    fn the_least_loaded_takes_the_next() {
        let mut dispatch = Dispatch::new(2);
        let routes: Vec<_> = (0..4).map(|sample| sent(&mut dispatch, sample)).collect();
        assert_eq!(
            routes,
            [0, 1, 0, 1].iter().zip(0..).map(|(to, s)| Some(Route::To(*to, s))).collect::<Vec<_>>()
        );
        dispatch.end(id(1));
        dispatch.end(id(1));
        assert_eq!(sent(&mut dispatch, 4), Some(Route::To(1, 4)));
        assert_eq!(sent(&mut dispatch, 5), Some(Route::To(0, 5)));
    }

    #[test]
    fn responses_of_released_instances_go_to_the_remaining_ones() {
        let mut dispatch = Dispatch::new(3);
        send_all(&mut dispatch, 0..3);
        assert_eq!(dispatch.place(1), (1..3, vec![]));
        assert_eq!(dispatch.send_again(id(2), 2), Some(Route::To(0, 2)));
        assert_eq!(dispatch.place(2), (2..2, vec![]));
        assert_eq!(dispatch.send_again(id(1), 1), Some(Route::To(1, 1)));
        assert_eq!(sent(&mut dispatch, 3), Some(Route::To(1, 3)));
    }

    #[test]
    fn without_placed_instances_requests_are_held() {
        let mut dispatch = Dispatch::new(1);
        send_all(&mut dispatch, 0..1);
        assert_eq!(dispatch.place(0), (0..1, vec![]));
        assert_eq!(dispatch.send_again(id(0), 0), None);
        assert_eq!(sent(&mut dispatch, 1), None);
        assert_eq!(dispatch.abort(id(1)), Abort::Held(1));
        assert_eq!(dispatch.abort(id(1)), Abort::Unknown);
        assert_eq!(dispatch.place(0), (0..0, vec![]));
        assert_eq!(dispatch.place(1), (1..1, vec![(id(0), 0)]));
        assert_eq!(sent(&mut dispatch, 0), Some(Route::To(0, 0)));
    }

    #[test]
    fn an_abort_in_transit_ends_the_response() {
        let mut dispatch = Dispatch::new(2);
        send_all(&mut dispatch, 0..2);
        assert_eq!(dispatch.place(1), (1..2, vec![]));
        assert_eq!(dispatch.abort(id(1)), Abort::Of(1));
        assert_eq!(dispatch.send_again(id(1), 1), Some(Route::Ends(1)));
        dispatch.end(id(1));
        assert_eq!(dispatch.abort(id(1)), Abort::Unknown);
        assert_eq!(dispatch.abort(id(0)), Abort::Of(0));
    }
}
