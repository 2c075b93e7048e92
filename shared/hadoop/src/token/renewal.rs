//! The configuration with which a server renews tokens, as its clients send it (`Configuration.write`, `readFields`).
//!
//! | part | form |
//! | --- | --- |
//! | number of properties | vint |
//! | each: key, value | Text |
//! | each: where it was set | an array of texts; −1 in four bytes for none |

use super::writable::{put_text, put_vlong};
use crate::configuration::{Configuration, PropertyError};

/// Length of an array that is absent (`WritableUtils.writeCompressedStringArray`).
const NO_ORIGIN: [u8; 4] = (-1_i32).to_be_bytes();

/// These keys with their values, in the form in which a ResourceManager reads the configuration that renews tokens. Keys
/// without a value are left out.
///
/// # Errors
/// A value does not resolve.
pub fn renewal_configuration<'k>(
    configuration: &Configuration,
    keys: impl IntoIterator<Item = &'k str>,
) -> Result<Vec<u8>, PropertyError> {
    let mut properties = Vec::new();
    let mut count = 0;
    for key in keys {
        if let Some(value) = configuration.get(key)? {
            put_text(&mut properties, key);
            put_text(&mut properties, &value);
            properties.extend(NO_ORIGIN);
            count += 1;
        }
    }
    let mut bytes = Vec::new();
    put_vlong(&mut bytes, count);
    bytes.extend(properties);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Environment;

    /// Java's `Configuration.readFields` reads these bytes.
    #[test]
    fn properties_are_encoded_as_java_reads_them() {
        let mut configuration = Configuration::empty(Environment::empty());
        configuration.set("a", "1", "test");
        configuration.set("b", "${a}2", "test");
        let bytes = renewal_configuration(&configuration, ["a", "none", "b"]).expect("resolves");
        assert_eq!(bytes, b"\x02\x01a\x011\xff\xff\xff\xff\x01b\x0212\xff\xff\xff\xff");
    }
}
