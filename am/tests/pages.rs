//! The pages over real sockets: answers, rejections, and redirects to YARN's proxy.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use heddle_am::api::{self, ApiState, Capacity, PageGate, Pages, Viewers, WebProxy};
use heddle_am::event_log::{EventLog, EventOutput};
use heddle_channel::PeerTimeout;
use heddle_hadoop::Configuration;
use heddle_hadoop::configuration::Environment;
use heddle_protocol::handshake::{
    Channel, HEADER_ANSWER, HEADER_HELLO, HEADER_PROOF, Hello, Mechanism, NONCE_BYTES, PROOF_BYTES,
    Secret,
};
use heddle_protocol::ids::{Attempt, RunId};
use heddle_protocol::view::{EventPage, JobView, WarningCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

/// An answer takes milliseconds.
const LIMIT: Duration = Duration::from_secs(20);

struct Server {
    address: SocketAddr,
    run: RunId,
    secret: Secret,
    /// Ends the view with the test.
    _view: watch::Sender<Arc<JobView>>,
}

async fn server(gate: Option<Arc<PageGate>>) -> Server {
    let run = RunId(uuid::Uuid::from_u128(7));
    let secret = Secret::random().unwrap();
    let listener = api::bind(IpAddr::V4(Ipv4Addr::LOCALHOST), &[]).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (inputs, _) = mpsc::channel(1);
    let view = JobView::starting(run, "<img src=x onerror=alert(1)>", Attempt(1), 0);
    let (sender, view) = watch::channel(Arc::new(view));
    let log = EventLog::new(Attempt(1), EventOutput::LogOnly);
    log.warn(WarningCode::JournalDelayed, "late".to_owned());
    let shared = Arc::new(ApiState {
        run,
        secret: secret.clone(),
        mechanism: Mechanism::Hmac,
        timeout: PeerTimeout::default(),
        inputs,
        pages: Pages::new(view, log),
    });
    tokio::spawn(api::serve(listener, shared, gate, Capacity::default()));
    Server { address, run, secret, _view: sender }
}

fn proxy(host: &str) -> WebProxy {
    WebProxy {
        hosts: vec![host.into()],
        bases: vec!["http://rm:8088/proxy/application_1_0001".into()],
    }
}

impl Server {
    /// All that comes back on a connection of its own: status, head, body.
    async fn ask(&self, method: &str, path: &str) -> (u16, String, String) {
        self.ask_with(method, path, "").await
    }

    /// The same with more lines in the request's head.
    async fn ask_with(&self, method: &str, path: &str, lines: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{lines}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(LIMIT, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_ascii_lowercase(), body.to_owned())
    }
}

#[tokio::test]
async fn every_page_is_escaped_uncached_and_runs_nothing() {
    let server = server(None).await;
    for path in [
        "/",
        "/?x=1",
        "/metrics",
        "/api/v1/job",
        "/api/v1/status",
        "/api/v1/slots",
        "/api/v1/events",
    ] {
        let (status, head, body) = server.ask("GET", path).await;
        assert_eq!(status, 200, "{path}");
        for header in
            ["cache-control: no-store", "x-content-type-options: nosniff", "default-src 'none'"]
        {
            assert!(head.contains(header), "{path} lacks {header}:\n{head}");
        }
        assert!(!body.is_empty() && (path.len() > 4 || !body.contains("<img")), "{path}: {body}");
    }
    let (_, _, page) = server.ask("GET", "/").await;
    assert!(page.contains("<h1>&lt;img src=x onerror=alert(1)&gt;</h1>"), "{page}");
    assert!(page.contains("<p>starting ·"), "it has not begun, and has not failed: {page}");
}

#[tokio::test]
async fn head_is_get_without_its_body() {
    let server = server(None).await;
    let (_, _, page) = server.ask("GET", "/").await;
    let (status, head, body) = server.ask("HEAD", "/").await;
    assert_eq!((status, body.as_str()), (200, ""));
    let length = format!("content-length: {}", page.len());
    assert!(head.contains(&length), "{head}");
}

#[tokio::test]
async fn other_paths_and_methods_are_rejected() {
    let server = server(None).await;
    for path in [
        "/..",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/api/v1/../../x",
        "/api/v1/job/",
        "//",
        "/index.html",
        "/api/v1",
        "/static/../metrics",
        "/metrics%00",
    ] {
        assert_eq!(server.ask("GET", path).await.0, 404, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
        let (status, head, _) = server.ask(method, "/api/v1/job").await;
        assert_eq!(status, 405, "{method}");
        assert!(head.contains("allow: get, head"), "{head}");
    }
    for path in ["/v1/operator", "/v1/session", "/v1/else"] {
        let (status, head, _) = server.ask("GET", path).await;
        assert_eq!(status, 405, "{path}");
        assert!(head.contains("allow: post"), "{head}");
    }
    assert_eq!(server.ask("POST", "/v1/operator").await.0, 401);
    assert_eq!(server.ask("GET", "/v1/status").await.0, 401);
    assert_eq!(server.ask("GET", "/v1/events?from=0").await.0, 401);
}

#[tokio::test]
async fn clients_are_redirected_to_the_proxy_but_operators_are_served() {
    let server = server(Some(PageGate::new(proxy("192.0.2.1"), None))).await;
    let (status, head, body) = server.ask("GET", "/api/v1/job?a=b").await;
    assert_eq!(status, 302);
    assert!(
        head.contains("location: http://rm:8088/proxy/redirect/application_1_0001/api/v1/job?a=b"),
        "{head}"
    );
    assert!(!body.contains("img"), "{body}");
    assert_eq!(server.ask("GET", "/metrics").await.0, 200, "scrapers know no proxy");
    assert_eq!(server.ask("POST", "/v1/operator").await.0, 401, "no redirect for commands");

    let view: JobView = serde_json::from_str(&proven_page(&server, "/v1/status").await).unwrap();
    assert_eq!(view.run, server.run);
    let page: EventPage =
        serde_json::from_str(&proven_page(&server, "/v1/events?from=0").await).unwrap();
    assert_eq!((page.attempt, page.first, page.next, page.events.len()), (Attempt(1), 0, 1, 1));
    let page: EventPage =
        serde_json::from_str(&proven_page(&server, "/v1/events?from=1").await).unwrap();
    assert_eq!((page.next, page.events), (1, Vec::new()));
}

/// The body of a page for an operator that proves the secret.
async fn proven_page(server: &Server, path: &str) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let hello = Hello::new(server.run, None).unwrap();
    let hex_hello = hex::encode(hello.encode());
    let asked = format!(
        "POST /v1/hello HTTP/1.1\r\nhost: x\r\n{HEADER_HELLO}: {hex_hello}\r\ncontent-length: 0\r\n\r\n"
    );
    stream.write_all(asked.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.windows(5).any(|end| end == b"\r\n\r\n\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let line =
        head.lines().find_map(|line| line.strip_prefix(&format!("{HEADER_ANSWER}: "))).unwrap();
    let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
    hex::decode_to_slice(line.trim(), &mut answer).unwrap();
    let proof = hello.client_proof(&server.secret, Channel::Operator, &answer).unwrap();
    let asked = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{HEADER_PROOF}: {}\r\n\r\n",
        hex::encode(proof)
    );
    stream.write_all(asked.as_bytes()).await.unwrap();
    let mut told = String::new();
    tokio::time::timeout(LIMIT, stream.read_to_string(&mut told)).await.unwrap().unwrap();
    let (head, body) = told.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body.to_owned()
}

#[tokio::test]
async fn user_named_by_the_proxy_must_be_a_viewer() {
    let mut configuration = Configuration::with_defaults(Environment::empty());
    configuration.set("yarn.acl.enable", "true", "test");
    configuration.set("yarn.admin.acl", "root", "test");
    let viewers = Viewers::of(&configuration, "alice", ["bob", ""]).unwrap();
    let server = server(Some(PageGate::new(proxy("127.0.0.1"), viewers))).await;
    let ask = async |path, user: &str| {
        let cookie = format!("Cookie: a=b; proxy-user={user}\r\n");
        server.ask_with("GET", path, &cookie).await.0
    };
    // The proxy's hosts are looked up when the server begins.
    tokio::time::timeout(LIMIT, async {
        while ask("/", "alice").await == 302 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    for (user, status) in [("alice", 200), ("bob", 200), ("root", 200), ("dr.who", 403)] {
        for path in ["/", "/api/v1/status"] {
            assert_eq!(ask(path, user).await, status, "{path} for {user}");
        }
    }
    assert_eq!(server.ask("GET", "/").await.0, 200, "nobody is named");
}
