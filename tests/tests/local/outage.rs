//! Trainers that cannot reach a pserver, while all of them reach the ApplicationMaster: reported, and overcome.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use heddle_protocol::ids::{Incarnation, Slot};
use heddle_protocol::view::{JobEvent, JobState, WarningCode};
use heddle_tests::local::{Run, write_libsvm};
use heddle_tests::logs::{KILLS, SILENCE};

const LIMIT: Duration = Duration::from_secs(240);

#[test]
fn pserver_out_of_reach_of_trainers_is_replaced() {
    let dir = tempfile::tempdir().expect("a folder");
    write_libsvm(&dir.path().join("data"), "train", 2, 200, 50, 5, 3).expect("data");
    let text = "name = \"outage\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\npasses = 3\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 50\nstandardise = false\n\
         [training]\nconsistency = \"bsp\"\nlanes = 2\nbatch = 8\n\
         [pservers]\ncount = 2\nshards = 4\n\
         [trainers]\nmin = 2\nmax = 2\n\
         [checkpoint]\ndir = \"ckpt\"\n\
         [output]\nmodel = \"model\"\n";
    std::fs::write(dir.path().join("job.toml"), text).expect("a job file");
    // Takes connections and answers none, as a firewall that drops packets looks from outside after a while.
    let wall = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let wall_address = wall.local_addr().expect("an address");
    let detour = format!("shard-place=return({wall_address},holder=pserver-0.1)");
    let begun = Instant::now();
    let mut run = Run::start_with(dir.path(), "job.toml", &[], &[("FAILPOINTS", &detour)])
        .expect("it starts");
    let warning = run
        .wait_event("a warning", LIMIT, |event| match event {
            JobEvent::Warning { text, code: WarningCode::PserverUnreachable } => Some(text.clone()),
            _ => None,
        })
        .expect("the outage is reported");
    assert!(
        warning.contains("trainer-") && warning.contains("the data port of pserver-0"),
        "{warning}"
    );
    let warned = begun.elapsed();
    // Views are made now and then, so the message comes a moment after the event.
    run.wait_for("the outage in the status", LIMIT, |view| view.message.contains("pserver-0"))
        .expect("the status names the pserver");
    let view = run
        .wait_for("replaced", LIMIT, |view| {
            view.slots
                .iter()
                .any(|slot| slot.slot == Slot::pserver(0) && slot.incarnation > Incarnation(1))
        })
        .expect("the pserver is replaced");
    assert!(begun.elapsed() > warned + Duration::from_secs(5), "after a limit");
    for slot in &view.slots {
        assert!(
            slot.slot == Slot::pserver(0) || slot.incarnation == Incarnation(1),
            "no other slot is at fault: {slot:?}"
        );
    }
    // The warning above, and the end of the pserver that was replaced.
    let run = run.expecting(KILLS).expecting(SILENCE);
    let (code, events, stderr) = run.finish(LIMIT).expect("it ends");
    assert_eq!(code, Some(0), "{stderr}");
    let ended = events.iter().find_map(|event| match event {
        JobEvent::Ended { state, view, .. } => Some((*state, view.clone())),
        _ => None,
    });
    let (state, view) = ended.expect("it ended");
    assert_eq!(state, JobState::Finished);
    assert!(view.recoveries[0].cause.contains("cannot reach"), "{view:?}");
}
