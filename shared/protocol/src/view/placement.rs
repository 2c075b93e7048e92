//! What YARN calls things: the application, and the container behind a slot.

use serde::{Deserialize, Serialize};

use crate::ids::Attempt;
use crate::url;

/// The application that a run is to YARN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationView {
    /// Its id, as YARN writes it: `application_1700000000000_0005`.
    pub id: String,
    /// The user that submitted it.
    pub user: String,
    /// Its queue; empty while it is not known.
    #[serde(default)]
    pub queue: String,
}

/// The container that fills, or filled, a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Its id, as YARN writes it: `container_1700000000000_0005_01_000002`.
    pub container: String,
    /// Host name of its node.
    pub node: String,
    /// `host:port` of that node's web server; empty while it is not known.
    #[serde(default)]
    pub node_http: String,
}

/// The container of an ApplicationMaster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptView {
    /// The attempt.
    pub attempt: Attempt,
    /// Its container.
    pub placement: Placement,
}

impl Placement {
    /// Page of the node's web server that lists the container's logs, as long as the node keeps them:
    /// `http://<node>/node/containerlogs/<container>/<user>` (Hadoop's `ContainerLogsPage`). None when the
    /// node's web server is not known, or a part is nothing that belongs into a URL.
    #[must_use]
    pub fn log_url(&self, user: &str) -> Option<String> {
        let fits = url::is_authority(&self.node_http)
            && url::is_container(&self.container)
            && url::is_user(user);
        fits.then(|| {
            format!("http://{}/node/containerlogs/{}/{user}", self.node_http, self.container)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_page_is_linked_only_when_every_part_is_valid() {
        let placement = Placement {
            container: "container_e17_1700000000000_0005_01_000002".into(),
            node: "n1".into(),
            node_http: "n1.example.com:8042".into(),
        };
        assert_eq!(
            placement.log_url("alice").as_deref(),
            Some(
                "http://n1.example.com:8042/node/containerlogs/container_e17_1700000000000_0005_01_000002/alice"
            )
        );
        assert_eq!(placement.log_url(""), None);
        assert_eq!(placement.log_url("../x"), None);
        let hostile = Placement { node_http: "n1/\"><script>".into(), ..placement };
        assert_eq!(hostile.log_url("alice"), None);
        assert_eq!(Placement::default().log_url("alice"), None);
    }
}
