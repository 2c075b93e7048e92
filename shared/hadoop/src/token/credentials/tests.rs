//! Credentials against files that Java wrote, damaged ones, and the environment.

use super::*;
use crate::configuration::Environment;
use proptest::prelude::*;

/// One AMRM token with empty alias and service, one secret; both files written by Java.
const FORMAT_0: &str = "48445453000100110a0d0a0908051080d095ffbc31100110071430313233343536373839616\
    2636465666768696a105941524e5f414d5f524d5f544f4b454e00010d686564646c652e73656372657403010203";
const FORMAT_1: &str = "4844545301590a410a00123d0a110a0d0a0908051080d095ffbc31100110071214303132333\
    435363738396162636465666768696a1a105941524e5f414d5f524d5f544f4b454e220012140a0d686564646c652e73\
    65637265741a03010203";

fn golden() -> Credentials {
    let identifier = hex::decode("0a0d0a0908051080d095ffbc3110011007").expect("hex");
    let mut credentials = Credentials::new();
    credentials
        .insert("", Token::new(identifier, *b"0123456789abcdefghij", "YARN_AM_RM_TOKEN", ""));
    credentials.insert_secret("heddle.secret", [1, 2, 3]);
    credentials
}

fn bytes(text: &str) -> Vec<u8> {
    hex::decode(text).expect("hex")
}

#[test]
fn both_formats_equal_javas() {
    for format in [FORMAT_0, FORMAT_1] {
        assert_eq!(Credentials::decode(&bytes(format)), Ok(golden()));
    }
    assert_eq!(hex::encode(golden().encode()), FORMAT_0);
    assert_eq!(hex::encode(golden().encode_protobuf()), FORMAT_1);
}

#[test]
fn every_truncation_is_an_error() {
    for format in [FORMAT_0, FORMAT_1] {
        let bytes = bytes(format);
        for length in 0..bytes.len() {
            Credentials::decode(&bytes[..length]).expect_err("was cut");
        }
    }
}

#[test]
fn wrong_magic_format_and_counts_are_rejected() {
    assert_eq!(Credentials::decode(b"HDTX\0\0\0"), Err(CredentialsError::Magic));
    assert_eq!(Credentials::decode(b"HDTS\x02"), Err(CredentialsError::Format(2)));
    for count in ["8c7fffffff", "887fffffffffffffff", "ff"] {
        let damaged = bytes(&format!("4844545300{count}"));
        assert!(
            matches!(Credentials::decode(&damaged), Err(CredentialsError::Writable(_))),
            "{count}"
        );
    }
    Credentials::decode(&bytes("4844545301ffffffff0f0a"))
        .expect_err("the length exceeds the input");
}

#[test]
fn debug_output_has_no_secret() {
    let shown = format!("{:?}", golden());
    assert!(shown.contains("YARN_AM_RM_TOKEN") && shown.contains("heddle.secret"), "{shown}");
    assert!(!shown.contains("0123456789") && !shown.contains("48, 49"), "{shown}");
    assert!(!shown.contains("1, 2, 3"), "{shown}");
}

#[test]
fn tokens_of_one_service_do_not_replace_each_other() {
    let mut credentials = Credentials::new();
    for identifier in [b"a", b"b", b"a"] {
        credentials.add(Token::new(*identifier, *b"p", "K", "nn:8020"));
    }
    let aliases: Vec<_> = credentials.tokens().map(|(alias, _)| alias).collect();
    assert_eq!(aliases, ["nn:8020", "nn:8020#2"]);
}

#[test]
fn files_are_private_and_replaced_atomically() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tokens");
    std::fs::write(&path, "old").expect("is written");
    golden().write_file(&path).expect("is written");
    assert_eq!(Credentials::read_file(&path).expect("is read"), golden());
    let mode = std::fs::metadata(&path).expect("is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(
        std::fs::read_dir(directory.path()).expect("is there").count(),
        1,
        "the temporary file is gone"
    );
}

#[test]
fn the_environment_names_files_and_tokens() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tokens");
    golden().write_file(&path).expect("is written");
    let other = Token::new(*b"i", *b"p", "K", "s");
    let environment = Environment::empty()
        .with_variable("HADOOP_TOKEN_FILE_LOCATION", path.display().to_string())
        .with_variable("HADOOP_TOKEN", other.to_url_string());
    let configuration = Configuration::with_defaults(environment);
    let credentials = Credentials::of_environment(&configuration).expect("is read");
    assert_eq!(credentials.tokens().count(), 2);
    assert_eq!(credentials.token("s"), Some(&other));
}

#[test]
fn a_named_file_must_exist() {
    let environment =
        Environment::empty().with_variable("HADOOP_TOKEN_FILE_LOCATION", "/no/such/file");
    let credentials = Credentials::of_environment(&Configuration::with_defaults(environment));
    assert!(matches!(credentials, Err(CredentialsSourceError::Io { .. })));
}

proptest! {
    #[test]
    fn credentials_survive_a_round_trip(
        tokens in proptest::collection::btree_map(
            ".{0,8}",
            (any::<Vec<u8>>(), any::<Vec<u8>>(), ".{0,8}", ".{0,8}"),
            0..4,
        ),
        secrets in proptest::collection::btree_map(".{0,8}", any::<Vec<u8>>(), 0..4),
    ) {
        let mut credentials = Credentials::new();
        for (alias, (identifier, password, kind, service)) in tokens {
            credentials.insert(alias, Token::new(identifier, password, kind, service));
        }
        for (alias, secret) in secrets {
            credentials.insert_secret(alias, secret);
        }
        prop_assert_eq!(Credentials::decode(&credentials.encode()), Ok(credentials.clone()));
        prop_assert_eq!(Credentials::decode(&credentials.encode_protobuf()), Ok(credentials));
    }

    #[test]
    fn any_bytes_give_credentials_or_an_error(
        format in 0_u8..3,
        rest in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut bytes = b"HDTS".to_vec();
        bytes.push(format);
        bytes.extend_from_slice(&rest);
        let _ = Credentials::decode(&bytes);
    }
}
