//! Parser of the DIGEST-MD5 challenge: a comma-separated list of `name=value` and `name="quoted value"` (RFC 2831 §2.1.1).

/// Challenges of Hadoop are about 150 bytes; RFC 2831 §2.1.1 limits them to less than 2048.
const LENGTH_MAX: usize = 2048;
/// RFC 2831 §2.1.1: `maxbuf` defaults to 65536.
const MAX_BUFFER_DEFAULT: usize = 65_536;
/// Smallest usable `maxbuf`: a wrapped piece has 16 bytes of MAC and numbers, 8 of padding, and one block of payload.
const MAX_BUFFER_MIN: usize = 64;

/// Why a challenge cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChallengeError {
    /// Longer than RFC 2831 allows.
    #[error("the challenge must be shorter than 2048 bytes (got {0})")]
    TooLong(usize),
    /// Not UTF-8, or not a list of `name=value`.
    #[error("the challenge is malformed near byte {0}")]
    Malformed(usize),
    /// A field that must occur once is missing or repeated.
    #[error("the field {0} is missing or repeated")]
    Field(&'static str),
    /// The algorithm is not md5-sess, the character set is not UTF-8, or `maxbuf` is not a usable number.
    #[error("{0}={1} is not supported")]
    Unsupported(&'static str, String),
}

/// The fields of a challenge that the client uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    pub realm: String,
    pub nonce: String,
    /// `auth` when the challenge has none.
    pub qops: Vec<String>,
    pub ciphers: Vec<String>,
    /// Longest wrapped piece that the server accepts, in bytes.
    pub max_buffer: usize,
}

impl Challenge {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ChallengeError> {
        if bytes.len() >= LENGTH_MAX {
            return Err(ChallengeError::TooLong(bytes.len()));
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|error| ChallengeError::Malformed(error.valid_up_to()))?;
        let fields = fields(text)?;
        let once = |name: &'static str| {
            let mut values = fields
                .iter()
                .filter(|(field, _)| field.eq_ignore_ascii_case(name))
                .map(|(_, value)| value);
            match (values.next(), values.next()) {
                (value, None) => Ok(value),
                (_, Some(_)) => Err(ChallengeError::Field(name)),
            }
        };
        let list = |value: &String| {
            value.split(',').map(|item| item.trim().to_owned()).collect::<Vec<_>>()
        };

        match once("algorithm")? {
            Some(value) if value.eq_ignore_ascii_case("md5-sess") => {}
            Some(value) => return Err(ChallengeError::Unsupported("algorithm", value.clone())),
            None => return Err(ChallengeError::Field("algorithm")),
        }
        if let Some(value) = once("charset")?
            && !value.eq_ignore_ascii_case("utf-8")
        {
            return Err(ChallengeError::Unsupported("charset", value.clone()));
        }
        let max_buffer = match once("maxbuf")? {
            None => MAX_BUFFER_DEFAULT,
            Some(value) => match value.parse::<usize>() {
                // A larger buffer would only permit longer pieces, which gain nothing.
                Ok(size) if size >= MAX_BUFFER_MIN => size.min(MAX_BUFFER_DEFAULT),
                _ => return Err(ChallengeError::Unsupported("maxbuf", value.clone())),
            },
        };
        // The server may list several realms. Hadoop's servers have one, so the first is taken.
        let realm = fields
            .iter()
            .find(|(field, _)| field.eq_ignore_ascii_case("realm"))
            .map(|(_, value)| value.clone());
        Ok(Self {
            realm: realm.unwrap_or_default(),
            nonce: once("nonce")?
                .filter(|nonce| !nonce.is_empty())
                .ok_or(ChallengeError::Field("nonce"))?
                .clone(),
            qops: once("qop")?.map_or_else(|| vec!["auth".to_owned()], list),
            ciphers: once("cipher")?.map_or_else(Vec::new, list),
            max_buffer,
        })
    }
}

/// Splits the list. The RFC's list rule permits empty elements (`a=1,,b=2`).
fn fields(text: &str) -> Result<Vec<(String, String)>, ChallengeError> {
    let mut fields = Vec::new();
    let mut rest = text;
    let at = |rest: &str| ChallengeError::Malformed(text.len() - rest.len());
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n', ',']);
        if rest.is_empty() {
            return Ok(fields);
        }
        let (name, value) = rest.split_once('=').ok_or_else(|| at(rest))?;
        let name = name.trim();
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        {
            return Err(at(rest));
        }
        let value = value.trim_start();
        let (value, after) = if let Some(quoted) = value.strip_prefix('"') {
            unquote(quoted).ok_or_else(|| at(rest))?
        } else {
            let end = value.find(',').unwrap_or(value.len());
            (value[..end].trim().to_owned(), &value[end..])
        };
        rest = after.trim_start();
        if !rest.is_empty() && !rest.starts_with(',') {
            return Err(at(rest));
        }
        fields.push((name.to_owned(), value));
    }
}

/// Reads to the closing quote. A backslash quotes the next character.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[index + 1..])),
            '\\' => value.push(characters.next()?.1),
            _ => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_have_any_order_quoted_or_not() {
        let parsed = Challenge::parse(
            b"algorithm=md5-sess , charset=utf-8,cipher=\"3des, rc4\",,qop=auth, \
                nonce=\"a\\\"b\\\\c\",realm=default",
        );
        let expected = Challenge {
            realm: "default".into(),
            nonce: "a\"b\\c".into(),
            qops: vec!["auth".into()],
            ciphers: vec!["3des".into(), "rc4".into()],
            max_buffer: 65_536,
        };
        assert_eq!(parsed, Ok(expected));
    }

    #[test]
    fn bad_challenges_are_rejected() {
        let long = vec![b'a'; 2048];
        for (challenge, expected) in [
            (&b"nonce=\"n\""[..], ChallengeError::Field("algorithm")),
            (b"algorithm=md5-sess", ChallengeError::Field("nonce")),
            (b"algorithm=md5-sess,nonce=\"a\",nonce=\"b\"", ChallengeError::Field("nonce")),
            (b"algorithm=md5,nonce=\"a\"", ChallengeError::Unsupported("algorithm", "md5".into())),
            (b"algorithm=md5-sess,nonce=\"a", ChallengeError::Malformed(19)),
            (
                b"algorithm=md5-sess,maxbuf=0,nonce=a",
                ChallengeError::Unsupported("maxbuf", "0".into()),
            ),
            (b"\xff", ChallengeError::Malformed(0)),
            (&long, ChallengeError::TooLong(2048)),
        ] {
            assert_eq!(
                Challenge::parse(challenge),
                Err(expected),
                "{}",
                String::from_utf8_lossy(challenge)
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_challenge_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = Challenge::parse(&bytes);
        }

        #[test]
        fn any_text_of_the_alphabet_gives_a_challenge_or_an_error(text in "[a-e=,\"\\\\ é]{0,60}") {
            let _ = Challenge::parse(text.as_bytes());
        }
    }
}
