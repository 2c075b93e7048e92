//! The job's tokens end: a last checkpoint before, then exit code 5.

use std::collections::BTreeSet;

use heddle_am_core::{Event, FetchedTokens, Stored, TokenLifetime};
use heddle_protocol::control::{
    Command, CredentialsBytes, CutAt, InstallTokens, Operation, Report,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::ids::Member;
use heddle_protocol::view::{JobEvent as Notice, JobState};

use crate::harness::Job;

/// Of the tokens of most tests: the last checkpoint begins a tenth before.
const LIFE_MS: u64 = 120_000;

fn tokens(job: &mut Job, usable_ms: u64) {
    let until_ms = 1_700_000_000_000 + job.now + usable_ms;
    job.on(Event::TokensLast(TokenLifetime { usable_ms, end_ms: usable_ms, until_ms }));
}

fn bsp() -> Job {
    let mut job = Job::bsp();
    tokens(&mut job, LIFE_MS);
    job
}

/// All pservers take the snapshot of the open cut at its step and save it.
fn save(job: &mut Job) {
    let cut = job.cut();
    let CutAt::Steps(step) = job.cut_at() else { panic!("BSP names a step") };
    job.snap_all(cut, step.0);
    job.save_all(cut);
}

/// The message of a job that ended because of its tokens.
fn ended(job: &Job) -> String {
    let outcome = job.outcome.clone().expect("the job has ended");
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Failed, ExitCode::Denied));
    assert!(outcome.message.contains("submit it again to"), "{}", outcome.message);
    outcome.message
}

#[test]
fn last_checkpoint_is_taken_before_the_tokens_end() {
    let mut job = bsp();
    assert_eq!(
        job.core.view().credentials.unwrap().until_ms,
        1_700_000_000_000 + job.now + LIFE_MS
    );
    let before = (job.cut(), job.checkpoints.len());
    job.pass(107_000);
    assert_eq!(job.cut(), before.0, "there is time");
    job.pass(2_000);
    assert!(job.cut() > before.0);
    save(&mut job);
    assert_eq!(job.checkpoints.len(), before.1 + 1);
    let message = ended(&job);
    assert!(
        message.contains("so it ended after a checkpoint; submit it again to continue from it"),
        "{message}"
    );
}

#[test]
fn checkpoint_that_is_not_complete_ends_the_job_in_time() {
    let mut job = bsp();
    job.pass(119_000);
    assert!(job.outcome.is_none());
    job.pass(2_000);
    let message = ended(&job);
    assert!(message.contains("without a new checkpoint"), "{message}");
    assert!(message.contains("from checkpoint g1-c1"), "{message}");
}

#[test]
fn failed_last_checkpoint_is_repeated_while_there_is_time() {
    let mut job = bsp();
    job.auto.store = false;
    job.pass(108_500);
    job.answer_store(Stored::NotDone {
        failure: Failure::new(ErrorClass::Unreachable, "cannot reach the NameNode"),
    });
    assert!(job.outcome.is_none());
    job.auto.store = true;
    job.pass(5_000);
    save(&mut job);
    assert!(ended(&job).contains("ended after a checkpoint"));
}

#[test]
fn job_in_recovery_ends_at_the_last_checkpoint() {
    let mut job = bsp();
    job.auto.hold = false;
    let pserver = job.pserver(0);
    job.kill(pserver);
    job.pass(107_000);
    assert!(job.outcome.is_none(), "{:?}", job.outcome);
    job.pass(2_000);
    let message = ended(&job);
    assert!(
        message.contains("so it ended; submit it again to continue from checkpoint"),
        "{message}"
    );
}

#[test]
fn pserver_lost_in_the_last_checkpoint_ends_the_job() {
    let mut job = bsp();
    job.pass(109_000);
    let pserver = job.pserver(0);
    job.kill(pserver);
    assert!(ended(&job).contains("from checkpoint g1-c1"));
}

#[test]
fn job_without_containers_ends_with_its_tokens() {
    let mut job = Job::new(crate::harness::spec(heddle_protocol::job_spec::Consistency::Bsp), 4, 0);
    job.auto.cluster = false;
    job.start();
    tokens(&mut job, LIFE_MS);
    job.pass(130_000);
    assert!(ended(&job).contains("no checkpoint exists yet"));
}

#[test]
fn newer_tokens_move_the_end() {
    let mut job = bsp();
    job.pass(90_000);
    tokens(&mut job, LIFE_MS);
    let before = job.cut();
    job.pass(106_000);
    assert_eq!((job.cut(), job.outcome.is_none()), (before, true));
    // The last checkpoint has begun when others come: the job goes on.
    job.pass(3_000);
    assert!(job.cut() > before);
    tokens(&mut job, LIFE_MS);
    save(&mut job);
    assert!(job.outcome.is_none(), "{:?}", job.outcome);
    job.pass(107_000);
    assert!(job.outcome.is_none(), "{:?}", job.outcome);
    job.pass(20_000);
    ended(&job);
}

#[test]
fn dead_tokens_end_the_job_at_once() {
    let mut job = Job::bsp();
    tokens(&mut job, 0);
    job.pass(1);
    ended(&job);
}

#[test]
fn missing_refresh_takes_a_checkpoint_and_goes_on() {
    let mut job = Job::bsp();
    let until_ms = 1_700_000_000_000 + job.now + LIFE_MS;
    let lifetime = TokenLifetime { usable_ms: LIFE_MS, end_ms: 3 * LIFE_MS, until_ms };
    job.on(Event::TokensLast(lifetime));
    let before = (job.cut(), job.checkpoints.len());
    job.pass(109_000);
    assert!(job.cut() > before.0);
    save(&mut job);
    assert_eq!(job.checkpoints.len(), before.1 + 1);
    job.pass(2 * LIFE_MS);
    assert!(job.outcome.is_none(), "{:?}", job.outcome);
    job.on(not_fetched("no KDC", true));
    job.pass(LIFE_MS);
    assert!(ended(&job).contains("(others could not be fetched: no KDC)"));
}

#[test]
fn operators_stop_is_not_changed_by_the_end_of_tokens() {
    let mut job = bsp();
    job.pass(107_500);
    job.operate(1, Operation::Stop { checkpoint: true });
    job.pass(2_000);
    save(&mut job);
    let outcome = job.outcome.clone().expect("stopped");
    assert_eq!((outcome.state, outcome.exit_code), (JobState::Stopped, ExitCode::Killed));
}

#[test]
fn slow_checkpoints_begin_the_last_one_earlier() {
    let mut job = Job::bsp();
    job.operate(1, Operation::Checkpoint);
    job.pass(15_000);
    save(&mut job);
    tokens(&mut job, LIFE_MS);
    let before = job.cut();
    job.pass(91_000);
    assert!(job.cut() > before, "twice 15 s before 120 s");
}

fn not_fetched(error: &str, is_first: bool) -> Event {
    Event::TokensNotFetched { error: error.to_owned(), is_first }
}

fn fetched(job: &mut Job, serial: u64) {
    fetched_beside(job, serial, "");
}

/// Tokens come while other file systems are away.
fn fetched_beside(job: &mut Job, serial: u64, error: &str) {
    let until_ms = 1_700_000_000_000 + job.now + LIFE_MS;
    job.on(Event::TokensFetched(Box::new(FetchedTokens {
        lifetime: TokenLifetime { usable_ms: LIFE_MS, end_ms: 3 * LIFE_MS, until_ms },
        tokens: InstallTokens { serial, credentials: CredentialsBytes(vec![1, 2]) },
        error: error.to_owned(),
    })));
}

/// The containers that were sent these tokens.
fn sent(job: &Job, serial: u64) -> BTreeSet<Member> {
    let of_serial =
        |command: &Command| matches!(command, Command::Tokens(tokens) if tokens.serial == serial);
    job.sent.iter().filter(|(_, command)| of_serial(command)).map(|(member, _)| *member).collect()
}

fn pending(job: &Job) -> u32 {
    job.core.view().credentials.unwrap().pending_containers
}

#[test]
fn fetched_tokens_reach_every_container() {
    let mut job = Job::bsp();
    fetched(&mut job, 1);
    let all: BTreeSet<Member> = job.processes.keys().copied().collect();
    assert_eq!((sent(&job, 1), pending(&job)), (all.clone(), 4));
    for member in &all {
        job.report(*member, Report::TokensInstalled { serial: 1 });
    }
    assert_eq!(pending(&job), 0);
    // A replacement may have been started with older ones, and a connection may have lost them.
    let trainer = job.trainer(0);
    job.kill(trainer);
    let replacement = job.trainer(0);
    assert!(replacement != trainer && sent(&job, 1).contains(&replacement));
    assert_eq!(pending(&job), 1);
    fetched(&mut job, 2);
    job.report(replacement, Report::TokensInstalled { serial: 1 });
    assert_eq!(pending(&job), 4, "older ones are no answer");
    let again = job.trainer(1);
    job.disconnect(again);
    job.sent.clear();
    job.registers(again);
    assert_eq!(sent(&job, 2), BTreeSet::from([again]));
}

#[test]
fn failed_fetches_are_counted_and_reported_once() {
    let mut job = Job::bsp();
    fetched(&mut job, 1);
    for n in 0..3 {
        job.on(not_fetched("no KDC", n == 0));
    }
    let view = job.core.view().credentials.unwrap();
    assert_eq!((view.failures, view.error.as_str(), view.is_refreshed), (3, "no KDC", true));
    let told = |notice: &&Notice| match notice {
        Notice::Warning { text, .. } => text.contains("no KDC"),
        _ => false,
    };
    assert_eq!(job.notices.iter().filter(told).count(), 1);
    // Tokens of another file system do not make good what failed.
    for (serial, error) in [(2, "no KDC"), (3, "")] {
        fetched_beside(&mut job, serial, error);
        let view = job.core.view().credentials.unwrap();
        assert_eq!((view.failures, view.error.as_str()), (3, error));
    }
    for (error, is_first) in [("a is away", true), ("a is away; b is away", true)] {
        job.on(not_fetched(error, is_first));
        assert!(job.warned(error), "each file system once");
    }
}
