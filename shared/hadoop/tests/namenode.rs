//! Calls of [`NameNode`] to a scripted server.

mod scripted;

use heddle_hadoop::namenode::NameNode;
use heddle_hadoop::proto::common::rpc_response_header_proto::RpcErrorCodeProto;
use heddle_hadoop::proto::common::{
    CancelDelegationTokenRequestProto, GetDelegationTokenRequestProto,
    GetDelegationTokenResponseProto, RenewDelegationTokenRequestProto,
    RenewDelegationTokenResponseProto, RpcResponseHeaderProto,
};
use heddle_hadoop::rpc::{Login, RpcClient};
use heddle_hadoop::{Token, User};
use prost::Message as _;
use std::time::Duration;

use scripted::{Server, options, reply, success};

/// A NameNode of HDFS 2, which rejects calls that it does not have.
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

fn namenode(server: &Server) -> NameNode {
    let login = Login::simple(User::new("alice"));
    let client = RpcClient::new(options());
    NameNode::new(&client, [server.address.clone()], login, Duration::from_secs(20))
}

fn token() -> Token {
    Token::new(*b"identifier", *b"password", "HDFS_DELEGATION_TOKEN", "nn:8020")
}

#[tokio::test]
async fn a_delegation_token_is_issued_renewed_and_cancelled() {
    let server = Server::start(|_, mut peer| async move {
        peer.preamble().await;
        while let Some(call) = peer.call().await {
            let body = match call.method.as_str() {
                "getDelegationToken" => {
                    let request =
                        GetDelegationTokenRequestProto::decode(call.body).expect("decodes");
                    let issued = (request.renewer == "yarn").then(|| (&token()).into());
                    GetDelegationTokenResponseProto { token: issued }.encode_to_vec()
                }
                "renewDelegationToken" => {
                    let request =
                        RenewDelegationTokenRequestProto::decode(call.body).expect("decodes");
                    assert_eq!(Token::from(request.token), token());
                    RenewDelegationTokenResponseProto { new_expiry_time: 1_700_000_000_000 }
                        .encode_to_vec()
                }
                "cancelDelegationToken" => {
                    let request =
                        CancelDelegationTokenRequestProto::decode(call.body).expect("decodes");
                    assert_eq!(Token::from(request.token), token());
                    Vec::new()
                }
                method => panic!("the client called {method}"),
            };
            peer.send(&success(call.id, &body)).await;
        }
    })
    .await;
    let namenode = namenode(&server);
    let issued = namenode.delegation_token("yarn").await.expect("the server answers");
    assert_eq!(issued, Some(token()));
    let none = namenode.delegation_token("other").await.expect("the server answers");
    assert_eq!(none, None, "a cluster without security issues none");
    let expiry = namenode.renew_delegation_token(&token()).await.expect("the server answers");
    assert_eq!(expiry, 1_700_000_000_000);
    namenode.cancel_delegation_token(&token()).await.expect("the server answers");
}

#[tokio::test]
async fn a_namenode_without_a_call_lacks_its_feature() {
    let server = without_new_calls().await;
    let namenode = namenode(&server);
    let policy = namenode.erasure_coding_policy("/x").await;
    assert_eq!(policy.expect("no erasure coding there"), None);
    let zone = namenode.encryption_zone("/x").await;
    assert_eq!(zone.expect("no encryption zones there"), None);
    let summary = namenode.content_summary("/x").await;
    let error = summary.expect_err("a call that every client needs stays an error");
    assert!(error.is_no_such_method(), "{error:?}");
}
