//! The choice of a server for a new prompt, by running tokens and by the room in the servers' KV caches.

use std::time::Duration;

use tokio::time::Instant;

use super::coordinator::{Coordinator, Message};
use super::member::Member;
use crate::server::CacheUse;

/// The time between two readings of the metrics of a server.
const INTERVAL: Duration = Duration::from_secs(1);

/// A server that can take a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    server: usize,
    /// The running tokens.
    load: u64,
    /// The size of the KV cache in running tokens.
    size: Option<f64>,
    is_full: bool,
}

/// Returns the server with the most free KV cache if that of every candidate is known, or else the one with the fewest running tokens.
/// Servers in which requests wait come last.
fn choose(candidates: &[Candidate]) -> Option<usize> {
    let all_known = candidates.iter().all(|candidate| candidate.size.is_some());
    let used = |candidate: &Candidate| match candidate.size {
        Some(size) if all_known => candidate.load as f64 - size,
        _ => candidate.load as f64,
    };
    let order = |a: &&Candidate, b: &&Candidate| {
        a.is_full.cmp(&b.is_full).then(used(a).total_cmp(&used(b)))
    };
    candidates.iter().min_by(order).map(|candidate| candidate.server)
}

impl Coordinator {
    /// Chooses among servers that can take a prompt.
    pub(super) fn choose(&self, servers: impl Iterator<Item = usize>) -> Option<usize> {
        let candidate = |server: usize| {
            let Member { load, room, .. } = &self.members[server];
            Candidate { server, load: *load, size: room.tokens, is_full: room.is_full }
        };
        choose(&servers.map(candidate).collect::<Vec<_>>())
    }

    /// Requests the use of its KV cache from each server that is ready, at most once a second.
    pub(super) fn poll_room(&mut self) {
        let now = Instant::now();
        // One server needs no choice.
        let is_due = |member: &Member| {
            member.is_ready()
                && !member.room.is_polled
                && member.room.due.is_none_or(|due| due <= now)
        };
        let due: Vec<usize> = match self.members.len() {
            1 => Vec::new(),
            all => (0..all).filter(|&server| is_due(&self.members[server])).collect(),
        };
        for server in due {
            self.members[server].room.is_polled = true;
            let (client, sender) = (self.members[server].server.clone(), self.sender.clone());
            self.tasks.spawn(async move {
                let used = client.cache_use().await;
                // A failed reading is ignored: calls that generate detect a fault of the server.
                let _gone = sender.send(Message::Room(server, used.ok().flatten()));
            });
        }
    }

    /// Records the answer of a server.
    pub(super) fn room(&mut self, server: usize, used: Option<CacheUse>) {
        let member = &mut self.members[server];
        let load = member.load;
        member.room.update(used, load);
        member.room.is_polled = false;
        member.room.due = Some(Instant::now() + INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(server: usize, load: u64, size: Option<f64>) -> Candidate {
        Candidate { server, load, size, is_full: false }
    }

    #[test]
    fn the_most_free_cache_wins_if_all_are_known() {
        let known = [candidate(0, 100, Some(400.0)), candidate(1, 500, Some(1000.0))];
        assert_eq!(choose(&known), Some(1));
        let unknown = [candidate(0, 100, None), candidate(1, 500, Some(1000.0))];
        assert_eq!(choose(&unknown), Some(0));
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn a_server_with_a_queue_comes_last() {
        let full = Candidate { is_full: true, ..candidate(0, 1, None) };
        assert_eq!(choose(&[full, candidate(1, 900, None)]), Some(1));
        assert_eq!(choose(&[full]), Some(0));
    }

    #[test]
    fn equal_loads_go_to_the_first_server() {
        assert_eq!(choose(&[candidate(0, 5, None), candidate(1, 5, None)]), Some(0));
    }
}
