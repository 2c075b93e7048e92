//! The URL under which a browser finds the report of a finished application.
//!
//! YARN keeps only the tracking URL of a finished application, and browsers cannot open `hdfs://`. So the URL leads to the
//! page that shows `report.txt` among the ApplicationMaster's logs. A NodeManager serves it as long as it keeps logs, and
//! redirects to the log server where logs are aggregated. Without such a page the URL leads to the NameNode's WebHDFS:
//! `http://<namenode>/webhdfs/v1/<path>?op=OPEN`, which redirects to a DataNode; browsers save the answer, since its type
//! is `application/octet-stream`. Rejected: `explorer.html#<path>`, which needs scripts and reads as the anonymous web
//! user (`hadoop.http.staticuser.user`), which cannot read a directory of mode 0700. On a cluster without security WebHDFS
//! trusts `user.name`, as HDFS itself trusts every client. On a secured cluster the browser authenticates, and the
//! parameter would be ignored.
//!
//! Source: `ContainerLogsPage`, `WebHdfsFileSystem`, `DFSUtil.getInfoServer`, `DFSConfigKeys`.

use std::time::Duration;

use heddle_hadoop::configuration::NameService;
use heddle_hadoop::{Configuration, HostPort};
use heddle_protocol::view::Placement;

use super::fetch::{self, Keep};

/// Timeout of the check whether a NameNode is active.
const PROBE_LIMIT: Duration = Duration::from_secs(3);

/// The page that shows `report.txt` among the logs of the container `am`; `None` if its node's web server is unknown.
#[must_use]
pub fn log_page(configuration: &Configuration, am: &Placement, user: &str) -> Option<String> {
    let page = am.log_url(user)?;
    let page = match text(configuration, "yarn.http.policy") {
        Some(policy) if policy.eq_ignore_ascii_case("HTTPS_ONLY") => {
            page.replacen("http://", "https://", 1)
        }
        _ => page,
    };
    Some(format!("{page}/report.txt/?start=0"))
}

/// The URLs under which a browser may find the file `url` (`hdfs://…`) as `user`, one for each NameNode, in the order of
/// the configuration. Empty when the file is not on HDFS or the NameNodes' web addresses are unknown.
#[must_use]
pub fn candidates(configuration: &Configuration, url: &str, user: &str) -> Vec<String> {
    let Some(rest) = url.strip_prefix("hdfs://") else {
        return Vec::new();
    };
    let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let default;
    let authority = match authority {
        "" => {
            default = default_authority(configuration);
            default.as_str()
        }
        given => given,
    };
    let is_secure = |policy: &str| policy.eq_ignore_ascii_case("HTTPS_ONLY");
    let (scheme, key) = match text(configuration, "dfs.http.policy") {
        Some(policy) if is_secure(&policy) => ("https", "dfs.namenode.https-address"),
        _ => ("http", "dfs.namenode.http-address"),
    };
    let user = match text(configuration, "hadoop.security.authentication") {
        Some(method) if !method.eq_ignore_ascii_case("simple") => String::new(),
        _ if user.is_empty() => String::new(),
        _ => format!("&user.name={}", encode(user, "-._~")),
    };
    servers(configuration, authority, key)
        .into_iter()
        .map(|server| {
            format!("{scheme}://{server}/webhdfs/v1{}?op=OPEN{user}", encode(path, "-._~/"))
        })
        .collect()
}

/// The tracking URL for the report `url`, without a request: the first of the [`candidates`], else `url` itself.
#[must_use]
pub fn tracking_url(configuration: &Configuration, url: &str, user: &str) -> String {
    let mut found = candidates(configuration, url, user).into_iter();
    found.next().unwrap_or_else(|| url.to_owned())
}

/// The same, but finds the active one of several NameNodes, since a standby serves no reads. The first if none reports
/// that it has the file. Takes three seconds for each at the most.
pub async fn find(configuration: &Configuration, url: &str, user: &str) -> String {
    let all = candidates(configuration, url, user);
    if all.len() > 1 {
        for candidate in &all {
            let asked = candidate.replacen("?op=OPEN", "?op=GETFILESTATUS", 1);
            match fetch::get(&asked, Keep::Start(64 * 1024), PROBE_LIMIT).await {
                Ok(answer) if answer.status == 200 => return candidate.clone(),
                Ok(_) | Err(_) => {}
            }
        }
    }
    all.into_iter().next().unwrap_or_else(|| url.to_owned())
}

fn text(configuration: &Configuration, key: &str) -> Option<String> {
    configuration.trimmed(key).ok().flatten()
}

fn default_authority(configuration: &Configuration) -> String {
    let url = text(configuration, "fs.defaultFS").unwrap_or_default();
    let rest = url.strip_prefix("hdfs://").unwrap_or_default();
    rest.split('/').next().unwrap_or_default().to_owned()
}

/// Web addresses of the NameNodes behind `authority`, a logical name or `host:port`. A wildcard stands for the host
/// of the RPC address, as Hadoop has it.
fn servers(configuration: &Configuration, authority: &str, key: &str) -> Vec<HostPort> {
    let Ok(service) = NameService::of(configuration, &format!("hdfs://{authority}")) else {
        return Vec::new();
    };
    let port = match key {
        "dfs.namenode.https-address" => 9871,
        _ => 9870,
    };
    let ids = configuration.list(&format!("dfs.ha.namenodes.{authority}")).unwrap_or_default();
    service
        .servers
        .iter()
        .enumerate()
        .map(|(n, rpc)| {
            let own = match (&service.logical, ids.get(n)) {
                (Some(logical), Some(id)) => format!("{key}.{logical}.{id}"),
                (Some(logical), None) => format!("{key}.{logical}"),
                (None, _) => key.to_owned(),
            };
            let found = configuration.address(&own, Some(port)).ok().flatten();
            let found = match found {
                // A cluster that names its one NameNode logically may still leave the plain key.
                None if service.servers.len() == 1 => {
                    configuration.address(key, Some(port)).ok().flatten()
                }
                found => found,
            };
            match found {
                Some(address) if !matches!(address.host(), "0.0.0.0" | "::" | "*") => address,
                Some(address) => HostPort::new(rpc.host(), address.port()),
                None => HostPort::new(rpc.host(), port),
            }
        })
        .collect()
}

/// Percent-encodes all but letters, digits and `kept` (RFC 3986 §2.1).
fn encode(text: &str, kept: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || kept.as_bytes().contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::configuration::Environment;

    use super::*;

    fn configuration(pairs: &[(&str, &str)]) -> Configuration {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        for (key, value) in pairs {
            configuration.set(key, *value, "test");
        }
        configuration
    }

    const REPORT: &str =
        "hdfs://nn.example.com:8020/user/alice/.heddle/reports/application_1_0001/report.txt";

    #[test]
    fn report_is_shown_among_the_logs_of_the_applicationmaster() {
        let am = Placement {
            container: "container_1_0001_01_000001".to_owned(),
            node: "n1".to_owned(),
            node_http: "n1:8042".to_owned(),
        };
        let page =
            "n1:8042/node/containerlogs/container_1_0001_01_000001/alice/report.txt/?start=0";
        assert_eq!(log_page(&configuration(&[]), &am, "alice"), Some(format!("http://{page}")));
        let tls = configuration(&[("yarn.http.policy", "HTTPS_ONLY")]);
        assert_eq!(log_page(&tls, &am, "alice"), Some(format!("https://{page}")));
        assert_eq!(log_page(&tls, &Placement::default(), "alice"), None);
    }

    #[test]
    fn one_namenode_is_found_by_its_rpc_host() {
        let found = tracking_url(&configuration(&[]), REPORT, "alice");
        assert_eq!(
            found,
            "http://nn.example.com:9870/webhdfs/v1/user/alice/.heddle/reports/application_1_0001/report.txt\
             ?op=OPEN&user.name=alice"
        );
        let set = [("dfs.namenode.http-address", "web.example.com:50070")];
        let found = tracking_url(&configuration(&set), REPORT, "");
        assert!(found.starts_with("http://web.example.com:50070/webhdfs/v1/user/"), "{found}");
        assert!(found.ends_with("?op=OPEN"), "{found}");
    }

    #[test]
    fn logical_name_has_one_url_for_each_namenode() {
        let configuration = configuration(&[
            ("fs.defaultFS", "hdfs://heddle"),
            ("dfs.nameservices", "heddle"),
            ("dfs.ha.namenodes.heddle", "nn1,nn2"),
            ("dfs.namenode.rpc-address.heddle.nn1", "h1:8020"),
            ("dfs.namenode.rpc-address.heddle.nn2", "h2:8020"),
            ("dfs.namenode.http-address.heddle.nn2", "0.0.0.0:9999"),
        ]);
        for url in ["hdfs://heddle/r", "hdfs:///r"] {
            assert_eq!(
                candidates(&configuration, url, "a b&c"),
                [
                    "http://h1:9870/webhdfs/v1/r?op=OPEN&user.name=a%20b%26c",
                    "http://h2:9999/webhdfs/v1/r?op=OPEN&user.name=a%20b%26c"
                ]
            );
        }
    }

    #[test]
    fn secured_cluster_is_queried_over_tls_without_a_name() {
        let configuration = configuration(&[
            ("dfs.http.policy", "HTTPS_ONLY"),
            ("hadoop.security.authentication", "kerberos"),
        ]);
        assert_eq!(
            tracking_url(&configuration, "hdfs://nn:8020/a b/\"x", "alice"),
            "https://nn:9871/webhdfs/v1/a%20b/%22x?op=OPEN"
        );
    }

    #[test]
    fn url_that_no_browser_can_open_is_unchanged() {
        let configuration = configuration(&[]);
        assert_eq!(tracking_url(&configuration, "file:///tmp/r", "alice"), "file:///tmp/r");
        let broken = [("fs.defaultFS", "file:///")];
        assert_eq!(tracking_url(&self::configuration(&broken), "hdfs:///r", "alice"), "hdfs:///r");
    }
}
