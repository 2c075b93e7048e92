//! Avro files from arbitrary bytes: the header, and all columns of all blocks.
#![no_main]

use std::sync::Arc;

use heddle_avro::{AvroHeader, BlockDecoder, BlockHead, MARKER_BYTES, UnpackedBlock, first_records};
use heddle_columns::NullTexts;
use heddle_columns::typed::{LeafNeed, NeededLeaf, TextKeys};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(Some(header)) = AvroHeader::parse(bytes) else { return };
    let header = Arc::new(header);
    let need = |leaf| match header.columns.is_number(leaf) {
        true => LeafNeed::Number,
        false => LeafNeed::Key(TextKeys { seed: 7, null: NullTexts::new(&[String::new()]) }),
    };
    let leaves = 0..header.columns.columns.len();
    let needed: Vec<_> = leaves.map(|leaf| NeededLeaf { leaf, need: need(leaf) }).collect();
    let mut decoder = BlockDecoder::new(Arc::clone(&header), &needed);
    let mut rest = &bytes[header.bytes as usize..];
    while let Ok(head) = BlockHead::parse(rest) {
        let end = head.head_bytes + head.bytes as usize;
        let Some(packed) = rest.get(head.head_bytes..end) else { return };
        let _ = first_records(&header, head, packed, 3);
        let mut records = Vec::new();
        let Ok(unpacked) = header.unpack(packed, &mut records, 0) else { return };
        let Ok(mut block) = UnpackedBlock::new(head, &records[..unpacked]) else { return };
        while let Ok(true) = decoder.decode(&mut block) {
            decoder.take_rows();
        }
        rest = rest.get(end + MARKER_BYTES..).unwrap_or_default();
    }
});
