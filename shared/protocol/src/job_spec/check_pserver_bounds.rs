//! Rules about `pservers.min` and `pservers.max`.

use super::job::JobSpec;
use super::limits::{SpecError, rule};
use crate::frame::VALUE_BYTES_MAX;

/// Whether the number of pservers lies within its bounds, and can change within them.
///
/// # Errors
/// The first rule that does not hold.
pub(super) fn check_pserver_bounds(spec: &JobSpec) -> Result<(), SpecError> {
    let pservers = &spec.pservers;
    let count = pservers.count;
    let (least, most) = (pservers.least(), pservers.most());
    for (key, bound) in [("pservers.min", pservers.min), ("pservers.max", pservers.max)] {
        let bound = bound.unwrap_or(0);
        rule(count > 0 || bound == 0, key, || {
            format!("is {bound}, must be 0: no phase of the job uses tables")
        })?;
    }
    rule(least <= count, "pservers.min", || {
        format!("is {least}, must not be above pservers.count = {count}")
    })?;
    rule(count <= most, "pservers.max", || {
        format!("is {most}, must not be below pservers.count = {count}")
    })?;
    check_rows_can_move(spec)
}

/// Whether shards can move, if the number of pservers may change: frames do not carry wider rows.
fn check_rows_can_move(spec: &JobSpec) -> Result<(), SpecError> {
    let (least, most) = (spec.pservers.least(), spec.pservers.most());
    let tables = spec.tables();
    let wide = tables.iter().find(|table| table.row_bytes() > u64::from(VALUE_BYTES_MAX));
    rule(least == most || wide.is_none(), "pservers.max", || {
        let (name, bytes) = wide.map_or(("", 0), |table| (&*table.name, table.row_bytes()));
        format!(
            "is {most}, must be pservers.min = {least}: a row of table \"{name}\" has {bytes} bytes with its state, and shards whose rows have more than {VALUE_BYTES_MAX} cannot move"
        )
    })
}

#[cfg(test)]
mod tests {
    use crate::job_spec::AlgorithmKind;
    use crate::job_spec::job::{JobSpec, sample};

    fn refused(change: impl FnOnce(&mut JobSpec)) -> Option<String> {
        let mut spec = sample();
        change(&mut spec);
        super::check_pserver_bounds(&spec).err().map(|error| error.to_string())
    }

    #[test]
    fn rows_that_no_frame_carries_keep_the_number_of_pservers() {
        let wide = |spec: &mut JobSpec| {
            let mut table = spec.tables()[0].clone();
            table.cols = 2_000_000;
            (spec.model.algorithm, spec.model.tables) = (AlgorithmKind::Custom, vec![table]);
        };
        assert_eq!(refused(wide), None);
        let why = refused(|spec| {
            wide(spec);
            (spec.pservers.min, spec.pservers.max) = (Some(1), Some(4));
        });
        let why = why.expect("shards could not move");
        assert!(
            why.starts_with("pservers.max: is 4, must be pservers.min = 1: a row of table"),
            "{why}"
        );
    }

    #[test]
    fn job_without_tables_has_no_bounds_of_pservers() {
        let why = refused(|spec| (spec.pservers.count, spec.pservers.max) = (0, Some(3)));
        let expected = "pservers.max: is 3, must be 0: no phase of the job uses tables";
        assert_eq!(why.as_deref(), Some(expected));
    }
}
