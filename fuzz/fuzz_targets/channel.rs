//! An encrypted connection: the first bytes of a client are arbitrary, and records are cut into pieces and changed. What is
//! opened is always a beginning of what was sealed.
#![no_main]

use std::io::IoSlice;

use heddle_channel::{RecordCipher, Dialing, OPENING_BYTES, accept};
use heddle_protocol::handshake::{Channel, Hello, Secret};
use heddle_protocol::ids::RunId;
use libfuzzer_sys::fuzz_target;

const KINDS: [Channel; 3] = [Channel::Data, Channel::Control, Channel::Operator];

fuzz_target!(|bytes: &[u8]| {
    let Ok(secret) = Secret::from_hex(&"07".repeat(32)) else { return };
    let run = RunId(uuid::Uuid::nil());
    if let Some(opening) = bytes.first_chunk::<OPENING_BYTES>() {
        assert!(accept(&secret, run, &KINDS, opening).is_err(), "no key was used");
    }
    let [cipher, piece, read, change, rest @ ..] = bytes else { return };
    let cipher = if cipher & 1 == 0 { RecordCipher::Aes } else { RecordCipher::ChaCha };
    let Ok(hello) = Hello::new(run, None) else { return };
    let Ok((dialing, opening)) = Dialing::begin(&secret, Channel::Data, &hello, cipher) else { return };
    let Ok(accepted) = accept(&secret, run, &KINDS, &opening) else { panic!("the same secret") };
    let Ok(mut from) = dialing.finish(&accepted.answer) else { panic!("the same secret") };
    let mut to = accepted.records;

    // Each byte is a slice of that many times 700 bytes.
    let slices: Vec<Vec<u8>> =
        rest.iter().take(16).map(|&n| vec![n; usize::from(n) * 700]).collect();
    let sent = slices.concat();
    let mut wire = Vec::new();
    let mut taken = 0;
    while taken < sent.len() {
        let sealed = from.seal(&[IoSlice::new(&sent[taken..])]).expect("few records");
        taken += sealed;
        wire.extend_from_slice(from.pending());
        from.sent(from.pending().len());
    }
    let changed = usize::from(*change) * 977;
    let is_changed = *change > 0 && changed < wire.len();
    if is_changed {
        wire[changed] ^= 1;
    }
    let (mut got, mut left) = (Vec::new(), &wire[..]);
    let mut out = vec![0; usize::from(*read) * 300 + 1];
    loop {
        match to.open(&mut out) {
            Err(_) => {
                assert!(is_changed);
                break;
            }
            Ok(0) if left.is_empty() => {
                assert!(!is_changed && got.len() == sent.len() && to.is_complete());
                break;
            }
            Ok(0) => {
                let space = to.space();
                let n = space.len().min(left.len()).min(usize::from(*piece) * 150 + 1);
                space[..n].copy_from_slice(&left[..n]);
                to.filled(n);
                left = &left[n..];
            }
            Ok(n) => got.extend_from_slice(&out[..n]),
        }
        assert!(sent.starts_with(&got));
    }
});
