//! What a failed login reports: exit code 5, its cause, the next step; each cause in a text of its own.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_hadoop::Token;
use heddle_hadoop::token::{Credentials, DelegationIdentifier, token_kind};
use heddle_tests::hadoop::{Cluster, Daemon, Realm, wait_until};
use heddle_tests::local::Ended;
use heddle_tests::secured_job::{SecuredJob, copy_with};

use super::{cluster, undisturbed};

/// Failed commands, and the first lines that they printed.
struct FailedLogins<'c> {
    realm: &'c Realm,
    job: SecuredJob<'c>,
    facts: BTreeMap<String, String>,
}

impl<'c> FailedLogins<'c> {
    fn new(cluster: &'c Cluster, realm: &'c Realm) -> Result<Self> {
        let job = SecuredJob::without_data(cluster)?;
        Ok(Self { realm, job, facts: BTreeMap::new() })
    }

    fn file(&self, name: &str) -> String {
        self.job.path().join(name).display().to_string()
    }

    /// `heddle list --yarn` fails with exit code 5 and these texts.
    fn list(&mut self, variables: &[(&str, &str)], flags: &[&str], texts: &[&str]) -> Result<()> {
        let arguments = [&["list", "--yarn"], flags].concat();
        let ended = self.job.heddle(&arguments, variables)?;
        self.failed(&ended, texts)
    }

    /// The command failed with these texts, which no other failure has.
    fn failed(&mut self, ended: &Ended, texts: &[&str]) -> Result<()> {
        ensure!(ended.code == Some(5), "expected exit code 5 and {texts:?}: {ended:?}");
        for text in texts {
            ensure!(ended.stderr.contains(text), "no {text:?} in {}", ended.stderr);
        }
        let (case, fact) = (texts.join(" "), ended.stderr.clone());
        if let Some(other) = self.facts.insert(fact, case) {
            anyhow::bail!("the same text for {other}: {}", ended.stderr);
        }
        Ok(())
    }

    /// A ticket for tickets alone, in a new cache.
    fn fresh_cache(&self, name: &str) -> Result<String> {
        let cache = format!("FILE:{}", self.file(name));
        self.realm.kinit("alice", &self.realm.keytab("alice"), &cache, &[])?;
        Ok(cache)
    }

    /// krb5.conf with another text for one of its own.
    fn krb5(&self, name: &str, from: &str, to: &str) -> Result<String> {
        let text = std::fs::read_to_string(self.realm.configuration())?;
        ensure!(text.contains(from), "no {from:?} in {text}");
        let path = self.file(name);
        std::fs::write(&path, text.replace(from, to))?;
        Ok(path)
    }
}

#[test]
fn a_bad_ticket_cache_is_exit_5_with_its_cause() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let _daemons = undisturbed();
    let mut failed = FailedLogins::new(cluster, realm)?;
    failed.list(&[], &[], &["no Kerberos ticket in the cache FILE:", "kinit"])?;
    for (n, bytes) in [&b"\x05\x09xxxx"[..], b"text", b"\x05"].into_iter().enumerate() {
        let corrupt = failed.file(&format!("corrupt-{n}"));
        std::fs::write(&corrupt, bytes)?;
        failed.list(&[("KRB5CCNAME", &corrupt)], &[], &["is corrupt", "kdestroy"])?;
    }
    let ended = format!("FILE:{}", failed.file("ended"));
    realm.kinit("alice", &realm.keytab("alice"), &ended, &["-l", "1s"])?;
    std::thread::sleep(Duration::from_secs(2));
    failed.list(&[("KRB5CCNAME", &ended)], &[], &["has ended at 20", "kinit"])?;
    // A file that is not a library.
    let library = failed.file("lib");
    std::fs::create_dir(&library)?;
    std::fs::write(Path::new(&library).join("libgssapi_krb5.so.2"), "text")?;
    let cache = realm.cache("alice");
    let missing = [("KRB5CCNAME", cache.as_str()), ("LD_LIBRARY_PATH", &library)];
    failed.list(
        &missing,
        &[],
        &["the Kerberos library is missing", "libgssapi-krb5-2", "krb5-libs"],
    )
}

#[test]
fn a_bad_keytab_is_exit_5_with_its_cause() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let _daemons = undisturbed();
    let mut failed = FailedLogins::new(cluster, realm)?;
    let keytab = |name: &str| realm.keytab(name).display().to_string();
    // Principals that were good when their keytabs were made.
    let mut commands = String::new();
    let names = ["stale", "unknown", "expired", "locked"];
    for name in names {
        commands += &format!("addprinc -randkey {name}\nktadd -k {} {name}\n", keytab(name));
    }
    let newer = failed.file("newer.keytab");
    commands += &format!("ktadd -k {newer} stale\ndelprinc -force unknown\n");
    commands += "modprinc -expire 2000-01-01 expired\nmodprinc -allow_tix locked\n";
    realm.administer(&commands)?;
    for (name, texts) in [
        ("stale", ["key is out of date", "keytab"]),
        ("unknown", ["not found in Kerberos database", "administrator of the realm"]),
        ("expired", ["has expired", "administrator of the realm"]),
        ("locked", ["revoked", "administrator of the realm"]),
    ] {
        failed.list(&[], &["--keytab", &keytab(name)], &texts)?;
    }
    let missing = failed.file("no.keytab");
    failed.list(&[], &["--keytab", &missing], &["cannot read the keytab", "No such file"])?;
    let folder = failed.file("");
    failed.list(&[], &["--keytab", &folder], &["cannot read the keytab", "directory"])?;
    let text = failed.file("text");
    std::fs::write(&text, "text")?;
    failed.list(&[], &["--keytab", &text], &["is not a keytab"])?;
    let flags = ["--keytab", &keytab("bob"), "--principal", "alice"];
    failed.list(&[], &flags, &["has no key of alice (it has bob@TEST.LOCAL)"])
}

#[test]
fn an_unusable_realm_is_exit_5_with_its_cause() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let _daemons = undisturbed();
    let mut failed = FailedLogins::new(cluster, realm)?;
    let fresh = failed.fresh_cache("fresh")?;
    let tickets = ("KRB5CCNAME", fresh.as_str());
    let malformed = failed.file("malformed.conf");
    std::fs::write(&malformed, "[libdefaults\nx")?;
    let malformed = [tickets, ("KRB5_CONFIG", &malformed)];
    failed.list(&malformed, &[], &["krb5.conf", "configuration file"])?;
    let unknown = failed.krb5("unknown.conf", "\n TEST.LOCAL = {", "\n OTHER.LOCAL = {")?;
    failed.list(&[tickets, ("KRB5_CONFIG", &unknown)], &[], &["realm", "TEST.LOCAL"])?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let kdc = format!("kdc = {}\n", listener.local_addr()?);
    let own = std::fs::read_to_string(realm.configuration())?;
    let line =
        own.lines().map(str::trim).find(|line| line.starts_with("kdc = ")).context("no KDC")?;
    let silent = failed.krb5("silent.conf", &format!("{line}\n"), &kdc)?;
    let silent = [tickets, ("KRB5_CONFIG", silent.as_str())];
    failed.list(&silent, &[], &["no Key Distribution Center (KDC) answered within 10s"])?;
    drop(listener);
    let texts = ["Cannot contact any KDC", "krb5.conf"];
    failed.list(&silent, &[], &texts)
}

#[test]
fn a_false_clock_is_exit_5_with_its_cause() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let _daemons = undisturbed();
    let mut failed = FailedLogins::new(cluster, realm)?;
    let fresh = failed.fresh_cache("fresh")?;
    let used = failed.fresh_cache("used")?;
    let listed = failed.job.heddle(&["list", "--yarn"], &[("KRB5CCNAME", &used)])?;
    ensure!(listed.code == Some(0), "{listed:?}");
    let library = preload()?;
    let mut late = |cache: &str, offset: &str, texts: &[&str]| {
        let variables = [
            ("KRB5CCNAME", cache),
            ("LD_PRELOAD", &library),
            ("FAKETIME", offset),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        failed.list(&variables, &[], texts)
    };
    late(&fresh, "+10m", &["Clock skew too great", "set the clock"])?;
    late(&used, "-10m", &["not yet valid", "set the clock"])?;
    late(&used, "+10m", &["GSS initiate failed", "clocks differ", "keytab is out of date"])
}

/// The library that moves the clock of a process.
fn preload() -> Result<String> {
    let shown = Command::new("faketime").args(["-f", "+0", "env"]).output();
    let shown = shown.context("faketime does not start: is the package faketime installed?")?;
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("LD_PRELOAD="));
    Ok(line.context("faketime sets no LD_PRELOAD")?.to_owned())
}

#[test]
fn a_server_of_another_name_is_exit_5_with_its_cause() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let _daemons = undisturbed();
    let mut failed = FailedLogins::new(cluster, realm)?;
    let cache = realm.cache("alice");
    let tickets = ("KRB5CCNAME", cache.as_str());
    let key = "yarn.resourcemanager.principal";
    let other = failed.job.conf("yarn-site.xml", key, Some("nm/localhost@TEST.LOCAL"))?;
    let texts = ["the server calls itself rm/localhost", "nm/localhost@TEST.LOCAL"];
    failed.list(&[tickets, ("HADOOP_CONF_DIR", &other)], &[], &texts)?;
    let strange = failed.job.conf("yarn-site.xml", key, Some("strange/localhost@TEST.LOCAL"))?;
    let texts = ["strange/localhost@TEST.LOCAL", "not found in Kerberos database"];
    failed.list(&[tickets, ("HADOOP_CONF_DIR", &strange)], &[], &texts)?;
    let unset = failed.job.conf("yarn-site.xml", key, None)?;
    let texts = ["yarn.resourcemanager.principal is not set"];
    failed.list(&[tickets, ("HADOOP_CONF_DIR", &unset)], &[], &texts)?;
    let simple =
        failed.job.conf("core-site.xml", "hadoop.security.authentication", Some("simple"))?;
    let simple = [("HADOOP_CONF_DIR", simple.as_str()), ("HADOOP_USER_NAME", "alice")];
    failed.list(&simple, &[], &["SIMPLE authentication", "hadoop.security.authentication"])?;
    failed.list(&[tickets], &["--proxy-user", "bob"], &["impersonate", "hadoop.proxyuser"])
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

#[test]
fn a_false_server_gets_nothing_and_is_exit_5() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let _daemons = undisturbed();
    let mut failed = FailedLogins::new(cluster, realm)?;
    let cache = realm.cache("alice");
    let texts = ["the server asks for SIMPLE authentication", "the ResourceManager does not"];
    for answer in [SIMPLE_OFFERED, EARLY_SUCCESS] {
        let (address, heard) = false_server(answer)?;
        let conf =
            failed.job.conf("yarn-site.xml", "yarn.resourcemanager.address", Some(&address))?;
        let variables = [("KRB5CCNAME", cache.as_str()), ("HADOOP_CONF_DIR", &conf)];
        failed.list(&variables, &[], &texts)?;
        let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(heard.is_empty(), "it got {heard:?}");
    }
    Ok(())
}

#[test]
fn a_false_namenode_gets_nothing_and_is_exit_5() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let _daemons = undisturbed();
    let mut failed = FailedLogins::new(cluster, realm)?;
    let cache = realm.cache("alice");
    for (answer, text) in [
        (SIMPLE_OFFERED, "the server asks for SIMPLE authentication"),
        (EARLY_SUCCESS, "the server asks for SIMPLE authentication"),
        (OTHER_PRINCIPAL, "the server calls itself other/localhost"),
    ] {
        let (address, heard) = false_server(answer)?;
        let url = format!("hdfs://{address}/ckpt");
        let listed = ["checkpoint", "ls", url.as_str()];
        let ended = failed.job.heddle(&listed, &[("KRB5CCNAME", cache.as_str())])?;
        failed.failed(&ended, &[text, &address])?;
        // Neither this program's own client nor hdfs-native answers it.
        let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(heard.is_empty(), "it got {heard:?}");
    }
    Ok(())
}

#[test]
fn servers_without_a_common_protection_are_exit_5() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let _daemons = undisturbed();
    let mut failed = FailedLogins::new(cluster, realm)?;
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
    let conf = failed.job.conf("yarn-site.xml", "yarn.resourcemanager.hostname", Some(&host))?;
    let plain = [("hadoop.rpc.protection", "authentication")];
    copy_with(conf.as_ref(), conf.as_ref(), "core-site.xml", &plain)?;
    let cache = realm.cache("alice");
    let variables = [("KRB5CCNAME", cache.as_str()), ("HADOOP_CONF_DIR", &conf)];
    let texts = [
        "the server offers protection privacy, hadoop.rpc.protection = authentication",
        "to the cluster's value",
    ];
    let result = ended.and_then(|()| failed.list(&variables, &[], &texts));
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

#[test]
fn unusable_tokens_are_exit_5_and_leave_nothing_behind() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let _daemons = undisturbed();
    let mut failed = FailedLogins::new(cluster, realm)?;
    let name = "HADOOP_TOKEN_FILE_LOCATION";
    let cache = realm.cache("alice");
    let missing = failed.file("no.tokens");
    let tickets = ("KRB5CCNAME", cache.as_str());
    failed.list(&[tickets, (name, &missing)], &[], &["token file", "No such file"])?;
    let truncated = failed.file("truncated.tokens");
    std::fs::write(&truncated, b"HDTS\0\x05")?;
    failed.list(&[(name, &truncated)], &[], &["token file", "cannot decode"])?;
    let tokens = |file: &str, all: &[Token]| -> Result<String> {
        let mut credentials = Credentials::new();
        all.iter().for_each(|token| credentials.add(token.clone()));
        let path = failed.file(file);
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
    let texts = ["no Kerberos ticket", "kinit"];
    failed.list(&[(name, &only_hdfs)], &[], &texts)?;
    failed.list(&[(name, &unknown)], &[], &["token", "start a new session"])?;

    let job = SecuredJob::of_passes(cluster, "tokenless", 1)?;
    let before = left(cluster)?;
    for (file, texts) in [
        (&ended, &["the HDFS_DELEGATION_TOKEN of alice@TEST.LOCAL for nn:1 has ended"][..]),
        (&of_bob, &["has the renewer bob, which must be rm", "unset HADOOP_TOKEN_FILE_LOCATION"]),
    ] {
        let ended = job.heddle(&["submit", "job.toml"], &[tickets, (name, file)])?;
        failed.failed(&ended, texts)?;
    }
    let unset = failed.job.conf("yarn-site.xml", "yarn.resourcemanager.principal", None)?;
    let ended = job.heddle(&["submit", "job.toml"], &[tickets, ("HADOOP_CONF_DIR", &unset)])?;
    failed.failed(&ended, &["yarn.resourcemanager.principal is not set"])?;
    ensure!(left(cluster)? == before, "something is left: {} and not {before}", left(cluster)?);
    Ok(())
}

/// The staging directories and reports of alice.
fn left(cluster: &Cluster) -> Result<String> {
    let places = ["/user/alice/.heddle/staging", "/user/alice/.heddle/reports"];
    let listed = cluster.dfs_output("alice", &[&["-ls"], &places[..]].concat())?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    Ok(text
        .lines()
        .filter(|line| line.contains("application_"))
        .map(|l| format!("{l}\n"))
        .collect())
}
