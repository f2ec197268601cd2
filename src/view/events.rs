//! Live updates as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::stream::{self, Stream};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::Shared;

/// The interval at which run folders are read while a page is open.
const INTERVAL: Duration = Duration::from_secs(1);

/// Sends the table of runs, and again each time that it changes.
pub(super) async fn events(
    State(runs): State<Shared>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let changes = Changes { runs, ticks, sent: String::new() };
    let events = stream::unfold(changes, |mut changes| async {
        let lines = changes.next().await?;
        Some((Ok(Event::default().event("runs").data(lines)), changes))
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

/// The state of a page's connection.
struct Changes {
    runs: Shared,
    ticks: Interval,
    /// The table that was last sent to the page, as JSON; empty before the first.
    sent: String,
}

impl Changes {
    /// Waits until the table differs from the table last sent, and returns it as JSON. Returns `None`, which ends the connection, if the
    /// table cannot be formatted or its reading panicked.
    async fn next(&mut self) -> Option<String> {
        loop {
            self.ticks.tick().await;
            let runs = self.runs.clone();
            let lines =
                tokio::task::spawn_blocking(move || serde_json::to_string(&runs.run_lines()));
            let lines = lines.await.ok()?.ok()?;
            if lines != self.sent {
                self.sent.clone_from(&lines);
                return Some(lines);
            }
        }
    }
}
