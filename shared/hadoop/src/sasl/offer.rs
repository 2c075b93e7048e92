//! The server's list of authentication methods, with the original bytes of each entry.
//!
//! A server compares the entry that the client selected with its own for equality. The comparison includes empty and
//! unknown fields, so INITIATE has the server's bytes without the challenge instead of a re-encoded message.

use bytes::{Buf, Bytes, BytesMut};
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};
use prost::{DecodeError, Message};

use crate::proto::common::RpcSaslProto;
use crate::proto::common::rpc_sasl_proto::{SaslAuth, SaslState};

/// Number of `auths` in `RpcSaslProto`.
const FIELD_AUTHS: u32 = 4;
/// Number of `challenge` in `SaslAuth`.
const FIELD_CHALLENGE: u32 = 5;
/// Most entries of an offer. Servers offer two or three methods.
const AUTHS_MAX: usize = 32;

/// A SASL message of the server.
#[derive(Debug)]
pub struct Offer {
    /// The message without its list.
    pub message: RpcSaslProto,
    /// `auths`, in the server's order of preference.
    pub auths: Vec<OfferedAuth>,
}

/// One entry of `auths`.
#[derive(Clone, Debug)]
pub struct OfferedAuth {
    /// The entry, decoded.
    pub auth: SaslAuth,
    /// The bytes of the entry without the challenge.
    raw: Bytes,
}

impl Offer {
    /// Decodes a SASL message and keeps the bytes of its entries.
    ///
    /// # Errors
    /// The bytes are not an `RpcSaslProto`, or list too many methods.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut message = RpcSaslProto::decode(bytes.clone())?;
        if message.auths.len() > AUTHS_MAX {
            // prost has no public constructor of its error. A wrong tag yields one.
            return Err(prost::encoding::check_wire_type(
                WireType::Varint,
                WireType::LengthDelimited,
            )
            .expect_err("the two types differ"));
        }
        let decoded = std::mem::take(&mut message.auths);
        let entries =
            fields(bytes.clone())?.into_iter().filter(|field| field.number == FIELD_AUTHS);
        let mut auths = Vec::with_capacity(decoded.len());
        for (auth, field) in decoded.into_iter().zip(entries) {
            auths.push(OfferedAuth { auth, raw: without_challenge(field.payload)? });
        }
        Ok(Self { message, auths })
    }
}

impl OfferedAuth {
    /// The body of the INITIATE message that selects this entry.
    pub fn initiate(&self, token: &[u8]) -> Bytes {
        let head = RpcSaslProto {
            version: None,
            state: SaslState::Initiate as i32,
            token: Some(Bytes::copy_from_slice(token)),
            auths: Vec::new(),
        };
        let mut body = BytesMut::with_capacity(head.encoded_len() + self.raw.len() + 8);
        head.encode(&mut body).expect("a BytesMut grows as needed");
        encode_key(FIELD_AUTHS, WireType::LengthDelimited, &mut body);
        encode_varint(self.raw.len() as u64, &mut body);
        body.extend_from_slice(&self.raw);
        body.freeze()
    }
}

/// One field of an encoded message.
struct Field {
    number: u32,
    /// Key and value as received.
    whole: Bytes,
    /// The value of a length-delimited field, without its length; empty for others.
    payload: Bytes,
}

/// Splits an encoded message into its fields.
fn fields(mut rest: Bytes) -> Result<Vec<Field>, DecodeError> {
    let mut found = Vec::new();
    while rest.has_remaining() {
        let start = rest.clone();
        let (number, wire_type) = decode_key(&mut rest)?;
        let value = rest.clone();
        skip_field(wire_type, number, &mut rest, DecodeContext::default())?;
        let payload = if wire_type == WireType::LengthDelimited {
            let mut value = value.slice(..value.len() - rest.len());
            decode_varint(&mut value)?;
            value
        } else {
            Bytes::new()
        };
        found.push(Field { number, whole: start.slice(..start.len() - rest.len()), payload });
    }
    Ok(found)
}

fn without_challenge(auth: Bytes) -> Result<Bytes, DecodeError> {
    let mut kept = BytesMut::with_capacity(auth.len());
    for field in fields(auth)? {
        if field.number != FIELD_CHALLENGE {
            kept.extend_from_slice(&field.whole);
        }
    }
    Ok(kept.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// TOKEN as Hadoop's servers send it, without the challenge.
    const TOKEN: &str = "0a05544f4b454e120a4449474553542d4d44351a00220764656661756c74";

    fn negotiate(auth: &[u8]) -> Bytes {
        let mut bytes = vec![0x10, 0x01, 0x22, u8::try_from(auth.len()).expect("short")];
        bytes.extend_from_slice(auth);
        bytes.into()
    }

    #[test]
    fn initiate_repeats_the_servers_entry_without_the_challenge() {
        let mut auth = hex::decode(TOKEN).expect("hex");
        auth.extend_from_slice(&[0x2a, 3, b'x', b'y', b'z']);
        let offer = Offer::decode(&negotiate(&auth)).expect("decodes");
        assert_eq!(offer.auths.len(), 1);
        assert_eq!(offer.auths[0].auth.challenge.as_deref(), Some(&b"xyz"[..]));
        assert_eq!(hex::encode(offer.auths[0].initiate(b"T")), format!("10021a0154221e{TOKEN}"));
    }

    #[test]
    fn unknown_fields_return_to_the_server() {
        let mut auth = vec![0x32, 1, b'?'];
        auth.extend_from_slice(&hex::decode(TOKEN).expect("hex"));
        auth.extend_from_slice(&[0x38, 7]);
        let offer = Offer::decode(&negotiate(&auth)).expect("decodes");
        assert_eq!(
            hex::encode(offer.auths[0].initiate(b"")),
            format!("10021a002223{}{TOKEN}3807", "32013f")
        );
    }

    #[test]
    fn a_list_of_thousands_is_rejected() {
        let mut bytes = vec![0x10, 0x01];
        for _ in 0..1000 {
            bytes.extend_from_slice(&[0x22, 0]);
        }
        Offer::decode(&bytes.into()).expect_err("no server offers that");
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_offer_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
        ) {
            let _ = Offer::decode(&bytes.into());
        }
    }
}
