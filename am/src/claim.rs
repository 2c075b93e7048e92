//! Exclusive claims on a checkpoint directory: each has a higher generation than the one before.
//!
//! ```text
//! read the highest claim ─▶ its owner lives? ─▶ refuse (exit 9), naming it
//!        ▲                          │ no, or take over
//!        │                          ▼
//!        │              choose the base: newest complete checkpoint of the lineage
//!        │                          ▼
//!        └──── taken ◀── claims/g<highest+1>, exclusively
//!        ▲                          ▼ ours
//!        └── another ◀── is that still the newest checkpoint?
//! ```
//!
//! The last check is one half of a handshake with a predecessor that still runs. The predecessor looks for a higher claim
//! *after* each of its commits, and *between* moving an old checkpoint away and deleting it. Either it sees this claim,
//! and neither confirms the commit nor deletes; or the last check sees what it did. **A confirmed commit is always
//! continued**, and the base is never deleted. A claim that proved useless stays; it costs a small file.
//!
//! An owner on this machine is identified by its process id *and* the start time of that process, since ids are reused.
//! An owner on another machine cannot be checked from here; the user can, and confirms it with `--take-over`. The
//! ResourceManager reports the state of a YARN application; its processes do not count, since an application survives
//! the loss of a node. A wrong decision here costs work and no model: commits of a stale process lie outside the
//! lineage.

use std::fs;

use heddle_protocol::ids::{Generation, RunId};
use heddle_protocol::manifest::Salt;
use heddle_storage::checkpoint::{
    CheckpointDir, CheckpointError, ClaimRecord, DamagePolicy, Depth, Newest, Owner, PassedOver,
    SkippedCheckpoint, StoredCheckpoint,
};
use nix::unistd::gethostname;
use tracing::info;

/// Attempts to claim while other processes claim at the same time.
const TRIES: u32 = 16;
/// Version of the claim's format.
const CLAIM_VERSION: u32 = 1;

/// A request to claim a directory.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// The run.
    pub run: RunId,
    /// The claiming process.
    pub owner: Owner,
    /// The salt of this process.
    pub salt: Salt,
    /// Now, milliseconds since 1970; for display.
    pub at_ms: u64,
    /// Claim even if the owner lives or its state is unknown.
    pub take_over: bool,
    /// Continue nothing: train from initial values.
    pub fresh: bool,
    /// Whether an older checkpoint may stand in for a damaged one.
    pub on_corrupt: DamagePolicy,
}

/// The state that a claim would follow, see [`look`].
#[derive(Debug)]
pub struct Followed {
    /// The claim before it.
    pub predecessor: Option<ClaimRecord>,
    /// The checkpoint that it would continue.
    pub base: Option<StoredCheckpoint>,
    /// Newer ones that are damaged.
    pub damaged: Vec<SkippedCheckpoint>,
    /// Its damaged files that other copies stand in for.
    pub passed_over: Vec<PassedOver>,
    fresh: bool,
    claimed: Vec<Generation>,
}

impl Followed {
    /// The generation that it would be.
    #[must_use]
    pub fn next(&self) -> Generation {
        self.claimed.last().map_or(Generation(1), |highest| highest.next())
    }
}

/// A claim that was made.
#[derive(Debug)]
pub struct Claimed {
    /// Its generation.
    pub generation: Generation,
    /// The checkpoint that it continues.
    pub base: Option<StoredCheckpoint>,
    /// Newer ones that are damaged. They are outside the lineage from now on and would be deleted some time. So the caller
    /// moves them aside first.
    pub damaged: Vec<SkippedCheckpoint>,
    /// Files of its base that are damaged, and that other copies stand in for.
    pub passed_over: Vec<PassedOver>,
    /// The claim before it, of a process that has ended.
    pub predecessor: Option<ClaimRecord>,
}

/// Whether an owner lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It runs.
    Alive,
    /// It has ended.
    Gone,
    /// Cannot be determined from this machine.
    Unknown,
    /// The ResourceManager does not answer.
    NoAnswer,
}

/// Determines whether the owner of a claim lives.
pub trait LivenessCheck: Sync {
    /// Whether it does.
    fn lives(&self, owner: &Owner) -> impl Future<Output = Liveness> + Send;
}

impl<F: Fn(&Owner) -> Liveness + Sync> LivenessCheck for F {
    async fn lives(&self, owner: &Owner) -> Liveness {
        self(owner)
    }
}

/// Why the directory was not claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Its owner runs. Exit code 9.
    #[error(
        "{dir} belongs to run {run} ({owner}), which is running; stop it first, or use --take-over"
    )]
    Held {
        /// The directory.
        dir: String,
        /// Its run.
        run: RunId,
        /// Its owner.
        owner: Owner,
    },
    /// The state of its owner cannot be determined from this machine. Exit code 9.
    #[error(
        "{dir} is claimed by run {run} ({owner}), whose state cannot be determined from this machine; if it does not run, use --take-over"
    )]
    Unclear {
        /// The directory.
        dir: String,
        /// Its run.
        run: RunId,
        /// Its owner.
        owner: Owner,
    },
    /// The state of its owner could not be determined now; a later attempt may. Exit code 6.
    #[error(
        "{dir} is claimed by run {run} ({owner}), whose state cannot be determined: the ResourceManager does not answer"
    )]
    NoAnswer {
        /// The directory.
        dir: String,
        /// Its run.
        run: RunId,
        /// Its owner.
        owner: Owner,
    },
    /// A later attempt of the same application has claimed it. Exit code 9; no flag changes that.
    #[error("{dir} is claimed by {owner}, a later attempt of this application")]
    Superseded {
        /// The directory.
        dir: String,
        /// The later attempt.
        owner: Owner,
    },
    /// Other processes claimed it at the same time, repeatedly.
    #[error("cannot claim {dir}: other processes claim it at the same time")]
    Contended {
        /// The directory.
        dir: String,
    },
    /// The directory cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// Claims a checkpoint directory. `judge` determines whether the owner of the highest claim lives; for
/// owners on this machine that is [`liveness`]. An earlier attempt of the same application is continued, also where
/// the application as a whole starts over.
///
/// # Errors
/// See [`ClaimError`].
pub async fn claim(
    dir: &CheckpointDir,
    request: &ClaimRequest,
    judge: &impl LivenessCheck,
) -> Result<Claimed, ClaimError> {
    for _ in 0..TRIES {
        let followed = look(dir, request, judge).await?;
        let generation = followed.next();
        let record = ClaimRecord {
            format_version: CLAIM_VERSION,
            generation,
            run: request.run,
            owner: request.owner.clone(),
            base: followed.base.as_ref().map(|base| base.manifest.cut),
            salt: request.salt,
            at_ms: request.at_ms,
        };
        if !dir.write_claim(&record).await? {
            continue;
        }
        let again = newest(dir, request, &followed).await?;
        if again.checkpoint.map(|base| base.manifest.cut) != record.base {
            continue;
        }
        info!(%generation, base = ?record.base, owner = %record.owner, "claim_written");
        return Ok(Claimed {
            generation,
            base: followed.base,
            damaged: followed.damaged,
            passed_over: followed.passed_over,
            predecessor: followed.predecessor,
        });
    }
    Err(ClaimError::Contended { dir: dir.show(dir.root()) })
}

/// Determines what [`claim`] would follow now, and claims nothing. A job that is rejected for it has fenced no owner.
///
/// # Errors
/// See [`claim`].
pub async fn look(
    dir: &CheckpointDir,
    request: &ClaimRequest,
    judge: &impl LivenessCheck,
) -> Result<Followed, ClaimError> {
    let claimed = dir.claimed().await?;
    // Useless claims of this process do not count as predecessors.
    let mut predecessor = None;
    for generation in claimed.iter().rev() {
        let record = dir.claim(*generation).await?;
        if record.salt != request.salt {
            predecessor = Some(record);
            break;
        }
    }
    if let Some(before) = &predecessor {
        may_follow(dir, before, request, judge).await?;
    }
    let continues =
        predecessor.as_ref().is_some_and(|before| same_application(&before.owner, &request.owner));
    let mut followed = Followed {
        predecessor,
        base: None,
        damaged: Vec::new(),
        passed_over: Vec::new(),
        fresh: request.fresh && !continues,
        claimed,
    };
    let newest = newest(dir, request, &followed).await?;
    (followed.base, followed.damaged) = (newest.checkpoint, newest.damaged);
    followed.passed_over = newest.passed_over;
    Ok(followed)
}

/// The checkpoint to continue, by the claims up to the predecessor's.
async fn newest(
    dir: &CheckpointDir,
    request: &ClaimRequest,
    followed: &Followed,
) -> Result<Newest, CheckpointError> {
    if followed.fresh {
        return Ok(Newest::default());
    }
    let from = followed.predecessor.as_ref().map(|before| before.generation);
    let lineage = dir.lineage_from(from, &followed.claimed).await?;
    dir.newest(&lineage, Depth::Shallow, request.on_corrupt).await
}

/// Whether both are attempts of one application.
#[must_use]
pub fn same_application(one: &Owner, other: &Owner) -> bool {
    match (one, other) {
        (
            Owner::Application { application: one, .. },
            Owner::Application { application: other, .. },
        ) => one == other,
        _ => false,
    }
}

/// Whether the owner of the highest claim permits this one.
///
/// # Errors
/// See [`claim`].
pub async fn may_follow(
    dir: &CheckpointDir,
    before: &ClaimRecord,
    request: &ClaimRequest,
    judge: &impl LivenessCheck,
) -> Result<(), ClaimError> {
    let (shown, owner, run) = (dir.show(dir.root()), before.owner.clone(), before.run);
    if let (
        Owner::Application { application: theirs, attempt: other },
        Owner::Application { application: ours, attempt: own },
    ) = (&before.owner, &request.owner)
        && theirs == ours
    {
        // YARN starts an attempt after it gave up the one before: its liveness needs no check.
        return if other < own {
            Ok(())
        } else {
            Err(ClaimError::Superseded { dir: shown, owner })
        };
    }
    match judge.lives(&before.owner).await {
        Liveness::Gone => Ok(()),
        _ if request.take_over => Ok(()),
        Liveness::NoAnswer => Err(ClaimError::NoAnswer { dir: shown, run, owner }),
        Liveness::Alive => Err(ClaimError::Held { dir: shown, run, owner }),
        Liveness::Unknown => Err(ClaimError::Unclear { dir: shown, run, owner }),
    }
}

/// This process as the owner of a local run.
///
/// # Errors
/// When host name, boot time or start time cannot be determined.
pub fn local_owner() -> std::io::Result<Owner> {
    let pid = std::process::id();
    let start_ticks = start_ticks(pid).ok_or_else(|| {
        std::io::Error::other("cannot find the start time of this process in /proc")
    })?;
    Ok(Owner::Local { host: host()?, pid, start_ticks, boot: boot()? })
}

/// Whether the owner of a claim lives, as far as this machine can determine.
#[must_use]
pub fn liveness(owner: &Owner) -> Liveness {
    let Owner::Local { host: theirs, pid, start_ticks: started, boot: their_boot } = owner else {
        return Liveness::Unknown;
    };
    let (Ok(here), Ok(boot)) = (host(), boot()) else {
        return Liveness::Unknown;
    };
    match () {
        () if *their_boot == boot => {}
        // This machine has been rebooted since.
        () if *theirs == here => return Liveness::Gone,
        () => return Liveness::Unknown,
    }
    match start_ticks(*pid) {
        Some(ticks) if ticks == *started => Liveness::Alive,
        // A process with another host name on this boot may be in another PID namespace, invisible from here.
        None if *theirs != here => Liveness::Unknown,
        _ => Liveness::Gone,
    }
}

fn host() -> std::io::Result<String> {
    Ok(gethostname()?.to_string_lossy().into_owned())
}

fn boot() -> std::io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// When a process started, in ticks since boot; `None` when it has ended, also when it is not yet reaped.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    start_ticks_in(&stat)
}

/// Fields 3 (state) and 22 (starttime) of proc_pid_stat(5). The second field, the program's name in
/// parentheses, may contain any characters, so counting begins after its last parenthesis.
fn start_ticks_in(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_protocol::ids::Attempt;
    use heddle_storage::{LocalStorage, StorePath};
    use std::sync::Arc;
    use uuid::Uuid;

    async fn place() -> (tempfile::TempDir, CheckpointDir) {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let root = StorePath::parse(temp.path().to_str().expect("UTF-8")).expect("absolute");
        let dir =
            CheckpointDir::open_or_create(Arc::new(LocalStorage), root).await.expect("opened");
        (temp, dir)
    }

    fn application(name: &str, attempt: u32) -> Owner {
        Owner::Application { application: name.to_owned(), attempt: Attempt(attempt) }
    }

    fn request(owner: Owner) -> ClaimRequest {
        ClaimRequest {
            run: RunId(Uuid::from_u128(1)),
            owner,
            salt: Salt(Uuid::new_v4()),
            at_ms: 0,
            take_over: false,
            fresh: false,
            on_corrupt: DamagePolicy::Previous,
        }
    }

    async fn made(
        dir: &CheckpointDir,
        request: &ClaimRequest,
        lives: Liveness,
    ) -> Result<u32, ClaimError> {
        claim(dir, request, &|_: &Owner| lives).await.map(|claimed| claimed.generation.0)
    }

    #[tokio::test]
    async fn generations_count_up_over_claims() {
        let (_temp, dir) = place().await;
        for expected in 1..4 {
            let request = request(local_owner().expect("an owner"));
            assert_eq!(made(&dir, &request, Liveness::Gone).await.expect("claimed"), expected);
        }
    }

    #[tokio::test]
    async fn living_owner_is_named_and_kept_unless_taken_over() {
        let (_temp, dir) = place().await;
        let mine = request(local_owner().expect("an owner"));
        claim(&dir, &mine, &liveness).await.expect("there was no owner");
        // The owner is this process, which lives.
        let error = claim(&dir, &request(application("application_1_1", 1)), &liveness)
            .await
            .expect_err("it lives");
        let named = format!("process {} on", std::process::id());
        assert!(
            matches!(error, ClaimError::Held { .. }) && error.to_string().contains(&named),
            "{error}"
        );
        let over = ClaimRequest { take_over: true, ..request(application("application_1_1", 1)) };
        assert_eq!(
            claim(&dir, &over, &liveness).await.expect("taken over").generation,
            Generation(2)
        );
    }

    #[tokio::test]
    async fn owner_on_another_machine_is_unknown() {
        let (_temp, dir) = place().await;
        made(&dir, &request(application("application_1_1", 1)), Liveness::Gone)
            .await
            .expect("claimed");
        let error = claim(&dir, &request(local_owner().expect("an owner")), &liveness).await;
        assert!(matches!(error, Err(ClaimError::Unclear { .. })));
    }

    #[tokio::test]
    async fn attempts_of_one_application_claim_in_order() {
        let (_temp, dir) = place().await;
        let attempt = |n| request(application("application_1_1", n));
        assert_eq!(made(&dir, &attempt(1), Liveness::Alive).await.expect("claimed"), 1);
        assert_eq!(made(&dir, &attempt(3), Liveness::Alive).await.expect("claimed"), 2);
        for late in [2, 3] {
            let late = ClaimRequest { take_over: true, ..attempt(late) };
            let error = made(&dir, &late, Liveness::Gone).await;
            assert!(matches!(error, Err(ClaimError::Superseded { .. })), "no flag changes that");
        }
    }

    #[tokio::test]
    async fn concurrent_claims_get_different_generations() {
        let (_temp, dir) = place().await;
        let claims = (0..8).map(|_| {
            let dir = dir.clone();
            tokio::spawn(async move {
                made(&dir, &request(local_owner().expect("an owner")), Liveness::Gone).await
            })
        });
        let mut got = Vec::new();
        for claim in claims.collect::<Vec<_>>() {
            got.push(claim.await.expect("no panic").expect("claimed"));
        }
        got.sort_unstable();
        assert_eq!(got, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn process_is_identified_by_id_and_start_time() {
        let owner = local_owner().expect("an owner");
        assert_eq!(liveness(&owner), Liveness::Alive);
        let Owner::Local { host, pid, start_ticks, boot } = owner else { panic!("local") };
        let other = |start_ticks, boot: &str, host: &str| {
            liveness(&Owner::Local {
                host: host.to_owned(),
                pid,
                start_ticks,
                boot: boot.to_owned(),
            })
        };
        assert_eq!(other(start_ticks + 1, &boot, &host), Liveness::Gone);
        assert_eq!(other(start_ticks, "another boot", &host), Liveness::Gone);
        assert_eq!(other(start_ticks, "another boot", "elsewhere"), Liveness::Unknown);
    }

    #[test]
    fn start_time_is_found_after_any_program_name() {
        let line = "7 (a) S 1 (b) R 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1";
        assert_eq!(start_ticks_in(line), Some(4242));
        let unreaped = line.replace(") R ", ") Z ");
        assert_eq!(start_ticks_in(&unreaped), None);
        assert_eq!(start_ticks_in("7 (a"), None);
    }
}
