//! Commands that a deterministic instance delays until a new policy may be loaded.

use std::collections::VecDeque;

use rollpacker_dataflow::step::SampleId;

use super::instance::InstanceCommand;
use super::sequence::Sequence;

/// The commands that a deterministic instance has deferred. A load waits while the instance has responses of the previous policy, and later
/// loads and requests wait behind it. All other commands, such as aborts, are executed at once.
///
/// This way one policy samples all tokens that a request adds to a response, however early the next policy arrives.
#[derive(Default)]
pub(super) struct Backlog(VecDeque<InstanceCommand>);

impl Backlog {
    /// Returns the command if it may be executed now. Otherwise queues the command and returns `None`. `idle` is `true` if the generator of
    /// the instance has no responses.
    pub(super) fn defer_if_blocked(
        &mut self,
        command: InstanceCommand,
        idle: bool,
    ) -> Option<InstanceCommand> {
        let waits = match &command {
            InstanceCommand::Load(..) => !idle || !self.0.is_empty(),
            InstanceCommand::Generate(_) => !self.0.is_empty(),
            InstanceCommand::Abort(_)
            | InstanceCommand::HandOver
            | InstanceCommand::SetDevices(_)
            | InstanceCommand::Colocate(..)
            | InstanceCommand::CheckWorkloads => false,
        };
        if waits {
            self.0.push_back(command);
            return None;
        }
        Some(command)
    }

    /// Removes and returns the next queued command. Returns `None` if no command is queued, or if the next command loads a policy and the
    /// generator is not `idle`.
    pub(super) fn next(&mut self, idle: bool) -> Option<InstanceCommand> {
        self.0.pop_front_if(|command| idle || !matches!(command, InstanceCommand::Load(..)))
    }

    /// Removes and returns a queued response; `None` if the response is not queued.
    pub(super) fn remove(&mut self, id: SampleId) -> Option<Sequence> {
        self.0.iter_mut().find_map(|command| match command {
            InstanceCommand::Generate(batch) => {
                let at = batch.iter().position(|sequence| sequence.id == id)?;
                Some(batch.remove(at))
            }
            _ => None,
        })
    }

    /// Removes all queued requests. Returns their responses, and the number of requests, including those whose responses were all
    /// [removed](Self::remove) before. Queued policies remain.
    pub(super) fn clear(&mut self) -> (Vec<Sequence>, u64) {
        let mut all = Vec::new();
        let mut batches = 0;
        self.0.retain_mut(|command| match command {
            InstanceCommand::Generate(batch) => {
                all.append(batch);
                batches += 1;
                false
            }
            _ => true,
        });
        (all, batches)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rollpacker_dataflow::step::PolicyVersion;

    use super::super::Policy;
    use super::super::sampling::{RandomStream, Sampling};
    use super::*;
    use crate::model::Weights;

    fn load() -> InstanceCommand {
        let policy = Policy { version: PolicyVersion(1), location: String::new(), digest: 0 };
        InstanceCommand::Load(policy, Weights::new(Vec::new()).unwrap())
    }

    fn generate(sample: u32) -> InstanceCommand {
        let id = SampleId { sample, ..SampleId::default() };
        let stream = RandomStream::new(0, id);
        InstanceCommand::Generate(vec![Sequence::new(
            id,
            Arc::from([1]),
            Sampling::greedy(1),
            stream,
        )])
    }

    fn kind(command: Option<InstanceCommand>) -> Option<&'static str> {
        command.map(|command| match command {
            InstanceCommand::Load(..) => "load",
            InstanceCommand::Generate(_) => "generate",
            _ => "other",
        })
    }

    #[test]
    fn a_load_waits_for_earlier_requests_and_holds_back_later_ones() {
        let mut backlog = Backlog::default();
        assert_eq!(kind(backlog.defer_if_blocked(generate(0), true)), Some("generate"));
        for (command, expected) in [(load(), None), (generate(1), None), (load(), None)] {
            assert_eq!(kind(backlog.defer_if_blocked(command, false)), expected);
        }
        assert_eq!(
            kind(backlog.defer_if_blocked(InstanceCommand::CheckWorkloads, false)),
            Some("other")
        );
        assert_eq!(kind(backlog.next(false)), None);
        assert_eq!(kind(backlog.next(true)), Some("load"));
        assert_eq!(kind(backlog.next(true)), Some("generate"));
        assert_eq!(kind(backlog.next(false)), None, "the second policy waits for the first's");
        assert_eq!(kind(backlog.next(true)), Some("load"));
        assert_eq!(kind(backlog.defer_if_blocked(load(), true)), Some("load"));
    }

    #[test]
    fn a_waiting_request_can_be_removed() {
        let mut backlog = Backlog::default();
        for command in [load(), generate(1), generate(2), load()] {
            backlog.defer_if_blocked(command, false);
        }
        let id = |sample| SampleId { sample, ..SampleId::default() };
        assert_eq!(backlog.remove(id(2)).map(|sequence| sequence.id), Some(id(2)));
        assert!(backlog.remove(id(2)).is_none());
        let (sequences, batches) = backlog.clear();
        assert_eq!((sequences.len(), sequences[0].id, batches), (1, id(1), 2));
        assert_eq!(kind(backlog.next(true)), Some("load"));
    }
}
