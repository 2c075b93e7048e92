//! The f32 cells of a shard, in huge pages where the system has them.
//!
//! A push of random rows waits for memory, and with pages of 4 KiB half of that for the translation of addresses: 10⁸ rows,
//! 56 ns a key, with huge pages 30. Memory that was never written takes no page.

use std::ops::{Deref, DerefMut};

use memmap2::{Advice, MmapMut, MmapOptions};

/// Cells from this size on are mapped by themselves: several huge pages of 2 MiB.
const MAPPED_BYTES_MIN: usize = 16 << 20;

/// A fixed number of cells, zeros at first.
pub(crate) enum Cells {
    Allocated(Vec<f32>),
    Mapped(MmapMut),
}

impl Cells {
    pub(crate) fn zeros(len: usize) -> Self {
        let bytes = len * size_of::<f32>();
        if bytes >= MAPPED_BYTES_MIN
            && let Ok(memory) = MmapOptions::new().len(bytes).map_anon()
        {
            // Where the system refuses, the pages stay small.
            let _refused = memory.advise(Advice::HugePage);
            return Self::Mapped(memory);
        }
        Self::Allocated(vec![0.0; len])
    }
}

impl Deref for Cells {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Allocated(cells) => cells,
            // Pages are aligned for any type, and their length was made of whole cells.
            Self::Mapped(memory) => bytemuck::cast_slice(memory),
        }
    }
}

impl DerefMut for Cells {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Allocated(cells) => cells,
            Self::Mapped(memory) => bytemuck::cast_slice_mut(memory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_and_allocated_cells_begin_as_zeros_and_keep_values() {
        for len in [1000, MAPPED_BYTES_MIN / 4 + 256] {
            let mut cells = Cells::zeros(len);
            assert_eq!(cells.len(), len);
            assert!(cells.iter().step_by(997).all(|cell| *cell == 0.0));
            cells[len - 1] = 2.5;
            assert_eq!(cells[len - 1], 2.5);
        }
        assert!(matches!(Cells::zeros(1 << 22), Cells::Mapped(_)));
    }
}
