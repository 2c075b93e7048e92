//! Security layers of DIGEST-MD5: integrity and privacy (RFC 2831 §2.3 and §2.4).
//!
//! | layer | token |
//! | --- | --- |
//! | integrity | message ‖ MAC (10) ‖ `0001` ‖ sequence number (4, big-endian) |
//! | privacy | 3DES-CBC(message ‖ padding (1–8) ‖ MAC (10)) ‖ `0001` ‖ sequence number (4) |
//!
//! The cipher chain continues over tokens, and sequence numbers grow by one in each direction. So tokens must be
//! unwrapped in the order in which they were wrapped. Any error ends the connection.

use cbc::cipher::{Array, BlockModeDecrypt, BlockModeEncrypt, KeyIvInit};
use des::TdesEde2;
use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;

use super::layer_error::LayerError;
use super::md5::md5;

const MAC_LEN: usize = 10;
/// MAC, message type 1, sequence number.
const TRAILER_LEN: usize = 6;
const BLOCK_LEN: usize = 8;
const VERSION: [u8; 2] = [0, 1];

/// Keys of both directions.
pub(super) struct LayerKeys {
    sign_out: [u8; 16],
    sign_in: [u8; 16],
    seal_out: [u8; 16],
    seal_in: [u8; 16],
}

impl LayerKeys {
    pub(super) fn derive(ha1: &[u8; 16]) -> Self {
        Self {
            sign_out: md5(&[
                ha1,
                b"Digest session key to client-to-server signing key magic constant",
            ]),
            sign_in: md5(&[
                ha1,
                b"Digest session key to server-to-client signing key magic constant",
            ]),
            seal_out: md5(&[ha1, b"Digest H(A1) to client-to-server sealing key magic constant"]),
            seal_in: md5(&[ha1, b"Digest H(A1) to server-to-client sealing key magic constant"]),
        }
    }

    /// The same keys in the view of the server.
    #[cfg(test)]
    pub(super) fn of_server(ha1: &[u8; 16]) -> Self {
        let Self { sign_out, sign_in, seal_out, seal_in } = Self::derive(ha1);
        Self { sign_out: sign_in, sign_in: sign_out, seal_out: seal_in, seal_in: seal_out }
    }
}

/// Security layer of one connection, both directions.
pub(crate) struct DigestLayer {
    sign_out: Hmac<Md5>,
    sign_in: Hmac<Md5>,
    sequence_out: u32,
    sequence_in: u32,
    cipher: Option<Cipher>,
    payload_max: usize,
}

struct Cipher {
    seal: cbc::Encryptor<TdesEde2>,
    open: cbc::Decryptor<TdesEde2>,
}

impl std::fmt::Debug for DigestLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DigestLayer")
            .field("privacy", &self.cipher.is_some())
            .finish_non_exhaustive()
    }
}

impl DigestLayer {
    /// The layer of integrity, with tokens of at most `send_max` bytes.
    pub(super) fn integrity(keys: &LayerKeys, send_max: usize) -> Self {
        Self {
            sign_out: mac_key(&keys.sign_out),
            sign_in: mac_key(&keys.sign_in),
            sequence_out: 0,
            sequence_in: 0,
            cipher: None,
            payload_max: send_max - MAC_LEN - TRAILER_LEN,
        }
    }

    pub(super) fn privacy(keys: &LayerKeys, send_max: usize) -> Self {
        let cipher = Cipher {
            seal: KeyIvInit::new(
                &cipher_key(&keys.seal_out).into(),
                &cipher_iv(&keys.seal_out).into(),
            ),
            open: KeyIvInit::new(
                &cipher_key(&keys.seal_in).into(),
                &cipher_iv(&keys.seal_in).into(),
            ),
        };
        let integrity = Self::integrity(keys, send_max);
        // The JDK subtracts 26: MAC, trailer, and up to 8 bytes of padding with two to spare.
        Self { cipher: Some(cipher), payload_max: send_max - 26, ..integrity }
    }

    /// Longest message in bytes whose token the server accepts.
    pub(super) fn payload_max(&self) -> usize {
        self.payload_max
    }

    /// Wraps the next message.
    pub(crate) fn wrap(&mut self, message: &[u8]) -> Vec<u8> {
        let sequence = self.sequence_out.to_be_bytes();
        self.sequence_out = self.sequence_out.wrapping_add(1);
        let mac = self
            .sign_out
            .clone()
            .chain_update(sequence)
            .chain_update(message)
            .finalize()
            .into_bytes();

        let mut token = Vec::with_capacity(message.len() + MAC_LEN + BLOCK_LEN + TRAILER_LEN);
        token.extend_from_slice(message);
        if let Some(cipher) = &mut self.cipher {
            let padding = BLOCK_LEN - (message.len() + MAC_LEN) % BLOCK_LEN;
            token.resize(message.len() + padding, u8::try_from(padding).expect("1 to 8"));
            token.extend_from_slice(&mac[..MAC_LEN]);
            let (blocks, _) = Array::slice_as_chunks_mut(&mut token);
            cipher.seal.encrypt_blocks(blocks);
        } else {
            token.extend_from_slice(&mac[..MAC_LEN]);
        }
        token.extend_from_slice(&VERSION);
        token.extend_from_slice(&sequence);
        token
    }

    /// Unwraps the next token of the peer.
    ///
    /// # Errors
    /// Any [`LayerError`] is final, because the state of the two ends then differs.
    pub(crate) fn unwrap(&mut self, token: &[u8]) -> Result<Vec<u8>, LayerError> {
        let malformed = LayerError::Malformed(token.len());
        let Some((body, trailer)) = token.split_last_chunk::<TRAILER_LEN>() else {
            return Err(malformed);
        };
        let Some((version, sequence)) = trailer.split_first_chunk::<2>() else {
            return Err(malformed);
        };
        let found = u32::from_be_bytes(sequence.try_into().expect("6 bytes less 2"));
        if *version != VERSION {
            return Err(malformed);
        }
        if found != self.sequence_in {
            return Err(LayerError::Sequence { expected: self.sequence_in, found });
        }

        let mut clear = body.to_vec();
        if let Some(cipher) = &mut self.cipher {
            let (blocks, rest) = Array::slice_as_chunks_mut(&mut clear);
            if !rest.is_empty() {
                return Err(malformed);
            }
            cipher.open.decrypt_blocks(blocks);
        }
        let Some(padded) = clear.len().checked_sub(MAC_LEN) else {
            return Err(malformed);
        };
        let mac = clear.split_off(padded);
        if self.cipher.is_some() {
            let padding = usize::from(*clear.last().ok_or(malformed)?);
            let is_padding = (1..=BLOCK_LEN).contains(&padding)
                && padding <= clear.len()
                && clear[clear.len() - padding..].iter().all(|byte| usize::from(*byte) == padding);
            if !is_padding {
                return Err(LayerError::Integrity);
            }
            clear.truncate(clear.len() - padding);
        }
        let check = self.sign_in.clone().chain_update(sequence).chain_update(&clear);
        check.verify_truncated_left(&mac).map_err(|_| LayerError::Integrity)?;
        self.sequence_in = self.sequence_in.wrapping_add(1);
        Ok(clear)
    }
}

fn mac_key(key: &[u8; 16]) -> Hmac<Md5> {
    Hmac::new_from_slice(key).expect("HMAC accepts keys of any length")
}

/// Two DES keys from 14 bytes: each 7 bytes are spread over 8, with odd parity in the lowest bits.
fn cipher_key(sealing_key: &[u8; 16]) -> [u8; 16] {
    let mut key = [0; 16];
    for (half, seven) in key.chunks_exact_mut(8).zip(sealing_key.chunks_exact(7)) {
        let bits = seven.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        for (index, byte) in half.iter_mut().enumerate() {
            let seven_bits =
                u8::try_from(bits >> (49 - 7 * index) & 0x7f).expect("masked to 7 bits");
            let parity = u8::from(seven_bits.count_ones().is_multiple_of(2));
            *byte = seven_bits << 1 | parity;
        }
    }
    key
}

fn cipher_iv(sealing_key: &[u8; 16]) -> [u8; 8] {
    *sealing_key.last_chunk().expect("8 of 16 bytes")
}

#[cfg(test)]
mod tests {
    use super::super::fixture::GOLDEN;
    use super::*;
    use proptest::prelude::*;

    /// Both ends of the golden session `index`.
    fn session(index: usize) -> (DigestLayer, DigestLayer) {
        let client = GOLDEN[index].exchange().into_digest_layer();
        (client.expect("has a layer"), GOLDEN[index].server_layer().expect("has a layer"))
    }

    #[test]
    fn integrity_tokens_equal_the_jdks() {
        let (mut client, mut server) = session(1);
        let c0 = client.wrap(b"hello");
        assert_eq!(hex::encode(&c0), "68656c6c6ff7869c29eb5aabbce97c000100000000");
        let c1 = client.wrap(b"ResourceManager");
        assert_eq!(
            hex::encode(&c1),
            "5265736f757263654d616e61676572ace44657fecab8d767cd000100000001"
        );
        let s0 = server.wrap(b"hello");
        assert_eq!(hex::encode(&s0), "68656c6c6f70c58fdda8f18bc3edc4000100000000");
        assert_eq!(client.unwrap(&s0).as_deref(), Ok(&b"hello"[..]));
        assert_eq!(server.unwrap(&c0).as_deref(), Ok(&b"hello"[..]));
        assert_eq!(server.unwrap(&c1).as_deref(), Ok(&b"ResourceManager"[..]));
    }

    #[test]
    fn privacy_tokens_equal_the_jdks() {
        let (mut client, mut server) = session(2);
        let c0 = client.wrap(b"hello");
        assert_eq!(hex::encode(&c0), "bfbaa4212b9a83c31db0247382b38161000100000000");
        let c1 = client.wrap(b"ResourceManager");
        assert_eq!(
            hex::encode(&c1),
            "871a2709cb8d24290e7923ae9623aad970eedb0851fdb68c9aeede0dbcb3f7b5000100000001"
        );
        let s0 = server.wrap(b"hello");
        assert_eq!(hex::encode(&s0), "5765f7d742c6892a0a7407f0dc6891a0000100000000");
        assert_eq!(client.unwrap(&s0).as_deref(), Ok(&b"hello"[..]));
        assert_eq!(server.unwrap(&c0).as_deref(), Ok(&b"hello"[..]));
        assert_eq!(server.unwrap(&c1).as_deref(), Ok(&b"ResourceManager"[..]));
    }

    #[test]
    fn a_repeated_or_skipped_token_is_rejected() {
        for index in [1, 2] {
            let (mut client, mut server) = session(index);
            let first = server.wrap(b"a");
            let second = server.wrap(b"b");
            assert_eq!(client.unwrap(&second), Err(LayerError::Sequence { expected: 0, found: 1 }));
            client.unwrap(&first).expect("is next");
            assert_eq!(client.unwrap(&first), Err(LayerError::Sequence { expected: 1, found: 0 }));
        }
    }

    #[test]
    fn every_change_and_truncation_is_rejected() {
        for index in [1, 2] {
            let (_, mut server) = session(index);
            let token = server.wrap(b"some message");
            for position in 0..token.len() {
                let (mut client, _) = session(index);
                let mut changed = token.clone();
                changed[position] ^= 0x10;
                client.unwrap(&changed).expect_err("was changed");
                let (mut client, _) = session(index);
                client.unwrap(&token[..position]).expect_err("was cut");
            }
        }
    }

    proptest! {
        #[test]
        fn wrapped_messages_unwrap_at_the_peer(
            index in 1_usize..3,
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..6),
        ) {
            let (mut client, mut server) = session(index);
            for message in messages {
                prop_assert_eq!(client.unwrap(&server.wrap(&message)), Ok(message.clone()));
                prop_assert_eq!(server.unwrap(&client.wrap(&message)), Ok(message));
            }
        }

        #[test]
        fn any_token_is_rejected_without_a_panic(
            index in 1_usize..3,
            token in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let (mut client, _) = session(index);
            prop_assert!(client.unwrap(&token).is_err());
        }
    }
}
