//! SSP: no pull is granted across a gap above the staleness.
//!
//! Counted again from the frames that arrive, by the rule alone: the number of a granted pull is at most the staleness above
//! the clock of every trainer that is counted on that data thread. A trainer whose first clock arrives during a cut is left
//! out, since the cut may hold the clock. With backups the rule has more ([`KnownClocks`](super::super::known_clocks::KnownClocks)).

use heddle_protocol::frame::{Header, Kind, flags};
use heddle_protocol::job_spec::Consistency;
use heddle_shard::ShardEffect;

use super::super::pserver;
use super::{Body, Container, Data, World};

impl World {
    /// A clock arrived; `may_be_held`: a cut or earlier frames may hold it; `out`: what came of it.
    pub(super) fn clock_arrives(
        &mut self,
        data: u64,
        header: &Header,
        may_be_held: bool,
        out: &[pserver::Output],
    ) {
        let is_refusal = |want: &pserver::Output| {
            matches!(want, pserver::Output::Reply(_, _, ShardEffect::Reply { header: reply, .. })
                if reply.kind == Kind::Refused && reply.request == header.request)
        };
        if out.iter().any(is_refusal) {
            return;
        }
        let at = |data: &&Data| !data.is_closed;
        let Some(&Data { member, pserver, thread, .. }) = self.data.get(&data).filter(at) else {
            return;
        };
        let Some(pserver) = self.pserver(pserver) else { return };
        let known = &mut pserver.clocks[thread];
        known.arrives(member, header, may_be_held);
        // It is kept for the list with its trainer.
        if !known.has(member) {
            return;
        }
        let Some(data) = self.data.get_mut(&data) else { return };
        let (epoch, phase) = (header.epoch, header.phase);
        let is_known = data.clock.is_some_and(|(e, p, _)| (e, p) == (epoch, phase));
        data.clock = match header.has(flags::EMPTY) {
            false if is_known || !may_be_held => Some((epoch, phase, header.step.0)),
            _ => None,
        };
    }

    /// The pserver's end of a connection is closed.
    pub(super) fn stop_counting(&mut self, data: u64) {
        let Some(data) = self.data.get_mut(&data).filter(|data| !data.is_closed) else { return };
        data.is_closed = true;
        data.clock = None;
        let (member, pserver, thread) = (data.member, data.pserver, data.thread);
        if let Some(pserver) = self.pserver(pserver) {
            pserver.clocks[thread].closes(member);
        }
    }

    /// Checks the values that a data thread sends.
    pub(super) fn check_gap(
        &self,
        pserver: u64,
        thread: usize,
        effect: &ShardEffect,
    ) -> Result<(), String> {
        let ShardEffect::Values { header, .. } = effect else { return Ok(()) };
        if self.job.consistency != Consistency::Ssp || header.has(flags::FREE) {
            return Ok(());
        }
        if self.job.spec().pservers.moves_shards()
            && let Some(Container { body: Body::Pserver(pserver), .. }) =
                self.containers.get(&pserver)
        {
            return pserver.clocks[thread].check(header, self.job.staleness);
        }
        let here = self.data.values().filter(|d| d.pserver == pserver && d.thread == thread);
        let clocks = here.filter_map(|data| {
            let (epoch, phase, clock) = data.clock?;
            ((epoch, phase) == (header.epoch, header.phase)).then_some((data.trainer, clock))
        });
        for (trainer, clock) in clocks {
            let number = header.step.0;
            if number > clock + u64::from(self.job.staleness) {
                return Err(format!(
                    "pull {number} is granted while the clock of container {trainer} is {clock}"
                ));
            }
        }
        Ok(())
    }
}
