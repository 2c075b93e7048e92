//! R1: a job gives up what it has too much, and what it asks for in vain.

use crate::decision::ScalingReason;
use crate::round::Round;

/// A request that YARN has not granted for this long is withdrawn: another application has the room that the plan saw.
const VAIN_MS: u64 = 60_000;

/// Cuts sizes above the top, and withdraws requests in vain.
///
/// Without the second part the room would be counted as used for as long as the job asks. The wait afterwards
/// ([`crate::ElasticJob::changes`]) keeps the same request from coming back in the next round.
pub(crate) fn cut(round: &mut Round) {
    for job in 0..round.jobs.len() {
        let spec = round.jobs[job].spec;
        if spec.fixed.is_some() {
            continue;
        }
        let top = spec.top();
        if round.jobs[job].size.trainers > top.trainers {
            round.shrink_to(job, top, None);
            round.jobs[job].reason = Some(ScalingReason::AboveTop);
        }
        let waited_ms = spec.waited_ms(round.now_ms);
        let held = spec.size_within(round.jobs[job].held());
        if waited_ms >= VAIN_MS && held.trainers < round.jobs[job].size.trainers {
            round.shrink_to(job, held, None);
            round.jobs[job].reason = Some(ScalingReason::AskedInVain { waited_ms });
        }
    }
}
