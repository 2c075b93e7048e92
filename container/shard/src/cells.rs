//! The cells of a shard, in huge pages where the system has them.
//!
//! A push of random rows waits for memory, and with pages of 4 KiB half of that for the translation of addresses: 10⁸ rows,
//! 56 ns a key, with huge pages 30. Memory that was never written takes no page.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use memmap2::{Advice, MmapMut, MmapOptions};

/// Cells from this size on are mapped by themselves: at least one huge page of 2 MiB.
const MAPPED_BYTES_MIN: usize = 4 << 20;

/// A fixed number of cells, zeros at first.
pub(crate) enum Cells<T = f32> {
    Allocated(Vec<T>),
    Mapped(MmapMut, PhantomData<T>),
}

impl<T: Pod> Cells<T> {
    pub(crate) fn zeros(len: usize) -> Self {
        let bytes = len * size_of::<T>();
        if bytes >= MAPPED_BYTES_MIN
            && let Ok(memory) = MmapOptions::new().len(bytes).map_anon()
        {
            // Where the system refuses, the pages stay small.
            let _refused = memory.advise(Advice::HugePage);
            return Self::Mapped(memory, PhantomData);
        }
        Self::Allocated(bytemuck::zeroed_vec(len))
    }
}

impl<T: Pod> Deref for Cells<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Allocated(cells) => cells,
            // Pages are aligned for any type, and their length was made of whole cells.
            Self::Mapped(memory, _) => bytemuck::cast_slice(memory),
        }
    }
}

impl<T: Pod> DerefMut for Cells<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Allocated(cells) => cells,
            Self::Mapped(memory, _) => bytemuck::cast_slice_mut(memory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_and_allocated_cells_begin_as_zeros_and_keep_values() {
        for len in [1000, MAPPED_BYTES_MIN / 4 + 256] {
            let mut cells = Cells::<f32>::zeros(len);
            assert_eq!(cells.len(), len);
            assert!(cells.iter().step_by(997).all(|cell| *cell == 0.0));
            cells[len - 1] = 2.5;
            assert_eq!(cells[len - 1], 2.5);
        }
        assert!(matches!(Cells::zeros(1 << 22), Cells::<f32>::Mapped(..)));
    }
}
