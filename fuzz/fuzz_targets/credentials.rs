//! Credentials files from arbitrary bytes. Decoded credentials survive a round trip in both formats.
#![no_main]

use heddle_hadoop::token::Credentials;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(credentials) = Credentials::decode(bytes) else { return };
    assert_eq!(Credentials::decode(&credentials.encode()).as_ref(), Ok(&credentials));
    assert_eq!(Credentials::decode(&credentials.encode_protobuf()).as_ref(), Ok(&credentials));
    let _ = format!("{credentials:?}");
});
