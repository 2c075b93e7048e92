//! The launch context of containers: command, variables, files, credentials. Pure: no socket.

use std::collections::BTreeMap;

use heddle_hadoop::kerberos::NO_TICKETS;
use heddle_protocol::environment::{
    AM, AM_DIR, AmAddress, BIND_HOST, DATA_THREADS, DEAD_MS, INCARNATION, PORTS, PROTECTION, RUN,
    SLOT,
};
use heddle_protocol::handshake::Mechanism;
use heddle_protocol::ids::{Member, RunId};
use heddle_yarn::launch::UrlError;
use heddle_yarn::shell::QuoteError;
use heddle_yarn::{Access, LaunchContext, LocalResource, ResourceKind};

use super::container_credentials::ContainerCredentials;
use crate::staging::{CONF_DIR, StagedFile, command};

/// The parts of the launch context that all containers of a job share.
#[derive(Clone)]
pub struct YarnLaunch {
    /// The run.
    pub run: RunId,
    /// The address of this ApplicationMaster.
    pub am: AmAddress,
    /// The URL of the directory where later attempts write their addresses.
    pub am_dir: String,
    /// `HADOOP_USER_NAME`.
    pub user: String,
    /// Files by their names in the work directory.
    pub resources: BTreeMap<String, StagedFile>,
    /// Variables of the job file.
    pub env: BTreeMap<String, String>,
    /// Data threads of a pserver.
    pub data_threads: u32,
    /// Ports that containers may listen on, as in the job file; `None`: any.
    pub ports: Option<String>,
    /// How containers secure their connections.
    pub mechanism: Mechanism,
    /// `liveness.dead` in force, ms.
    pub dead_ms: u64,
    /// The users that may view and change the application, as the ResourceManager named them at the registration: a
    /// NodeManager takes them from the first container that it starts for an application.
    pub acls: BTreeMap<Access, String>,
    /// The job's secret and tokens, without the ApplicationMaster's own.
    pub credentials: ContainerCredentials,
}

/// Why the job file or the submission cannot be expressed in a launch context.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A variable or argument.
    #[error(transparent)]
    Quote(#[from] QuoteError),
    /// The address of a file.
    #[error(transparent)]
    Url(#[from] UrlError),
}

impl YarnLaunch {
    /// The launch context of this member.
    ///
    /// # Errors
    /// When YARN cannot express a variable's name or value, or a file's address.
    pub fn context(&self, member: Member) -> Result<LaunchContext, LaunchError> {
        let role = member.slot.role.to_string();
        let mut context =
            LaunchContext::new(&command(&[&role], &self.env))?.tokens(self.credentials.encode());
        for (name, value) in &self.env {
            context = context.env(name.as_str(), value)?;
        }
        for (name, value) in [
            (RUN, self.run.to_string()),
            (SLOT, member.slot.to_string()),
            (INCARNATION, member.incarnation.to_string()),
            (AM, self.am.to_string()),
            (AM_DIR, self.am_dir.clone()),
            (DATA_THREADS, self.data_threads.to_string()),
            (PORTS, self.ports.clone().unwrap_or_default()),
            (DEAD_MS, self.dead_ms.to_string()),
            (PROTECTION, protection(self.mechanism).to_owned()),
            // Without Kerberos HDFS trusts the user name of a process; YARN does not set it.
            ("HADOOP_USER_NAME", self.user.clone()),
            // A NodeManager may start containers as its own account, whose tickets would make them that account's.
            ("KRB5CCNAME", NO_TICKETS.to_owned()),
        ] {
            context = context.env(name, &value)?;
        }
        context = context
            .env_raw(BIND_HOST, "{{NM_HOST}}")?
            .env_raw("HADOOP_CONF_DIR", format!("{{{{PWD}}}}/{CONF_DIR}"))?;
        for (access, users) in &self.acls {
            context = context.acl(*access, users.as_str());
        }
        for (name, file) in &self.resources {
            context = context.file(name.as_str(), resource(file)?);
        }
        Ok(context)
    }
}

fn protection(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::Hmac => "off",
        Mechanism::Noise => "on",
    }
}

fn resource(file: &StagedFile) -> Result<LocalResource, UrlError> {
    Ok(LocalResource {
        url: file.url.parse()?,
        size: i64::try_from(file.bytes).unwrap_or(-1),
        timestamp_ms: i64::try_from(file.modified_ms).unwrap_or(i64::MAX),
        kind: if file.archive { ResourceKind::Archive } else { ResourceKind::File },
        visibility: file.visibility.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_hadoop::Token;
    use heddle_hadoop::token::Credentials;
    use heddle_protocol::ids::{Attempt, Incarnation, Slot};
    use heddle_yarn::proto;

    use crate::staging::StagedVisibility;

    fn credentials() -> Credentials {
        let mut credentials = Credentials::new();
        credentials.insert_secret("alias", *b"secret");
        credentials.add(Token::new(*b"old", *b"p", "K", "nn:1"));
        credentials
    }

    fn launch() -> YarnLaunch {
        let file = StagedFile {
            url: "hdfs://ns/user/alice/.heddle/bin/heddle-1".into(),
            bytes: 7,
            modified_ms: 8,
            archive: false,
            visibility: StagedVisibility::Private,
        };
        YarnLaunch {
            run: RunId(uuid::Uuid::nil()),
            am: AmAddress { address: ([10, 0, 0, 7], 4000).into(), attempt: Attempt(2), pid: 9 },
            am_dir: "hdfs://ns/s/am".into(),
            user: "alice".into(),
            resources: BTreeMap::from([("heddle".into(), file)]),
            env: BTreeMap::from([("NOTE".into(), "a \"b\" $c".into())]),
            data_threads: 2,
            dead_ms: 10_000,
            mechanism: Mechanism::Noise,
            ports: None,
            acls: BTreeMap::from([(Access::View, "bob ops".into())]),
            credentials: ContainerCredentials::new(credentials()),
        }
    }

    fn variables(launch: &YarnLaunch) -> BTreeMap<String, String> {
        let member = Member { slot: Slot::trainer(3), incarnation: Incarnation(5) };
        let context = launch.context(member).expect("a valid context");
        let message = proto::ContainerLaunchContextProto::from(&context);
        assert!(message.command[0].contains("'env' 'MALLOC_ARENA_MAX=4' './heddle' 'trainer'"));
        assert_eq!(message.local_resources.len(), launch.resources.len());
        let pair = |pair: &proto::StringStringMapProto| (pair.key().into(), pair.value().into());
        message.environment.iter().map(pair).collect()
    }

    #[test]
    fn container_gets_its_member_and_the_addresses() {
        let all = variables(&launch());
        for (name, value) in [
            (SLOT, "trainer-3"),
            (INCARNATION, "5"),
            (AM, "10.0.0.7:4000/2/9"),
            (AM_DIR, "hdfs://ns/s/am"),
            ("HADOOP_USER_NAME", "alice"),
            ("HADOOP_CONF_DIR", "{{PWD}}/conf"),
            ("NOTE", "a \\\"b\\\" \\$c"),
        ] {
            assert_eq!(all.get(name).map(String::as_str), Some(value), "{name}");
        }
    }

    #[test]
    fn containers_start_with_the_newest_tokens() {
        let launch = launch();
        let tokens = |launch: &YarnLaunch| {
            let member = Member { slot: Slot::trainer(3), incarnation: Incarnation(5) };
            let context = launch.context(member).expect("a valid context");
            let message = proto::ContainerLaunchContextProto::from(&context);
            Credentials::decode(&message.tokens.expect("credentials")).expect("decodes")
        };
        assert_eq!(tokens(&launch), credentials());
        let mut newer = Credentials::new();
        newer.add(Token::new(*b"new", *b"p", "K", "nn:1"));
        launch.credentials.replace(&newer);
        let all = tokens(&launch);
        let identifiers: Vec<_> = all.of_kind("K").map(Token::identifier).collect();
        assert_eq!(identifiers, [b"new"]);
        assert_eq!(all.secret("alias"), Some(&b"secret"[..]));
    }

    #[test]
    fn limit_of_arenas_is_a_number_that_glibc_accepts() {
        // A NodeManager appends the context's value to itself, so the context must not set it.
        assert_eq!(variables(&launch()).get("MALLOC_ARENA_MAX"), None);
        let own = BTreeMap::from([("MALLOC_ARENA_MAX".to_owned(), "1".to_owned())]);
        assert_eq!(
            command(&["am", "--yarn"], &own),
            ["env", "MALLOC_ARENA_MAX=1", "./heddle", "am", "--yarn"]
        );
    }

    #[test]
    fn no_variable_holds_the_secret() {
        let all = variables(&launch());
        assert!(all.values().all(|value| !value.contains("secret")), "{all:?}");
    }

    #[test]
    fn variable_of_the_job_replaces_no_variable_of_heddle() {
        let mut launch = launch();
        launch.env.insert("HADOOP_USER_NAME".into(), "hdfs".into());
        assert_eq!(variables(&launch)["HADOOP_USER_NAME"], "alice");
    }
}
