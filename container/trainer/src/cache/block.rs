//! A batch as bytes: the numbers of its values, and its parts one after the other in the byte order of the machine, since they
//! do not leave the process.

use bytemuck::{AnyBitPattern, NoUninit, cast_slice, cast_slice_mut};
use heddle_input::Batch;

/// Appends the block of a batch.
pub(super) fn append(batch: &Batch, bytes: &mut Vec<u8>) {
    let counts = [batch.rows(), batch.weights.len(), batch.values.len(), batch.positions.len()];
    // A batch has fewer than 2³² features.
    bytes.extend_from_slice(cast_slice(&counts.map(|count| count as u32)));
    bytes.extend_from_slice(cast_slice(&batch.labels));
    bytes.extend_from_slice(cast_slice(&batch.offsets));
    bytes.extend_from_slice(cast_slice(&batch.weights));
    bytes.extend_from_slice(cast_slice(&batch.values));
    bytes.extend_from_slice(cast_slice(&batch.indices));
    bytes.extend_from_slice(cast_slice(&batch.positions));
}

/// Reads a block into a batch. Returns the bytes after it; `None` if it is not whole.
pub(super) fn read<'b>(mut bytes: &'b [u8], batch: &mut Batch) -> Option<&'b [u8]> {
    let mut counts = [0_u32; 4];
    fill(&mut bytes, &mut counts)?;
    let [rows, weights, values, positions] = counts.map(|count| count as usize);
    let indices = values.checked_sub(positions)?;
    take(&mut bytes, rows, &mut batch.labels)?;
    take(&mut bytes, rows + 1, &mut batch.offsets)?;
    take(&mut bytes, weights, &mut batch.weights)?;
    take(&mut bytes, values, &mut batch.values)?;
    take(&mut bytes, indices, &mut batch.indices)?;
    take(&mut bytes, positions, &mut batch.positions)?;
    Some(bytes)
}

fn take<T: Default + Clone + NoUninit + AnyBitPattern>(
    bytes: &mut &[u8],
    count: usize,
    part: &mut Vec<T>,
) -> Option<()> {
    // Before memory is taken.
    bytes.get(..count.checked_mul(size_of::<T>())?)?;
    part.resize(count, T::default());
    fill(bytes, part)
}

fn fill<T: NoUninit + AnyBitPattern>(bytes: &mut &[u8], part: &mut [T]) -> Option<()> {
    let part: &mut [u8] = cast_slice_mut(part);
    let (own, rest) = bytes.split_at_checked(part.len())?;
    part.copy_from_slice(own);
    *bytes = rest;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_give_their_batches_back() {
        let mut indexed = Batch::default();
        indexed.indices.extend([1, 5]);
        indexed.values.extend([0.5, 2.0]);
        indexed.end_row_as_written(1.0);
        indexed.end_row_as_written(0.0);
        let mut weighed = indexed.clone();
        weighed.weigh(1, 3.0);
        let mut keyed = Batch::default();
        keyed.positions.extend([u64::MAX, 7]);
        keyed.values.extend([1.0, -1.0]);
        keyed.end_row_as_written(1.0);
        let batches = [indexed, weighed, keyed];
        let mut bytes = Vec::new();
        batches.iter().for_each(|batch| append(batch, &mut bytes));
        let (mut rest, mut batch) = (&bytes[..], Batch::default());
        for expected in &batches {
            rest = read(rest, &mut batch).expect("whole");
            assert_eq!(&batch, expected);
        }
        assert!(rest.is_empty());
        for end in 0..bytes.len() {
            let mut rest = &bytes[..end];
            while let Some(next) = read(rest, &mut batch) {
                rest = next;
            }
        }
    }
}
