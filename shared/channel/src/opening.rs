//! The first bytes of an encrypted connection, as a pure exchange.

use heddle_protocol::handshake::{
    Channel, HELLO_BYTES, HandshakeError, Hello, MECHANISM_NOISE, Secret,
};
use heddle_protocol::ids::RunId;
use snow::params::NoiseParams;
use snow::resolvers::{DefaultResolver, FallbackResolver, RingResolver};
use snow::{Builder, HandshakeState};

use crate::records::{RecordError, Records};

/// Bytes before the first Noise message.
pub const PREFACE_BYTES: usize = 4;
/// Bytes that a client sends first, the preface included.
pub const OPENING_BYTES: usize = PREFACE_BYTES + KEY_BYTES + HELLO_BYTES + TAG_BYTES;
/// Bytes of a server's answer.
pub const ANSWER_BYTES: usize = KEY_BYTES + TAG_BYTES;
const VERSION: u8 = 1;
const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;

/// How records are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordCipher {
    /// AES-256-GCM.
    Aes = 1,
    /// ChaCha20-Poly1305.
    ChaCha = 2,
}

impl RecordCipher {
    /// AES where the processor has instructions for it. Without them ChaCha is several times faster.
    #[must_use]
    pub fn of_this_machine() -> Self {
        #[cfg(target_arch = "x86_64")]
        let has_aes = std::is_x86_feature_detected!("aes")
            && std::is_x86_feature_detected!("pclmulqdq")
            && std::is_x86_feature_detected!("ssse3");
        #[cfg(target_arch = "aarch64")]
        let has_aes = std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let has_aes = false;
        if has_aes { Self::Aes } else { Self::ChaCha }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Aes, Self::ChaCha].into_iter().find(|it| *it as u8 == byte)
    }

    fn pattern(self) -> Result<NoiseParams, ChannelError> {
        let name = match self {
            Self::Aes => "Noise_NNpsk0_25519_AESGCM_SHA256",
            Self::ChaCha => "Noise_NNpsk0_25519_ChaChaPoly_SHA256",
        };
        name.parse().map_err(|_| ChannelError::Internal)
    }
}

/// Why an encrypted connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The preface has another mechanism.
    #[error("the connection must be encrypted, mechanism {MECHANISM_NOISE} (got mechanism {0})")]
    Mechanism(u8),
    /// The preface has another version.
    #[error("peer speaks version {0} of encrypted connections, this program version {VERSION}")]
    Version(u8),
    /// The connection is of another kind than this port serves.
    #[error("encrypted connections of kind {0} are not served here")]
    Channel(u8),
    /// The preface has an unknown cipher.
    #[error("peer chose the unknown cipher {0}")]
    Cipher(u8),
    /// The peer has another key, or bytes were changed on the way.
    #[error(
        "peer does not hold the job's secret for this run, or its bytes were changed on the way"
    )]
    Proof,
    /// The hello is not one.
    #[error(transparent)]
    Hello(#[from] HandshakeError),
    /// A record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The library refuses its parameters.
    #[error("cannot set up the encryption of a connection")]
    Internal,
}

/// A client between its first bytes and the answer.
pub struct Dialing {
    noise: HandshakeState,
}

impl Dialing {
    /// Begins a connection of `channel`. Returns the bytes to send.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn begin(
        secret: &Secret,
        channel: Channel,
        hello: &Hello,
        cipher: RecordCipher,
    ) -> Result<(Self, [u8; OPENING_BYTES]), ChannelError> {
        let mut bytes = [0; OPENING_BYTES];
        let (preface, message) = bytes.split_at_mut(PREFACE_BYTES);
        preface.copy_from_slice(&[MECHANISM_NOISE, VERSION, channel as u8, cipher as u8]);
        let key = secret.channel_key(hello.run, channel);
        let mut noise = builder(cipher)?
            .prologue(preface)
            .and_then(|builder| builder.psk(0, &key))
            .and_then(Builder::build_initiator)
            .map_err(|_| ChannelError::Internal)?;
        let written = noise.write_message(&hello.encode(), message);
        match written {
            Ok(written) if written == message.len() => Ok((Self { noise }, bytes)),
            Ok(_) => Err(ChannelError::Internal),
            // The only step that can fail here is the draw of the ephemeral key.
            Err(_) => Err(HandshakeError::NoRandom.into()),
        }
    }

    /// Reads the server's answer. The first record must then carry one byte, 0.
    ///
    /// # Errors
    /// [`ChannelError::Proof`] when the server does not hold the secret.
    pub fn finish(mut self, answer: &[u8; ANSWER_BYTES]) -> Result<Records, ChannelError> {
        let mut empty = [0; TAG_BYTES];
        self.noise.read_message(answer, &mut empty).map_err(|_| ChannelError::Proof)?;
        Ok(Records::new(self.noise.into_transport_mode().map_err(|_| ChannelError::Internal)?))
    }
}

/// A client whose first bytes are right. It is not proved yet: they may be a copy of those of an earlier connection. Its
/// first record, of one byte 0, proves it.
pub struct Accepted {
    /// What the client states of itself.
    pub hello: Hello,
    /// The kind of the connection.
    pub channel: Channel,
    /// The records that follow.
    pub records: Records,
    /// What to send.
    pub answer: [u8; ANSWER_BYTES],
}

/// Reads a client's first bytes, for a server of `run` that serves connections of these kinds.
///
/// # Errors
/// Another mechanism, version, kind or cipher; [`ChannelError::Proof`] when the client does not hold the secret of this
/// run. The peer gets no answer.
pub fn accept(
    secret: &Secret,
    run: RunId,
    channels: &[Channel],
    opening: &[u8; OPENING_BYTES],
) -> Result<Accepted, ChannelError> {
    let (preface, message) = opening.split_at(PREFACE_BYTES);
    let &[mechanism, version, channel, cipher] = preface else {
        return Err(ChannelError::Internal);
    };
    if mechanism != MECHANISM_NOISE {
        return Err(ChannelError::Mechanism(mechanism));
    }
    if version != VERSION {
        return Err(ChannelError::Version(version));
    }
    let cipher = RecordCipher::from_byte(cipher).ok_or(ChannelError::Cipher(cipher))?;
    let channel = Channel::from_byte(channel)
        .filter(|channel| channels.contains(channel))
        .ok_or(ChannelError::Channel(channel))?;
    let key = secret.of_peers(run, channel).channel_key(run, channel);
    let mut noise = builder(cipher)?
        .prologue(preface)
        .and_then(|builder| builder.psk(0, &key))
        .and_then(Builder::build_responder)
        .map_err(|_| ChannelError::Internal)?;
    // The library decrypts in place, tag included.
    let mut hello = [0; HELLO_BYTES + TAG_BYTES];
    let read = noise.read_message(message, &mut hello).map_err(|_| ChannelError::Proof)?;
    let hello = hello[..read].first_chunk().ok_or(ChannelError::Proof)?;
    let hello = Hello::decode(hello)?;
    if hello.run != run {
        return Err(ChannelError::Proof);
    }
    let mut answer = [0; ANSWER_BYTES];
    noise.write_message(&[], &mut answer).map_err(|_| HandshakeError::NoRandom)?;
    let transport = noise.into_transport_mode().map_err(|_| ChannelError::Internal)?;
    Ok(Accepted { hello, channel, records: Records::new(transport), answer })
}

fn builder<'a>(cipher: RecordCipher) -> Result<Builder<'a>, ChannelError> {
    // ring for everything but the key agreement, which it offers in another form than Noise needs.
    let resolver = FallbackResolver::new(Box::new(RingResolver), Box::new(DefaultResolver));
    Ok(Builder::with_resolver(cipher.pattern()?, Box::new(resolver)))
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::{Incarnation, Member, Slot};
    use uuid::Uuid;

    use super::*;

    const RUN: RunId = RunId(Uuid::from_u128(7));

    fn secret(byte: u8) -> Secret {
        Secret::from_hex(&format!("{byte:02x}").repeat(32)).expect("64 digits")
    }

    fn hello() -> Hello {
        let member = Member { slot: Slot::trainer(3), incarnation: Incarnation(2) };
        Hello::new(RUN, Some(member)).expect("random numbers")
    }

    fn pass(from: &mut Records, to: &mut Records, bytes: &[u8]) -> Vec<u8> {
        assert_eq!(from.seal(&[std::io::IoSlice::new(bytes)]), Ok(bytes.len()));
        let sealed = from.pending().to_vec();
        from.sent(sealed.len());
        to.space()[..sealed.len()].copy_from_slice(&sealed);
        to.filled(sealed.len());
        let mut read = vec![0; bytes.len() + 1];
        let n = to.open(&mut read).expect("whole records");
        read.truncate(n);
        read
    }

    #[test]
    fn both_sides_agree_with_each_cipher() {
        for cipher in [RecordCipher::Aes, RecordCipher::ChaCha, RecordCipher::of_this_machine()] {
            let hello = hello();
            let begun = Dialing::begin(&secret(1), Channel::Data, &hello, cipher);
            let (dialing, opening) = begun.expect("random numbers");
            let accepted = accept(&secret(1), RUN, &[Channel::Data], &opening);
            let mut accepted = accepted.expect("the same secret");
            assert_eq!((accepted.hello, accepted.channel), (hello, Channel::Data));
            let mut records = dialing.finish(&accepted.answer).expect("the same secret");
            assert_eq!(pass(&mut records, &mut accepted.records, b"to"), b"to");
            assert_eq!(pass(&mut accepted.records, &mut records, b"fro"), b"fro");
        }
    }

    #[test]
    fn another_secret_run_or_kind_is_refused() {
        let begun = Dialing::begin(&secret(1), Channel::Data, &hello(), RecordCipher::Aes);
        let (_, opening) = begun.expect("random numbers");
        let refused = |secret: &Secret, run, channels: &[Channel]| {
            accept(secret, run, channels, &opening).map(|_| ()).expect_err("refused")
        };
        assert_eq!(refused(&secret(2), RUN, &[Channel::Data]), ChannelError::Proof);
        let other = RunId(Uuid::from_u128(8));
        assert_eq!(refused(&secret(1), other, &[Channel::Data]), ChannelError::Proof);
        let kinds = [Channel::Control, Channel::Operator];
        assert_eq!(refused(&secret(1), RUN, &kinds), ChannelError::Channel(b'd'));
    }

    #[test]
    fn any_changed_byte_of_the_opening_is_refused() {
        let begun = Dialing::begin(&secret(1), Channel::Data, &hello(), RecordCipher::Aes);
        let (dialing, opening) = begun.expect("random numbers");
        let all = [Channel::Data, Channel::Control, Channel::Operator];
        for at in 0..OPENING_BYTES {
            for bit in [1, 2, 0x80] {
                let mut changed = opening;
                changed[at] ^= bit;
                // X25519 ignores the top bit of a key (RFC 7748, 5); the hash of the handshake does not.
                assert!(accept(&secret(1), RUN, &all, &changed).is_err(), "byte {at} ^ {bit}");
            }
        }
        let accepted = accept(&secret(1), RUN, &all, &opening).expect("the same secret");
        let mut changed = accepted.answer;
        changed[40] ^= 1;
        assert!(matches!(dialing.finish(&changed), Err(ChannelError::Proof)));
    }

    /// A recorded opening gives its sender nothing: it cannot make the record that must follow.
    #[test]
    fn a_repeated_opening_has_other_keys() {
        let begun = Dialing::begin(&secret(1), Channel::Data, &hello(), RecordCipher::Aes);
        let (dialing, opening) = begun.expect("random numbers");
        let first = accept(&secret(1), RUN, &[Channel::Data], &opening).expect("accepted");
        let mut second = accept(&secret(1), RUN, &[Channel::Data], &opening).expect("accepted");
        let mut records = dialing.finish(&first.answer).expect("the same secret");
        records.seal(&[std::io::IoSlice::new(&[0])]).expect("sealed");
        let sealed = records.pending().to_vec();
        second.records.space()[..sealed.len()].copy_from_slice(&sealed);
        second.records.filled(sealed.len());
        assert_eq!(second.records.open(&mut [0; 8]), Err(RecordError::Changed));
    }
}
