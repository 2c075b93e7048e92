//! A NameNode that is not there.

use super::connect::tests::configuration;
use super::*;

#[tokio::test]
async fn a_namenode_that_is_not_there_is_unavailable() {
    // A port without a listener: bound, then released.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("bound")
        .local_addr()
        .expect("bound")
        .port();
    let quick = configuration(&[("dfs.client.failover.max.attempts", "1")]);
    let storage = HdfsStorage::new(&format!("127.0.0.1:{port}"), &quick).expect("no call yet");
    let error = storage.stat(&StorePath::root()).await.expect_err("no listener");
    assert!(error.is_retryable(), "{error}");
    let error = storage.reach().await.expect_err("no listener");
    assert!(error.is_retryable(), "{error}");
    let error = storage
        .create(&StorePath::parse("/x").expect("a path"), Mode::FILE)
        .await
        .expect_err("no listener");
    assert!(!error.is_unknown(), "nothing was sent: {error}");
}
