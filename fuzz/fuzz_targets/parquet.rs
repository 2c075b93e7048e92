//! Parquet files from arbitrary bytes: the footer, and all columns as rows. A panic of the decoder is found too, which the
//! program takes for damage of the file.
#![no_main]

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use heddle_columns::NullTexts;
use heddle_columns::typed::{ColumnShape, LeafNeed, NeededLeaf, TextKeys};
use heddle_parquet::{Footer, ReadAt, RowReader, TAIL_BYTES, footer_bytes};
use libfuzzer_sys::fuzz_target;

struct Memory(Bytes);

impl ReadAt for Memory {
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(len));
        let end = end.filter(|end| *end <= self.0.len());
        let end = end.ok_or_else(|| io::Error::other("beyond the end"))?;
        Ok(self.0.slice(end - len..end))
    }
}

fuzz_target!(|bytes: &[u8]| {
    let len = bytes.len() as u64;
    let tail = &bytes[bytes.len() - bytes.len().min(TAIL_BYTES as usize)..];
    let Ok(footer_len) = footer_bytes(tail, len) else { return };
    let Ok(footer) = Footer::parse(&bytes[bytes.len() - footer_len as usize..], len) else { return };
    let need = |leaf| match footer.columns.is_number(leaf) {
        true => LeafNeed::Number,
        false => LeafNeed::Key(TextKeys { seed: 7, null: NullTexts::new(&[String::new()]) }),
    };
    let leaves = footer.columns.columns.iter().filter_map(|column| match column.shape {
        ColumnShape::Value(leaf) | ColumnShape::List(leaf) => Some(leaf),
        ColumnShape::SparkVector { values, .. } => Some(values),
        ColumnShape::Map(_) | ColumnShape::Other => None,
    });
    let needed: Vec<_> = leaves.map(|leaf| NeededLeaf { leaf, need: need(leaf) }).collect();
    let memory: Arc<dyn ReadAt> = Arc::new(Memory(Bytes::copy_from_slice(bytes)));
    for run in footer.runs(0..len) {
        let Ok(mut rows) = RowReader::open(&memory, &footer, &run, &needed) else { return };
        while let Ok(Some(_)) = rows.next_block() {}
    }
});
