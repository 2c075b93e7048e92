//! How long tokens of a submission last, and tokens that this process fetched.

use heddle_am_core::TokenLifetime;
use heddle_hadoop::token::{Credentials, token_kind};

/// HDFS clients do not use a token in the last minute before its maximum lifetime (hdfs-native, `security::user`).
const UNUSED_MS: u64 = 60_000;

/// How long file systems accept the tokens of a submission at the time `now_ms`, which the ResourceManager renews; `None`
/// where the job needs none.
pub(super) fn of_submission(credentials: &Credentials, now_ms: u64) -> Option<TokenLifetime> {
    let until_ms = credentials.first_end_ms(token_kind::HDFS_DELEGATION)?;
    let usable_ms = usable_ms(until_ms, now_ms);
    Some(TokenLifetime { usable_ms, end_ms: usable_ms, until_ms })
}

/// How long file systems accept tokens that this process fetched: those are not renewed, and others come before their
/// first interval ends (`valid_until_ms`). The job can go on without others up to the maximum lifetime. `submitted_until_ms`: the
/// end of the submission's tokens, where one of them is still needed.
pub(super) fn of_fetched(
    credentials: &Credentials,
    valid_until_ms: u64,
    submitted_until_ms: Option<u64>,
    now_ms: u64,
) -> TokenLifetime {
    let max_ms = credentials.first_end_ms(token_kind::HDFS_DELEGATION);
    let max_ms = max_ms.into_iter().chain(submitted_until_ms).min();
    let end_ms = max_ms.map_or(u64::MAX, |until_ms| usable_ms(until_ms, now_ms));
    let until_ms = valid_until_ms.min(submitted_until_ms.unwrap_or(u64::MAX));
    let usable_ms = until_ms.saturating_sub(now_ms).min(end_ms);
    // Equal, they would be tokens that no others follow.
    TokenLifetime { usable_ms, end_ms: end_ms.max(usable_ms.saturating_add(1)), until_ms }
}

/// How long a token is used that reaches its maximum lifetime at `until_ms`.
fn usable_ms(until_ms: u64, now_ms: u64) -> u64 {
    until_ms.saturating_sub(now_ms).saturating_sub(UNUSED_MS)
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::Token;
    use heddle_hadoop::token::DelegationIdentifier;

    use super::*;

    #[test]
    fn first_token_of_a_file_system_limits_the_job() {
        let mut credentials = Credentials::new();
        assert_eq!(of_submission(&credentials, 0), None);
        for (kind, max_date_ms) in [
            (token_kind::RM_DELEGATION, 100_000),
            (token_kind::HDFS_DELEGATION, 300_000),
            (token_kind::HDFS_DELEGATION, 200_000),
        ] {
            let mut identifier = DelegationIdentifier::default();
            identifier.max_date_ms = max_date_ms;
            let service = max_date_ms.to_string();
            credentials.add(Token::new(identifier.encode_writable(), *b"p", kind, service));
        }
        let lifetime = |now_ms| of_submission(&credentials, now_ms).expect("tokens");
        assert_eq!(lifetime(10_000).usable_ms, 130_000);
        assert_eq!(lifetime(10_000).until_ms, 200_000);
        let fetched = of_fetched(&credentials, 70_000, None, 10_000);
        assert_eq!(
            (fetched.usable_ms, fetched.end_ms, fetched.until_ms),
            (60_000, 130_000, 70_000)
        );
        let late = of_fetched(&credentials, 200_000, None, 130_000);
        assert_eq!((late.usable_ms, late.end_ms), (10_000, 10_001));
        let partly = of_fetched(&credentials, 170_000, Some(150_000), 10_000);
        assert_eq!((partly.usable_ms, partly.end_ms, partly.until_ms), (80_000, 80_001, 150_000));
        assert_eq!((lifetime(150_000).usable_ms, lifetime(250_000).end_ms), (0, 0));
    }
}
