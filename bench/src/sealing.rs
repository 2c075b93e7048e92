//! What encryption cannot do without: one thread that seals and opens the bytes of a message in records, in place.

use std::io;

use heddle_channel::{PAYLOAD_BYTES_MAX, RecordCipher};
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// A key of the cipher of this machine's connections.
pub(crate) struct Sealing(LessSafeKey);

impl Sealing {
    pub(crate) fn new() -> io::Result<Self> {
        let cipher = match RecordCipher::of_this_machine() {
            RecordCipher::Aes => &AES_256_GCM,
            RecordCipher::ChaCha => &CHACHA20_POLY1305,
        };
        let key = UnboundKey::new(cipher, &[42; 32]).map_err(io::Error::other)?;
        Ok(Self(LessSafeKey::new(key)))
    }

    /// Seals and opens each record of the message.
    pub(crate) fn seal_and_open(&self, message: &mut [u8]) -> io::Result<()> {
        // The same bytes are sealed again and again, for this process alone.
        let nonce = || Nonce::assume_unique_for_key([0; 12]);
        for record in message.chunks_mut(PAYLOAD_BYTES_MAX) {
            let tag = self.0.seal_in_place_separate_tag(nonce(), Aad::empty(), record);
            let tag = tag.map_err(io::Error::other)?;
            self.0
                .open_in_place_separate_tag(nonce(), Aad::empty(), tag, record, 0..)
                .map_err(io::Error::other)?;
        }
        Ok(())
    }
}
