//! Makes the list of faults of a failing run as short as it can be made one fault at a time, then moves each fault as early as it
//! still fails there: a short run has a short log.

use super::explorer::{Explorer, Failure, Trial};
use super::fault::Schedule;

impl Explorer {
    /// The failing run with as few of its faults as still fail, replayed with its log.
    ///
    /// What breaks may be another promise with fewer faults: any failure will do, since the shortest one is the
    /// one to look at first.
    #[must_use]
    pub fn shrink(&self, seed: u64, mut faults: Schedule) -> Box<Failure> {
        let mut index = 0;
        while index < faults.0.len() {
            let mut fewer = faults.clone();
            fewer.0.remove(index);
            if self.run(seed, &fewer).is_err() {
                // What could not be left out before may be now.
                (faults, index) = (fewer, 0);
            } else {
                index += 1;
            }
        }
        for index in 0..faults.0.len() {
            self.move_ahead(seed, &mut faults, index);
        }
        match self.replay(seed, &Trial::of(faults.clone())) {
            Err(failure) => failure,
            Ok(_) => Box::new(Failure {
                job: self.name().to_owned(),
                seed,
                faults,
                what:
                    "the run failed once and not again: something in it is not drawn from the seed"
                        .to_owned(),
                trace: Vec::new(),
            }),
        }
    }

    /// Halves the distance of a fault to the one before it, or to the begin, as long as the run still fails. Which process it hits
    /// follows from its event, so a move may change more than the time.
    fn move_ahead(&self, seed: u64, faults: &mut Schedule, index: usize) {
        let before = index.checked_sub(1).map_or(0, |before| faults.0[before].0);
        let mut step = faults.0[index].0.saturating_sub(before) / 2;
        while step > 0 {
            let mut earlier = faults.clone();
            earlier.0[index].0 -= step;
            if self.run(seed, &earlier).is_err() {
                *faults = earlier;
            }
            step = step.min(faults.0[index].0.saturating_sub(before)) / 2;
        }
    }
}
