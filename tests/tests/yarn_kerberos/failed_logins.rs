//! Rows of the table of bad input: failed logins, which are exit code 5. A retry does not help, so none is exit code 6.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_hadoop::Token;
use heddle_hadoop::token::{Credentials, DelegationIdentifier, token_kind};
use heddle_tests::hadoop::{Cluster, Daemon, wait_until};
use heddle_tests::secured_job::copy_with;

use super::bad_input::BadInput;

pub fn ticket_caches(table: &BadInput<'_>) -> Result<()> {
    let realm = table.realm;
    table.list("no ticket", &[], &[], &["no Kerberos ticket in the cache FILE:", "kinit"])?;
    for (n, bytes) in [&b"\x05\x09xxxx"[..], b"text", b"\x05"].into_iter().enumerate() {
        let corrupt = table.file(&format!("corrupt-{n}"));
        std::fs::write(&corrupt, bytes)?;
        table.list(
            "corrupt cache",
            &[("KRB5CCNAME", &corrupt)],
            &[],
            &["is corrupt", "kdestroy"],
        )?;
    }
    let ended = format!("FILE:{}", table.file("ended"));
    realm.kinit("alice", &realm.keytab("alice"), &ended, &["-l", "1s"])?;
    std::thread::sleep(Duration::from_secs(2));
    table.list(
        "ticket that has ended",
        &[("KRB5CCNAME", &ended)],
        &[],
        &["has ended at 20", "kinit"],
    )?;
    // A file that is not a library.
    let library = table.file("lib");
    std::fs::create_dir(&library)?;
    std::fs::write(Path::new(&library).join("libgssapi_krb5.so.2"), "text")?;
    let cache = realm.cache("alice");
    let missing = [("KRB5CCNAME", cache.as_str()), ("LD_LIBRARY_PATH", &library)];
    table.list(
        "library missing",
        &missing,
        &[],
        &["the Kerberos library is missing", "libgssapi-krb5-2", "krb5-libs"],
    )
}

pub fn keytabs(table: &BadInput<'_>) -> Result<()> {
    let realm = table.realm;
    let keytab = |name: &str| realm.keytab(name).display().to_string();
    // Principals that were good when their keytabs were made.
    let mut commands = String::new();
    let names = ["stale", "unknown", "expired", "locked"];
    for name in names {
        commands += &format!("addprinc -randkey {name}\nktadd -k {} {name}\n", keytab(name));
    }
    let newer = table.file("newer.keytab");
    commands += &format!("ktadd -k {newer} stale\ndelprinc -force unknown\n");
    commands += "modprinc -expire 2000-01-01 expired\nmodprinc -allow_tix locked\n";
    realm.administer(&commands)?;
    for (row, name, texts) in [
        ("stale key", "stale", ["key is out of date", "keytab"]),
        (
            "principal unknown",
            "unknown",
            ["not found in Kerberos database", "administrator of the realm"],
        ),
        ("principal expired", "expired", ["has expired", "administrator of the realm"]),
        ("principal locked", "locked", ["revoked", "administrator of the realm"]),
    ] {
        table.list(row, &[], &["--keytab", &keytab(name)], &texts)?;
    }
    let missing = table.file("no.keytab");
    table.list(
        "keytab missing",
        &[],
        &["--keytab", &missing],
        &["cannot read the keytab", "No such file"],
    )?;
    let folder = table.file("");
    table.list(
        "keytab unreadable",
        &[],
        &["--keytab", &folder],
        &["cannot read the keytab", "directory"],
    )?;
    let text = table.file("text");
    std::fs::write(&text, "text")?;
    table.list("not a keytab", &[], &["--keytab", &text], &["is not a keytab"])?;
    let flags = ["--keytab", &keytab("bob"), "--principal", "alice"];
    table.list(
        "keytab without the principal",
        &[],
        &flags,
        &["has no key of alice (it has bob@TEST.LOCAL)"],
    )
}

pub fn realms(table: &BadInput<'_>) -> Result<()> {
    let realm = table.realm;
    let fresh = table.fresh_cache("fresh")?;
    let tickets = ("KRB5CCNAME", fresh.as_str());
    let malformed = table.file("malformed.conf");
    std::fs::write(&malformed, "[libdefaults\nx")?;
    let malformed = [tickets, ("KRB5_CONFIG", &malformed)];
    table.list(
        "krb5.conf malformed",
        &malformed,
        &[],
        &["malformed.conf:1 is malformed: expected [section]", "krb5.conf"],
    )?;
    let unknown = table.krb5("unknown.conf", "\n TEST.LOCAL = {", "\n OTHER.LOCAL = {")?;
    table.list(
        "realm unknown",
        &[tickets, ("KRB5_CONFIG", &unknown)],
        &[],
        &["realm", "TEST.LOCAL"],
    )?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let kdc = format!("kdc = {}\n", listener.local_addr()?);
    let own = std::fs::read_to_string(realm.configuration())?;
    let line =
        own.lines().map(str::trim).find(|line| line.starts_with("kdc = ")).context("no KDC")?;
    let silent = table.krb5("silent.conf", &format!("{line}\n"), &kdc)?;
    let silent = [tickets, ("KRB5_CONFIG", silent.as_str())];
    table.list(
        "no KDC answers",
        &silent,
        &[],
        &["no Key Distribution Center (KDC) answered within 10s"],
    )?;
    drop(listener);
    let texts = ["Cannot contact any KDC", "krb5.conf"];
    table.list("no KDC listens", &silent, &[], &texts)
}

pub fn clocks(table: &BadInput<'_>) -> Result<()> {
    let fresh = table.fresh_cache("fresh")?;
    let used = table.fresh_cache("used")?;
    let listed = table.job.heddle(&["list", "--yarn"], &[("KRB5CCNAME", &used)])?;
    ensure!(listed.code == Some(0), "{listed:?}");
    let library = preload()?;
    let late = |row, cache: &str, offset: &str, texts: &[&str]| {
        let variables = [
            ("KRB5CCNAME", cache),
            ("LD_PRELOAD", &library),
            ("FAKETIME", offset),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        table.list(row, &variables, &[], texts)
    };
    late(
        "clock skew, by the KDC's word",
        &fresh,
        "+10m",
        &["Clock skew too great", "set the clock"],
    )?;
    late("ticket not yet valid", &used, "-10m", &["not yet valid", "set the clock"])?;
    late(
        "clock skew or stale key of the server",
        &used,
        "+10m",
        &["GSS initiate failed", "clocks differ", "keytab is out of date"],
    )
}

/// The library that moves the clock of a process.
fn preload() -> Result<String> {
    let shown = Command::new("faketime").args(["-f", "+0", "env"]).output();
    let shown = shown.context("faketime does not start: is the package faketime installed?")?;
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("LD_PRELOAD="));
    Ok(line.context("faketime sets no LD_PRELOAD")?.to_owned())
}

pub fn other_servers(table: &BadInput<'_>) -> Result<()> {
    let realm = table.realm;
    let cache = realm.cache("alice");
    let tickets = ("KRB5CCNAME", cache.as_str());
    let key = "yarn.resourcemanager.principal";
    let other = table.job.conf("yarn-site.xml", key, Some("nm/localhost@TEST.LOCAL"))?;
    let texts = ["the server calls itself rm/localhost", "nm/localhost@TEST.LOCAL"];
    table.list(
        "another principal of the ResourceManager",
        &[tickets, ("HADOOP_CONF_DIR", &other)],
        &[],
        &texts,
    )?;
    // The site permits it.
    let pattern = ("yarn.resourcemanager.principal.pattern", "rm/*@TEST.LOCAL");
    copy_with(other.as_ref(), other.as_ref(), "yarn-site.xml", &[pattern])?;
    let listed = table.job.heddle(&["list", "--yarn"], &[tickets, ("HADOOP_CONF_DIR", &other)])?;
    ensure!(listed.code == Some(0), "{listed:?}");
    let strange = table.job.conf("yarn-site.xml", key, Some("strange/localhost@TEST.LOCAL"))?;
    let texts = ["strange/localhost@TEST.LOCAL", "not found in Kerberos database"];
    table.list(
        "principal of the server unknown",
        &[tickets, ("HADOOP_CONF_DIR", &strange)],
        &[],
        &texts,
    )?;
    let unset = table.job.conf("yarn-site.xml", key, None)?;
    let texts = ["yarn.resourcemanager.principal is not set"];
    table.list(
        "yarn.resourcemanager.principal unset",
        &[tickets, ("HADOOP_CONF_DIR", &unset)],
        &[],
        &texts,
    )?;
    let simple =
        table.job.conf("core-site.xml", "hadoop.security.authentication", Some("simple"))?;
    let simple = [("HADOOP_CONF_DIR", simple.as_str()), ("HADOOP_USER_NAME", "alice")];
    table.list(
        "security not enabled",
        &simple,
        &[],
        &["SIMPLE authentication", "hadoop.security.authentication"],
    )?;
    table.list(
        "impersonation refused",
        &[tickets],
        &["--proxy-user", "bob"],
        &["impersonate", "hadoop.proxyuser"],
    )
}

/// A ResourceManager that answers the first message with these bytes, and hears what follows; returns its address.
fn false_server(answer: &'static [u8]) -> Result<(String, Arc<Mutex<Vec<u8>>>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&heard);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut bytes = vec![0; 4096];
            // The version, and the request to negotiate: a length and as many bytes.
            let mut head = [0; 7 + 4];
            if stream.read_exact(&mut head).is_err() {
                continue;
            }
            let length = usize::from(u16::from_be_bytes([head[9], head[10]])).min(bytes.len());
            let _request = stream.read_exact(&mut bytes[..length]);
            let _sent = stream.write_all(answer);
            while let Ok(read @ 1..) = stream.read(&mut bytes) {
                into.lock().unwrap_or_else(PoisonError::into_inner).extend(&bytes[..read]);
            }
        }
    });
    Ok((address, heard))
}

/// Frames of `RpcResponseHeaderProto` (call -33, success) and `RpcSaslProto`.
const SIMPLE_OFFERED: &[u8] =
    b"\0\0\0\x18\x08\x08\xdf\xff\xff\xff\x0f\x10\0\x0e\x10\x01\x22\x0a\x0a\x06SIMPLE\x12\0";
const EARLY_SUCCESS: &[u8] = b"\0\0\0\x0c\x08\x08\xdf\xff\xff\xff\x0f\x10\0\x02\x10\0";
/// Offers KERBEROS as the principal `other/localhost`.
const OTHER_PRINCIPAL: &[u8] = b"\0\0\0\x32\x08\x08\xdf\xff\xff\xff\x0f\x10\0\x28\x10\x01\x22\x24\
    \x0a\x08KERBEROS\x12\x06GSSAPI\x1a\x05other\x22\x09localhost";

pub fn false_resource_managers(table: &BadInput<'_>) -> Result<()> {
    let realm = table.realm;
    let cache = realm.cache("alice");
    let texts = ["the server asks for SIMPLE authentication", "the ResourceManager does not"];
    for answer in [SIMPLE_OFFERED, EARLY_SUCCESS] {
        let (address, heard) = false_server(answer)?;
        let conf =
            table.job.conf("yarn-site.xml", "yarn.resourcemanager.address", Some(&address))?;
        let variables = [("KRB5CCNAME", cache.as_str()), ("HADOOP_CONF_DIR", &conf)];
        table.list("SIMPLE offered by the ResourceManager", &variables, &[], &texts)?;
        let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(heard.is_empty(), "it got {heard:?}");
    }
    Ok(())
}

pub fn false_namenodes(table: &BadInput<'_>) -> Result<()> {
    let realm = table.realm;
    let cache = realm.cache("alice");
    const SIMPLE: &str = "SIMPLE offered by the NameNode";
    for (row, answer, text) in [
        (SIMPLE, SIMPLE_OFFERED, "the server asks for SIMPLE authentication"),
        (SIMPLE, EARLY_SUCCESS, "the server asks for SIMPLE authentication"),
        (
            "another principal of the NameNode",
            OTHER_PRINCIPAL,
            "the server calls itself other/localhost",
        ),
    ] {
        let (address, heard) = false_server(answer)?;
        let url = format!("hdfs://{address}/ckpt");
        let listed = ["checkpoint", "ls", url.as_str()];
        let ended = table.job.heddle(&listed, &[("KRB5CCNAME", cache.as_str())])?;
        table.refused(row, &ended, &[text, &address])?;
        // Neither this program's own client nor hdfs-native answers it.
        let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(heard.is_empty(), "it got {heard:?}");
    }
    Ok(())
}

pub fn protections(table: &BadInput<'_>, cluster: &Cluster) -> Result<()> {
    let realm = table.realm;
    // A ResourceManager beside the cluster's, which offers less.
    let strict = Daemon::ResourceManager(2);
    let host = cluster.host(strict);
    let state = format!("file://{}/rm2-state", cluster.dir().display());
    let own = cluster.dir().join("conf-rm2");
    copy_with(
        &cluster.dir().join("conf"),
        &own,
        "core-site.xml",
        &[("hadoop.rpc.protection", "privacy")],
    )?;
    let values = [
        ("yarn.resourcemanager.hostname", host.as_str()),
        ("yarn.resourcemanager.fs.state-store.uri", &state),
    ];
    copy_with(&cluster.dir().join("conf"), &own, "yarn-site.xml", &values)?;
    cluster.restart(strict)?;
    let ended = wait_until("the other ResourceManager listens", Duration::from_secs(60), || {
        Ok(TcpStream::connect((host.as_str(), 8032)).map(drop)?)
    });
    let conf = table.job.conf("yarn-site.xml", "yarn.resourcemanager.hostname", Some(&host))?;
    let plain = [("hadoop.rpc.protection", "authentication")];
    copy_with(conf.as_ref(), conf.as_ref(), "core-site.xml", &plain)?;
    let cache = realm.cache("alice");
    let variables = [("KRB5CCNAME", cache.as_str()), ("HADOOP_CONF_DIR", &conf)];
    let texts = [
        "the server offers protection privacy, hadoop.rpc.protection = authentication",
        "to the cluster's value",
    ];
    let result = ended.and_then(|()| table.list("no common protection", &variables, &[], &texts));
    cluster.kill(strict)?;
    result
}

/// A token that no server has issued.
fn token(kind: &str, service: &str, renewer: &str, max_date_ms: i64) -> Token {
    let mut identifier = DelegationIdentifier::default();
    identifier.owner = "alice@TEST.LOCAL".to_owned();
    identifier.renewer = renewer.to_owned();
    identifier.max_date_ms = max_date_ms;
    Token::new(identifier.encode_writable(), *b"password", kind, service)
}

pub fn tokens(table: &BadInput<'_>) -> Result<()> {
    let realm = table.realm;
    let name = "HADOOP_TOKEN_FILE_LOCATION";
    let cache = realm.cache("alice");
    let missing = table.file("no.tokens");
    let tickets = ("KRB5CCNAME", cache.as_str());
    table.list(
        "token file missing",
        &[tickets, (name, &missing)],
        &[],
        &["token file", "No such file"],
    )?;
    let truncated = table.file("truncated.tokens");
    std::fs::write(&truncated, b"HDTS\0\x05")?;
    table.list(
        "token file truncated",
        &[(name, &truncated)],
        &[],
        &["token file", "cannot decode"],
    )?;
    let tokens = |file: &str, all: &[Token]| -> Result<String> {
        let mut credentials = Credentials::new();
        all.iter().for_each(|token| credentials.add(token.clone()));
        let path = table.file(file);
        credentials.write_file(Path::new(&path))?;
        Ok(path)
    };
    let never = i64::MAX;
    let of_hdfs = |renewer: &str, until| token(token_kind::HDFS_DELEGATION, "nn:1", renewer, until);
    let only_hdfs = tokens("hdfs.tokens", &[of_hdfs("rm", never)])?;
    // owner alice, renewer yarn, number 3: the ResourceManager has no such token.
    let identifier = "0a05616c69636512047961726e2080d095ffbc312880d8c79fbf3130033802";
    let of_rm = Token::new(hex::decode(identifier)?, *b"p", token_kind::RM_DELEGATION, "rm:1");
    let unknown = tokens("unknown.tokens", &[of_rm])?;
    let ended = tokens("ended.tokens", &[of_hdfs("rm", 1)])?;
    let of_bob = tokens("bob.tokens", &[of_hdfs("bob", never)])?;
    let texts = ["has no RM_DELEGATION_TOKEN", "it has HDFS_DELEGATION_TOKEN for nn:1", "kinit"];
    table.list("token file without the needed kind", &[(name, &only_hdfs)], &[], &texts)?;
    table.list(
        "token unknown to the server",
        &[(name, &unknown)],
        &[],
        &["token", "start a new session"],
    )?;

    let texts = ["the HDFS_DELEGATION_TOKEN of alice@TEST.LOCAL for nn:1 has ended"];
    table.submit("token that has ended", &[(name, &ended)], &[], &texts)?;
    let texts = ["has the renewer bob, which must be rm", "unset HADOOP_TOKEN_FILE_LOCATION"];
    table.submit("token of another renewer", &[(name, &of_bob)], &[], &texts)?;
    let unset = table.job.conf("yarn-site.xml", "yarn.resourcemanager.principal", None)?;
    let texts = ["yarn.resourcemanager.principal is not set"];
    let row = "yarn.resourcemanager.principal unset";
    table.submit(row, &[("HADOOP_CONF_DIR", &unset)], &[], &texts)
}
