//! The edges of a cut, as a table: `cut_edges.txt`.

use std::sync::Arc;

use heddle_protocol::failure::ErrorClass;
use heddle_protocol::ids::{Attempt, Generation, Incarnation, Member, Role, Slot};
use heddle_protocol::job_spec::Consistency;
use heddle_protocol::manifest::{Md5, ShardFile};

use super::*;
use crate::action::{CallId, ConnectionId};
use crate::checkpoint::commit::CommitOutcome;
use crate::checkpoint::cut::{CutPoint, CutProgress, CutState};
use crate::checkpoint::snapshots::FailedSave;
use crate::event::Stored;
use crate::fleet::Fleet;
use crate::stage::replicas::ViewList;
use crate::stage::shard_map::ShardMap;
use crate::tables::{self, Machine};
use crate::work::JobWork;

const SLOT: Slot = Slot { role: Role::Pserver, index: 0 };

/// A job with one shard and two pservers, between phases. The second pserver has a backup.
#[derive(Clone)]
struct CutMachine {
    checkpoints: Checkpoints,
    ctx: Context,
    fleet: Fleet,
    work: JobWork,
    map: ShardMap,
    /// What the cut is given up for.
    ended: Option<CutEnded>,
}

impl CutMachine {
    fn begin() -> Self {
        let mut spec = heddle_protocol::job_spec::job::sample();
        spec.training.consistency = Consistency::Asp;
        spec.pservers.count = 2;
        let mut config = tables::config(spec);
        config.limits.store_tries = 2;
        let config = Arc::new(config);
        let mut ctx = Context::new(Arc::clone(&config));
        ctx.set_identity(Attempt(2), Generation(2));
        let mut fleet = Fleet::new(&config, Arc::default());
        fleet.begin(&[], &ctx);
        fleet.adopt([]);
        for index in 0..2 {
            let member = Member { slot: Slot::pserver(index), incarnation: Incarnation(1) };
            let registration = tables::registration(member, None);
            let connection = ConnectionId(index.into());
            let accepted = fleet.register(connection, registration, None, &mut ctx);
            assert!(accepted.is_some(), "it is of an earlier attempt");
        }
        tables::taken(&mut ctx);
        let work = JobWork::new(&config, Arc::default(), &ctx);
        let mut checkpoints = Checkpoints::default();
        checkpoints.begin(None, &[], true);
        Self { checkpoints, ctx, fleet, work, map: ShardMap::even(1, 1), ended: None }
    }

    fn advance(&mut self, point: Option<CutPoint>) {
        let (views, map, work, fleet) = (ViewList::default(), &self.map, &self.work, &self.fleet);
        while self.checkpoints.advance(point, work, map, &views, fleet, &mut self.ctx) {}
    }

    fn staged(&mut self, outcome: Stored) {
        let call = match self.checkpoints.open.as_ref().map(|cut| &cut.state) {
            Some(CutState::Staging(call)) => *call,
            _ => CallId(1),
        };
        let cut = self.checkpoints.open_cut().unwrap_or_default();
        let (fleet, ctx) = (&self.fleet, &mut self.ctx);
        self.ended = self.checkpoints.staged(call, cut, outcome, fleet, ctx);
    }

    fn commit_answered(&mut self, outcome: Stored) -> String {
        let commit = self.checkpoints.open.as_ref().and_then(Cut::commit);
        let call = commit.and_then(|commit| commit.call).unwrap_or(CallId(1));
        match self.checkpoints.commit_answered(call, outcome, &self.fleet, &mut self.ctx) {
            CommitOutcome::NothingFollows => String::new(),
            CommitOutcome::GivenUp(_) => "given up".to_owned(),
            CommitOutcome::Committed(_) => "a checkpoint".to_owned(),
        }
    }

    fn commit_succeeds(&mut self) -> String {
        let manifest = self.checkpoints.manifest(&self.work, &self.fleet, &self.ctx);
        let Some((dir, manifest)) = manifest else { return String::new() };
        let checkpoint = Checkpoint { dir, manifest: Arc::new(manifest) };
        self.commit_answered(Stored::Committed(Box::new(checkpoint)))
    }

    fn store_answers(&mut self, event: &str) -> String {
        match event {
            "directory made" => self.staged(Stored::Staged("staging".to_owned())),
            "directory not made" => self.staged(Stored::NotDone { failure: failure() }),
            "committed" => return self.commit_succeeds(),
            "not committed" => {
                return self.commit_answered(Stored::NotDone { failure: failure() });
            }
            "outcome unknown" => {
                return self.commit_answered(Stored::Unknown { failure: failure() });
            }
            _ => panic!("{event:?} is not an event"),
        }
        String::new()
    }

    fn file() -> ShardFile {
        ShardFile {
            shard: ShardId(0),
            uuid: Default::default(),
            file: "file".to_owned(),
            md5: Md5([0; 16]),
            bytes: 1,
            at_ms: 0,
            sha256: None,
            copies: Vec::new(),
        }
    }
}

fn failure() -> Failure {
    Failure::new(ErrorClass::Unreachable, "the store is away")
}

impl Machine for CutMachine {
    fn state(&self) -> String {
        let checkpoints = &self.checkpoints;
        let Some(cut) = &checkpoints.open else {
            return if checkpoints.wanted.is_some() { "wanted" } else { "none" }.to_owned();
        };
        let mut text = match &cut.state {
            CutState::Staging(_) => return "Staging".to_owned(),
            CutState::Staged { .. } => return "Staged".to_owned(),
            CutState::Ordered(ordered) => match &ordered.progress {
                CutProgress::Arming(_) => "Arming".to_owned(),
                CutProgress::Snapping => "Snapping".to_owned(),
                CutProgress::Committing(commit) => {
                    let call = if commit.call.is_some() { "" } else { ", waits" };
                    let unknown = if commit.outcome_unknown { ", outcome unknown" } else { "" };
                    format!("Committing, {} tries failed{call}{unknown}", commit.tries)
                }
            },
        };
        if let Some(ordered) = cut.ordered().filter(|_| cut.commit().is_none()) {
            text += if ordered.snapped.is_empty() { "" } else { ", snapped" };
            text += if ordered.saved.len() == 0 { "" } else { ", saved" };
        }
        text
    }

    fn on(&mut self, event: &str) -> String {
        self.ended = None;
        let mut done = String::new();
        let (id, epoch) = (self.checkpoints.open_cut().unwrap_or_default(), self.ctx.epoch());
        let (fleet, ctx) = (&self.fleet, &mut self.ctx);
        let checkpoints = &mut self.checkpoints;
        match event {
            "wanted" => checkpoints.want(CutReason::Ordered),
            "opened" => {
                if let Some(reason) = checkpoints.wanted.filter(|_| !checkpoints.is_open()) {
                    checkpoints.open(reason, ctx.now() + 60_000, 1, ctx);
                }
            }
            "the job can be cut" => {
                self.advance(Some(CutPoint::Idle { phase_is_over: false }));
            }
            "pserver armed" => checkpoints.armed(SLOT, id, epoch, ctx),
            "shard snapped" => {
                self.ended = checkpoints.snapped(id, epoch, ShardId(0), Step(7), fleet, ctx);
            }
            "shard saved" | "saved with other bytes by a backup" => {
                let bytes = if event == "shard saved" { 1 } else { 2 };
                let file = ShardFile { bytes, ..Self::file() };
                // A second file is of the next holder of the shard.
                let slot = if bytes == 1 { SLOT } else { Slot::pserver(1) };
                if checkpoints.saved(id, epoch, slot, file, Vec::new(), ctx).is_err() {
                    done = "files differ".to_owned();
                }
            }
            "shard of the last cut saved" => {
                let before = CutId { number: id.number.saturating_sub(1), ..id };
                let saved = checkpoints.saved(before, epoch, SLOT, Self::file(), Vec::new(), ctx);
                assert!(saved.is_ok(), "it is ignored");
            }
            "shard not saved" => {
                let failed = FailedSave { slot: SLOT, shard: ShardId(0), failure: failure() };
                self.ended = checkpoints.save_failed(id, epoch, failed, fleet, ctx);
            }
            "shard gives up" => {
                if checkpoints.can_be_given_up(id, epoch, ctx).is_some() {
                    let shard = ShardId(0);
                    self.ended = checkpoints.shard_gave_up(SLOT, shard, None, "", fleet, ctx);
                }
            }
            "timeout" => {
                if ctx.is_waiting_for(Purpose::CutTimeout) {
                    self.ended = checkpoints.timed_out(fleet, ctx);
                }
            }
            "pserver with copies lost" => {
                let promoted = [(ShardId(0), Slot::pserver(1))];
                self.ended = checkpoints.holder_lost(SLOT, &promoted, fleet, ctx);
            }
            "rollback" => {
                if !checkpoints.is_outcome_open() {
                    self.ended = checkpoints.end_for_rollback(fleet, ctx);
                }
            }
            "next try is due" => ctx.clear_deadline(Purpose::Retry(Retried::Commit)),
            _ => done = self.store_answers(event),
        }
        self.advance(None);
        if let Some(ended) = &self.ended {
            let limit = if ended.has_own_limit { " (not the storage)" } else { "" };
            done = format!("given up{limit}");
        }
        let taken = tables::taken(&mut self.ctx);
        [done, taken].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ")
    }
}

#[test]
fn edges_of_a_cut_are_those_of_their_table() {
    let events = [
        "wanted",
        "opened",
        "directory made",
        "directory not made",
        "the job can be cut",
        "pserver armed",
        "shard snapped",
        "shard saved",
        "saved with other bytes by a backup",
        "shard of the last cut saved",
        "shard not saved",
        "shard gives up",
        "timeout",
        "pserver with copies lost",
        "rollback",
        "next try is due",
        "committed",
        "not committed",
        "outcome unknown",
    ];
    let found = tables::edges(
        "The edges of a cut.",
        CutMachine::begin(),
        &events,
        Some("shard of the last cut saved"),
    );
    tables::check("checkpoint/cut_edges.txt", include_str!("cut_edges.txt"), &found);
}
