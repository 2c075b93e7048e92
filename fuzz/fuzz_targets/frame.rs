//! Headers of data-plane frames from arbitrary bytes. A decoded header survives a round trip, and its payload is bounded.
#![no_main]

use heddle_protocol::frame::{HEADER_BYTES, Header, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else { return };
    let Ok(header) = Header::decode(head) else { return };
    assert_eq!(Header::decode(&header.encode()), Ok(header));
    let payload_bytes_max = u64::from(KEY_BYTES_MAX) + u64::from(VALUE_BYTES_MAX);
    assert!(header.payload_bytes() as u64 <= payload_bytes_max);
});
