//! Connections and failover with servers that work, and servers that fail as real ones do.

mod scripted;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use heddle_hadoop::User;
use heddle_hadoop::rpc::error::{AuthError, LostCause};
use heddle_hadoop::rpc::{CallOptions, CallOutcome, Login, RpcClient, RpcError, RpcOptions};
use scripted::{Call, PROTOCOL, Server, echo, exception, once, options, proxy, unused_address};
use tokio::sync::{mpsc, oneshot};

fn idempotent() -> CallOptions {
    CallOptions::idempotent(Duration::from_secs(20))
}

const STANDBY: &str = "org.apache.hadoop.ipc.StandbyException";

#[tokio::test]
async fn calls_share_a_connection_and_have_replies_in_any_order() {
    let server = Server::start(|_, mut peer| async move {
        peer.preamble().await;
        let mut calls = Vec::new();
        for _ in 0..50 {
            calls.push(peer.call().await.expect("comes"));
        }
        for call in calls.iter().rev() {
            peer.echo(call).await;
        }
        peer.hang().await;
    })
    .await;
    let proxy = Arc::new(proxy([server.address.clone()]));
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..50 {
        let proxy = proxy.clone();
        calls.spawn(async move { (number, echo(&proxy, &number.to_string(), once()).await) });
    }
    while let Some(done) = calls.join_next().await {
        let (number, reply) = done.expect("does not panic");
        assert_eq!(reply.expect("is answered"), number.to_string());
    }
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn a_connection_belongs_to_one_protocol_and_one_user() {
    let server = Server::start(|_, peer| peer.echo_all()).await;
    let client = RpcClient::new(options());
    let address = || [server.address.clone()];
    let alice = || Login::simple(User::new("alice"));
    for (protocol, login, connections) in [
        (PROTOCOL, alice(), 1),
        (PROTOCOL, alice(), 1),
        ("another.Protocol", alice(), 2),
        (PROTOCOL, Login::simple(User::new("bob")), 3),
        (PROTOCOL, Login::simple(User::proxy("alice", "oozie")), 4),
        (PROTOCOL, alice(), 4),
    ] {
        echo(&client.proxy(protocol, address(), login), "x", once()).await.expect("is answered");
        assert_eq!(server.accepted(), connections);
    }
}

/// A server that records all calls. It answers those for which `answers` is true and closes the connection at others.
async fn noting(answers: fn(usize) -> bool) -> (Server, Arc<Mutex<Vec<Call>>>) {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let copy = notes.clone();
    let server = Server::start(move |number, mut peer| {
        let notes = copy.clone();
        async move {
            peer.preamble().await;
            while let Some(call) = peer.call().await {
                notes.lock().expect("no panic").push(call.clone());
                if !answers(number) {
                    return;
                }
                peer.echo(&call).await;
            }
        }
    })
    .await;
    (server, notes)
}

#[tokio::test]
async fn retry_over_a_new_connection_keeps_its_call_id() {
    let (server, notes) = noting(|number| number == 2).await;
    echo(&proxy([server.address.clone()]), "x", idempotent()).await.expect("is answered at last");
    let notes = notes.lock().expect("no panic");
    let retries: Vec<_> = notes.iter().map(|call| call.retry).collect();
    assert_eq!(retries, [0, 1, 2]);
    assert!(
        notes.iter().all(|call| call.id == notes[0].id && call.client_id == notes[0].client_id)
    );
    assert_eq!(notes[0].client_id.len(), 16);
}

#[tokio::test]
async fn a_call_of_unknown_outcome_is_retried_only_if_allowed() {
    let (server, notes) = noting(|_| false).await;
    let proxy = proxy([server.address.clone()]);
    let options = CallOptions::unless_executed(Duration::from_secs(20));
    let error = echo(&proxy, "x", options).await.expect_err("the server closes");
    assert!(matches!(error, RpcError::Lost { sent: true, .. }), "{error:?}");
    assert_eq!(notes.lock().expect("no panic").len(), 1);
}

#[tokio::test]
async fn calls_stay_at_the_active_server() {
    let standby = Server::start(|_, peer| peer.throw_all(STANDBY)).await;
    let active = Server::start(|_, peer| peer.echo_all()).await;
    let gone = unused_address().await;
    let proxy = proxy([gone, standby.address.clone(), active.address.clone()]);
    let options = CallOptions::unless_executed(Duration::from_secs(20));
    assert_eq!(echo(&proxy, "x", options).await.expect("one is active"), "x");
    assert_eq!(echo(&proxy, "y", options).await.expect("one is active"), "y");
    assert_eq!(proxy.server(), Some(&active.address));
    assert_eq!((standby.accepted(), active.accepted()), (1, 1));
}

#[tokio::test]
async fn a_restarted_server_is_found_within_the_timeout() {
    let (first, first_call) = oneshot::channel();
    let first = Mutex::new(Some(first));
    let server = Server::start(move |_, mut peer| {
        let notify = first.lock().expect("no panic").take();
        async move {
            peer.preamble().await;
            let mut notify = notify;
            while let Some(call) = peer.call().await {
                match notify.take() {
                    Some(notify) => {
                        notify.send(()).expect("the test waits");
                        peer.throw(&call, "org.apache.hadoop.ipc.RetriableException").await;
                    }
                    None => peer.echo(&call).await,
                }
            }
        }
    })
    .await;
    let proxy = proxy([server.address.clone()]);
    let options = CallOptions::unless_executed(Duration::from_secs(20));
    assert_eq!(echo(&proxy, "x", options).await.expect("is ready the second time"), "x");
    first_call.await.expect("was refused once");
    assert_eq!(server.accepted(), 1, "the same connection serves the retry");
}

#[tokio::test]
async fn exceptions_of_the_method_reach_the_caller() {
    let class = "org.apache.hadoop.yarn.exceptions.ApplicationNotFoundException";
    let server = Server::start(move |_, peer| peer.throw_all(class)).await;
    let error =
        echo(&proxy([server.address.clone()]), "x", idempotent()).await.expect_err("is thrown");
    assert!(error.is_remote("ApplicationNotFoundException") && error.is_remote(class), "{error:?}");
    assert_eq!((error.outcome(), error.is_retryable()), (CallOutcome::Answered, false));
    let source = std::error::Error::source(&error).expect("has one");
    assert_eq!(source.to_string(), "ApplicationNotFoundException: as the test says");
}

#[tokio::test]
async fn a_rejected_context_means_no_call_was_executed() {
    let class = "org.apache.hadoop.security.AccessControlException";
    let server = Server::start(move |_, mut peer| async move {
        peer.preamble().await;
        peer.frame().await;
        peer.send(&exception(-1, 2, class)).await;
    })
    .await;
    let error =
        echo(&proxy([server.address.clone()]), "x", idempotent()).await.expect_err("is refused");
    let RpcError::Auth { source: AuthError::Refused(exception), .. } = &error else {
        panic!("{error:?}")
    };
    assert!(exception.is_denied());
    assert_eq!((error.outcome(), error.is_retryable()), (CallOutcome::NotExecuted, false));
}

#[tokio::test]
async fn a_fatal_reply_fails_one_call_and_leaves_others_unknown() {
    let server = Server::start(|_, mut peer| async move {
        peer.preamble().await;
        let first = peer.call().await.expect("comes");
        let _second = peer.call().await.expect("comes");
        peer.send(&exception(first.id, 2, "some.FatalException")).await;
    })
    .await;
    let proxy = proxy([server.address.clone()]);
    let (one, two) = tokio::join!(echo(&proxy, "1", once()), echo(&proxy, "2", once()));
    let (one, two) = (one.expect_err("is fatal"), two.expect_err("is lost"));
    let (blamed, other) =
        if matches!(one, RpcError::Remote { .. }) { (one, two) } else { (two, one) };
    assert!(matches!(&blamed, RpcError::Remote { source, .. } if source.is_fatal()), "{blamed:?}");
    assert!(
        matches!(&other, RpcError::Lost { sent: true, source: LostCause::Fatal(_), .. }),
        "{other:?}"
    );
    assert_eq!(other.outcome(), CallOutcome::Unknown);
}

#[tokio::test]
async fn a_new_login_uses_a_new_connection() {
    let (arrived, mut arrivals) = mpsc::channel(1);
    let (release, released) = oneshot::channel::<()>();
    let released = Mutex::new(Some(released));
    let server = Server::start(move |_, mut peer| {
        let (arrived, released) = (arrived.clone(), released.lock().expect("no panic").take());
        async move {
            peer.preamble().await;
            let call = peer.call().await.expect("comes");
            arrived.send(()).await.expect("the test waits");
            if let Some(released) = released {
                released.await.expect("the test says when");
            }
            peer.echo(&call).await;
            peer.hang().await;
        }
    })
    .await;
    let proxy = Arc::new(proxy([server.address.clone()]));
    let old = tokio::spawn({
        let proxy = proxy.clone();
        async move { echo(&proxy, "old", once()).await }
    });
    arrivals.recv().await.expect("the first call is there");
    proxy.set_login(Login::simple(User::new("alice2")));
    assert_eq!(echo(&proxy, "new", once()).await.expect("goes on"), "new");
    assert_eq!(server.accepted(), 2);
    release.send(()).expect("the server waits");
    assert_eq!(old.await.expect("no panic").expect("ends on the old one"), "old");
}

#[tokio::test]
async fn an_idle_connection_closes_and_the_next_call_opens_another() {
    let (closed, mut closes) = mpsc::channel(1);
    let server = Server::start(move |_, mut peer| {
        let closed = closed.clone();
        async move {
            peer.preamble().await;
            let call = peer.call().await.expect("comes");
            peer.echo(&call).await;
            assert!(peer.ends().await);
            let _ = closed.send(()).await;
        }
    })
    .await;
    let client =
        RpcClient::new(RpcOptions { idle_timeout: Duration::from_millis(20), ..options() });
    let proxy = client.proxy(PROTOCOL, [server.address.clone()], Login::simple(User::new("alice")));
    echo(&proxy, "x", once()).await.expect("is answered");
    closes.recv().await.expect("closes by itself");
    assert_eq!(echo(&proxy, "y", once()).await.expect("is answered"), "y");
    assert_eq!(server.accepted(), 2);
}

#[tokio::test]
async fn calls_to_a_closing_idle_connection_succeed() {
    let server = Server::start(|_, peer| peer.echo_all()).await;
    let idle_timeout = Duration::from_millis(1);
    let client = RpcClient::new(RpcOptions { idle_timeout, ..options() });
    let login = Login::simple(User::new("alice"));
    let proxy = client.proxy(PROTOCOL, [server.address.clone()], login);
    // One try each: chance decides whether a call meets an open, a closing or a closed connection.
    for number in 0..300 {
        echo(&proxy, "x", once()).await.expect("is answered");
        if number % 3 == 0 {
            tokio::time::sleep(idle_timeout).await;
        }
    }
}

#[tokio::test]
async fn pings_keep_a_long_call_alive() {
    let server = Server::start(|_, mut peer| async move {
        peer.preamble().await;
        let _context = peer.frame().await.expect("comes");
        let _call = peer.frame().await.expect("comes");
        for _ in 0..3 {
            let ping = peer.frame().await.expect("a ping comes");
            // 27 bytes: a header with the call id -4, and nothing else.
            assert_eq!((ping.len(), ping[5], ping[6]), (27, 0x18, 7));
        }
        peer.send(&scripted::success(0, b"\x0a\x01x")).await;
        peer.hang().await;
    })
    .await;
    let client =
        RpcClient::new(RpcOptions { ping_interval: Duration::from_millis(10), ..options() });
    let proxy = client.proxy(PROTOCOL, [server.address.clone()], Login::simple(User::new("alice")));
    assert_eq!(echo(&proxy, "x", once()).await.expect("is answered at last"), "x");
}

#[tokio::test]
async fn a_dropped_call_does_not_affect_others() {
    let (arrived, mut arrivals) = mpsc::channel(2);
    let server = Server::start(move |_, mut peer| {
        let arrived = arrived.clone();
        async move {
            peer.preamble().await;
            let abandoned = peer.call().await.expect("comes");
            arrived.send(()).await.expect("the test waits");
            let second = peer.call().await.expect("comes");
            peer.echo(&abandoned).await;
            peer.echo(&second).await;
            peer.hang().await;
        }
    })
    .await;
    let proxy = Arc::new(proxy([server.address.clone()]));
    let abandoned = tokio::spawn({
        let proxy = proxy.clone();
        async move { echo(&proxy, "1", once()).await }
    });
    arrivals.recv().await.expect("was sent");
    abandoned.abort();
    assert!(abandoned.await.is_err());
    assert_eq!(echo(&proxy, "2", once()).await.expect("is answered"), "2");
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn a_slow_call_does_not_close_the_connection() {
    let server = Server::start(|_, mut peer| async move {
        peer.preamble().await;
        while let Some(call) = peer.call().await {
            // The reply to "slow" follows the next call.
            if call.body[..] == b"\x0a\x04slow"[..] {
                continue;
            }
            peer.echo(&call).await;
        }
    })
    .await;
    let proxy = proxy([server.address.clone()]);
    let slow = echo(&proxy, "slow", CallOptions::once(Duration::from_millis(200)));
    let others = async {
        for _ in 0..5 {
            echo(&proxy, "quick", once()).await.expect("is answered");
        }
    };
    let (slow, ()) = tokio::join!(slow, others);
    assert!(matches!(slow, Err(RpcError::Deadline { sent: true, .. })), "{slow:?}");
    echo(&proxy, "quick", once()).await.expect("is answered");
    assert_eq!(server.accepted(), 1, "the connection received bytes after the slow call");
}

#[tokio::test]
async fn a_call_without_servers_is_an_error() {
    let error = echo(&proxy([]), "x", idempotent()).await.expect_err("there is no server");
    assert!(matches!(error, RpcError::NoServer { .. }), "{error:?}");
}

#[tokio::test]
async fn each_try_that_times_out_gets_a_longer_timeout() {
    // The server answers after 300 ms. A try of 100 ms times out.
    let server = Server::start(|_, mut peer| async move {
        peer.preamble().await;
        while let Some(call) = peer.call().await {
            tokio::time::sleep(Duration::from_millis(300)).await;
            peer.echo(&call).await;
        }
    })
    .await;
    let options = idempotent().with_attempt_timeout(Duration::from_millis(100));
    let answer = echo(&proxy([server.address.clone()]), "x", options).await;
    assert_eq!(answer.expect("a later try waits long enough"), "x");
}
