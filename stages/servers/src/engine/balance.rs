//! The choice of a server for a prompt, by running tokens and by the room in the servers' KV caches.

use std::time::Duration;

use tokio::time::Instant;

use super::coordinator::{Coordinator, Message};
use super::member::Member;
use crate::server::CacheUse;

/// The time between two readings of the metrics of a server.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A server that can take a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    server: usize,
    /// The tokens of running responses and their prompts.
    load: u64,
    /// The estimated size of the KV cache in tokens; `None` if it is unknown.
    size: Option<f64>,
    /// `true` if requests wait in the server.
    is_full: bool,
}

/// Returns the server with the most free KV cache if the size is known for every candidate, or else the server with the fewest running
/// tokens. Servers in which requests wait come last. `None` if there is no candidate.
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
    /// Chooses a server among those that can take a prompt; `None` if there is none.
    pub(super) fn choose(&self, servers: impl Iterator<Item = usize>) -> Option<usize> {
        let candidate = |server: usize| {
            let Member { load, cache, .. } = &self.members[server];
            Candidate { server, load: *load, size: cache.tokens, is_full: cache.is_full }
        };
        choose(&servers.map(candidate).collect::<Vec<_>>())
    }

    /// Requests the KV cache use of each ready server, at most once a second per server. Does nothing if the engine has a single server.
    pub(super) fn poll_cache_use(&mut self) {
        let now = Instant::now();
        // With one server there is no choice.
        let is_due = |member: &Member| {
            member.is_ready()
                && !member.cache.is_polling
                && member.cache.next_poll.is_none_or(|due| due <= now)
        };
        let due: Vec<usize> = match self.members.len() {
            1 => Vec::new(),
            all => (0..all).filter(|&server| is_due(&self.members[server])).collect(),
        };
        for server in due {
            self.members[server].cache.is_polling = true;
            let (client, sender) = (self.members[server].server.clone(), self.sender.clone());
            self.tasks.spawn(async move {
                let used = client.cache_use().await;
                // A failed reading is ignored: calls that generate detect a fault of the server.
                let _gone = sender.send(Message::CacheUse(server, used.ok().flatten()));
            });
        }
    }

    /// Records the KV cache use of a server; `None` if the server does not report it or the reading failed.
    pub(super) fn record_cache_use(&mut self, server: usize, used: Option<CacheUse>) {
        let member = &mut self.members[server];
        let load = member.load;
        member.cache.update(used, load);
        member.cache.is_polling = false;
        member.cache.next_poll = Some(Instant::now() + POLL_INTERVAL);
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
