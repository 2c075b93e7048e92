//! The size of a submission: containers before and after YARN's rounding, and uploads.

use heddle_am::report::format;
use heddle_input::ValueDecision;
use heddle_protocol::job_spec::{Bytes, JobSpec, SpecDigest};
use heddle_protocol::manifest::InputPlan;
use heddle_yarn::client::NewApplication;
use heddle_yarn::{AllocationSteps, Amount, Memory, Resources, VCores};
use serde::Serialize;

use super::upload::Uploads;
use crate::commands::decisions::{self, effective_batch};
use crate::commands::run::data_in_words;
use crate::failure::CommandFailure;
use crate::output;

/// A kind of container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolePlan {
    /// `pservers`, `trainers` or `am`: the section of the job file that sizes it.
    pub key: &'static str,
    /// Smallest number.
    pub least: u32,
    /// Number at the start.
    pub min: u32,
    /// Largest number.
    pub max: u32,
    /// Requested resources of each.
    pub asked: Resources,
}

/// The kinds of containers of a job, memory in whole MiB with the overhead on top.
#[must_use]
pub fn roles(spec: &JobSpec) -> [RolePlan; 3] {
    let resources = |memory: Bytes, vcores: u32| {
        let mib = spec.container_memory(memory).0.div_ceil(1 << 20);
        Resources::new(Memory::mib(mib), VCores(vcores))
    };
    let (pservers, trainers) = (&spec.pservers, &spec.trainers);
    let mut trainer = resources(trainers.memory, trainers.vcores);
    for (name, amount) in &trainers.resources {
        let amount =
            Amount { value: i64::try_from(*amount).unwrap_or(i64::MAX), unit: String::new() };
        trainer = trainer.with(name, amount);
    }
    [
        RolePlan {
            key: "am",
            least: 1,
            min: 1,
            max: 1,
            asked: resources(spec.am.memory, spec.am.vcores),
        },
        RolePlan {
            key: "pservers",
            least: pservers.least(),
            min: pservers.count,
            max: pservers.slots(),
            asked: resources(pservers.memory, pservers.vcores),
        },
        RolePlan {
            key: "trainers",
            least: trainers.min,
            min: trainers.min,
            max: trainers.slots(),
            asked: trainer,
        },
    ]
}

/// The state of the queue.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QueueView {
    /// Its name.
    pub name: String,
    /// Free MiB at the moment; `None` if the cluster does not report it.
    pub free_mib: Option<u64>,
    /// Running applications; `None` if the cluster does not list the queue.
    pub running: Option<u64>,
    /// Waiting applications; `None` as above.
    pub waiting: Option<u64>,
}

impl QueueView {
    /// Its state as text.
    pub fn in_words(&self) -> String {
        let (name, Some(running), Some(waiting)) = (&self.name, self.running, self.waiting) else {
            return format!("{}: the cluster does not list it", self.name);
        };
        let free = self.free_mib.map_or_else(String::new, |mib| {
            format!("{} free, ", format::size(mib.saturating_mul(1 << 20)))
        });
        format!("{name}: {free}{running} applications run, {waiting} wait")
    }
}

/// The cluster's answers about a job.
pub struct ClusterCheck {
    /// The new application's id.
    pub new: NewApplication,
    /// The kinds of containers.
    pub roles: [RolePlan; 3],
    /// YARN's rounding.
    pub steps: AllocationSteps,
    /// Whether the ResourceManager reported its steps; otherwise they are from this machine's configuration or Hadoop's
    /// defaults.
    pub steps_known: bool,
    /// The queue.
    pub queue: QueueView,
    /// Notes that are printed before the submission.
    pub notes: Vec<String>,
}

/// All effects of a submission.
pub struct SubmitPlan {
    /// What the cluster grants.
    pub cluster: ClusterCheck,
    /// Files and tasks of the input.
    pub input: InputPlan,
    /// Uploads to the cluster's file system.
    pub uploads: Uploads,
    /// The checkpoint that training continues from, if any.
    pub base: Option<String>,
    /// The tokens that the submission carries; none without security.
    pub tokens: Vec<String>,
    /// Values that the data has decided.
    pub decisions: Vec<ValueDecision>,
}

impl SubmitPlan {
    /// Memory in MiB and vcores of all containers after rounding, at least, at first and at most.
    #[must_use]
    pub fn totals(&self) -> [(u64, u64); 3] {
        let total = |count: fn(&RolePlan) -> u32| {
            self.cluster.roles.iter().fold((0u64, 0u64), |sum, role| {
                let one = self.cluster.steps.rounded(&role.asked);
                let n = u64::from(count(role));
                (
                    sum.0.saturating_add(n.saturating_mul(one.memory.as_mib())),
                    sum.1.saturating_add(n * u64::from(one.vcores.0)),
                )
            })
        };
        [total(|role| role.least), total(|role| role.min), total(|role| role.max)]
    }

    /// Prints it.
    ///
    /// # Errors
    /// Output cannot be written.
    pub fn print(&self, spec: &JobSpec, json: bool) -> Result<(), CommandFailure> {
        match json {
            true => output::json(&self.as_json(spec)),
            false => {
                for note in &self.cluster.notes {
                    output::line(note)?;
                }
                output::line(&output::columns(&self.rows(spec)))?;
                match self.decisions.is_empty() {
                    true => Ok(()),
                    false => output::line(&decisions::in_words(&self.decisions)),
                }
            }
        }
    }

    fn as_json(&self, spec: &JobSpec) -> serde_json::Value {
        let resources = |of: &Resources| {
            let others: serde_json::Map<_, _> = of
                .others
                .iter()
                .map(|(name, amount)| (name.clone(), amount.value.into()))
                .collect();
            serde_json::json!(
                { "memory_mib": of.memory.as_mib(), "vcores": of.vcores.0, "others": others }
            )
        };
        let containers: Vec<_> = self
            .cluster
            .roles
            .iter()
            .map(|role| {
                serde_json::json!({
                    "role": role.key,
                    "least": role.least,
                    "min": role.min,
                    "max": role.max,
                    "asked": resources(&role.asked),
                    "granted": resources(&self.cluster.steps.rounded(&role.asked)),
                })
            })
            .collect();
        let [least, first, most] = self.totals();
        serde_json::json!({
            "digest": SpecDigest::of(spec),
            "containers": containers,
            "steps_known": self.cluster.steps_known,
            "total_least": { "memory_mib": least.0, "vcores": least.1 },
            "total_min": { "memory_mib": first.0, "vcores": first.1 },
            "total_max": { "memory_mib": most.0, "vcores": most.1 },
            "queue": self.cluster.queue,
            "uploads": self.uploads.as_json(),
            "installed_program": self.uploads.installed_program(),
            "base_checkpoint": self.base,
            "effective_batch": spec.effective_batch(),
            "files": self.input.files.len(),
            "train_bytes": self.input.train_bytes(),
            "train_tasks": self.input.train.len(),
            "test_tasks": self.input.test.len(),
            "tokens": self.tokens,
            "decisions": self.decisions,
            "notes": self.cluster.notes,
            "spec": spec,
        })
    }

    fn rows(&self, spec: &JobSpec) -> Vec<Vec<String>> {
        let row = |name: &str, value: String| vec![name.to_owned(), value];
        let mut rows = vec![row("job", spec.name.clone())];
        for role in &self.cluster.roles {
            let RolePlan { least, min, max, .. } = *role;
            let count = match (least == min, min == max) {
                (true, true) => format!("{min} × "),
                (true, false) => format!("{min} to {max} × "),
                (false, _) => format!("{min}, later {least} to {max} × "),
            };
            let granted = self.cluster.steps.rounded(&role.asked);
            let rounded = match granted == role.asked {
                true => String::new(),
                false if self.cluster.steps_known => format!(" (granted as {granted})"),
                false => format!(
                    " (granted as {granted}, if the cluster's unknown step is {} MiB)",
                    self.cluster.steps.memory_mib
                ),
            };
            rows.push(row(role.key, format!("{count}{}{rounded}", role.asked)));
        }
        let [least, first, most] = self.totals();
        let total = |(memory, vcores): (u64, u64)| {
            format!("{}, {vcores} vcores", format::size(memory.saturating_mul(1 << 20)))
        };
        let in_all = match first == most {
            true => total(most),
            false if least == first => format!("{} to {}", total(first), total(most)),
            false => format!("{}, later {} to {}", total(first), total(least), total(most)),
        };
        rows.push(row("in all", in_all));
        rows.push(row("queue", self.cluster.queue.in_words()));
        rows.push(row("training", effective_batch(spec)));
        rows.push(row("data", data_in_words(&self.input)));
        rows.extend(self.uploads.rows());
        rows.extend(self.tokens.iter().map(|token| row("token", token.clone())));
        let every = &spec.checkpoint.every;
        rows.push(row("checkpoints", format!("{} every {every}", spec.checkpoint.dir)));
        rows.push(row(
            "starts from",
            match (&self.base, &spec.model.init) {
                (Some(cut), _) => format!("checkpoint {cut}"),
                (None, Some(init)) => format!("values of {init}"),
                (None, None) => "initial values".to_owned(),
            },
        ));
        rows.push(row("model", spec.output.model.to_string()));
        rows
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::job_spec::job::sample;

    use super::*;

    #[test]
    fn requests_are_rounded_up_to_the_clusters_steps() {
        let steps = AllocationSteps { memory_mib: 1024, vcores: 1 };
        let asked = |mib| Resources::new(Memory::mib(mib), VCores(2));
        assert_eq!(steps.rounded(&asked(300)), asked(1024));
        assert_eq!(steps.rounded(&asked(1024)), asked(1024));
        assert_eq!(steps.rounded(&asked(1025)), asked(2048));
    }

    #[test]
    fn a_container_is_asked_for_with_the_overhead() {
        let mut spec = sample();
        spec.trainers.resources = [("yarn.io/gpu".to_owned(), 2)].into();
        let [am, pservers, trainers] = roles(&spec);
        // 256 MiB and a tenth, whole MiB upwards.
        assert_eq!(am.asked.memory, Memory::mib(282));
        assert_eq!((pservers.min, pservers.max), (2, 2));
        assert_eq!((trainers.min, trainers.max), (1, 2));
        assert_eq!(trainers.asked.others["yarn.io/gpu"], Amount::count(2));
    }
}
