//! Preparation of a job, local and on YARN: validate, claim, plan the input, open the journal.
//!
//! ```text
//! checkpoint directory → predecessor, input plan: may this spec continue? → claim → the same checks → journal
//! ```
//!
//! A failure is a [`StartFailure`]; nothing starts before all steps succeed. A claim fences the owner of the directory, so a
//! job claims only after all checks that need no claim. The same checks follow the claim: the previous owner may have
//! worked until that moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use heddle_am_core::{Locality, Outcome, Record};
use heddle_input::typed_format;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{CutId, Generation};
use heddle_protocol::job_spec::{self, JobSpec, Location, SpecDigest};
use heddle_protocol::manifest::{InputPlan, Manifest, Salt};
use heddle_protocol::model::MODEL_FILE;
use heddle_protocol::plan_file::PlanFile;
use heddle_protocol::view::{JobState, WarningCode};
use heddle_storage::checkpoint::{
    CheckpointDir, Depth, Health, Owner, SkippedCheckpoint, StoredCheckpoint,
};
use heddle_storage::{StorageUrl, connect};
use uuid::Uuid;

use super::start_failure::StartFailure;
use crate::claim::{self, LivenessCheck};
use crate::continuation;
use crate::event_log::EventLog;
use crate::import;
use crate::input::{self, InputError};
use crate::journal::{self, Journal};
use crate::lease::Lease;
use crate::mirrors;
use crate::own_model;
use crate::plan_file;
use crate::run_dir::{ResumeMode, RunFile};
use crate::store::{Store, open_of_job};
use crate::wall_clock::wall_ms;
use crate::warm_start;

/// Timeout of the look-up of block locations. Locality is optional: the job starts without it.
const LOCALITY_LIMIT: Duration = Duration::from_secs(3);

/// How long moving a damaged checkpoint is retried, and the time between two attempts.
const SET_ASIDE_TIMEOUT: Duration = Duration::from_secs(60);
const SET_ASIDE_RETRY_WAIT: Duration = Duration::from_secs(2);

/// A job that can start.
pub(super) struct Prepared {
    pub(super) generation: Generation,
    /// The newest complete checkpoint of the lineage.
    pub(super) base: Option<StoredCheckpoint>,
    /// Newer ones that are damaged, set aside.
    pub(super) damaged: Vec<heddle_am_core::DamagedCheckpoint>,
    /// All complete checkpoints.
    pub(super) checkpoints: Vec<heddle_am_core::Checkpoint>,
    /// Records of the lineage.
    pub(super) carried: Vec<Record>,
    pub(super) plan: Arc<InputPlan>,
    /// The file that containers read it from.
    pub(super) plan_file: PlanFile,
    /// The hosts that store the input, as far as they were found in time.
    pub(super) locality: Locality,
    pub(super) journal: Journal,
    pub(super) store: Store,
    /// The outcome that an earlier attempt of this application recorded: only its unregistration failed.
    pub(super) ended: Option<Outcome>,
    /// The checkpoint of another job that a job without checkpoints begins with.
    pub(super) init: Option<Location>,
}

/// What a job is prepared from.
pub(super) struct PreparationInputs<'a> {
    pub(super) file: &'a RunFile,
    pub(super) spec: &'a JobSpec,
    /// The owner that claims the checkpoint directory.
    pub(super) owner: Owner,
    /// The store may publish a model while it holds.
    pub(super) lease: Lease,
    /// The directory of the plan (a URL), which containers can read.
    pub(super) run_dir: &'a str,
    /// Gets the warnings of the preparation.
    pub(super) events: &'a EventLog,
}

/// Claims the job's checkpoint directory and determines the state of the job. `announce` publishes the address of this
/// process; it runs right after the claim, since this process leads from then on.
pub(super) async fn prepare(
    inputs: PreparationInputs<'_>,
    judge: &impl LivenessCheck,
    announce: impl Future<Output = Result<(), StartFailure>>,
) -> Result<Prepared, StartFailure> {
    let PreparationInputs { file, spec, owner, lease, run_dir, events } = inputs;
    check_decided(spec)?;
    let on_a_cluster = matches!(owner, Owner::Application { .. });
    let location = checkpoint_location(spec)?;
    let checkpoints = open_of_job(&spec.checkpoint, &location, events).await?;
    let salt = Salt(Uuid::new_v4());
    let mut request = claim_request(file, spec, &owner, salt);
    import::import(file.from.as_deref(), &checkpoints, &request, judge, events).await?;
    let followed = claim::look(&checkpoints, &request, judge);
    let (followed, found) = tokio::join!(followed, input::plan(spec, file.parts.as_ref()));
    let (followed, found) = (followed?, found?.plan);
    let mut resumption =
        Resumption { file, earlier: file.earlier, spec, owner: &owner, found: &found, events };
    if let Some(before) = &followed.predecessor
        // An earlier attempt of this application has passed the same checks.
        && !claim::same_application(&before.owner, &owner)
    {
        resumption.check(&checkpoints, &followed, &mut request).await?;
    }
    let begins = followed.base.is_none() || request.fresh;
    let init = if begins { initial_checkpoint(spec, events).await? } else { None };
    let claimed = claim::claim(&checkpoints, &request, judge).await?;
    tracing::info!(generation = %claimed.generation, "checkpoint_directory_claimed");
    let Continuation { carried, plan, ended } =
        resumption.of(&checkpoints, claimed.generation, claimed.base.as_ref()).await?;
    warn_if_finished(ended.as_ref(), events);
    let store = Store {
        dir: checkpoints.clone(),
        location,
        salt,
        run: file.run,
        job: spec.name.clone(),
        generation: claimed.generation,
        overwrite: file.overwrite,
        permissions: spec.output.permissions,
        lease,
        mirrors: None,
    };
    mirrors::report_passed_over(&claimed.passed_over, events);
    let damaged = set_aside(&checkpoints, claimed.generation, claimed.damaged).await?;
    // Each of these waits for the store and is independent of the others.
    let (known, journal, announced, plan_file) = tokio::join!(
        known(&checkpoints, &store),
        Journal::open(checkpoints.clone(), claimed.generation, &carried),
        announce,
        plan_file::write(&plan, run_dir),
    );
    announced?;
    let locality = locality(on_a_cluster, spec, &plan).await?;
    tracing::info!(files = plan.files.len(), records = carried.len(), "job_prepared");
    Ok(Prepared {
        generation: claimed.generation,
        base: claimed.base,
        damaged,
        checkpoints: known?,
        carried,
        plan: Arc::new(plan),
        plan_file: plan_file?,
        locality,
        journal: journal?,
        store,
        ended,
        init,
    })
}

/// The checkpoint of another job that this one begins with.
async fn initial_checkpoint(
    spec: &JobSpec,
    events: &EventLog,
) -> Result<Option<Location>, StartFailure> {
    let init = warm_start::find(spec).await?;
    for error in init.iter().flat_map(|init| &init.damaged) {
        events.warn(
            WarningCode::OlderInitUsed,
            format!("model.init: an older checkpoint is used, since {error}"),
        );
    }
    Ok(init.map(|init| init.location))
}

/// A job that runs has no automatic values: commands decide them.
fn check_decided(spec: &JobSpec) -> Result<(), StartFailure> {
    let Some(key) = spec.undecided.first() else { return Ok(()) };
    Err(StartFailure::new(
        ExitCode::Input,
        format!(
            "{key} must be decided when a job starts (got \"auto\"); start it by `heddle run` or `heddle submit`"
        ),
    ))
}

fn checkpoint_location(spec: &JobSpec) -> Result<StorageUrl, StartFailure> {
    let url = spec.checkpoint.dir.url();
    StorageUrl::parse(&url).map_err(|error| {
        StartFailure::new(
            ExitCode::Input,
            format!("checkpoint.dir is not a valid location (got {url}): {error}"),
        )
    })
}

fn claim_request(file: &RunFile, spec: &JobSpec, owner: &Owner, salt: Salt) -> claim::ClaimRequest {
    claim::ClaimRequest {
        run: file.run,
        owner: owner.clone(),
        salt,
        at_ms: wall_ms(),
        take_over: file.take_over,
        fresh: file.earlier == ResumeMode::Fresh,
        on_corrupt: match spec.checkpoint.on_corrupt {
            job_spec::OnCorrupt::Previous => heddle_storage::checkpoint::DamagePolicy::Previous,
            job_spec::OnCorrupt::Fail => heddle_storage::checkpoint::DamagePolicy::Fail,
        },
    }
}

/// Warns if a resumed run has no training left.
fn warn_if_finished(ended: Option<&Outcome>, events: &EventLog) {
    let Some(Outcome { model, .. }) = ended.filter(|ended| ended.state == JobState::Finished)
    else {
        return;
    };
    events.warn(WarningCode::AlreadyFinished, format!(
        "this job is finished and its model is {}; to start over, rerun with --fresh; to continue training, raise \
         data.passes and rerun with --resume",
        model.as_deref().unwrap_or("none")
    ));
}

/// Which hosts store the input, as far as that can be determined in time; of no use to containers that are all on this host.
async fn locality(
    on_a_cluster: bool,
    spec: &JobSpec,
    plan: &InputPlan,
) -> Result<Locality, InputError> {
    // The heads of files with types were read, so the permission is there.
    if !on_a_cluster && typed_format(spec.data.format).is_some() {
        return Ok(Locality::default());
    }
    match tokio::time::timeout(LOCALITY_LIMIT, input::locality(plan)).await {
        Ok(found) => found.map(|found| if on_a_cluster { found } else { Locality::default() }),
        Err(_) => Ok(Locality::default()),
    }
}

/// A job that continues a checkpoint directory.
struct Resumption<'a> {
    file: &'a RunFile,
    /// How to handle an earlier run: as the command line states, or `Fresh` where that run has trained nothing.
    earlier: ResumeMode,
    spec: &'a JobSpec,
    owner: &'a Owner,
    /// The input as it is now.
    found: &'a InputPlan,
    events: &'a EventLog,
}

/// The state that a job continues.
struct Continuation {
    carried: Vec<Record>,
    plan: InputPlan,
    ended: Option<Outcome>,
}

impl Resumption<'_> {
    /// Fails where the job must not continue what a claim would follow, before anything is claimed. Where that run has
    /// trained no step, this one starts over instead.
    async fn check(
        &mut self,
        dir: &CheckpointDir,
        followed: &claim::Followed,
        request: &mut claim::ClaimRequest,
    ) -> Result<(), StartFailure> {
        let next = followed.next();
        let base = followed.base.as_ref();
        let failure = match self.of(dir, next, base).await {
            Ok(_) => return self.check_output(dir).await,
            Err(failure) => failure,
        };
        // A predecessor that is taken over may still be training.
        if failure.exit_code != ExitCode::Input
            || self.file.take_over
            || !base.is_some_and(|base| base.manifest.is_untrained())
        {
            return Err(failure);
        }
        self.events.warn(
            WarningCode::TrainingStartsOver,
            format!(
                "training starts over: the run in checkpoint.dir has trained no step yet, and {}",
                failure.message
            ),
        );
        request.fresh = true;
        self.earlier = ResumeMode::Fresh;
        self.of(dir, next, None).await.map(drop)
    }

    /// The state of the job for a claim of this generation that continues `base`.
    async fn of(
        &self,
        dir: &CheckpointDir,
        generation: Generation,
        base: Option<&StoredCheckpoint>,
    ) -> Result<Continuation, StartFailure> {
        let mut history = RecordHistory::read(dir, generation, self.owner).await?;
        if self.earlier == ResumeMode::Fresh && !history.is_ours {
            history.records.clear();
        }
        let base = base.map(|base| &base.manifest);
        journal::check_base(dir, &history.records, base.map(|base| base.cut))?;
        let mut ended = history.ended();
        let (mut carried, finished) = may_continue(self.earlier, self.spec, base, history.records)?;
        if let (None, Some(outcome)) = (&ended, finished) {
            if self.model_is_there(&outcome).await {
                ended = Some(outcome);
            } else {
                tracing::info!("model_missing_exported_again");
            }
        }
        // The next attempt must find it too if unregistering fails again.
        carried.extend(ended.clone().map(Record::Outcome));
        let plan = match base {
            // Task numbers mean the same input as when the checkpoint was made.
            Some(base) => input::unchanged(base.plan.clone(), self.found)
                .map_err(|changed| StartFailure::new(ExitCode::Input, changed))?,
            None => self.found.clone(),
        };
        Ok(Continuation { carried, plan, ended })
    }
}

impl Resumption<'_> {
    /// Fails if the job trains on from a model that it has published, and must not replace it.
    async fn check_output(&self, dir: &CheckpointDir) -> Result<(), StartFailure> {
        if self.file.overwrite || self.earlier == ResumeMode::Fresh {
            return Ok(());
        }
        match own_model::outgrown(self.spec, dir).await {
            None => Ok(()),
            Some(model) => Err(StartFailure::new(
                ExitCode::Input,
                format!(
                    "output.model = {} holds the model of checkpoint {} of this job, which is trained further: --overwrite \
                     replaces it when the new one is done; or give another output.model",
                    self.spec.output.model, model.checkpoint
                ),
            )),
        }
    }

    /// Whether the model of a finished run is at this job's output.
    async fn model_is_there(&self, outcome: &Outcome) -> bool {
        let Some(model) = &outcome.model else {
            return false;
        };
        let Ok(place) = StorageUrl::parse(model) else {
            return false;
        };
        let wanted = StorageUrl::parse(&self.spec.output.model.url());
        if !self.file.default_output && wanted.as_ref() != Ok(&place) {
            return false;
        }
        let found = async {
            let path = place.path().join(MODEL_FILE)?;
            connect(&place)?.stat(&path).await
        };
        found.await.is_ok()
    }
}

/// The records of the lineage.
struct RecordHistory {
    records: Vec<Record>,
    /// The last of them are of an earlier attempt of this application.
    is_ours: bool,
}

impl RecordHistory {
    /// The records that a claim of this generation continues.
    async fn read(
        dir: &CheckpointDir,
        generation: Generation,
        owner: &Owner,
    ) -> Result<Self, StartFailure> {
        let records = journal::read(dir, generation).await?;
        let last = records.iter().rev().find_map(|record| match record {
            Record::Claim { generation, .. } => Some(*generation),
            _ => None,
        });
        let is_ours = match last {
            Some(generation) => claim::same_application(&dir.claim(generation).await?.owner, owner),
            None => false,
        };
        Ok(Self { records, is_ours })
    }

    /// How this application ended. A transient failure does not count: the next attempt retries.
    fn ended(&self) -> Option<Outcome> {
        let outcome = self.records.iter().rev().find_map(|record| match record {
            Record::Outcome(outcome) => Some(Some(outcome.clone())),
            Record::Claim { .. } => Some(None),
            _ => None,
        });
        outcome
            .flatten()
            .filter(|outcome| self.is_ours && !is_transient(outcome.state, outcome.exit_code))
    }
}

/// Whether another attempt may succeed: a service was unreachable.
pub(super) fn is_transient(state: JobState, exit_code: ExitCode) -> bool {
    state == JobState::Failed && exit_code == ExitCode::Unreachable
}

/// Checks that this spec may continue the checkpoint. Returns the records to carry over, and the outcome if nothing is
/// left to train.
fn may_continue(
    earlier: ResumeMode,
    spec: &JobSpec,
    base: Option<&Manifest>,
    history: Vec<Record>,
) -> Result<(Vec<Record>, Option<Outcome>), StartFailure> {
    let mut longer = false;
    if let Some(base) = base
        && base.spec_digest != SpecDigest::of(spec).0
    {
        let before: JobSpec = serde_json::from_value(base.spec.clone()).map_err(|error| {
            StartFailure::new(
                ExitCode::Checkpoint,
                format!("cannot read the job spec of checkpoint {}: {error}", base.cut),
            )
        })?;
        continuation::check_keys(earlier, spec, base, &before)
            .map_err(|refusal| StartFailure::new(ExitCode::Input, refusal))?;
        longer = spec.data.passes > before.data.passes;
    }
    let last = history.iter().rev().find_map(|record| match record {
        Record::Outcome(outcome) => Some(outcome.clone()),
        _ => None,
    });
    let finished = last.filter(|last| last.state == JobState::Finished && !longer);
    // An outcome belongs to one run, and this run continues.
    let carried =
        history.into_iter().filter(|record| !matches!(record, Record::Outcome(_))).collect();
    Ok((carried, finished))
}

/// Moves damaged checkpoints aside, so that the retention of superseded generations does not delete them. A checkpoint that
/// cannot be moved fails the start; nothing else is changed before.
async fn set_aside(
    dir: &CheckpointDir,
    own: Generation,
    damaged: Vec<SkippedCheckpoint>,
) -> Result<Vec<heddle_am_core::DamagedCheckpoint>, StartFailure> {
    let mut moved = Vec::new();
    for SkippedCheckpoint { cut, error } in damaged {
        dir.check_highest(own).await?;
        let begun = Instant::now();
        let to = loop {
            match dir.set_aside(cut).await {
                Err(error) if error.is_retryable() && begun.elapsed() < SET_ASIDE_TIMEOUT => {
                    tokio::time::sleep(SET_ASIDE_RETRY_WAIT).await;
                }
                result => break result?,
            }
        };
        moved.push(heddle_am_core::DamagedCheckpoint {
            cut,
            dir: dir.show(&to),
            error: heddle_storage::chain(&error),
        });
    }
    Ok(moved)
}

async fn known(
    dir: &CheckpointDir,
    store: &Store,
) -> Result<Vec<heddle_am_core::Checkpoint>, StartFailure> {
    let mut found = Vec::new();
    for candidate in dir.listing(Depth::Shallow).await? {
        if let (true, Health::Good(checkpoint)) = (candidate.in_lineage, candidate.health) {
            found.push(store.checkpoint(*checkpoint));
        }
    }
    found.sort_by_key(|checkpoint: &heddle_am_core::Checkpoint| -> CutId {
        checkpoint.manifest.cut
    });
    Ok(found)
}
