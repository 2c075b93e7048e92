//! Users that may view the pages, where the cluster restricts that (`yarn.acl.enable`).
//!
//! The rule is YARN's for its own pages of an application (`ApplicationACLsManager`, right `VIEW_APP`): the owner, the
//! cluster's administrators (`yarn.admin.acl`), and the users that the job names (`yarn.view-acl`) or the ResourceManager
//! names at the registration. The latter restrict the pages even where the submitter's configuration lacks
//! `yarn.acl.enable`; the administrators are then those that it states, since the default is all users. YARN's proxy
//! authenticates the user and names it in a cookie. As in Hadoop's own ApplicationMasters, a request without a user name
//! is served: a cluster without authentication has no restriction. A process on the proxy's host can claim any name, as
//! for every application.

use std::collections::BTreeSet;
use std::ffi::CString;

use heddle_hadoop::Configuration;
use heddle_hadoop::configuration::PropertyError;
use hyper::HeaderMap;
use hyper::header::COOKIE;
use nix::unistd::{Group, User, getgrouplist};

/// Name of the proxy's cookie (`WebAppProxyServlet.PROXY_USER_COOKIE_NAME`).
const USER_COOKIE: &str = "proxy-user";

/// A list as YARN writes it: `user,user group,group`, or `*` (`AccessControlList`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Acl {
    all_users: bool,
    users: BTreeSet<String>,
    groups: BTreeSet<String>,
}

impl Acl {
    fn parse(text: &str) -> Self {
        let names = |part: Option<&str>| {
            let names = part.unwrap_or_default().split(',').map(str::trim);
            let named = names.filter(|name| !name.is_empty());
            named.map(str::to_owned).collect()
        };
        let mut parts = text.splitn(2, ' ');
        Self {
            all_users: text.trim() == "*",
            users: names(parts.next()),
            groups: names(parts.next()),
        }
    }

    fn names(&self, user: &str) -> bool {
        self.all_users || self.users.contains(user)
    }
}

/// Users that may view the pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Viewers {
    owner: String,
    acls: Vec<Acl>,
}

impl Viewers {
    /// The viewers of a job of `owner`; `None` without a restriction. `acls`: `yarn.view-acl`, and what the
    /// ResourceManager named, empty where it named none.
    ///
    /// # Errors
    /// When a value of the configuration cannot be used.
    pub fn of(
        configuration: &Configuration,
        owner: &str,
        [view_acl, named]: [&str; 2],
    ) -> Result<Option<Self>, PropertyError> {
        let is_enabled = configuration.boolean("yarn.acl.enable", false)?;
        if !is_enabled && named.trim().is_empty() {
            return Ok(None);
        }
        let administrators = match is_enabled || configuration.is_stated("yarn.admin.acl") {
            true => configuration.trimmed("yarn.admin.acl")?.unwrap_or_default(),
            false => String::new(),
        };
        let acls = [view_acl, named, &administrators].map(Acl::parse).into();
        Ok(Some(Self { owner: owner.to_owned(), acls }))
    }

    /// Whether `user` may view the pages. Blocks: the system may look up groups in a directory service.
    #[must_use]
    pub(super) fn include(&self, user: &str) -> bool {
        if user == self.owner || self.acls.iter().any(|acl| acl.names(user)) {
            return true;
        }
        if self.acls.iter().all(|acl| acl.groups.is_empty()) {
            return false;
        }
        let groups = groups_of(user);
        let named = |acl: &Acl| groups.iter().any(|group| acl.groups.contains(group));
        self.acls.iter().any(named)
    }
}

/// The user's groups on this node; empty for an unknown user.
fn groups_of(user: &str) -> Vec<String> {
    let (Ok(Some(known)), Ok(name)) = (User::from_name(user), CString::new(user)) else {
        return Vec::new();
    };
    let ids = getgrouplist(&name, known.gid).unwrap_or_default();
    ids.into_iter().filter_map(|id| Some(Group::from_gid(id).ok()??.name)).collect()
}

/// The user that the proxy names; `None` when the proxy names no user.
pub(super) fn user_of(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(COOKIE).iter();
    let pairs =
        cookies.filter_map(|cookies| cookies.to_str().ok()).flat_map(|cookies| cookies.split(';'));
    let value = pairs
        .filter_map(|pair| pair.trim().split_once('='))
        .find_map(|(name, value)| (name == USER_COOKIE).then_some(value))?;
    Some(decoded(value.trim_matches('"')))
}

/// Decodes the result of `URLEncoder.encode`. Malformed text stays as it is, and matches no user.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let mut byte = [0];
        (bytes, rest) = match first {
            b'%' if after.len() >= 2 && hex::decode_to_slice(&after[..2], &mut byte).is_ok() => {
                bytes.push(byte[0]);
                (bytes, &after[2..])
            }
            b'+' => {
                bytes.push(b' ');
                (bytes, after)
            }
            other => {
                bytes.push(other);
                (bytes, after)
            }
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use heddle_hadoop::configuration::Environment;

    use super::*;

    fn viewers(pairs: &[(&str, &str)], view_acl: &str) -> Option<Viewers> {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        for (key, value) in pairs {
            configuration.set(key, *value, "test");
        }
        Viewers::of(&configuration, "alice", [view_acl, ""]).unwrap()
    }

    const STRICT: [(&str, &str); 2] = [("yarn.acl.enable", "true"), ("yarn.admin.acl", "root")];

    #[test]
    fn the_owner_administrators_and_those_named_may_look() {
        let viewers = viewers(&STRICT, "bob,carol dave").unwrap();
        for user in ["alice", "root", "bob", "carol"] {
            assert!(viewers.include(user), "{user}");
        }
        for user in ["dr.who", "", "*", "bob,", "Bob", "dave"] {
            assert!(!viewers.include(user), "{user} (dave is a group)");
        }
    }

    #[test]
    fn star_and_missing_lists_mean_all_users() {
        assert!(viewers(&STRICT, "*").unwrap().include("dr.who"));
        assert!(!viewers(&STRICT, "").unwrap().include("dr.who"));
        assert_eq!(viewers(&[], ""), None);
        let default = viewers(&STRICT[..1], "").unwrap();
        assert!(default.include("dr.who"), "yarn.admin.acl is * by default");
    }

    #[test]
    fn users_that_the_resourcemanager_names_count() {
        let named = |pairs: &[(&str, &str)], named: &str| {
            let mut configuration = Configuration::with_defaults(Environment::empty());
            for (key, value) in pairs {
                configuration.set(key, *value, "test");
            }
            Viewers::of(&configuration, "alice", ["", named]).unwrap()
        };
        let viewers = named(&STRICT, "bob").unwrap();
        assert!(viewers.include("bob") && viewers.include("root") && !viewers.include("carol"));
        // The submitter's configuration does not restrict; the ResourceManager does.
        let viewers = named(&[], "bob").unwrap();
        assert!(viewers.include("bob") && viewers.include("alice"));
        assert!(!viewers.include("carol"), "the default administrators, all users, do not count");
        let viewers = named(&[("yarn.admin.acl", "root")], "bob").unwrap();
        assert!(viewers.include("root") && !viewers.include("carol"));
        assert_eq!(named(&[], " "), None);
    }

    #[test]
    fn groups_are_those_of_the_system() {
        let viewers = viewers(&STRICT, " staff-of-nowhere,root").unwrap();
        assert!(groups_of("root").contains(&"root".to_owned()));
        assert!(viewers.include("root"));
        assert!(!viewers.include("no-such-user"));
    }

    #[test]
    fn the_proxys_cookie_is_found_among_others() {
        let user = |cookies: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(COOKIE, cookies.parse().unwrap());
            user_of(&headers)
        };
        assert_eq!(user("a=b; proxy-user=alice; c"), Some("alice".to_owned()));
        assert_eq!(user("proxy-user=al%20ice%2f+%zz"), Some("al ice/ %zz".to_owned()));
        assert_eq!(user("xproxy-user=alice"), None);
        assert_eq!(user_of(&HeaderMap::new()), None);
    }
}
