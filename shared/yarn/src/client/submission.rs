//! The submission of an application.

use std::time::Duration;

use crate::container::Priority;
use crate::ids::ApplicationId;
use crate::launch::LaunchContext;
use crate::proto;
use crate::resource::Resources;

/// An application (`ApplicationSubmissionContext`).
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// From [`YarnClient::new_application`](super::YarnClient::new_application).
    pub id: ApplicationId,
    /// Shown in lists.
    pub name: String,
    /// Default `default`.
    pub queue: String,
    /// Application type, shown in lists and usable as a filter. The ResourceManager cuts it to 20 characters. Default
    /// `YARN`.
    pub kind: String,
    /// Launch context of the ApplicationMaster, the same for each attempt.
    pub context: LaunchContext,
    /// Resources of the ApplicationMaster's container.
    pub resources: Resources,
    /// Most attempts; 0 for the cluster's default. The cluster cuts higher numbers.
    pub attempts_max: u32,
    /// Age above which failed attempts do not count; `None` counts all (`attempt_failures_validity_interval`).
    pub failures_validity: Option<Duration>,
    /// Whether containers keep running when the ApplicationMaster fails, for the next attempt.
    pub keep_containers: bool,
    /// At most 10 of at most 100 ASCII characters. Sent in lower case, as Java does.
    pub tags: Vec<String>,
    /// Priority among applications: higher numbers are served first, unlike among asks. Default 0, cut to
    /// `yarn.cluster.max-application-priority`.
    pub priority: Option<Priority>,
    /// A node label for all of its containers.
    pub node_label: Option<String>,
    /// Time after the submission at which the cluster kills it; whole seconds.
    pub lifetime: Option<Duration>,
    /// The cluster starts no ApplicationMaster. A process with the token of [`YarnClient::am_token`](super::YarnClient::am_token)
    /// acts as the ApplicationMaster, on any machine. For tests and debuggers. There is one attempt.
    pub unmanaged: bool,
    /// Whether the ResourceManager cancels the tokens of the submission after its end
    /// (`cancel_tokens_when_complete`); `None` for its default, which is yes.
    pub cancel_tokens: Option<bool>,
    /// Logs that are uploaded while it runs (`rolled_logs_include_pattern`, a Java regular expression).
    pub rolled_logs: Option<String>,
}

impl Submission {
    /// A submission with the defaults.
    pub fn new(
        id: ApplicationId,
        name: impl Into<String>,
        resources: Resources,
        context: LaunchContext,
    ) -> Self {
        Self {
            id,
            name: name.into(),
            queue: "default".to_owned(),
            kind: "YARN".to_owned(),
            context,
            resources,
            attempts_max: 0,
            failures_validity: None,
            keep_containers: false,
            tags: Vec::new(),
            priority: None,
            node_label: None,
            lifetime: None,
            unmanaged: false,
            cancel_tokens: None,
            rolled_logs: None,
        }
    }
}

impl From<&Submission> for proto::ApplicationSubmissionContextProto {
    fn from(submission: &Submission) -> Self {
        let milliseconds =
            |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        let lifetime = submission.lifetime.map(|lifetime| proto::ApplicationTimeoutMapProto {
            application_timeout_type: Some(
                proto::ApplicationTimeoutTypeProto::AppTimeoutLifetime.into(),
            ),
            timeout: Some(i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX)),
        });
        Self {
            application_id: Some(submission.id.into()),
            application_name: Some(submission.name.clone()),
            queue: Some(submission.queue.clone()),
            priority: submission
                .priority
                .map(|priority| proto::PriorityProto { priority: Some(priority.0) }),
            am_container_spec: Some((&submission.context).into()),
            cancel_tokens_when_complete: submission.cancel_tokens,
            unmanaged_am: Some(submission.unmanaged),
            max_app_attempts: Some(i32::try_from(submission.attempts_max).unwrap_or(i32::MAX)),
            resource: Some((&submission.resources).into()),
            application_type: Some(submission.kind.clone()),
            keep_containers_across_application_attempts: Some(submission.keep_containers),
            application_tags: submission.tags.iter().map(|tag| tag.to_ascii_lowercase()).collect(),
            attempt_failures_validity_interval: submission.failures_validity.map(milliseconds),
            log_aggregation_context: submission.rolled_logs.as_ref().map(|pattern| {
                proto::LogAggregationContextProto {
                    rolled_logs_include_pattern: Some(pattern.clone()),
                    // The default pattern excludes all files.
                    rolled_logs_exclude_pattern: Some(String::new()),
                    ..Default::default()
                }
            }),
            node_label_expression: submission.node_label.clone(),
            am_container_resource_request: Vec::new(),
            application_timeouts: lifetime.into_iter().collect(),
        }
    }
}
