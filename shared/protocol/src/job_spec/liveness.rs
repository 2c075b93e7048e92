//! Times of the failure detector: the rules for the keys of `liveness`, and the values in force for a job's size.
//!
//! A beat costs the ApplicationMaster the same whatever it reports, so that a large job beats less often. The other times
//! follow: a detector that decides on fewer than a few beats takes one lost packet for a lost process.

use super::job::JobSpec;
use super::limits::{SpecError, rule, within};
use super::sections::LivenessSpec;
use super::value::DurationMs;

/// Interval of heartbeats of a small job with `liveness.beat = "auto"`.
const BEAT_AUTO: DurationMs = DurationMs::secs(1);
/// Containers whose heartbeats the ApplicationMaster takes in a second with `liveness.beat = "auto"`.
const BEATS_PER_SECOND: u64 = 2_000;
/// Least beats in `liveness.dead`.
const DEAD_BEATS_MIN: u64 = 5;
/// Least beats in the time in force of `liveness.dead`, where `auto` has made the beat longer.
const DEAD_BEATS_AUTO: u64 = 8;
/// Least `liveness.lag`: several round trips of a busy network.
const LAG_MIN: DurationMs = DurationMs(100);
/// Least beats in the time in force of `liveness.suspect`.
const SUSPECT_BEATS: u64 = 3;

/// The times in force for a job of some size, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivenessTimes {
    /// Interval of heartbeats.
    pub heartbeat_ms: u64,
    /// Silence after which a container is suspected: `liveness.suspect`, at least 3 beats.
    pub suspect_ms: u64,
    /// Silence after which it is given up: `liveness.dead`; with `auto` at least 8 beats. Above `suspect_ms`.
    pub dead_ms: u64,
    /// Time without a step after which a trainer that has work and waits for no other process is replaced.
    pub stuck_ms: u64,
    /// Time without an acknowledgement after which a backup is left out of the in-sync set.
    pub lag_ms: u64,
}

impl Default for LivenessSpec {
    fn default() -> Self {
        Self {
            beat: None,
            suspect: DurationMs::secs(3),
            dead: DurationMs::secs(10),
            stuck: DurationMs::secs(600),
            lag: DurationMs::secs(2),
        }
    }
}

impl LivenessSpec {
    /// The times in force for a job of this many containers.
    #[must_use]
    pub fn times(&self, containers: u64) -> LivenessTimes {
        let auto_ms = (containers.saturating_mul(1_000) / BEATS_PER_SECOND).max(BEAT_AUTO.0);
        let heartbeat_ms = self.beat.map_or(auto_ms, |beat| beat.0);
        let dead_ms = match self.beat {
            Some(_) => self.dead.0,
            None => self.dead.0.max(DEAD_BEATS_AUTO * heartbeat_ms),
        };
        LivenessTimes {
            heartbeat_ms,
            suspect_ms: self.suspect.0.max(SUSPECT_BEATS * heartbeat_ms),
            dead_ms,
            stuck_ms: self.stuck.0.max(dead_ms),
            lag_ms: self.lag.0,
        }
    }
}

impl LivenessTimes {
    /// The times in force for this job.
    #[must_use]
    pub fn of(spec: &JobSpec) -> Self {
        spec.liveness.times(u64::from(spec.pservers.slots()) + u64::from(spec.trainers.slots()))
    }
}

/// Whether the times fit together.
///
/// # Errors
/// The first rule that does not hold.
pub(super) fn check_liveness(spec: &JobSpec) -> Result<(), SpecError> {
    const DEAD: &str = "liveness.dead";
    let LivenessSpec { beat, suspect, dead, stuck, lag } = spec.liveness;
    if let Some(beat) = beat {
        within("liveness.beat", beat, DurationMs(100), DurationMs::secs(10))?;
    }
    rule(suspect >= DurationMs(100), "liveness.suspect", || {
        format!("is {suspect}, must be at least 100ms")
    })?;
    let beats = DurationMs(DEAD_BEATS_MIN * beat.unwrap_or(BEAT_AUTO).0);
    rule(dead >= beats, DEAD, || {
        format!("is {dead}, must be at least {DEAD_BEATS_MIN} × liveness.beat = {beats}")
    })?;
    rule(dead > suspect, DEAD, || {
        format!("is {dead}, must be above liveness.suspect = {suspect}")
    })?;
    let orphan = spec.run.orphan_timeout();
    let half = DurationMs(orphan.0 / 2);
    rule(dead <= half, DEAD, || {
        format!("is {dead}, must be at most half of run.orphan-timeout = {orphan}, {half}")
    })?;
    rule(stuck >= dead, "liveness.stuck", || {
        format!("is {stuck}, must be at least liveness.dead = {dead}")
    })?;
    rule((LAG_MIN..=dead).contains(&lag), "liveness.lag", || {
        format!("is {lag}, must be from {LAG_MIN} to liveness.dead = {dead}")
    })
}

#[cfg(test)]
mod tests {
    use super::super::check::check;
    use super::super::job::sample;
    use super::*;

    #[test]
    fn beats_slow_down_from_2000_containers_on() {
        let spec = LivenessSpec::default();
        let of = |containers| {
            let times = spec.times(containers);
            (times.heartbeat_ms, times.suspect_ms, times.dead_ms)
        };
        assert_eq!(of(2), (1_000, 3_000, 10_000));
        assert_eq!(of(2_000), (1_000, 3_000, 10_000));
        assert_eq!(of(3_000), (1_500, 4_500, 12_000));
        assert_eq!(of(8_192), (4_096, 12_288, 32_768));
    }

    #[test]
    fn a_given_beat_is_the_beat_of_any_size() {
        let spec = LivenessSpec { beat: Some(DurationMs(500)), ..LivenessSpec::default() };
        assert_eq!(spec.times(8_000), spec.times(2));
        assert_eq!(spec.times(2).heartbeat_ms, 500);
        assert_eq!(spec.times(2).dead_ms, 10_000);
    }

    #[test]
    fn times_that_contradict_each_other_are_refused() {
        let refused = |change: &dyn Fn(&mut JobSpec)| {
            let mut spec = sample();
            change(&mut spec);
            check(&spec).expect_err("the change breaks a rule").to_string()
        };
        let secs = DurationMs::secs;
        assert_eq!(
            refused(&|spec| spec.liveness.beat = Some(DurationMs(99))),
            "liveness.beat: is 99ms, must be from 100ms to 10s"
        );
        assert_eq!(
            refused(&|spec| spec.liveness.dead = secs(4)),
            "liveness.dead: is 4s, must be at least 5 × liveness.beat = 5s"
        );
        assert_eq!(
            refused(&|spec| spec.liveness.beat = Some(DurationMs(2_500))),
            "liveness.dead: is 10s, must be at least 5 × liveness.beat = 12500ms"
        );
        assert_eq!(
            refused(&|spec| spec.liveness.suspect = secs(10)),
            "liveness.dead: is 10s, must be above liveness.suspect = 10s"
        );
        assert_eq!(
            refused(&|spec| spec.run.orphan_timeout = Some(secs(15))),
            "liveness.dead: is 10s, must be at most half of run.orphan-timeout = 15s, 7500ms"
        );
        assert_eq!(
            refused(&|spec| spec.liveness.stuck = secs(9)),
            "liveness.stuck: is 9s, must be at least liveness.dead = 10s"
        );
        assert_eq!(
            refused(&|spec| spec.liveness.suspect = DurationMs(0)),
            "liveness.suspect: is 0ms, must be at least 100ms"
        );
        assert_eq!(
            refused(&|spec| spec.liveness.lag = DurationMs(99)),
            "liveness.lag: is 99ms, must be from 100ms to liveness.dead = 10s"
        );
        assert_eq!(
            refused(&|spec| spec.liveness.lag = secs(11)),
            "liveness.lag: is 11s, must be from 100ms to liveness.dead = 10s"
        );
    }
}
