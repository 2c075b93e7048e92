//! One GET request to an HTTP server of the cluster, bounded in time and memory.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::handshake;
use hyper::header::{ACCEPT, CONNECTION, HOST};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The URL is not plain HTTP or has no host.
    #[error("{0} is not an http:// URL with a host")]
    Url(String),
    /// The server did not answer in time.
    #[error("the server does not answer within {} s", .0.as_secs())]
    Late(Duration),
    /// The connection failed.
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    /// The connection closed during the exchange.
    #[error("the connection was closed during the exchange")]
    Exchange(#[from] hyper::Error),
    /// The request is not valid HTTP.
    #[error("cannot build the request")]
    Request(#[from] hyper::http::Error),
    /// The answer exceeds the limit.
    #[error("the answer must have at most {0} bytes")]
    Long(usize),
}

/// Which part of the answer's body to keep.
#[derive(Clone, Copy, Debug)]
pub(super) enum Keep {
    /// All of it; a longer body is an error.
    Start(usize),
    /// The last bytes, at most this many.
    End(usize),
}

/// An answer.
#[derive(Debug)]
pub(super) struct HttpAnswer {
    pub(super) status: u16,
    pub(super) body: Bytes,
}

/// Sends one request and follows no redirect.
pub(super) async fn get(url: &str, keep: Keep, limit: Duration) -> Result<HttpAnswer, FetchError> {
    tokio::time::timeout(limit, exchange(url, keep)).await.map_err(|_| FetchError::Late(limit))?
}

async fn exchange(url: &str, keep: Keep) -> Result<HttpAnswer, FetchError> {
    let not_ours = || FetchError::Url(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| not_ours())?;
    let authority = uri.authority().ok_or_else(not_ours)?;
    if uri.scheme_str() != Some("http") {
        return Err(not_ours());
    }
    let host = authority.host().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80)))
        .await
        .map_err(FetchError::Connect)?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path)
        .header(HOST, authority.as_str())
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    let status = answer.status().as_u16();
    let body = body(answer.into_body(), keep).await;
    // The connection serves this exchange only.
    driver.abort();
    Ok(HttpAnswer { status, body: body? })
}

async fn body(mut body: hyper::body::Incoming, keep: Keep) -> Result<Bytes, FetchError> {
    let mut kept = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        kept.extend_from_slice(&data);
        match keep {
            Keep::Start(bytes_max) if kept.len() > bytes_max => {
                return Err(FetchError::Long(bytes_max));
            }
            // Cut at twice the size, so that each byte is moved once on average.
            Keep::End(bytes_max) if kept.len() > bytes_max.saturating_mul(2) => {
                kept = kept.split_off(kept.len() - bytes_max);
            }
            Keep::Start(_) | Keep::End(_) => {}
        }
    }
    if let Keep::End(bytes_max) = keep
        && kept.len() > bytes_max
    {
        kept = kept.split_off(kept.len() - bytes_max);
    }
    Ok(kept.freeze())
}
