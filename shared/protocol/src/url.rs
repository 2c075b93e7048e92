//! Texts from a cluster or a user that are safe in a URL. Others are omitted, never escaped: a name with other characters
//! is an error or an attack.

/// Whether this may be the `host:port` of a URL: DNS names and addresses of both IP versions.
#[must_use]
pub fn is_authority(text: &str) -> bool {
    is_of(text, ".:-_[]")
}

/// Whether this may be a container's id in a URL's path.
#[must_use]
pub fn is_container(text: &str) -> bool {
    is_of(text, "_")
}

/// Whether this may be a user's name in a URL's path or query.
#[must_use]
pub fn is_user(text: &str) -> bool {
    is_of(text, "._-") && !text.starts_with('.')
}

/// Letters and digits of ASCII and those besides; not empty.
fn is_of(text: &str, besides: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || besides.contains(c);
    !text.is_empty() && text.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_needs_no_escaping_may_stand_in_a_url() {
        for name in ["alice", "a.b-c_9", "_x"] {
            assert!(is_user(name), "{name}");
        }
        for name in ["", ".", "..", ".x", "a/b", "a b", "a&b=c", "a%2f", "\u{e4}"] {
            assert!(!is_user(name), "{name:?}");
        }
        for authority in ["n1:8042", "n-1.example.com:8042", "[::1]:8042"] {
            assert!(is_authority(authority), "{authority}");
        }
        for authority in ["", "a@b:1", "evil/..", "n1?x"] {
            assert!(!is_authority(authority), "{authority:?}");
        }
        assert!(is_container("container_e17_1700000000000_0005_01_000002"));
        assert!(!is_container("container_1/..") && !is_container(""));
    }
}
