//! The control plane over real sockets: a container's agent against the ApplicationMaster's server.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use heddle_agent::PeerTimeout;
use heddle_agent::{
    Agent, AgentExit, AmPlace, ContainerEnvironment, Hooks, LogContext, UserSecrets,
};
use heddle_am::api::{self, ApiInput, ApiState, Capacity, Pages};
use heddle_am::event_log::{EventLog, EventOutput};
use heddle_protocol::control::{
    Command, CommandEnvelope, HeartbeatStats, PserverReport, Registration, Report, TrainerCommand,
    TrainerReport,
};
use heddle_protocol::environment::AmAddress;
use heddle_protocol::exit_code::ContainerExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::handshake::{Mechanism, Secret};
use heddle_protocol::ids::{
    Attempt, CutId, Epoch, Generation, Incarnation, Member, RunId, ShardId, Slot,
};
use heddle_protocol::view::{JobState, JobView};
use tokio::sync::{mpsc, watch};

const LIMIT: Duration = Duration::from_secs(10);

fn view(run: RunId) -> JobView {
    JobView { state: JobState::Running, ..JobView::starting(run, "<b>job</b>", Attempt(1), 0) }
}

struct Server {
    address: SocketAddr,
    inputs: mpsc::Receiver<ApiInput>,
    dir: tempfile::TempDir,
    run: RunId,
    secret: Secret,
    /// Of the server, and of agents unless a test has another one.
    mechanism: Mechanism,
    /// Heartbeats that agents have made.
    beats: Arc<AtomicU64>,
}

async fn server() -> Server {
    server_with(Mechanism::Hmac).await
}

async fn server_with(mechanism: Mechanism) -> Server {
    let run = RunId(uuid::Uuid::from_u128(7));
    let secret = Secret::random().expect("random numbers");
    let listener = api::bind(IpAddr::V4(Ipv4Addr::LOCALHOST), &[]).await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (inputs, receiver) = mpsc::channel(64);
    let (_keep, view) = watch::channel(Arc::new(view(run)));
    let log = EventLog::new(Attempt(1), EventOutput::LogOnly);
    let pages = Pages::new(view, log);
    let timeout = PeerTimeout::default();
    let shared = ApiState { run, secret: secret.clone(), mechanism, timeout, inputs, pages };
    tokio::spawn(api::serve(listener, Arc::new(shared), None, Capacity::default()));
    let dir = tempfile::tempdir().expect("a folder");
    let am = AmAddress { address, attempt: Attempt(1), pid: 1 };
    std::fs::write(dir.path().join("am.json"), serde_json::to_vec(&am).expect("JSON"))
        .expect("written");
    Server { address, inputs: receiver, dir, run, secret, mechanism, beats: Arc::default() }
}

/// Sends a command; whether it was queued.
fn drain(lines: &mut api::CommandStream) -> bool {
    let head = CommandEnvelope { attempt: Attempt(1), acknowledged: 0, command: None };
    let command = serde_json::to_vec(&Command::Trainer(TrainerCommand::Drain)).expect("JSON");
    lines.send(&head, Some(command.into()))
}

impl Server {
    fn agent(
        &self,
        secret: Secret,
    ) -> (Agent, std_mpsc::Receiver<Command>, std_mpsc::Receiver<AgentExit>) {
        let am_file: PathBuf = self.dir.path().join("am.json");
        let member = Member { slot: Slot::trainer(0), incarnation: Incarnation(1) };
        let environment = ContainerEnvironment {
            run: self.run,
            member,
            am: AmPlace::File(am_file),
            secret,
            mechanism: self.mechanism,
            timeout: PeerTimeout::default(),
            user_secrets: UserSecrets::default(),
            host: "localhost".into(),
            container: None,
        };
        let (commands, commanded) = std_mpsc::channel();
        let (exits, exited) = std_mpsc::channel();
        let beaten = Arc::clone(&self.beats);
        let hooks = Hooks {
            register: Box::new(move || {
                Some(Report::Register(Box::new(Registration {
                    member,
                    pid: 42,
                    host: "localhost".into(),
                    container: None,
                    endpoints: Vec::new(),
                    pserver_state: None,
                    trainer_state: None,
                })))
            }),
            heartbeat: Box::new(move || {
                beaten.fetch_add(1, Ordering::Relaxed);
                HeartbeatStats::default()
            }),
            command: Box::new(move |command| {
                let _gone = commands.send(command);
            }),
            exit: Box::new(move |exit| {
                let _gone = exits.send(exit);
            }),
            read_highest: None,
            install_tokens: None,
            log: LogContext::new(member.slot),
        };
        (Agent::start(environment, hooks).expect("a thread"), commanded, exited)
    }

    /// What comes next besides heartbeats, which come when they like.
    async fn next(&mut self) -> ApiInput {
        loop {
            let input = tokio::time::timeout(LIMIT, self.inputs.recv())
                .await
                .expect("in time")
                .expect("the server lives");
            match input {
                ApiInput::SessionLine { line, .. }
                    if matches!(line.report, Report::Heartbeat(_)) => {}
                other => return other,
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_registers_reports_and_is_commanded_at_once() {
    for mechanism in [Mechanism::Hmac, Mechanism::Noise] {
        registers_reports_and_is_commanded(server_with(mechanism).await).await;
    }
}

async fn registers_reports_and_is_commanded(mut server: Server) {
    let (agent, commanded, _exited) = server.agent(server.secret.clone());
    let ApiInput::SessionOpened { member, mut lines, .. } = server.next().await else {
        panic!("a session opens first")
    };
    let ApiInput::SessionLine { line, .. } = server.next().await else { panic!("then a line") };
    assert!(matches!(line.report, Report::Register(ref one) if one.pid == 42), "{line:?}");
    assert_eq!(member.slot, Slot::trainer(0));
    assert!(drain(&mut lines));
    let command = commanded.recv_timeout(LIMIT).expect("the command arrives");
    assert!(matches!(command, Command::Trainer(TrainerCommand::Drain)));
    agent.reporter().send(Report::Trainer(TrainerReport::Stepping { epoch: Epoch::default() }));
    let ApiInput::SessionLine { line, .. } = server.next().await else {
        panic!("the report arrives")
    };
    assert_eq!(line.seq, 1);

    // The stream ends; the container comes back by itself and repeats what was not confirmed.
    lines.close();
    loop {
        match server.next().await {
            ApiInput::SessionClosed { .. } => {}
            ApiInput::SessionOpened { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    let ApiInput::SessionLine { line, .. } = server.next().await else { panic!("registers again") };
    assert!(matches!(line.report, Report::Register(_)));
    let ApiInput::SessionLine { line, .. } = server.next().await else { panic!("repeats") };
    assert_eq!(line.seq, 1);
    assert!(matches!(line.report, Report::Trainer(TrainerReport::Stepping { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_master_does_not_stop_container_timers() {
    let mut server = server().await;
    let (agent, commanded, _exited) = server.agent(server.secret.clone());
    let ApiInput::SessionOpened { mut lines, .. } = server.next().await else {
        panic!("expected a session");
    };
    // Nothing is taken from the server's queue from here on: queues and socket buffers fill up, some 10 MB.
    for _ in 0..50_000 {
        agent.reporter().send(Report::Pserver(PserverReport::SaveFailed {
            cut: CutId { generation: Generation(1), number: 1 },
            epoch: Epoch::default(),
            shard: ShardId(0),
            failure: Failure::new(ErrorClass::Unreachable, "x".repeat(400)),
        }));
    }
    let beats = || server.beats.load(Ordering::Relaxed);
    let before = beats();
    let end = std::time::Instant::now() + LIMIT;
    while beats() < before + 4 {
        assert!(std::time::Instant::now() < end, "no heartbeat is made any more");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Commands arrive all the same.
    assert!(drain(&mut lines));
    let command = tokio::task::spawn_blocking(move || commanded.recv_timeout(LIMIT));
    assert!(matches!(command.await, Ok(Ok(Command::Trainer(TrainerCommand::Drain)))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_without_the_secret_is_refused_and_ends_with_22() {
    let mut server = server().await;
    let other = Secret::random().expect("random numbers");
    let (_agent, _commanded, exited) = server.agent(other);
    let exit = exited.recv_timeout(LIMIT).expect("the agent gives up");
    assert_eq!(exit.code(), ContainerExitCode::SecretRefused);
    assert!(server.inputs.try_recv().is_err(), "nothing reached the driver");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_offers_less_gets_no_session() {
    let mut server = server_with(Mechanism::Noise).await;
    server.mechanism = Mechanism::Hmac;
    let (_plain, _commanded, exited) = server.agent(server.secret.clone());
    assert!(exited.recv_timeout(Duration::from_secs(2)).is_err(), "it tries again");
    assert!(server.inputs.try_recv().is_err(), "nothing reached the driver");
    // A server that does not insist takes both.
    let mut server = self::server().await;
    server.mechanism = Mechanism::Noise;
    let (_encrypted, _commanded, _exited) = server.agent(server.secret.clone());
    assert!(matches!(server.next().await, ApiInput::SessionOpened { .. }));
}

fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = std::net::TcpStream::connect(address).expect("the port is open");
    stream.set_read_timeout(Some(LIMIT)).expect("set");
    let _closed_early = stream.write_all(request);
    let mut reply = Vec::new();
    let _reset = stream.read_to_end(&mut reply);
    String::from_utf8_lossy(&reply).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_proof_changes_nothing() {
    let mut server = server().await;
    let address = server.address;
    let statuses = tokio::task::spawn_blocking(move || {
        let status = |request: &str| {
            let reply = exchange(address, request.as_bytes());
            reply.split(' ').nth(1).unwrap_or("none").to_owned()
        };
        let huge = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(200_000));
        [
            status(
                "POST /v1/session HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                 content-length: 0\r\n\r\n",
            ),
            status(
                "POST /v1/operator HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                 heddle-proof: 00\r\ncontent-length: 20\r\n\r\n{\"operation\":\"kill\"}",
            ),
            status(
                "POST /v1/hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\nheddle-hello: zz\r\n\
                 content-length: 0\r\n\r\n",
            ),
            status("POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"),
            status("GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
            status("\x16\x03\x01 not HTTP at all\r\n\r\n"),
            status(&huge),
        ]
    })
    .await
    .expect("the exchanges end");
    assert_eq!(statuses, ["401", "401", "400", "405", "404", "400", "431"]);
    assert!(server.inputs.try_recv().is_err(), "nothing reached the driver");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_read_the_job_without_a_secret() {
    let server = server().await;
    let address = server.address;
    let (page, json, metrics) = tokio::task::spawn_blocking(move || {
        let get = |path: &str| {
            exchange(address, format!("GET {path} HTTP/1.0\r\nhost: x\r\n\r\n").as_bytes())
        };
        (get("/"), get("/api/v1/status"), get("/metrics"))
    })
    .await
    .expect("the exchanges end");
    assert!(page.contains("&lt;b&gt;job&lt;/b&gt;"), "{page}");
    assert!(!page.contains("<b>job"), "{page}");
    let (_, body) = json.split_once("\r\n\r\n").expect("a body");
    let read: JobView = serde_json::from_str(body).expect("the view's JSON");
    assert_eq!(read, view(server.run));
    assert!(metrics.contains("heddle_rows_total 0"), "{metrics}");
}
