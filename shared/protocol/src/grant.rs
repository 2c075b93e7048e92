//! A grant: what a job with `run.elastic = "controller"` lets the cluster's controller do.
//!
//! The file `<controller.dir>/grants/<application>.json`, mode 0640: the submission writes it, and each attempt of the
//! ApplicationMaster writes it again with its address. Its secret follows from the job's, and opens two things: to read the
//! status, and to order numbers of containers within the job's bounds.

use serde::{Deserialize, Serialize};

use crate::environment::AmAddress;
use crate::handshake::{Channel, PROTOCOL_VERSION, Secret};
use crate::ids::RunId;
use crate::job_spec::{Bytes, Consistency, JobSpec};

/// Longest grant that the controller reads, in bytes.
pub const GRANT_BYTES_MAX: usize = 64 << 10;
/// The folder of grants in `controller.dir`. Users write it and cannot list it.
pub const GRANTS_DIR: &str = "grants";
/// YARN's resource of GPUs.
pub const GPU: &str = "yarn.io/gpu";

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerGrant {
    /// [`PROTOCOL_VERSION`] of the job's program. Jobs of other versions do not get orders.
    pub protocol: u16,
    /// The application, as YARN writes its id.
    pub application: String,
    /// The run.
    pub run: RunId,
    /// [`Secret::of_peers`] of [`Channel::Controller`], in hexadecimal.
    pub secret: String,
    /// Where the ApplicationMaster is, from its first attempt on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub am: Option<AmAddress>,
    /// Trainers.
    pub trainers: GrantedRole,
    /// Pservers.
    pub pservers: GrantedRole,
    /// BSP: lanes, of which each trainer has whole ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<u32>,
    /// What the ApplicationMaster's container takes.
    pub master: GrantedResources,
}

/// Containers of a role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedRole {
    /// Least.
    pub min: u32,
    /// Most.
    pub max: u32,
    /// With how many the job starts.
    pub start: u32,
    /// What each takes.
    pub each: GrantedResources,
}

/// What a container takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedResources {
    /// MiB.
    pub memory_mib: u64,
    /// Vcores.
    pub vcores: u32,
    /// GPUs (`yarn.io/gpu`).
    #[serde(default)]
    pub gpus: u64,
}

impl ControllerGrant {
    /// The grant of a job.
    #[must_use]
    pub fn new(
        spec: &JobSpec,
        application: &str,
        run: RunId,
        secret: &Secret,
        am: Option<AmAddress>,
    ) -> Self {
        let JobSpec { trainers, pservers, .. } = spec;
        let mib = |memory: Bytes| spec.container_memory(memory).0.div_ceil(1 << 20);
        let gpus = trainers.resources.get(GPU).copied().unwrap_or(0);
        Self {
            protocol: PROTOCOL_VERSION,
            application: application.to_owned(),
            run,
            secret: secret.of_peers(run, Channel::Controller).to_hex().to_string(),
            am,
            trainers: GrantedRole {
                min: trainers.min,
                max: trainers.max,
                start: trainers.min,
                each: GrantedResources {
                    memory_mib: mib(trainers.memory),
                    vcores: trainers.vcores,
                    gpus,
                },
            },
            pservers: GrantedRole {
                min: pservers.least(),
                max: pservers.most(),
                start: pservers.count,
                each: GrantedResources {
                    memory_mib: mib(pservers.memory),
                    vcores: pservers.vcores,
                    gpus: 0,
                },
            },
            lanes: (spec.training.consistency == Consistency::Bsp).then_some(spec.training.lanes),
            master: GrantedResources {
                memory_mib: mib(spec.am.memory),
                vcores: spec.am.vcores,
                gpus: 0,
            },
        }
    }

    /// Its file name.
    #[must_use]
    pub fn file_name(application: &str) -> String {
        format!("{application}.json")
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::job_spec::job::sample;

    #[test]
    fn grant_has_no_secret_of_the_job() {
        let secret = Secret::from_hex(&"5a".repeat(32)).expect("64 digits");
        let run = RunId(Uuid::from_u128(7));
        let grant = ControllerGrant::new(&sample(), "application_1_0001", run, &secret, None);
        let text = serde_json::to_string(&grant).expect("JSON");
        assert!(!text.contains(&**secret.to_hex()), "{text}");
        let peers = Secret::from_hex(&grant.secret).expect("64 digits");
        assert_eq!(peers, secret.of_peers(run, Channel::Controller));
        assert_ne!(peers, secret.of_peers(RunId(Uuid::from_u128(8)), Channel::Controller));
        assert_eq!(serde_json::from_str::<ControllerGrant>(&text).expect("a grant"), grant);
    }
}
