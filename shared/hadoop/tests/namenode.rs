//! Calls of [`NameNode`] at servers that do not implement them.

mod scripted;

use heddle_hadoop::User;
use heddle_hadoop::namenode::NameNode;
use heddle_hadoop::proto::common::RpcResponseHeaderProto;
use heddle_hadoop::proto::common::rpc_response_header_proto::RpcErrorCodeProto;
use heddle_hadoop::rpc::{Login, RpcClient};
use std::time::Duration;

use scripted::{Server, options, reply};

/// As a NameNode of HDFS 2 answers a call that it does not have.
async fn without_new_calls() -> Server {
    Server::start(|_, mut peer| async move {
        peer.preamble().await;
        while let Some(call) = peer.call().await {
            let header = RpcResponseHeaderProto {
                call_id: call.id.cast_unsigned(),
                status: 1,
                exception_class_name: Some("org.apache.hadoop.ipc.RpcNoSuchMethodException".into()),
                error_msg: Some(format!("Unknown method {} called", call.method)),
                error_detail: Some(RpcErrorCodeProto::ErrorNoSuchMethod.into()),
                ..Default::default()
            };
            peer.send(&reply(&header, b"")).await;
        }
    })
    .await
}

#[tokio::test]
async fn namenode_without_a_call_has_no_such_feature() {
    let server = without_new_calls().await;
    let login = Login::simple(User::new("alice"));
    let client = RpcClient::new(options());
    let servers = [server.address.clone()];
    let namenode = NameNode::new(&client, servers, login, Duration::from_secs(20));
    let policy = namenode.erasure_coding_policy("/x").await;
    assert_eq!(policy.expect("no erasure coding there"), None);
    let zone = namenode.encryption_zone("/x").await;
    assert_eq!(zone.expect("no encryption zones there"), None);
    let summary = namenode.content_summary("/x").await;
    let error = summary.expect_err("a call that everything needs stays an error");
    assert!(error.is_no_such_method(), "{error:?}");
}
