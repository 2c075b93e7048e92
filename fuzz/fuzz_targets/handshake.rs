//! Hello messages of the handshake from arbitrary bytes. A decoded message survives a round trip.
#![no_main]

use heddle_protocol::handshake::{HELLO_BYTES, Hello, Secret, Verdict};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(byte) = bytes.first() {
        let _ = Verdict::from_byte(*byte);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Secret::from_hex(text);
    }
    let Some(message) = bytes.first_chunk::<HELLO_BYTES>() else { return };
    let Ok(hello) = Hello::decode(message) else { return };
    assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
});
