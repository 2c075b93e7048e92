//! Manifests of checkpoints from arbitrary bytes. A decoded manifest survives a round trip.
#![no_main]

use heddle_protocol::manifest::Manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(manifest) = Manifest::from_json(bytes) else { return };
    let _ = (manifest.bytes(), manifest.step(), manifest.is_untrained());
    let Ok(encoded) = manifest.to_json() else { return };
    let again = Manifest::from_json(&encoded).expect("an encoded manifest decodes");
    assert_eq!(again, manifest);
});
