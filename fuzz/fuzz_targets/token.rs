//! Token strings and identifiers of every kind from arbitrary bytes.
#![no_main]

use heddle_hadoop::Token;
use heddle_hadoop::token::{Identifier, token_kind};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(token) = Token::from_url_string(text)
    {
        assert_eq!(Token::from_url_string(&token.to_url_string()), Ok(token));
    }
    for kind in token_kind::ALL {
        if let Ok(identifier) = Identifier::of(&Token::new(bytes, *b"p", kind, "")) {
            let _ = identifier.to_string();
        }
    }
});
