//! The controller of a job, which sends responses to instances.

use super::config::{Dispatch, HandOut};
use super::instance::NANOS;
use super::lengths::{LengthModel, response_beyond};
use super::requests::{Live, RequestState, Requests};
use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::rollout::{Partial, Request};

/// Assigns the responses that are requested at one time to instances.
#[derive(Debug)]
pub(super) struct DispatchController {
    dispatch: Dispatch,
    hand_out: HandOut,
    /// Seconds that sending a response takes.
    interval: f64,
    queued: Vec<Request>,
    /// Time from which the controller can send further responses, in nanoseconds: it has sent all earlier responses and is no longer held.
    free_at: f64,
    /// The instance at which the next assignment starts.
    next: usize,
}

impl DispatchController {
    pub(super) fn new(dispatch: Dispatch, hand_out: HandOut, interval: f64) -> Self {
        Self { dispatch, hand_out, interval, queued: Vec::new(), free_at: 0.0, next: 0 }
    }

    pub(super) fn enqueue(&mut self, request: Request) {
        self.queued.push(request);
    }

    /// Delays all sending until `until`, in nanoseconds.
    pub(super) fn hold(&mut self, until: f64) {
        self.free_at = self.free_at.max(until);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// Registers all requested responses. Returns the instance, the arrival time in nanoseconds and the slot of each response. The instance
    /// is `None` if `instances` is 0, or if responses go to the least loaded instance.
    pub(super) fn assign(
        &mut self,
        now: f64,
        instances: usize,
        lengths: &dyn LengthModel,
        requests: &mut Requests,
    ) -> Vec<(Option<usize>, f64, usize)> {
        let queued = std::mem::take(&mut self.queued);
        let prompts = queued.len();
        let responses: usize = queued.iter().map(|request| request.samples.len()).sum();
        let begun = self.free_at.max(now);
        let each = NANOS * self.interval;
        self.free_at = begun + each * responses as f64;
        let mut assigned = Vec::with_capacity(responses);
        for (position, request) in queued.iter().enumerate() {
            let chunk = position * instances / prompts;
            for live in create_responses(request, lengths) {
                let slot = requests.insert(live);
                let arrival = match self.hand_out {
                    HandOut::Together => self.free_at,
                    HandOut::Streamed => begun + each * (assigned.len() + 1) as f64,
                };
                assigned.push((self.instance(chunk, instances), arrival, slot));
            }
        }
        if self.dispatch == Dispatch::PromptChunks && instances > 0 {
            self.next = (self.next + prompts) % instances;
        }
        assigned
    }

    /// Returns the instance for the next response of a prompt in part `chunk` of the prompts that are launched together; `None` in the
    /// cases that [`assign`](Self::assign) documents.
    fn instance(&mut self, chunk: usize, instances: usize) -> Option<usize> {
        if instances == 0 {
            return None;
        }
        match self.dispatch {
            Dispatch::RoundRobin => {
                let instance = self.next % instances;
                self.next = instance + 1;
                Some(instance)
            }
            Dispatch::PromptChunks => Some((self.next + chunk) % instances),
            Dispatch::LeastLoaded => None,
        }
    }
}

fn create_responses(request: &Request, lengths: &dyn LengthModel) -> impl Iterator<Item = Live> {
    let row = request.prompt_ids.first().map_or(0, |id| u64::from(id.unsigned_abs()));
    let prompt_length = lengths.prompt(row).prompt_length;
    request.samples.clone().map(move |sample| {
        let id = SampleId { step: request.step, prompt: request.prompt, sample };
        let resumed = resumed(&request.resumed, sample);
        let (launched, kept) = resumed
            .map_or((request.step, 0), |resumed| (resumed.launched, resumed.response_length));
        Live {
            id,
            prompt_length,
            // The length must equal the length of a response that was never stopped, so it is drawn by the step of the launch.
            length: response_beyond(lengths, row, SampleId { step: launched, ..id }, kept),
            tokens: kept,
            since: 0,
            generation: 0,
            state: RequestState::Waiting,
            instance: 0,
            preemptions: 0,
            has_cache: false,
            started: None,
        }
    })
}

/// Returns the partial response of a sample, if the request has one.
fn resumed(resumed: &[Partial], sample: u32) -> Option<&Partial> {
    resumed.binary_search_by_key(&sample, |partial| partial.sample).ok().map(|at| &resumed[at])
}
