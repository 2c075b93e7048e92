//! What a person's browser does with a link that Hadoop shows: it goes where it is sent, and shows what comes.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};

use super::cluster::Cluster;
use super::http;

/// Browsers give up after some more.
const REDIRECTS_MAX: usize = 8;

impl Cluster {
    /// The page at `url`, wherever that leads.
    ///
    /// # Errors
    /// A server on the path does not respond, or with an error.
    pub fn browse(&self, url: &str) -> Result<String> {
        let mut way = vec![url.to_owned()];
        while way.len() <= REDIRECTS_MAX {
            let at = way.last().context("it begins with one")?;
            let (address, path) = place_of(at).with_context(|| format!("{way:?}"))?;
            let reply = http::exchange(address, "GET", &path)?;
            match (reply.status, reply.header("location")) {
                (200, _) => {
                    let kind = reply.header("content-type").unwrap_or_default();
                    ensure!(kind.starts_with("text/"), "{way:?}: saved as a file: {kind}");
                    return Ok(reply.body);
                }
                (301 | 302 | 303 | 307, Some(next)) => way.push(next.to_owned()),
                (status, _) => bail!("{way:?}: {status} {:.1000}", reply.body),
            }
        }
        bail!("no end: {way:?}")
    }
}

fn place_of(url: &str) -> Result<(SocketAddr, String)> {
    let rest = url.strip_prefix("http://").context("no http://")?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address: SocketAddr = authority.parse().context("no address")?;
    ensure!(address.ip().is_loopback(), "{address} is not ours");
    Ok((address, format!("/{path}")))
}
