//! Paths that nftables cut, one way or both, between processes of a job in a network namespace of its own.
//!
//! Needs root, `nft`, `ip`, `ss`, `unshare`, `nsenter` and `setpriv`. Each trainer has a user id of its own, by which its
//! packets are told apart: 4000 + 10 × index + incarnation.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_protocol::environment::AmAddress;
use heddle_protocol::ids::{Incarnation, Slot};
use heddle_protocol::view::{JobEvent, JobView, WarningCode};
use heddle_tests::local::{Run, program, write_libsvm};
use heddle_tests::logs::{KILLS, SILENCE};
use heddle_tests::standstill::end_of;

const LIMIT: Duration = Duration::from_secs(180);
/// Some 40 s of training: the end of a process is decided 10 s after a cut, and a rule may take effect 10 s late, while
/// the kernel removes the namespace of the test before.
const STEPS: u32 = 1_600;
const HEAL_AFTER: Duration = Duration::from_secs(5);

/// The kernel takes seconds to remove a namespace, and rules of others wait meanwhile: one job at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct CutJob {
    dir: tempfile::TempDir,
    run: Run,
    _alone: MutexGuard<'static, ()>,
}

impl CutJob {
    /// A BSP job of two pservers, three trainers and this many steps that trains.
    fn training(steps: u32) -> Self {
        Self::with_pservers("count = 2\nshards = 4", steps)
    }

    /// The same with other pservers, by lines of the job file.
    fn with_pservers(pservers: &str, steps: u32) -> Self {
        // A test that failed leaves nothing that another one needs.
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().expect("a folder");
        write_job(dir.path(), pservers, steps);
        let slow = dir.path().join("slow");
        std::fs::write(&slow, "").expect("a file");
        let points = format!("step-computed=return(sleep=25,while={})", slow.display());
        let slow = [("FAILPOINTS", points.as_str())];
        let run = Run::start_in_namespace(dir.path(), "job.toml", &[], &slow).expect("it starts");
        let trains = |event: &JobEvent| match event {
            JobEvent::Progress { rows, .. } => (*rows > 100).then_some(()),
            _ => None,
        };
        run.wait_event("training", LIMIT, trains).expect("it trains");
        run.in_namespace(&["nft", "add", "table", "inet", "cuts"]).expect("nft is there");
        let chain = "add chain inet cuts out { type filter hook output priority 0; }";
        run.in_namespace(&["nft", chain]).expect("a chain");
        Self { dir, run, _alone: alone }
    }

    /// Drops the packets that this rule matches, from now on.
    fn cut(&self, packets: &str) -> Instant {
        let rule = format!("add rule inet cuts out {packets} drop");
        self.run.in_namespace(&["nft", &rule]).expect("a rule");
        Instant::now()
    }

    fn heal(&self) {
        self.run.in_namespace(&["nft", "flush", "chain", "inet", "cuts", "out"]).expect("healed");
    }

    /// The port that the first process of pserver-0 listens on.
    fn data_port(&self) -> u16 {
        self.data_port_of(Slot::pserver(0))
    }

    fn pid_of(&self, pserver: Slot) -> u32 {
        let pid = self.run.wait_event("a pserver", LIMIT, |event| match event {
            JobEvent::Registered { slot, pid, .. } if *slot == pserver => Some(*pid),
            _ => None,
        });
        pid.expect("it has registered")
    }

    fn data_port_of(&self, pserver: Slot) -> u16 {
        let pid = format!("pid={},", self.pid_of(pserver));
        let sockets = self.run.in_namespace(&["ss", "-Hltnp"]).expect("ss is there");
        let line = sockets.lines().find(|line| line.contains(&pid)).expect("it listens");
        let address = line.split_whitespace().nth(3).expect("a local address");
        address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
    }

    /// The local ports of the other pservers' streams to the pserver that listens on this port, as nftables writes a set.
    fn stream_ports(&self, port: u16) -> String {
        // Sockets of the root user are shown without one.
        self.local_ports(port, |line| !line.contains(" uid:"))
    }

    /// The local ports of connections to this port of all processes but one, as nftables writes a set. New connections have
    /// others.
    fn ports_of_others(&self, pserver: Slot, port: u16) -> String {
        let pid = format!("pid={},", self.pid_of(pserver));
        self.local_ports(port, |line| !line.contains(&pid))
    }

    /// The connections of the namespace, one in each line.
    fn sockets(&self) -> String {
        let sockets = self.run.in_namespace(&["ss", "-Htneop", "state", "established"]);
        sockets.expect("ss is there")
    }

    /// The local ports of the connections to this port that `ss` shows in such lines, as nftables writes a set.
    fn local_ports(&self, port: u16, is_meant: impl Fn(&str) -> bool) -> String {
        let sockets = self.sockets();
        let mut ports = Vec::new();
        for line in sockets.lines().filter(|line| is_meant(line)) {
            let [local, peer] = addresses(line);
            if peer.ends_with(&format!(":{port}")) {
                ports.extend(local.rsplit(':').next().map(str::to_owned));
            }
        }
        assert!(!ports.is_empty(), "no connections to {port} in {sockets}");
        format!("{{ {} }}", ports.join(", "))
    }

    /// The port of the ApplicationMaster.
    fn am_port(&self) -> u16 {
        let runs = self.dir.path().join("state/heddle/runs");
        let run = std::fs::read_dir(runs).expect("runs").flatten().next().expect("a run");
        let text = std::fs::read(run.path().join("am.json")).expect("an address");
        let address: AmAddress = serde_json::from_slice(&text).expect("JSON");
        address.address.port()
    }

    /// Waits for the first loss. Returns its slot and cause.
    fn lost(&self) -> (Slot, String) {
        self.run
            .wait_event("a loss", LIMIT, |event| match event {
                JobEvent::Lost { slot, cause, .. } => Some((*slot, cause.clone())),
                _ => None,
            })
            .expect("an end is given up")
    }

    /// The text of the warning about the outage.
    fn warning(&self, begun: Instant, of: WarningCode) -> String {
        let text = self.run.wait_event("a warning", LIMIT, |event| match event {
            JobEvent::Warning { text, code } if *code == of => Some(text.clone()),
            _ => None,
        });
        let seconds = begun.elapsed().as_secs_f64();
        // The promise is 3 s; the machine may be busy.
        assert!((1.5..9.0).contains(&seconds), "reported after {seconds} s");
        text.expect("it is reported")
    }

    fn ended(self) -> JobView {
        let (code, events, stderr) =
            self.run.expecting(KILLS).expecting(SILENCE).finish(LIMIT).expect("it ends");
        assert_eq!(code, Some(0), "{stderr}");
        end_of(events).expect("the end is reported")
    }

    /// The job ends well, and this slot alone was replaced. What is left of the job needs no wait.
    fn ends_with(self, replaced: Option<Slot>) {
        if let Some(replaced) = replaced {
            let successor = |event: &JobEvent| match event {
                JobEvent::Registered { slot, incarnation: Incarnation(2), .. } => {
                    (*slot == replaced).then_some(())
                }
                _ => None,
            };
            self.run.wait_event("its successor", LIMIT, successor).expect("it registers");
        }
        std::fs::remove_file(self.dir.path().join("slow")).expect("it was there");
        let view = self.ended();
        for slot in &view.slots {
            let is_first = slot.incarnation == Incarnation(1);
            assert_eq!(is_first, Some(slot.slot) != replaced, "{slot:?} {:?}", view.recoveries);
        }
        assert_eq!(view.recoveries.len(), usize::from(replaced.is_some()), "{:?}", view.recoveries);
    }
}

/// The local address and the peer's of a connection, as `ss` shows it in a line.
fn addresses(line: &str) -> [&str; 2] {
    let mut addresses = line.split_whitespace().filter(|word| word.contains(':'));
    [(); 2].map(|()| addresses.next().unwrap_or(""))
}

fn write_job(dir: &Path, pservers: &str, steps: u32) {
    write_libsvm(&dir.join("data"), "train", 3, 8 * steps, 50, 5, 3).expect("data");
    let script = format!(
        "#!/bin/sh\n\
         user=$((4000 + 10 * ${{HEDDLE_SLOT#trainer-}} + HEDDLE_INCARNATION))\n\
         exec setpriv --reuid $user --clear-groups --inh-caps +dac_override \
         --ambient-caps +dac_override {} trainer\n",
        program("heddle").expect("it is built").display()
    );
    let path = dir.join("trainer.sh");
    std::fs::write(&path, script).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("a mode");
    let text = format!(
        "name = \"cut\"\n\
         [data]\ntrain = \"data/train-*.libsvm\"\npasses = 1\n\
         [model]\nalgorithm = \"logistic-regression\"\nfeatures = 50\nstandardise = false\n\
         [training]\nconsistency = \"bsp\"\nlanes = 3\nbatch = 8\n\
         [pservers]\n{pservers}\n\
         [trainers]\nmin = 3\nmax = 3\ncommand = [\"./trainer.sh\"]\n\
         [checkpoint]\ndir = \"ckpt\"\nevery = \"1s\"\n\
         [output]\nmodel = \"model\"\n"
    );
    std::fs::write(dir.join("job.toml"), text).expect("a job file");
}

/// From the cut to the end of the process that is replaced: the promise is 12 s, and the machine may be busy.
fn in_time(begun: Instant) {
    let seconds = begun.elapsed().as_secs_f64();
    assert!((8.0..16.0).contains(&seconds), "replaced after {seconds} s");
}

/// For how long a socket may have data on its way at every look.
const BUSY_LIMIT: Duration = Duration::from_secs(20);

/// The kernel runs the timer of keep-alive of each connected socket on which nothing is on its way: of control, data and
/// replication connections, at both ends.
#[test]
fn both_ends_of_each_connection_have_keep_alive() {
    let job = CutJob::with_pservers("count = 2\nshards = 4\nreplicas = 1", STEPS);
    let ports =
        [job.am_port(), job.data_port_of(Slot::pserver(0)), job.data_port_of(Slot::pserver(1))];
    // How often a socket was seen, by its two addresses, and how often with the timer.
    let mut sockets: BTreeMap<[String; 2], (u32, u32)> = BTreeMap::new();
    let begun = Instant::now();
    let lacks = |(seen, kept): &(u32, u32)| *seen > 30 && *kept == 0;
    for round in 0.. {
        if round >= 60 && (!sockets.values().any(lacks) || begun.elapsed() > BUSY_LIMIT) {
            break;
        }
        for line in job.sockets().lines() {
            let name = addresses(line).map(str::to_owned);
            let (seen, kept) = sockets.entry(name).or_default();
            (*seen, *kept) = (*seen + 1, *kept + u32::from(line.contains("timer:(keepalive,")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // Probes and the questions of tests last for a moment.
    sockets.retain(|_, (seen, _)| *seen > 30);
    let without = sockets.iter().filter(|(_, (_, kept))| *kept == 0).collect::<Vec<_>>();
    assert!(without.is_empty(), "{without:?} of {sockets:?}");
    for port in ports {
        let at = |address: &str| address.ends_with(&format!(":{port}"));
        let here = sockets.keys().filter(|[own, _]| at(own)).count();
        let there = sockets.keys().filter(|[_, peer]| at(peer)).count();
        // Three trainers, and the other pserver or both.
        assert!(here >= 4 && here == there, "{here} and {there} of {port}: {sockets:?}");
    }
    job.ends_with(None);
}

#[test]
fn s38_cut_of_5_s_between_any_two_roles_has_no_consequences() {
    let job = CutJob::training(STEPS);
    let (data, control) = (job.data_port(), job.am_port());
    // Trainers to a pserver, back, one trainer to the ApplicationMaster, and the ApplicationMaster to all.
    for packets in [
        format!("tcp dport {data}"),
        format!("tcp sport {data}"),
        format!("meta skuid 4011 tcp dport {control}"),
        format!("tcp sport {control}"),
    ] {
        job.cut(&packets);
        std::thread::sleep(HEAL_AFTER);
        job.heal();
        std::thread::sleep(Duration::from_secs(3));
    }
    job.ends_with(None);
}

#[test]
fn s38_pserver_that_trainers_cannot_reach_is_replaced() {
    for direction in ["dport", "sport"] {
        let job = CutJob::training(STEPS);
        let begun = job.cut(&format!("tcp {direction} {}", job.data_port()));
        let warning = job.warning(begun, WarningCode::PserverUnreachable);
        // Both ends; those trainers that have noticed it by then.
        assert!(warning.contains("trainer-") && warning.contains("pserver-0"), "{warning}");
        let (slot, cause) = job.lost();
        in_time(begun);
        assert_eq!(slot, Slot::pserver(0), "{direction}: {cause}");
        assert!(cause.contains("cannot reach the data port of pserver-0"), "{cause}");
        job.ends_with(Some(Slot::pserver(0)));
    }
}

/// Trainers have user ids of their own, pservers have not: the others cannot reach pserver-1, which reaches them. The warnings
/// name both ends, its copies of their shards are made elsewhere, and nothing is lost or rolled back.
#[test]
fn s38_backup_out_of_reach_is_replaced_by_a_copy_elsewhere() {
    for direction in ["dport", "sport"] {
        let job = CutJob::with_pservers("count = 3\nshards = 6\nreplicas = 1", STEPS);
        let port = job.data_port_of(Slot::pserver(1));
        // Answers to trainers go to ports of sockets that are not the root user's.
        let packets = match direction {
            "dport" => format!("meta skuid 0 tcp dport {port}"),
            _ => format!("tcp sport {port} tcp dport {}", job.stream_ports(port)),
        };
        let begun = job.cut(&packets);
        let warning = job.warning(begun, WarningCode::BackupLags);
        assert!(warning.contains("pserver-1 does not keep up with pserver-"), "{warning}");
        let view = job.ended();
        assert!(view.slots.iter().all(|slot| slot.incarnation == Incarnation(1)), "{view:#?}");
        assert_eq!(view.recoveries.len(), 0, "{direction}: {:?}", view.recoveries);
        let replication = view.replication.expect("it has backups");
        assert_eq!(
            (replication.in_sync, replication.under_replicated),
            (6, 0),
            "{direction}: {replication:?}"
        );
    }
}

#[test]
fn s38_trainer_that_alone_cannot_reach_a_pserver_is_replaced() {
    let job = CutJob::training(STEPS);
    let begun = job.cut(&format!("meta skuid 4011 tcp dport {}", job.data_port()));
    let warning = job.warning(begun, WarningCode::PserverUnreachable);
    assert!(warning.contains("trainer-1") && warning.contains("pserver-0"), "{warning}");
    let (slot, cause) = job.lost();
    in_time(begun);
    assert_eq!(slot, Slot::trainer(1), "{cause}");
    job.ends_with(Some(Slot::trainer(1)));
}

#[test]
fn s38_trainer_whose_control_path_is_cut_is_replaced() {
    let job = CutJob::training(STEPS);
    let begun = job.cut(&format!("meta skuid 4011 tcp dport {}", job.am_port()));
    let warning = job.warning(begun, WarningCode::ContainerSilent);
    assert!(warning.contains("trainer-1"), "{warning}");
    let (slot, cause) = job.lost();
    in_time(begun);
    assert_eq!(slot, Slot::trainer(1), "{cause}");
    job.ends_with(Some(Slot::trainer(1)));
}

/// Nothing that pserver-0 sends to the ApplicationMaster arrives, or nothing that is sent back. All others keep the connections
/// that they have.
#[test]
fn s38_pserver_whose_control_path_is_cut_is_replaced() {
    for direction in ["from", "to"] {
        let job = CutJob::training(STEPS);
        let port = job.am_port();
        let others = job.ports_of_others(Slot::pserver(0), port);
        let begun = match direction {
            "from" => job.cut(&format!("tcp dport {port} tcp sport != {others}")),
            _ => job.cut(&format!("tcp sport {port} tcp dport != {others}")),
        };
        let warning = job.warning(begun, WarningCode::ContainerSilent);
        assert!(warning.contains("pserver-0"), "{direction}: {warning}");
        let (slot, cause) = job.lost();
        in_time(begun);
        assert_eq!(slot, Slot::pserver(0), "{direction}: {cause}");
        // Its successor is to connect.
        job.heal();
        job.ends_with(Some(Slot::pserver(0)));
    }
}
