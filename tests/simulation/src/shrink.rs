//! Makes the list of faults of a failing run as short as it can be made one fault at a time.

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
}
