//! A test as the ApplicationMaster: YARN starts none for an unmanaged application and gives the owner the token.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use heddle_hadoop::Token;
use heddle_yarn::client::FinalApplicationStatus;
use heddle_yarn::{
    AmEndpoint, AmError, AmEvent, ApplicationId, ApplicationMaster, ApplicationState, Container,
    ExitStatus, FinalStatus, LaunchContext, Memory, NodeManagers, Resources, Submission, VCores,
    YarnClient,
};

/// A submitted application of which the test is the ApplicationMaster.
pub struct Unmanaged {
    /// Its id.
    pub id: ApplicationId,
    /// Its owner's client.
    pub client: YarnClient,
    /// What makes the test its ApplicationMaster.
    pub token: Token,
    /// The conversation with the ResourceManager.
    pub am: ApplicationMaster,
    /// The conversations with NodeManagers.
    pub nodes: NodeManagers,
}

impl Unmanaged {
    /// Submits one and registers.
    ///
    /// # Errors
    /// The cluster refuses; so for all of these.
    pub async fn new(yarn: &heddle_yarn::Cluster, place: AmEndpoint) -> Result<Self> {
        let mut app = Self::unregistered(yarn).await?;
        let registered = app.am.register(place).await?.context("the first registration")?;
        ensure!(registered.maximum.memory == Memory::mib(4096), "{registered:?}");
        ensure!(registered.resource_types.0.contains_key("memory-mb"), "{registered:?}");
        Ok(app)
    }

    /// Submits one.
    pub async fn unregistered(yarn: &heddle_yarn::Cluster) -> Result<Self> {
        let client = YarnClient::new(yarn);
        let id = client.new_application().await?.id;
        let submission = Submission {
            unmanaged: true,
            ..Submission::new(
                id,
                "unmanaged",
                Resources::new(Memory::mib(64), VCores(1)),
                LaunchContext::raw("true"),
            )
        };
        client.submit(&submission).await?;
        let token = client.am_token(id).await?;
        let am = ApplicationMaster::new(yarn, token.clone());
        let nodes = NodeManagers::new(yarn, am.node_tokens());
        Ok(Self { id, client, token, am, nodes })
    }

    /// Beats until `found` finds something in the events, and returns it with all events so far.
    pub async fn until<T>(
        &mut self,
        what: &str,
        mut found: impl FnMut(&[AmEvent]) -> Option<T>,
    ) -> Result<T> {
        let mut events = Vec::new();
        for _ in 0..300 {
            events.extend(self.am.allocate(0.5).await?);
            if let Some(found) = found(&events) {
                return Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("no {what} in {events:?}")
    }

    /// The first grants, at least `count`.
    pub async fn grants(&mut self, count: usize) -> Result<Vec<Container>> {
        self.until("grants", |events| {
            let granted = events.iter().filter_map(|event| match event {
                AmEvent::Allocated { container, .. } => Some(container.clone()),
                _ => None,
            });
            let granted: Vec<_> = granted.collect();
            (granted.len() >= count).then_some(granted)
        })
        .await
    }

    /// How the container ended.
    pub async fn end_of(&mut self, container: &Container) -> Result<ExitStatus> {
        let id = container.id;
        self.until("end", |events| {
            events.iter().find_map(|event| match event {
                AmEvent::Completed { status, .. } | AmEvent::Released(status)
                    if status.id == id =>
                {
                    Some(status.exit)
                }
                _ => None,
            })
        })
        .await
    }

    /// Finishes well, and checks that the cluster has it so and is done with us.
    pub async fn finish(mut self) -> Result<()> {
        self.am.finish(FinalStatus::Succeeded, "all seen", "").await?;
        let mut report = self.client.report(self.id).await?;
        for _ in 0..100 {
            if report.state == Some(ApplicationState::Finished) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            report = self.client.report(self.id).await?;
        }
        ensure!(
            report.final_status == FinalApplicationStatus::Succeeded
                && report.diagnostics == "all seen",
            "{report:?}"
        );
        let after = self.am.allocate(1.0).await;
        ensure!(matches!(&after, Err(AmError::Fenced(_))), "the attempt is over: {after:?}");
        Ok(())
    }
}
