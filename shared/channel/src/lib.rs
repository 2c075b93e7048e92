//! Encrypted connections between the processes of a job: handshake, records, streams.
//!
//! This is mechanism 2 of [`heddle_protocol::handshake`], for data and control ports alike. It protects what the job sends
//! from a peer on the path: that peer reads nothing, and one byte that it changes ends the connection. It does not hide
//! sizes and times, and cannot help against a peer that drops all bytes.
//!
//! | side | bytes | content |
//! | --- | --- | --- |
//! | client | 4 | preface: mechanism 2, version 1, channel byte (`d`, `k`, `o`), cipher (1 AES-256-GCM, 2 ChaCha20-Poly1305) |
//! | client | 112 | Noise message 1: ephemeral key 32 bytes, sealed hello 64 + 16 bytes |
//! | server | 48 | Noise message 2: ephemeral key 32 bytes, tag 16 bytes; or one byte, [`Verdict::WrongSecret`](heddle_protocol::handshake::Verdict), and the end |
//! | client | 35 | a record with one byte, 0: the client holds the keys, so message 1 is not a copy of an earlier one |
//! | server | 35 | a record with the [`Verdict`](heddle_protocol::handshake::Verdict) |
//! | both | | records |
//!
//! The pattern is `Noise_NNpsk0_25519_AESGCM_SHA256` or `…_ChaChaPoly_SHA256` of the Noise Protocol Framework, revision 34,
//! with the preface as prologue and [`Secret::channel_key`](heddle_protocol::handshake::Secret::channel_key) as pre-shared key.
//! The keys of a connection come from its two ephemeral keys too: the job's secret alone does not decrypt what was recorded.
//! The client chooses AES where its processor computes it ([`RecordCipher::of_this_machine`]).
//!
//! | record | bytes | content |
//! | --- | --- | --- |
//! | length | 2 + 16 | bytes of the payload, u16 little-endian, 1 to [`PAYLOAD_BYTES_MAX`], sealed |
//! | payload | n + 16 | sealed |
//!
//! The length is sealed too, so that a changed length is found when it arrives. With a plain one the reader would wait for
//! bytes that do not come. Each side changes its key after [`RECORDS_PER_KEY`] records (Noise's `rekey`): 32 GiB, a
//! tenth of what AES-GCM may encrypt with one key (RFC 8446, 5.5).
//!
//! # Why not TLS 1.3
//!
//! Both sides hold the same secret, and no certificate authority is theirs. rustls has no external pre-shared keys, so
//! each process would make a certificate and the other would have to check it by other means. Noise has this case as one of
//! its patterns: one round trip, 212 bytes.
//!
//! [`Records`] is pure: bytes in, bytes out. [`ChannelStream`] is a TCP connection with or without it.

mod opening;
mod peer_probe;
mod peer_timeout;
mod records;
mod stream;

pub use opening::{
    ANSWER_BYTES, Accepted, ChannelError, Dialing, OPENING_BYTES, PREFACE_BYTES, RecordCipher,
    accept,
};
pub use peer_probe::{PeerProbe, ProbeAnswer};
pub use peer_timeout::PeerTimeout;
pub use records::{PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, RECORDS_PER_KEY, RecordError, Records};
pub use stream::{ChannelStream, DialError, ProvenPeer, accept_stream, dial_stream};
