//! The rules of `pservers.replicas`, `pservers.recovery` and `checkpoint.copies`.

use super::job::JobSpec;
use super::limits::{SpecError, rule};
use super::options::{Consistency, RecoveryScope};

const KEY: &str = "pservers.replicas";
const COPIES: &str = "checkpoint.copies";
const RECOVERY: &str = "pservers.recovery";

/// Whether the job can have its backups.
///
/// # Errors
/// The first rule that does not hold.
pub(super) fn check_replicas(spec: &JobSpec) -> Result<(), SpecError> {
    let (replicas, least) = (spec.pservers.replicas, spec.pservers.least());
    rule(replicas == 0 || replicas < least, KEY, || {
        let key = if spec.pservers.min.is_some() { "min" } else { "count" };
        format!(
            "is {replicas}, must be below pservers.{key} = {least}: the copies of a shard are on different pservers"
        )
    })?;
    check_recovery(spec)?;
    let copies = spec.checkpoint.copies;
    rule(copies <= 1 + replicas, COPIES, || {
        format!(
            "is {copies}, must be at most 1 + pservers.replicas = {}: a shard's primary and its backups save one file each",
            1 + replicas
        )
    })
}

/// Whether lost shards may go back alone, if they are to.
///
/// A shard that goes back alone lacks updates which the other shards have. BSP and SSP exclude that: a value of a step, or
/// of a clock, has all updates before it. With `pservers.replicas` it would be the way out where no copy of a shard is left;
/// then all shards go back, because the backups of the others would have to be filled again in the new epoch, and a second
/// loss meanwhile would find shards without any copy.
fn check_recovery(spec: &JobSpec) -> Result<(), SpecError> {
    if spec.pservers.recovery == RecoveryScope::Global {
        return Ok(());
    }
    let excluded = match spec.training.consistency {
        Consistency::Asp => None,
        Consistency::Bsp => Some("bsp"),
        Consistency::Ssp => Some("ssp"),
    };
    rule(excluded.is_none(), RECOVERY, || {
        let word = excluded.unwrap_or_default();
        format!("is \"local\", must be \"global\" with training.consistency = \"{word}\"")
    })?;
    let replicas = spec.pservers.replicas;
    rule(replicas == 0, RECOVERY, || {
        format!("is \"local\", must be \"global\" with pservers.replicas = {replicas}")
    })?;
    rule(!spec.pservers.moves_shards(), RECOVERY, || {
        let (least, most) = (spec.pservers.least(), spec.pservers.most());
        format!("is \"local\", must be \"global\" with pservers.min = {least} and max = {most}")
    })
}

#[cfg(test)]
mod tests {
    use crate::job_spec::check::check;
    use crate::job_spec::job::{JobSpec, sample};
    use crate::job_spec::{Bytes, Consistency, PserverMemory, RecoveryScope};

    fn job(change: impl FnOnce(&mut JobSpec)) -> JobSpec {
        let mut spec = sample();
        change(&mut spec);
        spec
    }

    fn refused(change: impl FnOnce(&mut JobSpec)) -> String {
        check(&job(change)).expect_err("the change breaks a rule").to_string()
    }

    #[test]
    fn replicas_are_bounded_and_below_the_number_of_pservers() {
        super::check_replicas(&job(|spec| spec.pservers.replicas = 1)).expect("one backup");
        assert_eq!(
            refused(|spec| spec.pservers.replicas = 2),
            "pservers.replicas: is 2, must be below pservers.count = 2: the copies of a shard are on different pservers"
        );
        assert!(
            refused(|spec| (spec.pservers.count, spec.pservers.replicas) = (4, 3))
                .starts_with("pservers.replicas: is 3, must be from 0 to 2")
        );
        super::check_replicas(&job(|spec| {
            spec.pservers.replicas = 1;
            spec.training.consistency = Consistency::Ssp;
            spec.training.staleness = Some(1);
        }))
        .expect("one backup with SSP");
    }

    #[test]
    fn local_recovery_is_for_asp_without_replicas() {
        let local = |spec: &mut JobSpec, consistency| {
            spec.pservers.recovery = RecoveryScope::Local;
            spec.training.consistency = consistency;
        };
        check(&job(|spec| local(spec, Consistency::Asp))).expect("ASP");
        assert_eq!(
            refused(|spec| local(spec, Consistency::Bsp)),
            "pservers.recovery: is \"local\", must be \"global\" with training.consistency = \"bsp\""
        );
        assert_eq!(
            refused(|spec| {
                local(spec, Consistency::Ssp);
                spec.training.staleness = Some(1);
            }),
            "pservers.recovery: is \"local\", must be \"global\" with training.consistency = \"ssp\""
        );
        assert_eq!(
            refused(|spec| {
                local(spec, Consistency::Asp);
                spec.pservers.replicas = 1;
            }),
            "pservers.recovery: is \"local\", must be \"global\" with pservers.replicas = 1"
        );
    }

    #[test]
    fn copies_are_bounded_by_the_copies_of_a_shard() {
        assert_eq!(
            refused(|spec| spec.checkpoint.copies = 2),
            "checkpoint.copies: is 2, must be at most 1 + pservers.replicas = 1: a shard's primary and its backups save one file each"
        );
        for (copies, word) in [(0, "is 0, must be from 1 to 3"), (4, "is 4, must be from 1 to 3")] {
            let text = refused(|spec| spec.checkpoint.copies = copies);
            assert!(text.starts_with(&format!("checkpoint.copies: {word}")), "{text}");
        }
        let both = |spec: &mut JobSpec| (spec.pservers.replicas, spec.checkpoint.copies) = (1, 2);
        check(&job(both)).expect("as many files as copies");
        let text = refused(|spec| (spec.pservers.replicas, spec.checkpoint.copies) = (1, 3));
        assert!(text.contains("is 3, must be at most 1 + pservers.replicas = 2"), "{text}");
    }

    #[test]
    fn copies_are_memory_and_the_refusal_names_the_terms() {
        let tight = |spec: &mut JobSpec| {
            // 32 MiB of parameters on each of two pservers, as much of sums.
            spec.model.features = 16 << 20;
            spec.pservers.memory = Bytes::mib(140);
        };
        check(&job(tight)).expect("it fits without backups");
        let text = refused(|spec| {
            tight(spec);
            spec.pservers.replicas = 1;
        });
        assert!(text.starts_with("pservers.memory: is 140MiB, must be at least "), "{text}");
        assert!(
            text.contains("65 MiB of backups of other pservers' shards (pservers.replicas)"),
            "{text}"
        );
        let terms = PserverMemory::of(&job(|spec| {
            tight(spec);
            spec.pservers.replicas = 1;
        }));
        assert_eq!(terms.backups.0, terms.tables.0 + terms.sums.0);
        assert!(terms.unconfirmed.0 > 0);
    }

    #[test]
    fn without_backups_the_json_is_as_before() {
        let json = String::from_utf8(sample().to_json()).expect("JSON");
        assert!(!json.contains("replicas"), "{json}");
    }
}
