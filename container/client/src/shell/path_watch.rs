//! Whether the path of an open connection is whole, while a reply is awaited on it.
//!
//! A cut path closes no connection before the kernel's timeout, and a reply may be late for good reasons: another trainer
//! is slow, or a cut of a checkpoint holds frames. So a silent connection is checked by a probe of its own, which the data
//! thread answers at once.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use heddle_channel::{PeerProbe, ProbeAnswer};

use super::state::ClientState;

/// How often silence is looked for.
const TICK: Duration = Duration::from_millis(500);
/// A connection on which a reply is awaited and nothing has arrived for this long is probed.
const SILENT_MS: u64 = 1_000;
/// Longest wait between two probes of a path that was whole: a thousand trainers may wait for a slow one.
const WAIT_MAX_MS: u64 = 2_500;

/// Probes the path while the connection is silent. `read_at`: when bytes arrived last, ms of the client's clock.
pub(super) async fn watch_path(
    state: &ClientState,
    endpoint: SocketAddr,
    read_at: &Cell<u64>,
) -> Infallible {
    let settings = &state.settings;
    let secret = settings.secret.clone();
    let probe = PeerProbe { run: settings.run, secret, mechanism: settings.mechanism };
    let (mut lost_since_ms, mut wait_ms) = (None, SILENT_MS);
    let mut next_ms = 0;
    loop {
        tokio::time::sleep(TICK).await;
        let now_ms = state.now_ms();
        let is_silent = now_ms.saturating_sub(read_at.get()) >= SILENT_MS;
        let is_cut = state.cut_left(endpoint).is_some();
        let is_needed = {
            let machine = state.machine.borrow();
            // On a cut path nothing is sent, and so nothing awaited.
            machine.awaits(endpoint) || is_cut && machine.has_frames(endpoint)
        };
        if !is_silent || !is_needed {
            (next_ms, wait_ms) = (now_ms + SILENT_MS, SILENT_MS);
            if lost_since_ms.take().is_some() {
                report(state, endpoint, None);
            }
            continue;
        }
        if now_ms < next_ms {
            continue;
        }
        let answer = match is_cut {
            true => ProbeAnswer::NoAnswer,
            false => probe.probe(endpoint).await,
        };
        match answer {
            ProbeAnswer::Answered => {
                wait_ms = (2 * wait_ms).min(WAIT_MAX_MS);
                next_ms = state.now_ms() + wait_ms;
                if lost_since_ms.take().is_some() {
                    report(state, endpoint, None);
                }
            }
            ProbeAnswer::Refused | ProbeAnswer::NoAnswer | ProbeAnswer::Silent => {
                // Bytes that have arrived meanwhile show that the path is whole.
                if read_at.get() < now_ms {
                    let since_ms = *lost_since_ms.get_or_insert(now_ms.saturating_sub(SILENT_MS));
                    report(state, endpoint, Some(since_ms));
                }
            }
        }
    }
}

fn report(state: &ClientState, endpoint: SocketAddr, lost_since_ms: Option<u64>) {
    state.machine.borrow_mut().probed(endpoint, lost_since_ms, state.now_ms());
    state.deliver();
}
