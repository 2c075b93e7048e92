//! Checkpoints with several files of each shard (`checkpoint.copies`).
//!
//! The names S… are those of the schedules that break a protocol without the rule.

use heddle_protocol::control::{
    Command, Operation, PserverCommand, PserverReport, ShardCommand, TakeCut,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::{CutId, Epoch, Member, ShardId, Slot, Step};
use heddle_protocol::job_spec::{Consistency, JobSpec};
use heddle_protocol::manifest::ShardFile;
use heddle_protocol::view::JobState;

use crate::failover::replicated;
use crate::harness::{Job, saved, saves, saves_copies, snaps};

fn with_copies(pservers: u32, copies: u32) -> JobSpec {
    with_copies_of(Consistency::Bsp, pservers, copies)
}

fn with_copies_of(consistency: Consistency, pservers: u32, copies: u32) -> JobSpec {
    let mut spec = replicated(consistency, pservers, 1);
    spec.checkpoint.copies = copies;
    spec
}

/// A job with an open cut that no shard has snapped.
fn cut_open(pservers: u32, copies: u32) -> (Job, CutId, Epoch) {
    let mut job = Job::started(with_copies(pservers, copies), 4, 0);
    (job.auto.snap, job.auto.save) = (false, false);
    job.operate(1, Operation::Checkpoint);
    let (cut, epoch) = (job.cut(), job.core.view().epoch);
    (job, cut, epoch)
}

/// A cut that all shards have snapped.
fn snapped(pservers: u32, copies: u32) -> (Job, CutId, Epoch) {
    let (mut job, cut, epoch) = cut_open(pservers, copies);
    snap(&mut job, cut, epoch);
    (job, cut, epoch)
}

fn snap(job: &mut Job, cut: CutId, epoch: Epoch) {
    for member in job.pservers() {
        for report in snaps(job.process(member), cut, epoch, Step(0)) {
            job.report(member, report);
        }
    }
}

fn copies_of(job: &Job, member: Member) -> Vec<ShardId> {
    let copies = |(to, command): &(Member, Command)| match command {
        Command::Pserver(PserverCommand::Cut(TakeCut { copies, .. })) if *to == member => {
            Some(copies.clone())
        }
        _ => None,
    };
    job.sent.iter().rev().find_map(copies).unwrap_or_default()
}

fn committed(job: &Job, cut: CutId) -> Option<Vec<ShardFile>> {
    let last = job.checkpoints.last()?;
    (last.manifest.cut == cut).then(|| last.manifest.shards.clone())
}

fn given_up(job: &Job, cut: CutId) -> bool {
    let ends = |command: &Command| match command {
        Command::Shards(ShardCommand::CutEnd(end)) => end.cut == cut && !end.committed,
        _ => false,
    };
    job.sent.iter().any(|(_, command)| ends(command))
}

fn save_primaries(job: &mut Job, cut: CutId, epoch: Epoch) {
    for member in job.pservers() {
        for report in saves(job.process(member), cut, epoch) {
            job.report(member, report);
        }
    }
}

fn save_copies(job: &mut Job, index: u32, cut: CutId, epoch: Epoch) {
    let member = job.pserver(index);
    for report in saves_copies(job.process(member), cut, epoch) {
        job.report(member, report);
    }
}

#[test]
fn the_manifest_lists_the_files_of_primary_and_backup() {
    let (mut job, cut, epoch) = snapped(2, 2);
    save_primaries(&mut job, cut, epoch);
    assert_eq!(committed(&job, cut), None, "the backups' files are awaited");
    for index in 0..2 {
        assert_eq!(copies_of(&job, job.pserver(index)).len(), 2);
        save_copies(&mut job, index, cut, epoch);
    }
    let files = committed(&job, cut).expect("all have saved");
    for file in &files {
        let holders: Vec<_> = file.copies.iter().filter_map(|copy| copy.holder).collect();
        assert_eq!(holders.len(), 2);
        assert_ne!(holders[0], holders[1]);
        assert_eq!(holders[0].index, file.shard.0 % 2, "the primary's is the first");
    }
    assert!(!job.warned("fewer than"));
}

#[test]
fn without_copies_no_backup_saves() {
    let (mut job, cut, epoch) = snapped(2, 1);
    assert!(job.pservers().iter().all(|member| copies_of(&job, *member).is_empty()));
    save_primaries(&mut job, cut, epoch);
    let files = committed(&job, cut).expect("one file of each is enough");
    assert!(files.iter().all(|file| file.copies.is_empty()));
}

#[test]
fn after_thirty_seconds_a_cut_goes_on_with_fewer_copies() {
    let (mut job, cut, epoch) = snapped(2, 2);
    save_copies(&mut job, 1, cut, epoch);
    job.pass(10_000);
    assert_eq!(committed(&job, cut), None, "not before each shard has a file");
    save_primaries(&mut job, cut, epoch);
    job.pass(29_000);
    assert_eq!(committed(&job, cut), None);
    job.pass(1_001);
    let files = committed(&job, cut).expect("it waits no longer");
    assert_eq!(files.iter().filter(|file| file.copies.len() == 2).count(), 2);
    assert!(job.warned("fewer than 2 copies (checkpoint.copies) of 2 of 4 shards"));
    assert!(job.warned("pserver-0 did not save shard 1 within 30 s"));
}

#[test]
fn a_backup_that_cannot_save_is_not_waited_for() {
    let (mut job, cut, epoch) = snapped(2, 2);
    save_primaries(&mut job, cut, epoch);
    save_copies(&mut job, 1, cut, epoch);
    for shard in copies_of(&job, job.pserver(0)) {
        let failure = Failure::new(ErrorClass::Unreachable, "no room");
        job.report(job.pserver(0), PserverReport::SaveFailed { cut, epoch, shard, failure });
    }
    assert!(committed(&job, cut).is_some());
    assert!(job.warned("pserver-0 could not save shard 1: no room"));
}

#[test]
fn the_file_of_a_backup_is_enough_if_the_primary_cannot_save() {
    let (mut job, cut, epoch) = snapped(2, 2);
    save_copies(&mut job, 1, cut, epoch);
    for shard in [0, 2].map(ShardId) {
        let failure = Failure::new(ErrorClass::Unreachable, "no space");
        job.report(job.pserver(0), PserverReport::SaveFailed { cut, epoch, shard, failure });
    }
    assert!(!given_up(&job, cut));
    for shard in [1, 3].map(ShardId) {
        job.report(job.pserver(1), saved(cut, epoch, shard, 0, 0));
    }
    save_copies(&mut job, 0, cut, epoch);
    let files = committed(&job, cut).expect("each shard has a file");
    assert_eq!(files[0].copies.len(), 0, "that of the backup alone");
    assert_eq!(files[1].copies.len(), 2);
}

#[test]
fn s48_copies_that_differ_give_the_cut_up_and_the_backup_leaves() {
    let (mut job, cut, epoch) = snapped(2, 2);
    save_primaries(&mut job, cut, epoch);
    let shard = copies_of(&job, job.pserver(1))[0];
    job.report(job.pserver(1), saved(cut, epoch, shard, 9, 1));
    assert!(given_up(&job, cut));
    let differ =
        format!("copies of shard {shard} differ: pserver-0 and pserver-1 saved other bytes");
    assert!(job.warned(&differ));
    let copies = job.core.view().replication.expect("replicas");
    assert_eq!((copies.under_replicated, copies.copies_differed), (1, 1), "it cannot be promoted");
    let refills: Vec<_> = copies.refills.iter().map(|refill| (refill.shard, refill.to)).collect();
    assert_eq!(refills, [(shard, Slot::pserver(1))], "it is filled from the primary");
    // The next one commits, with one file of that shard.
    job.operate(2, Operation::Checkpoint);
    let next = job.cut();
    snap(&mut job, next, epoch);
    save_primaries(&mut job, next, epoch);
    save_copies(&mut job, 0, next, epoch);
    save_copies(&mut job, 1, next, epoch);
    let files = committed(&job, next).expect("the others are equal");
    let single: Vec<_> = files.iter().filter(|file| file.copies.is_empty()).collect();
    assert_eq!(single.len(), 1);
    assert_eq!(single[0].shard, shard);
    assert_eq!(job.core.view().state, JobState::Running);
}

#[test]
fn copies_that_differ_for_the_third_time_in_an_hour_end_the_job() {
    let mut job = Job::started(with_copies(2, 2), 4, 0);
    (job.auto.snap, job.auto.save) = (false, false);
    for (time, holder) in [(1, 1), (2, 1), (3, 0)] {
        assert_eq!(job.core.view().state, JobState::Running);
        job.operate(time, Operation::Checkpoint);
        let (cut, epoch) = (job.cut(), job.core.view().epoch);
        snap(&mut job, cut, epoch);
        save_primaries(&mut job, cut, epoch);
        let backup = job.pserver(holder);
        let shard = copies_of(&job, backup)[0];
        job.report(backup, saved(cut, epoch, shard, 9, 1));
        assert!(given_up(&job, cut));
    }
    let outcome = job.outcome.clone().expect("it has ended");
    assert_eq!(outcome.exit_code, ExitCode::Internal);
    assert!(outcome.message.contains("pserver-1 and pserver-0 saved other bytes"), "{outcome:?}");
}

/// The storage keeps its tries: another limit counts copies that differ.
#[test]
fn copies_that_differ_are_no_failed_try_of_the_final_cut() {
    let mut job = Job::started(with_copies(2, 2), 4, 0);
    (job.auto.store, job.auto.snap, job.auto.save) = (false, false, false);
    job.end_phase(3);
    job.fail_final_cuts_but_the_last();
    let (cut, epoch) = (job.cut(), job.core.view().epoch);
    snap(&mut job, cut, epoch);
    save_primaries(&mut job, cut, epoch);
    let shard = copies_of(&job, job.pserver(1))[0];
    job.report(job.pserver(1), saved(cut, epoch, shard, 9, 1));
    assert!(given_up(&job, cut));
    assert_eq!(job.outcome, None, "it is taken again");
    job.takes_the_final_cut_again();
}

#[test]
fn r18_a_new_primary_saves_what_is_snapped_and_not_saved() {
    let (mut job, cut, epoch) = snapped(3, 1);
    let lost = job.pserver(0);
    // One of its two shards is saved.
    job.report(lost, saved(cut, epoch, ShardId(0), 0, 0));
    for member in [job.pserver(1), job.pserver(2)] {
        for shard in [member.slot.index, member.slot.index + 3].map(ShardId) {
            job.report(member, saved(cut, epoch, shard, 0, 0));
        }
    }
    job.sent.clear();
    job.kill(lost);
    assert!(!given_up(&job, cut), "all shards have snapped");
    let savers: Vec<Member> = job.pservers();
    let ordered: Vec<(Member, Vec<ShardId>)> = savers
        .iter()
        .map(|member| (*member, copies_of(&job, *member)))
        .filter(|(_, copies)| !copies.is_empty())
        .collect();
    let [(saver, copies)] = &ordered[..] else { panic!("{ordered:?}") };
    assert_eq!(copies, &[ShardId(3)], "the other one is saved");
    job.report(*saver, saved(cut, epoch, ShardId(3), 9, 0));
    let files = committed(&job, cut).expect("the checkpoint outlives the primary");
    assert_eq!(files.len(), 6);
    assert_eq!(job.core.view().epoch, epoch);
}

/// The schedule S18, of BSP: any primary is lost, with any number of files saved.
#[test]
fn s18_cut_that_all_have_snapped_outlives_any_primary() {
    for (lost, saved_before) in (0..3).flat_map(|lost| (0..6).map(move |files| (lost, files))) {
        let (mut job, cut, epoch) = snapped(3, 1);
        for shard in 0..saved_before {
            job.report(job.pserver(shard % 3), saved(cut, epoch, ShardId(shard), 0, 0));
        }
        job.sent.clear();
        job.kill(job.pserver(lost));
        assert!(!given_up(&job, cut), "pserver-{lost} lost after {saved_before} files");
        let promoted = job.pservers().into_iter().map(|member| (member, copies_of(&job, member)));
        let promoted: Vec<_> = promoted.collect();
        let unsaved = (saved_before..6).filter(|shard| shard % 3 == lost).count();
        assert_eq!(promoted.iter().map(|(_, copies)| copies.len()).sum::<usize>(), unsaved);
        for shard in (saved_before..6).filter(|shard| shard % 3 != lost) {
            job.report(job.pserver(shard % 3), saved(cut, epoch, ShardId(shard), 0, 0));
        }
        for (member, copies) in promoted {
            for shard in copies {
                job.report(member, saved(cut, epoch, shard, 9, 0));
            }
        }
        let files = committed(&job, cut).expect("the checkpoint outlives the primary");
        assert_eq!((files.len(), job.core.view().epoch), (6, epoch));
    }
}

#[test]
fn s18_a_primary_lost_before_all_have_snapped_ends_the_cut() {
    let (mut job, cut, _) = cut_open(3, 1);
    job.kill(job.pserver(0));
    assert!(given_up(&job, cut));
}

/// The schedule S18, of ASP: barriers wait while the cut is open, nobody may join, and the tasks of a trainer that is lost
/// have nobody. So the cut ends with the primary.
#[test]
fn s18_asp_cut_whose_primary_is_lost_lets_trainers_join() {
    let mut job = Job::started(with_copies_of(Consistency::Asp, 3, 1), 40, 0);
    (job.auto.snap, job.auto.save) = (false, false);
    job.operate(1, Operation::Checkpoint);
    let (cut, epoch) = (job.cut(), job.core.view().epoch);
    let task = job.process(job.trainer(0)).tasks[0].task;
    job.kill(job.trainer(0));
    let joiner = job.trainer(0);
    assert!(job.process(joiner).tasks.is_empty(), "the cut is open");
    job.kill(job.pserver(0));
    assert!(given_up(&job, cut));
    assert_eq!(job.core.view().epoch, epoch, "no rollback");
    let resumed = job.process(joiner).tasks.iter().any(|grant| grant.task == task);
    assert!(resumed, "{:?}", job.process(joiner).tasks);
}
