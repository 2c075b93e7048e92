//! How two processes of a job prove to each other that they hold the job's secret.
//!
//! A mutual HMAC-SHA256 challenge over both nonces, the run, the role, slot and incarnation, and the
//! kind of channel, so that a proof seen on one kind of connection is of no use on another. This
//! module is pure: it makes and checks the bytes. On data connections they travel as they are; on
//! control connections the same bytes travel as hexadecimal HTTP headers.
//!
//! | side | bytes | content |
//! | --- | --- | --- |
//! | client | 1 | mechanism: 1 = this one (data connections alone) |
//! | client | 64 | hello: magic `HDLH`, version u16, role u8 (0 operator, 1 pserver, 2 trainer), 0, slot u32, incarnation u32, run 16 bytes, nonce 32 bytes |
//! | server | 64 | nonce 32 bytes, proof 32 bytes |
//! | client | 32 | proof |
//! | server | 1 | verdict: 0 welcome, else [`Verdict`] (data connections alone) |
//!
//! Integers are little-endian. A proof is HMAC-SHA256 with the secret over: `heddle`, 0, channel
//! byte, side byte (`s` or `c`), hello, server nonce.
//!
//! Mechanism 2 encrypts the connection and proves the secret with its first bytes; the crate `heddle-channel` has it. Its
//! pre-shared key is [`Secret::channel_key`].
//!
//! The version covers the control messages as well: a process of another version ends at its hello.
//!
//! | version | changed |
//! | --- | --- |
//! | 2 | control: failures carry a class (`save-failed`, `export-failed`, `load-failed`, `fatal`); messages about shards and cuts have new names |
//! | 3 | control: a registration has `pserver_state` and `trainer_state`, a command has `acknowledged` (all three had other names) |
//! | 4 | control: reports and commands are nested by sender and receiver: pserver, shard, trainer |

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::ids::{Incarnation, Member, Role, RunId, Slot};

/// The mechanism byte of this challenge.
pub const MECHANISM_HMAC: u8 = 1;
/// The mechanism byte of an encrypted connection.
pub const MECHANISM_NOISE: u8 = 2;
/// Bytes of a client's hello.
pub const HELLO_BYTES: usize = 64;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;
/// HTTP header of the client's hello, in hexadecimal (`POST /v1/hello`).
pub const HEADER_HELLO: &str = "heddle-hello";
/// HTTP header of the server's nonce and proof, in hexadecimal (its answer).
pub const HEADER_ANSWER: &str = "heddle-answer";
/// HTTP header of the client's proof, in hexadecimal (the request that follows on the connection).
pub const HEADER_PROOF: &str = "heddle-proof";
const MAGIC: [u8; 4] = *b"HDLH";
/// The version of this handshake and of the control messages.
pub const PROTOCOL_VERSION: u16 = 4;

/// How two processes of a job secure a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Mechanism {
    /// Both prove the secret, and then send plain bytes.
    #[default]
    Hmac = MECHANISM_HMAC,
    /// Every byte is encrypted and authenticated. A peer that offers less is refused.
    Noise = MECHANISM_NOISE,
}

/// The job's random secret. Never printed; wiped from memory when it is dropped.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A new one from the operating system's random numbers.
    ///
    /// # Errors
    /// When the system has none to give.
    pub fn random() -> Result<Self, HandshakeError> {
        Ok(Self(random_nonce()?))
    }

    /// Reads the form of [`Secret::to_hex`]; white space around it is ignored.
    ///
    /// # Errors
    /// When it is not 64 hexadecimal digits; the message holds none of the text.
    pub fn from_hex(text: &str) -> Result<Self, HandshakeError> {
        let mut secret = Self([0; 32]);
        hex::decode_to_slice(text.trim(), &mut secret.0).map_err(|_| HandshakeError::SecretForm)?;
        Ok(secret)
    }

    /// 64 hexadecimal digits, for the file with mode 0600 or the container's credentials.
    #[must_use]
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(self.0))
    }

    /// The secret that peers of this channel hold, of the job's secret. For [`Channel::Controller`] it is HMAC-SHA256 with the
    /// job's secret over `heddle controller`, 0, run: it opens what a grant allows, and the job's secret does not follow from it.
    #[must_use]
    pub fn of_peers(&self, run: RunId, channel: Channel) -> Self {
        match channel {
            Channel::Controller => Self(*self.digest(&[b"heddle controller\0", run.0.as_bytes()])),
            Channel::Data | Channel::Control | Channel::Operator => self.clone(),
        }
    }

    fn digest(&self, parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        parts.iter().for_each(|part| mac.update(part));
        let mut digest = mac.finalize().into_bytes();
        let mut key = Zeroizing::new([0; 32]);
        key.copy_from_slice(&digest);
        digest.as_mut_slice().zeroize();
        key
    }

    /// The pre-shared key of encrypted connections of this kind in this run: HMAC-SHA256 with the secret over
    /// `heddle channel`, 0, channel byte, run. No other use of the secret has this prefix.
    #[must_use]
    pub fn channel_key(&self, run: RunId, channel: Channel) -> Zeroizing<[u8; 32]> {
        self.digest(&[b"heddle channel\0", &[channel as u8], run.0.as_bytes()])
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// What the connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Channel {
    /// Trainer to pserver.
    Data = b'd',
    /// Container to ApplicationMaster.
    Control = b'k',
    /// A person's command to the ApplicationMaster.
    Operator = b'o',
    /// The cluster's controller to the ApplicationMaster. Its peers hold the secret of the job's grant instead of the job's.
    Controller = b'c',
}

impl Channel {
    /// The kind behind its byte.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        let all = [Self::Data, Self::Control, Self::Operator, Self::Controller];
        all.into_iter().find(|channel| *channel as u8 == byte)
    }
}

/// A random nonce from the operating system.
///
/// # Errors
/// When the system has none to give.
pub fn random_nonce() -> Result<[u8; NONCE_BYTES], HandshakeError> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|_| HandshakeError::NoRandom)?;
    Ok(nonce)
}

/// The first message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The run it belongs to.
    pub run: RunId,
    /// The member; `None` for an operator.
    pub member: Option<Member>,
    /// Its nonce.
    pub nonce: [u8; NONCE_BYTES],
}

impl Hello {
    /// A hello with a fresh nonce.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(run: RunId, member: Option<Member>) -> Result<Self, HandshakeError> {
        Ok(Self { run, member, nonce: random_nonce()? })
    }

    /// The hello as it travels.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        if let Some(member) = self.member {
            out[6] = member.slot.role as u8;
            out[8..12].copy_from_slice(&member.slot.index.to_le_bytes());
            out[12..16].copy_from_slice(&member.incarnation.0.to_le_bytes());
        }
        out[16..32].copy_from_slice(self.run.0.as_bytes());
        out[32..64].copy_from_slice(&self.nonce);
        out
    }

    /// Reads a hello.
    ///
    /// # Errors
    /// If the peer is another program or has another version.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, HandshakeError> {
        if bytes[0..4] != MAGIC {
            return Err(HandshakeError::Magic);
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != PROTOCOL_VERSION {
            return Err(HandshakeError::Version(version));
        }
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let member = match bytes[6] {
            0 => None,
            role => Some(Member {
                slot: Slot {
                    role: Role::from_byte(role).ok_or(HandshakeError::Role(role))?,
                    index: u32_at(8),
                },
                incarnation: Incarnation(u32_at(12)),
            }),
        };
        let mut run = [0; 16];
        run.copy_from_slice(&bytes[16..32]);
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&bytes[32..64]);
        Ok(Self { run: RunId(Uuid::from_bytes(run)), member, nonce })
    }

    fn mac(
        &self,
        secret: &Secret,
        channel: Channel,
        side: u8,
        server_nonce: &[u8; NONCE_BYTES],
    ) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&secret.0).expect("HMAC takes keys of any length");
        mac.update(b"heddle\0");
        mac.update(&[channel as u8, side]);
        mac.update(&self.encode());
        mac.update(server_nonce);
        mac
    }

    /// What the server answers to prove itself: its nonce and proof, 64 bytes.
    #[must_use]
    pub fn server_answer(
        &self,
        secret: &Secret,
        channel: Channel,
        server_nonce: &[u8; NONCE_BYTES],
    ) -> [u8; NONCE_BYTES + PROOF_BYTES] {
        let mut out = [0; NONCE_BYTES + PROOF_BYTES];
        out[..NONCE_BYTES].copy_from_slice(server_nonce);
        let proof = self.mac(secret, channel, b's', server_nonce).finalize().into_bytes();
        out[NONCE_BYTES..].copy_from_slice(&proof);
        out
    }

    /// Checks the server's answer and makes the client's proof.
    ///
    /// # Errors
    /// [`HandshakeError::Proof`] when the server does not hold the secret.
    pub fn client_proof(
        &self,
        secret: &Secret,
        channel: Channel,
        server_answer: &[u8; NONCE_BYTES + PROOF_BYTES],
    ) -> Result<[u8; PROOF_BYTES], HandshakeError> {
        let mut server_nonce = [0; NONCE_BYTES];
        server_nonce.copy_from_slice(&server_answer[..NONCE_BYTES]);
        self.mac(secret, channel, b's', &server_nonce)
            .verify_slice(&server_answer[NONCE_BYTES..])
            .map_err(|_| HandshakeError::Proof)?;
        let proof = self.mac(secret, channel, b'c', &server_nonce).finalize().into_bytes();
        let mut out = [0; PROOF_BYTES];
        out.copy_from_slice(&proof);
        Ok(out)
    }

    /// The server's check of the client's proof, in constant time.
    ///
    /// # Errors
    /// [`HandshakeError::Proof`] when the client does not hold the secret.
    pub fn check_client(
        &self,
        secret: &Secret,
        channel: Channel,
        server_nonce: &[u8; NONCE_BYTES],
        proof: &[u8],
    ) -> Result<(), HandshakeError> {
        self.mac(secret, channel, b'c', server_nonce)
            .verify_slice(proof)
            .map_err(|_| HandshakeError::Proof)
    }
}

/// The byte with which a pserver ends the handshake of a data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// Frames may come.
    Welcome = 0,
    /// The proof is wrong.
    WrongSecret = 1,
    /// Another run's server.
    WrongRun = 2,
    /// Not a member (any more), or not yet known here: try again if you think that you are.
    NotMember = 3,
    /// The job's connections are encrypted, and the peer offers less.
    Unprotected = 4,
}

impl Verdict {
    /// The verdict behind its byte.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Welcome,
            1 => Self::WrongSecret,
            2 => Self::WrongRun,
            3 => Self::NotMember,
            4 => Self::Unprotected,
            _ => return None,
        })
    }
}

/// Why a handshake fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Not a hello of ours.
    #[error("peer does not speak Heddle's handshake")]
    Magic,
    /// Another version.
    #[error("peer speaks handshake version {0}, this program version {PROTOCOL_VERSION}")]
    Version(u16),
    /// An unknown role byte.
    #[error("peer names the unknown role {0}")]
    Role(u8),
    /// The other side does not hold the secret.
    #[error("peer does not hold the job's secret")]
    Proof,
    /// A secret file with other content.
    #[error("expected a secret of 64 hexadecimal digits")]
    SecretForm,
    /// The other side insists on [`MECHANISM_NOISE`].
    #[error("peer requires an encrypted connection (network.protection)")]
    Unprotected,
    /// No entropy.
    #[error("the operating system gave no random numbers")]
    NoRandom,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            run: RunId(Uuid::from_bytes([7; 16])),
            member: Some(Member { slot: Slot::trainer(3), incarnation: Incarnation(2) }),
            nonce: [9; NONCE_BYTES],
        }
    }

    fn secret(byte: u8) -> Secret {
        Secret::from_hex(&hex::encode([byte; 32])).expect("64 digits")
    }

    #[test]
    fn both_sides_with_the_secret_agree() {
        let server_nonce = [5; NONCE_BYTES];
        let received = Hello::decode(&hello().encode()).expect("our own hello");
        assert_eq!(received, hello());
        let answer = received.server_answer(&secret(1), Channel::Data, &server_nonce);
        let proof = hello().client_proof(&secret(1), Channel::Data, &answer).expect("same secret");
        assert_eq!(received.check_client(&secret(1), Channel::Data, &server_nonce, &proof), Ok(()));
        assert_eq!(
            received.check_client(&secret(1), Channel::Control, &server_nonce, &proof),
            Err(HandshakeError::Proof),
            "a proof is of no use on another kind of connection"
        );
        assert!(received.check_client(&secret(1), Channel::Data, &[6; 32], &proof).is_err());
        assert!(
            received.check_client(&secret(1), Channel::Data, &server_nonce, &proof[..31]).is_err()
        );
    }

    #[test]
    fn a_side_without_the_secret_is_refused() {
        let answer = hello().server_answer(&secret(2), Channel::Data, &[5; NONCE_BYTES]);
        assert_eq!(
            hello().client_proof(&secret(1), Channel::Data, &answer),
            Err(HandshakeError::Proof)
        );
    }

    #[test]
    fn a_servers_proof_is_not_a_clients() {
        let nonce = [5; NONCE_BYTES];
        let answer = hello().server_answer(&secret(1), Channel::Data, &nonce);
        assert!(hello().check_client(&secret(1), Channel::Data, &nonce, &answer[32..]).is_err());
    }

    #[test]
    fn keys_of_channels_and_runs_differ() {
        let run = |byte| RunId(Uuid::from_bytes([byte; 16]));
        let key = *secret(1).channel_key(run(7), Channel::Data);
        assert_eq!(key, *secret(1).channel_key(run(7), Channel::Data));
        assert_ne!(key, *secret(1).channel_key(run(7), Channel::Control));
        assert_ne!(key, *secret(1).channel_key(run(8), Channel::Data));
        assert_ne!(key, *secret(2).channel_key(run(7), Channel::Data));
        let golden = "b2a3ba84b938b20882bf84a424cf5580b57db04cceb99e18546eb882de84ccab";
        assert_eq!(hex::encode(key), golden, "containers of both sides derive the same key");
    }

    #[test]
    fn the_secret_is_not_printed() {
        assert_eq!(format!("{:?}", secret(0xab)), "Secret(hidden)");
        let error = Secret::from_hex("abc").expect_err("too short");
        assert!(!error.to_string().contains("abc"));
    }

    #[test]
    fn other_programs_are_detected() {
        let mut bytes = hello().encode();
        bytes[4] = 9;
        assert_eq!(Hello::decode(&bytes), Err(HandshakeError::Version(9)));
        bytes[0] = 0;
        assert_eq!(Hello::decode(&bytes), Err(HandshakeError::Magic));
    }
}
