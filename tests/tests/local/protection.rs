//! Jobs with `network.protection = "on"`: a peer on the path reads nothing, and one byte that it changes ends a connection
//! and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_protocol::environment::AmAddress;
use heddle_protocol::handshake::{Channel, Hello, MECHANISM_HMAC, Secret, Verdict};
use heddle_protocol::ids::{Incarnation, Member, RunId, Slot};
use heddle_protocol::view::{JobEvent, JobState};
use heddle_tests::hadoop::wait::wait_until;
use heddle_tests::local::{Run, kill9, pid_of, write_libsvm};
use heddle_tests::logs::KILLS;
use heddle_tests::ports::listening;
use heddle_tests::relay::{Carried, Change, Direction, Relay};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(240);
/// Bytes of values and keys that are searched for in what a relay has seen.
const WINDOW: usize = 16;

fn folder() -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", 2, 600, 300, 12, 11).expect("data");
    for (name, passes) in [("plain", 4), ("encrypted", 4), ("endless", 1_000_000)] {
        let text = format!(
            "name = \"private\"\n\
             [data]\ntrain = \"data/train-*.libsvm\"\npasses = {passes}\n\
             [model]\nalgorithm = \"logistic-regression\"\nfeatures = 300\n\
             [training]\nconsistency = \"bsp\"\nlanes = 2\nbatch = 16\nseed = 7\n\
             [pservers]\ncount = 2\nshards = 4\n\
             [trainers]\nmin = 2\nmax = 2\n\
             [checkpoint]\ndir = \"ckpt-{name}\"\nevery = \"20 steps\"\n\
             [network]\nprotection = \"{}\"\n\
             [output]\nmodel = \"model-{name}\"\n",
            if name == "plain" { "off" } else { "on" },
        );
        std::fs::write(dir.path().join(format!("{name}.toml")), text).expect("a job file");
    }
    dir
}

/// SHA-256 of the published model's files, by name.
fn model(dir: &Path, name: &str) -> BTreeMap<String, String> {
    let root = dir.join(format!("model-{name}"));
    let published = std::fs::read(root.join("MODEL.json")).expect("a published model");
    let published = heddle_protocol::model::ModelFile::from_json(&published).expect("a model file");
    let sum = |name: &String| {
        hex::encode(Sha256::digest(
            std::fs::read(root.join(&published.dir).join(name)).expect("it"),
        ))
    };
    published.files.iter().map(|file| (file.name.clone(), sum(&file.name))).collect()
}

/// The directory of the run that has started.
fn run_dir(dir: &Path, run: &Run) -> (RunId, PathBuf) {
    let started = run.wait_event("a start", LIMIT, |event| match event {
        JobEvent::Started { run, .. } => Some(*run),
        _ => None,
    });
    let run = started.expect("it starts");
    (run, dir.join("state/heddle/runs").join(run.to_string()))
}

fn secret(run_dir: &Path) -> Secret {
    let text = std::fs::read_to_string(run_dir.join("secret")).expect("the owner reads it");
    Secret::from_hex(&text).expect("a secret")
}

/// The data port of pserver-0.
fn data_port(run: &mut Run) -> SocketAddr {
    let slot = Slot::pserver(0);
    let view = run.wait_for("a pserver", LIMIT, |view| {
        let pid = pid_of(view, slot);
        pid.is_ok_and(|pid| listening(pid).len() == 1)
    });
    listening(pid_of(&view.expect("it starts"), slot).expect("it runs"))[0]
}

/// Starts a job whose trainers reach pserver-0 through the relay.
fn start(dir: &Path, name: &str, relay: &Relay) -> Run {
    let detour = format!("shard-place=return({},holder=pserver-0.1)", relay.address());
    let variables = [("FAILPOINTS", detour.as_str())];
    let mut run =
        Run::start_with(dir, &format!("{name}.toml"), &[], &variables).expect("it starts");
    relay.forward_to(data_port(&mut run));
    run
}

fn finished(run: Run) {
    let (code, events, stderr) = run.finish(LIMIT).expect("the run ends");
    assert_eq!(code, Some(0), "{events:?} {stderr}");
}

/// All windows of the bytes, but for those that repeat one word, such as zeros.
fn windows(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.windows(WINDOW).filter(|window| window.chunks_exact(4).any(|word| word != &window[..4]))
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

fn both_ways(carried: &[Carried]) -> Vec<&[u8]> {
    carried.iter().flat_map(|one| [&one.to_server[..], &one.to_client[..]]).collect()
}

#[test]
fn a_relay_learns_nothing_and_changes_no_byte_of_the_model() {
    let dir = folder();
    let open = Relay::start(&[]).expect("a port");
    finished(start(dir.path(), "plain", &open));
    let open = open.carried();
    // Gradients, weights and the rows that they belong to: a BSP job sends the same ones each time.
    let known: BTreeSet<&[u8]> = both_ways(&open).into_iter().flat_map(windows).collect();
    assert!(known.len() > 50_000, "{}", known.len());

    // Early in the handshake, late in it, and in the middle of values, in each direction.
    let change = |connection, direction, at| Change { connection, direction, at };
    let changes = [
        change(0, Direction::ToServer, 60),
        change(1, Direction::ToClient, 20),
        change(2, Direction::ToServer, 130),
        change(3, Direction::ToClient, 20_000),
        change(4, Direction::ToServer, 20_000),
    ];
    let relay = Relay::start(&changes).expect("a port");
    let run = start(dir.path(), "encrypted", &relay);
    let (id, run_dir) = run_dir(dir.path(), &run);
    let secret = secret(&run_dir);
    finished(run);
    assert_eq!(model(dir.path(), "encrypted"), model(dir.path(), "plain"));

    let carried = relay.carried();
    assert!(carried.len() > changes.len(), "{} connections", carried.len());
    for change in changes {
        let one = &carried[change.connection];
        let passed = match change.direction {
            Direction::ToServer => one.to_server.len(),
            Direction::ToClient => one.to_client.len(),
        };
        assert!(one.ended && passed > change.at, "{change:?}: {passed} bytes");
        // The rest of what was in flight passes, and no more.
        assert!(passed < change.at + 1_000_000, "{change:?}: {passed} bytes");
    }
    let total: usize = both_ways(&carried).iter().map(|bytes| bytes.len()).sum();
    assert!(total > 500_000, "{total} bytes");
    let mut keys: Vec<Vec<u8>> = vec![secret.to_hex().as_bytes().to_vec()];
    keys.push(hex::decode(secret.to_hex().as_bytes()).expect("digits"));
    for channel in [Channel::Data, Channel::Control, Channel::Operator] {
        keys.push(secret.channel_key(id, channel).to_vec());
    }
    for bytes in both_ways(&carried) {
        assert!(!windows(bytes).any(|window| known.contains(window)), "values are readable");
        for key in &keys {
            assert!(!contains(bytes, key), "a key is readable");
        }
    }
}

/// A trainer that starts anew finds the ApplicationMaster through a relay, which changes a byte of its first two
/// connections.
#[test]
fn control_connections_are_encrypted_too() {
    let dir = folder();
    let changes = [
        Change { connection: 0, direction: Direction::ToServer, at: 200 },
        Change { connection: 1, direction: Direction::ToClient, at: 400 },
    ];
    let relay = Relay::start(&changes).expect("a port");
    let mut run = Run::start(dir.path(), "endless.toml", &[]).expect("it starts");
    let (_, run_dir) = run_dir(dir.path(), &run);
    let view = training(&mut run);
    let text = std::fs::read(run_dir.join("am.json")).expect("an address");
    let am: AmAddress = serde_json::from_slice(&text).expect("an address");
    relay.forward_to(am.address);
    let detour = AmAddress { address: relay.address(), ..am.clone() };
    std::fs::write(run_dir.join("am.json"), serde_json::to_vec(&detour).expect("JSON"))
        .expect("it");
    kill9(pid_of(&view, Slot::trainer(1)).expect("it runs")).expect("it was alive");
    run.wait_for("it recovers", LIMIT, |view| {
        !view.recoveries.is_empty()
            && view.recoveries.iter().all(|recovery| recovery.done)
            && view.slots.iter().any(|place| {
                place.slot == Slot::trainer(1)
                    && place.incarnation > Incarnation(1)
                    && place.pid > 0
            })
    })
    .expect("it recovers");
    std::fs::write(run_dir.join("am.json"), text).expect("written");
    let carried = wait_until("heartbeats", LIMIT, || {
        let carried = relay.carried();
        let last = carried.last().map(|last| (last.to_server.len(), last.ended));
        anyhow::ensure!(carried.len() > changes.len(), "{} connections", carried.len());
        anyhow::ensure!(last.is_some_and(|(bytes, ended)| bytes > 1000 && !ended), "{last:?}");
        Ok(carried)
    });
    let carried = carried.expect("a connection that goes on");
    assert!(carried[0].ended && carried[1].ended);
    for bytes in both_ways(&carried) {
        for text in ["heddle-hello", "POST ", "trainer", "register", "HTTP/1.1"] {
            assert!(!contains(bytes, text.as_bytes()), "{text} is readable");
        }
    }
    drop(run.expecting(KILLS));
}

fn training(run: &mut Run) -> heddle_protocol::view::JobView {
    run.wait_for("it trains", LIMIT, |view| {
        view.state == JobState::Running
            && view.step.0 > 5
            && view.slots.iter().all(|place| place.pid > 0)
    })
    .expect("it trains")
}

/// It holds the secret, and still gets in nowhere.
#[test]
fn a_peer_without_encryption_is_refused() {
    let dir = folder();
    let mut run = Run::start(dir.path(), "endless.toml", &[]).expect("it starts");
    let (id, run_dir) = run_dir(dir.path(), &run);
    training(&mut run);

    let mut data = TcpStream::connect(data_port(&mut run)).expect("it listens");
    data.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let member = Member { slot: Slot::trainer(0), incarnation: Incarnation(1) };
    let hello = Hello::new(id, Some(member)).expect("random numbers");
    data.write_all(&[MECHANISM_HMAC]).expect("open");
    let _closed_early = data.write_all(&hello.encode());
    let mut answer = [0];
    data.read_exact(&mut answer).expect("a verdict");
    assert_eq!(Verdict::from_byte(answer[0]), Some(Verdict::Unprotected));
    // Closed with unread bytes of the hello, so by a reset or an end.
    assert!(!matches!(data.read(&mut answer), Ok(1..)), "nothing follows");

    let text = std::fs::read(run_dir.join("am.json")).expect("an address");
    let am: AmAddress = serde_json::from_slice(&text).expect("an address");
    for member in [Some(member), None] {
        let hello = Hello::new(id, member).expect("random numbers");
        let mut control = TcpStream::connect(am.address).expect("it listens");
        control.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        let head = format!(
            "POST /v1/hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\nheddle-hello: {}\r\ncontent-length: 0\r\n\r\n",
            hex::encode(hello.encode())
        );
        control.write_all(head.as_bytes()).expect("open");
        let mut reply = String::new();
        control.read_to_string(&mut reply).expect("an answer");
        assert!(reply.starts_with("HTTP/1.1 426 "), "{reply}");
        assert!(reply.contains("network.protection"), "{reply}");
        assert!(!reply.contains("heddle-answer"), "{reply}");
    }
    // Commands of the command line are encrypted whatever the job has.
    let short = id.short().to_string();
    let stopped = heddle_tests::local::heddle(dir.path(), &["kill", &short]);
    assert_eq!(stopped.expect("it runs").code, Some(0));
}
