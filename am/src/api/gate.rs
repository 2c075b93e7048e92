//! Access control for the pages: on YARN users reach them through its proxy, which authenticates them.
//!
//! The rule is the same as in Hadoop's `AmIpFilter`, so that a Heddle job looks to an operator like any other application:
//! pages are served to the hosts of the proxy only, and all other clients are redirected there. It keeps browsers on one
//! origin. It does not protect secrets: any process on the proxy's host passes, and the pages contain none. [`Viewers`]
//! decides which users may see them. The calls of containers and operators (`/v1/…`)
//! prove the job's secret instead and never pass the proxy. Neither do scrapers of `/metrics`, which
//! read metrics only.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use heddle_hadoop::configuration::{RmService, ServersError};
use heddle_hadoop::{Configuration, HostPort};

use tokio::sync::Mutex;

use super::Viewers;

/// How often the proxy's host names are looked up again, as in `AmIpFilter`.
const LOOK_UP_EVERY: Duration = Duration::from_secs(300);
/// How long a server of the proxy may take to accept a connection, and for how long it counts as listening then.
const LISTEN_LIMIT: Duration = Duration::from_secs(1);
const LISTENS_FOR: Duration = Duration::from_secs(10);
/// After a look-up that found nothing.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(5);

/// YARN's proxy: its hosts, and its URLs for this application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebProxy {
    /// Hosts from which it asks: of `yarn.web-proxy.address`, else of the ResourceManagers' web servers.
    pub hosts: Vec<String>,
    /// URLs of this application's pages there, one for each server, without a slash at the end:
    /// `http://rm:8088/proxy/application_…`. With several ResourceManagers any that listens will do: a standby sends on to
    /// the active one.
    pub bases: Vec<String>,
}

impl WebProxy {
    /// The proxy that a configuration names (`WebAppUtils.getProxyHostsAndPortsForAmFilter`). `path` is that of the
    /// application there, which YARN gives in `APPLICATION_WEB_PROXY_BASE`: `/proxy/application_…`. `own_host` stands
    /// for an address of `0.0.0.0`, which means the machine that reads it.
    ///
    /// # Errors
    /// When an address is malformed or a member of a group of ResourceManagers has none.
    pub fn of(
        configuration: &Configuration,
        path: &str,
        own_host: &str,
    ) -> Result<Self, ServersError> {
        let is_secure = configuration
            .trimmed("yarn.http.policy")?
            .is_some_and(|policy| policy.eq_ignore_ascii_case("HTTPS_ONLY"));
        let (scheme, service) = match is_secure {
            true => ("https", RmService::SecureWeb),
            false => ("http", RmService::Web),
        };
        let servers =
            match configuration.address("yarn.web-proxy.address", Some(service.default_port()))? {
                Some(proxy) => vec![proxy],
                None => service.addresses(configuration)?,
            };
        let servers: Vec<_> = servers
            .into_iter()
            .map(|server| match server.host() {
                "0.0.0.0" | "::" => HostPort::new(own_host, server.port()),
                _ => server,
            })
            .collect();
        let path = path.trim_end_matches('/');
        let bases = servers.iter().map(|server| format!("{scheme}://{server}{path}")).collect();
        Ok(Self { hosts: servers.iter().map(|server| server.host().to_owned()).collect(), bases })
    }
}

/// What becomes of a request for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is answered.
    Serve,
    /// It is sent to the proxy, at this URL.
    Redirect(String),
    /// The user that the proxy names may not view the pages.
    Forbid(String),
}

/// The way of a request from `peer` for `path` (with its query), when the proxy's hosts have these addresses and its
/// pages are at `base`.
#[must_use]
pub fn way(base: &str, addresses: &BTreeSet<IpAddr>, peer: IpAddr, path: &str) -> Way {
    let peer = peer.to_canonical();
    // All of 127/8 is this machine, and the system reports 127.0.0.1 for any address of it.
    let is_here = peer.is_loopback() && addresses.iter().any(|address| address.is_loopback());
    if is_here || addresses.contains(&peer) {
        return Way::Serve;
    }
    // This word shows the proxy that it was redirected to itself, and it stops (`WebAppProxyServlet`).
    let base = base.replacen("/proxy/", "/proxy/redirect/", 1);
    let path = if path.starts_with('/') { path } else { "/" };
    Way::Redirect(format!("{base}{path}"))
}

/// Whether something listens where a URL leads.
async fn is_listening(url: &str) -> bool {
    let server =
        url.split_once("://").and_then(|(_, rest)| rest.split('/').next()).unwrap_or_default();
    let connected = tokio::time::timeout(LISTEN_LIMIT, tokio::net::TcpStream::connect(server));
    matches!(connected.await, Ok(Ok(_)))
}

/// A proxy with the last resolved addresses of its hosts.
#[derive(Debug)]
pub struct PageGate {
    proxy: WebProxy,
    viewers: RwLock<Option<Arc<Viewers>>>,
    addresses: RwLock<BTreeSet<IpAddr>>,
    /// Which of several servers of the proxy listens, and when that was found.
    listens: Mutex<Option<(usize, Instant)>>,
}

impl PageGate {
    /// A gate that redirects all clients until the proxy's hosts are resolved, which [`super::serve`] does. Pages are for
    /// `viewers`, or for all users.
    #[must_use]
    pub fn new(proxy: WebProxy, viewers: Option<Viewers>) -> Arc<Self> {
        Arc::new(Self {
            proxy,
            viewers: RwLock::new(viewers.map(Arc::new)),
            addresses: RwLock::default(),
            listens: Mutex::default(),
        })
    }

    /// Replaces the viewers: the ResourceManager names users at the registration, after the first pages.
    pub fn set_viewers(&self, viewers: Option<Viewers>) {
        *self.viewers.write().unwrap_or_else(PoisonError::into_inner) = viewers.map(Arc::new);
    }

    fn viewers(&self) -> Option<Arc<Viewers>> {
        self.viewers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// See [`way`]; `user` is the user that the proxy names.
    pub(super) async fn way(&self, peer: IpAddr, path: &str, user: Option<String>) -> Way {
        let way = {
            let addresses = self.addresses.read().unwrap_or_else(PoisonError::into_inner);
            way("", &addresses, peer, path)
        };
        if let Way::Redirect(_) = way {
            let base = self.base().await;
            return self::way(&base, &BTreeSet::new(), peer, path);
        }
        let (Way::Serve, Some(viewers), Some(user)) = (&way, self.viewers(), user) else {
            return way;
        };
        let asked = user.clone();
        match tokio::task::spawn_blocking(move || viewers.include(&asked)).await {
            Ok(true) => Way::Serve,
            Ok(false) | Err(_) => Way::Forbid(user),
        }
    }

    /// Where clients are redirected: the first server of the proxy that listens, as `AmIpFilter.findRedirectUrl` has it. Looked
    /// for again after a while, by one request at a time.
    async fn base(&self) -> String {
        let bases = &self.proxy.bases;
        let first = || bases.first().cloned().unwrap_or_default();
        if bases.len() < 2 {
            return first();
        }
        let mut listens = self.listens.lock().await;
        let index = match *listens {
            Some((index, since)) if since.elapsed() < LISTENS_FOR => index,
            _ => {
                let mut found = 0;
                for (index, base) in bases.iter().enumerate() {
                    if is_listening(base).await {
                        found = index;
                        break;
                    }
                }
                *listens = Some((found, Instant::now()));
                found
            }
        };
        bases.get(index).cloned().unwrap_or_else(first)
    }

    /// Looks the proxy's hosts up, again and again.
    pub(super) async fn keep_looking(self: Arc<Self>) {
        loop {
            let found = self.look_up().await;
            let wait = match found.is_empty() {
                true => {
                    tracing::warn!(
                        hosts = ?self.proxy.hosts,
                        "proxy_hosts_not_resolved"
                    );
                    LOOK_UP_AGAIN
                }
                false => {
                    // What was found before counts on when the name service fails.
                    *self.addresses.write().unwrap_or_else(PoisonError::into_inner) = found;
                    LOOK_UP_EVERY
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn look_up(&self) -> BTreeSet<IpAddr> {
        let mut found = BTreeSet::new();
        for host in &self.proxy.hosts {
            match tokio::net::lookup_host((host.as_str(), 0)).await {
                Ok(addresses) => {
                    found.extend(addresses.map(|address| address.ip().to_canonical()));
                }
                Err(error) => tracing::debug!(host, %error, "proxy_host_not_resolved"),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use heddle_hadoop::configuration::Environment;

    use super::*;

    fn proxy(pairs: &[(&str, &str)]) -> WebProxy {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        for (key, value) in pairs {
            configuration.set(key, *value, "test");
        }
        WebProxy::of(&configuration, "/proxy/application_1_0001", "10.0.0.7").unwrap()
    }

    #[test]
    fn proxy_is_its_own_host_or_the_resourcemanagers() {
        let alone = proxy(&[
            ("yarn.web-proxy.address", "wp.example.com:8089"),
            ("yarn.resourcemanager.hostname", "rm"),
        ]);
        assert_eq!(alone.hosts, ["wp.example.com"]);
        assert_eq!(alone.bases[0], "http://wp.example.com:8089/proxy/application_1_0001");
        let one = proxy(&[("yarn.resourcemanager.hostname", "rm.example.com")]);
        assert_eq!(one.bases[0], "http://rm.example.com:8088/proxy/application_1_0001");
        let pair = proxy(&[
            ("yarn.http.policy", "HTTPS_ONLY"),
            ("yarn.resourcemanager.ha.enabled", "true"),
            ("yarn.resourcemanager.ha.rm-ids", "rm1,rm2"),
            ("yarn.resourcemanager.hostname.rm1", "h1"),
            ("yarn.resourcemanager.hostname.rm2", "h2"),
        ]);
        assert_eq!(pair.hosts, ["h1", "h2"]);
        assert_eq!(
            pair.bases,
            [
                "https://h1:8090/proxy/application_1_0001",
                "https://h2:8090/proxy/application_1_0001"
            ]
        );
        assert_eq!(proxy(&[]).hosts, ["10.0.0.7"], "0.0.0.0 is this machine");
    }

    #[test]
    fn proxy_is_served_and_other_clients_are_redirected() {
        let proxy = proxy(&[("yarn.resourcemanager.hostname", "rm")]);
        let addresses = BTreeSet::from(["10.0.0.1".parse().unwrap()]);
        let way = |peer: &str, path| way(&proxy.bases[0], &addresses, peer.parse().unwrap(), path);
        assert_eq!(way("10.0.0.1", "/"), Way::Serve);
        assert_eq!(way("::ffff:10.0.0.1", "/"), Way::Serve);
        let redirect = |path: &str| {
            Way::Redirect(format!("http://rm:8088/proxy/redirect/application_1_0001{path}"))
        };
        assert_eq!(way("10.0.0.2", "/metrics?a=b"), redirect("/metrics?a=b"));
        assert_eq!(way("127.0.0.1", "/"), redirect("/"));
        assert_eq!(way("10.0.0.2", "@evil.example.com/"), redirect("/"));
    }

    #[test]
    fn a_proxy_on_loopback_is_this_machine() {
        let proxy = proxy(&[("yarn.resourcemanager.hostname", "127.0.7.1")]);
        let addresses = BTreeSet::from(["127.0.7.1".parse().unwrap()]);
        let peer = "127.0.0.1".parse().unwrap();
        assert_eq!(way(&proxy.bases[0], &addresses, peer, "/"), Way::Serve);
        let other = "10.0.0.2".parse().unwrap();
        assert!(matches!(way(&proxy.bases[0], &addresses, other, "/"), Way::Redirect(_)));
    }

    #[tokio::test]
    async fn no_client_passes_before_the_hosts_are_resolved() {
        let proxy = WebProxy {
            hosts: vec!["127.0.0.1".into()],
            bases: vec!["http://127.0.0.1:8088/proxy/a".into()],
        };
        let gate = PageGate::new(proxy, None);
        let peer = "127.0.0.1".parse().unwrap();
        assert!(matches!(gate.way(peer, "/", None).await, Way::Redirect(_)));
        let found = gate.look_up().await;
        *gate.addresses.write().unwrap() = found;
        assert_eq!(gate.way(peer, "/", None).await, Way::Serve);
    }

    #[tokio::test]
    async fn clients_are_redirected_to_a_proxy_that_listens() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listens = listener.local_addr().unwrap();
        // A port that was bound a moment ago and is not any more: the listener is gone before the gate looks.
        let closed = {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap()
        };
        let base = |server| format!("http://{server}/proxy/a");
        let proxy =
            WebProxy { hosts: vec!["10.0.0.1".into()], bases: vec![base(closed), base(listens)] };
        let gate = PageGate::new(proxy, None);
        let peer = "10.0.0.2".parse().unwrap();
        let expected = Way::Redirect(format!("http://{listens}/proxy/redirect/a/"));
        assert_eq!(gate.way(peer, "/", None).await, expected);
        drop(listener);
        let soon = gate.way(peer, "/", None).await;
        assert_eq!(soon, expected, "not looked for with each request");
    }
}
