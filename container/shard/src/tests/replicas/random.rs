//! Random runs: the primary is lost at a random moment, after a random part of its stream has arrived.

use heddle_optimizer::Initialiser;
use heddle_protocol::job_spec::{TableKind, TableSpec};

use super::*;

pub(super) const UNITS: u32 = 3;
const STEPS: u64 = 4;
const PARTS: u32 = 2;
/// Unacknowledged frames of a unit.
const WINDOW: usize = 3;
const POSITIONS: [u64; 4] = [3, 9, 1 << 33, 1 << 50];

/// A linear congruential generator (Knuth, MMIX): runs repeat by their seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A frame of the trainer.
type Sent = (Header, Vec<u32>, Vec<f32>);

/// One unit's frames in order: what was not sent, and what was not acknowledged.
struct Unit {
    left: VecDeque<Sent>,
    open: VecDeque<Sent>,
}

/// Its state depends on the order of the steps, which BSP fixes.
fn usual(sharing: Sharing) -> Optimizer {
    match sharing {
        Sharing::Lanes { .. } => Optimizer::ftrl(0.3, 1.0, 1e-3, 0.1),
        _ => SGD,
    }
}

fn table(is_sparse: bool, optimizer: Optimizer) -> ShardConfig {
    if !is_sparse {
        return config(optimizer);
    }
    let table = dense_table(0, "w", 0, 1, optimizer);
    let init = Initialiser::Normal(0.0, 0.05);
    let table = TableSpec { kind: TableKind::Sparse, init, ..table };
    let sparse = SparseLimits { rows_max: 100, ..SparseLimits::default() };
    ShardConfig { tables: vec![table], sparse, seed: 7, ..config(optimizer) }
}

/// The frames of a unit: pushes of all steps, and what ends a step (BSP) or the task (ASP).
fn frames(unit: u32, sharing: Sharing, is_sparse: bool) -> VecDeque<Sent> {
    let mut frames = VecDeque::new();
    let is_bsp = matches!(sharing, Sharing::Lanes { .. });
    let named = |kind, step, part| {
        let mut header = Header::new(kind, epoch(1));
        (header.unit, header.step, header.part) = (unit, Step(step), Part(part));
        header
    };
    for step in 0..STEPS {
        for part in 0..PARTS {
            // Sums whose bytes depend on their order in BSP, whole numbers in ASP.
            let x = ((unit + 1) as f32 * 0.1 + step as f32 * 1.7 + part as f32).sin();
            let value = if is_bsp { x } else { -1.0 };
            let mut header = named(Kind::Push, step, part);
            header.flags = if part + 1 == PARTS { flags::LAST } else { 0 };
            (header.count, header.rows, header.value_bytes) = (2, 1, 8);
            let mut keys = Vec::new();
            if is_sparse {
                header.flags |= flags::KEYS | flags::POSITIONS;
                header.key_bytes = 16;
                let first = ((unit as u64 + step) % 3) as usize;
                let words = |p: &u64| [*p as u32, (*p >> 32) as u32];
                keys = POSITIONS[first..first + 2].iter().flat_map(words).collect();
            }
            frames.push_back((header, keys, vec![value, 1.0 * value]));
        }
        if is_bsp {
            let mut header = named(Kind::Done, step, 0);
            header.flags = if step + 1 == STEPS { flags::END } else { 0 };
            header.rows = 1;
            frames.push_back((header, Vec::new(), Vec::new()));
        }
    }
    if !is_bsp {
        frames.push_back((named(Kind::TaskDone, STEPS, 0), Vec::new(), Vec::new()));
    }
    for (request, (header, ..)) in frames.iter_mut().enumerate() {
        header.request = u64::from(unit) * 1000 + request as u64;
    }
    frames
}

/// The trainer of all units, and the copies that it trains.
struct Run {
    copies: Copies,
    units: Vec<Unit>,
    primary: usize,
    /// The copies that follow it.
    backups: Vec<usize>,
}

impl Run {
    fn new(copies: Copies, sharing: Sharing, is_sparse: bool) -> Self {
        let unit = |unit| Unit { left: frames(unit, sharing, is_sparse), open: VecDeque::new() };
        let backups = (1..copies.hosts.len()).collect();
        Self { copies, units: (0..UNITS).map(unit).collect(), primary: 0, backups }
    }

    /// Sends the next frame of a unit if there is one to send. A `Done` follows the acknowledgement of its pushes, and the
    /// next step that of the `Done`.
    fn send(&mut self, unit: usize) -> bool {
        let Unit { left, open } = &mut self.units[unit];
        let Some((header, ..)) = left.front() else { return false };
        let ends = |header: &Header| matches!(header.kind, Kind::Done | Kind::TaskDone);
        let after_end = open.back().is_some_and(|(last, ..)| ends(last));
        if open.len() >= WINDOW || (!open.is_empty() && (ends(header) || after_end)) {
            return false;
        }
        let sent = left.pop_front().expect("looked at");
        open.push_back(sent.clone());
        self.pass(&sent);
        true
    }

    fn pass(&mut self, (header, keys, values): &Sent) {
        assert_eq!(self.copies.send(self.primary, *header, keys, values), Flow::Taken);
    }

    /// Takes the answers that have come.
    fn take_answers(&mut self) -> Result<(), String> {
        for (host, reply) in std::mem::take(&mut self.copies.answers) {
            if host != self.primary {
                continue;
            }
            let counts = reply.kind == Kind::Ack || reply.status == Status::Stale;
            if !counts {
                return Err(format!(
                    "{:?} {:?} to request {}",
                    reply.kind, reply.status, reply.request
                ));
            }
            let open = &mut self.units[(reply.request / 1000) as usize].open;
            open.retain(|(header, ..)| header.request != reply.request);
        }
        Ok(())
    }

    /// The primary is lost. The trainer repeats in order what was not acknowledged.
    fn fail_over(&mut self) -> Result<(), String> {
        self.copies.promote(1, 2);
        self.move_to(1, &[])
    }

    /// Another copy serves, and others follow it. The trainer repeats in order what was not acknowledged.
    fn move_to(&mut self, primary: usize, backups: &[usize]) -> Result<(), String> {
        // The copy that served refuses what it has not answered.
        let refuses = |status| matches!(status, Status::NotReady | Status::WrongShard);
        self.copies.answers.retain(|(_, reply)| !refuses(reply.status));
        self.take_answers()?;
        (self.primary, self.backups) = (primary, backups.to_vec());
        let holders: Vec<_> = [primary].into_iter().chain(backups.iter().copied()).collect();
        self.copies.connect(&holders);
        for unit in 0..self.units.len() {
            for sent in self.units[unit].open.clone() {
                self.pass(&sent);
            }
        }
        self.take_answers()
    }

    fn finish(&mut self) -> Result<(), String> {
        loop {
            let mut sent = false;
            for unit in 0..self.units.len() {
                sent |= self.send(unit);
            }
            for to in self.backups.clone() {
                // The first answer of a promoted copy's backup is followed by what it lacks.
                self.copies.replicate(self.primary, to);
                self.copies.replicate(self.primary, to);
            }
            self.take_answers()?;
            if self.units.iter().all(|unit| unit.left.is_empty() && unit.open.is_empty()) {
                return Ok(());
            }
            if !sent {
                return Err("the run stands still".to_owned());
            }
        }
    }

    /// The model, by row or by position.
    fn model(&self, is_sparse: bool) -> Vec<u32> {
        if !is_sparse {
            return self.copies.values(self.primary);
        }
        let mut header = Header::new(Kind::Pull, epoch(1));
        header.flags = flags::KEYS | flags::POSITIONS | flags::FREE;
        header.count = POSITIONS.len() as u32;
        let keys: Vec<_> = POSITIONS.iter().flat_map(|p| [*p as u32, (*p >> 32) as u32]).collect();
        let mut values = Vec::new();
        let shard = self.copies.hosts[self.primary].shard(ShardId(0)).expect("a copy");
        shard.gather(&header, &keys, &mut values).expect("it is served");
        values.iter().map(|value| value.to_bits()).collect()
    }
}

/// A run that loses its primary at a moment of its seed. Returns the model.
pub(super) fn run(
    (seed, gated): (u64, bool),
    sharing: Sharing,
    is_sparse: bool,
    optimizer: Optimizer,
) -> Result<Vec<u32>, String> {
    let mut copies = Copies::new(2, sharing, table(is_sparse, optimizer));
    if !gated {
        copies.hosts[0].ungate();
    }
    let mut random = Random(seed);
    let mut run = Run::new(copies, sharing, is_sparse);
    let moment = random.below(90);
    for _ in 0..moment {
        match random.below(6) {
            0..3 => {
                let unit = random.below(u64::from(UNITS)) as usize;
                run.send(unit);
            }
            3 | 4 => {
                let count = random.below(4) as usize;
                run.copies.deliver(0, 1, count);
            }
            _ => run.copies.acknowledge(),
        }
        run.take_answers()?;
    }
    run.fail_over()?;
    run.finish()?;
    Ok(run.model(is_sparse))
}

/// A run whose backup is filled in its middle, over connections that break, and whose primary is lost after that. Returns the
/// model, or none if it ended before the refill.
fn refilled(seed: u64, sharing: Sharing, is_sparse: bool) -> Result<Option<Vec<u32>>, String> {
    let mut random = Random(seed);
    let values = 1 + random.below(12) as usize;
    let config = ShardConfig { fill_values: values, ..table(is_sparse, usual(sharing)) };
    let mut run = Run::new(Copies::alone(2, sharing, config), sharing, is_sparse);
    let (ordered, more) = (random.below(30), random.below(40));
    let mut in_sync = None;
    for moment in 0..400 {
        if moment == ordered {
            run.copies.view(0, filling(1, 2, &[0], 1, 2));
            run.copies.view(1, filling(1, 2, &[0], 1, 2));
        }
        match random.below(16) {
            0..6 => {
                let unit = random.below(u64::from(UNITS)) as usize;
                run.send(unit);
            }
            6..11 => {
                let count = random.below(4) as usize;
                run.copies.deliver(0, 1, count);
            }
            11..15 => run.copies.acknowledge(),
            _ if random.below(8) == 0 => run.copies.connect(&[0, 1]),
            _ => {}
        }
        run.take_answers()?;
        let reported = |it: &ShardReport| matches!(it, ShardReport::InSync { .. });
        if in_sync.is_none() && run.copies.reports_of(0).into_iter().any(reported) {
            in_sync = Some(moment);
            run.copies.view(0, view(1, 3, &[0, 1]));
            run.copies.view(1, view(1, 3, &[0, 1]));
        }
        if in_sync.is_some_and(|at| moment >= at + more) {
            break;
        }
    }
    if in_sync.is_none() {
        return Ok(None);
    }
    if seed.is_multiple_of(2) {
        run.copies.replicate(0, 1);
        let states: Vec<_> = [0, 1].map(|host| run.copies.values(host)).into();
        if states[0] != states[1] || run.copies.state(0).number != run.copies.state(1).number {
            return Err("the copy differs from its primary".to_owned());
        }
    }
    run.fail_over()?;
    run.finish()?;
    Ok(Some(run.model(is_sparse)))
}

/// A run whose primary hands over at a random moment, in time or after it has gone on, and whose next one is lost after that.
/// Returns the model, and whether the old primary stayed in the set.
fn handed_over(seed: u64, sharing: Sharing, is_sparse: bool) -> Result<(Vec<u32>, bool), String> {
    let mut random = Random(seed);
    let copies = Copies::new(2, sharing, table(is_sparse, usual(sharing)));
    let mut run = Run::new(copies, sharing, is_sparse);
    let (ordered, late) = (random.below(60), random.below(3) == 0);
    let mut left = 40 + random.below(40);
    for moment in 0.. {
        if moment == ordered {
            run.copies.stop(0, 1, 1);
        }
        let (from, to) = (run.primary, 1 - run.primary);
        match random.below(8) {
            0..4 => {
                let unit = random.below(u64::from(UNITS)) as usize;
                run.send(unit);
            }
            4..6 => {
                let count = random.below(4) as usize;
                run.copies.deliver(from, to, count);
            }
            _ => run.copies.acknowledge(),
        }
        run.take_answers()?;
        if run.primary == 0 && moment > ordered {
            let Some(&number) = run.copies.drained(0).first() else { continue };
            if late {
                run.copies.now += Duration::from_secs(2);
                run.copies.act(0, |set, now, out| set.tick(now, out));
                for _ in 0..random.below(9) {
                    run.send(random.below(u64::from(UNITS)) as usize);
                    run.copies.deliver(0, 1, random.below(2) as usize);
                }
            }
            let next = ShardView { began_at: Some(number), ..view(2, 1, &[1, 0]) };
            run.copies.view(1, next.clone());
            run.copies.view(0, next);
            run.move_to(1, &[0])?;
        } else if run.primary == 1 {
            left -= 1;
            if left == 0 {
                break;
            }
        }
    }
    let stays = run.copies.state(0).whole;
    match stays {
        true => run.copies.view(0, view(3, 1, &[0])),
        // It has changes of its own: it has left the set, and is not promoted.
        false => run.copies.view(1, view(2, 2, &[1])),
    }
    run.move_to(if stays { 0 } else { 1 }, &[])?;
    run.finish()?;
    Ok((run.model(is_sparse), stays))
}

#[test]
fn handed_over_shard_loses_and_repeats_nothing() {
    for (sharing, is_sparse) in shapes() {
        let wanted = undisturbed(sharing, is_sparse);
        let mut stayed = 0;
        for seed in 0..500 {
            let got = handed_over(seed, sharing, is_sparse);
            let (got, stays) =
                got.unwrap_or_else(|error| panic!("seed {seed}, {sharing:?}: {error}"));
            assert!(same(&got, &wanted, sharing), "seed {seed}, {sharing:?}, sparse {is_sparse}");
            stayed += u32::from(stays);
        }
        // All that were in time, and some that had nothing to do meanwhile.
        assert!((300..500).contains(&stayed), "{stayed}");
    }
}

/// A run with two backups that loses its primary, and the next one too. Returns the model, and whether the other survivor
/// was promoted instead.
fn two_losses(seed: u64, sharing: Sharing, is_sparse: bool) -> Result<(Vec<u32>, bool), String> {
    let mut random = Random(seed);
    let copies = Copies::new(3, sharing, table(is_sparse, usual(sharing)));
    let mut run = Run::new(copies, sharing, is_sparse);
    let (first, second) = (random.below(60), random.below(40));
    let (mut term, mut instead) = (1, false);
    for moment in 0..first + second {
        if moment == first {
            let primary = 1 + random.below(2) as usize;
            term += 1;
            for host in [1, 2] {
                run.copies.view(host, view(term, 1, &[primary, 3 - primary]));
            }
            run.move_to(primary, &[3 - primary])?;
        }
        match random.below(8) {
            0..4 => {
                let unit = random.below(u64::from(UNITS)) as usize;
                run.send(unit);
            }
            4..6 => {
                let to = run.backups[random.below(run.backups.len() as u64) as usize];
                let count = random.below(4) as usize;
                run.copies.deliver(run.primary, to, count);
            }
            _ => run.copies.acknowledge(),
        }
        run.take_answers()?;
        let is_ahead = |it: &ShardReport| matches!(it, ShardReport::Ahead { .. });
        if !instead && run.copies.reports.iter().any(|(_, report)| is_ahead(report)) {
            instead = true;
            term += 1;
            let (primary, other) = (3 - run.primary, run.primary);
            for host in [1, 2] {
                run.copies.view(host, view(term, 1, &[primary, other]));
            }
            run.move_to(primary, &[other])?;
        }
    }
    let last = match run.primary {
        0 => 1 + random.below(2) as usize,
        primary => 3 - primary,
    };
    if !run.copies.state(last).whole {
        return Err("a survivor has left the set".to_owned());
    }
    run.copies.view(last, view(term + 1, 1, &[last]));
    run.move_to(last, &[])?;
    run.finish()?;
    Ok((run.model(is_sparse), instead))
}

#[test]
fn two_losses_of_three_copies_lose_and_repeat_nothing() {
    for (sharing, is_sparse) in shapes() {
        let wanted = undisturbed(sharing, is_sparse);
        let mut instead = 0;
        for seed in 0..500 {
            let got = two_losses(seed, sharing, is_sparse);
            let (got, other) =
                got.unwrap_or_else(|error| panic!("seed {seed}, {sharing:?}: {error}"));
            assert!(same(&got, &wanted, sharing), "seed {seed}, {sharing:?}, sparse {is_sparse}");
            instead += u32::from(other);
        }
        assert!(instead > 50, "{instead}");
    }
}

#[test]
fn filled_copy_is_as_good_as_one_from_the_beginning() {
    for (sharing, is_sparse) in shapes() {
        let wanted = undisturbed(sharing, is_sparse);
        let mut filled = 0;
        for seed in 0..500 {
            let got = refilled(seed, sharing, is_sparse);
            let got = got.unwrap_or_else(|error| panic!("seed {seed}, {sharing:?}: {error}"));
            let Some(got) = got else { continue };
            filled += 1;
            assert!(same(&got, &wanted, sharing), "seed {seed}, {sharing:?}, sparse {is_sparse}");
        }
        assert!(filled > 300, "{filled}, {sharing:?}, sparse {is_sparse}");
    }
}

/// The model of a run without faults and without backups.
fn undisturbed(sharing: Sharing, is_sparse: bool) -> Vec<u32> {
    undisturbed_with(sharing, is_sparse, usual(sharing))
}

pub(super) fn undisturbed_with(
    sharing: Sharing,
    is_sparse: bool,
    optimizer: Optimizer,
) -> Vec<u32> {
    let copies = Copies::new(1, sharing, table(is_sparse, optimizer));
    let mut run = Run::new(copies, sharing, is_sparse);
    run.finish().expect("nothing disturbs it");
    run.model(is_sparse)
}

fn shapes() -> [(Sharing, bool); 4] {
    let lanes = Sharing::Lanes { lanes: UNITS };
    [(lanes, false), (lanes, true), (Sharing::Queue, false), (Sharing::Queue, true)]
}

/// ASP: sums of whole numbers above an initial value of a normal distribution may differ in their last bits by their order.
fn same(got: &[u32], wanted: &[u32], sharing: Sharing) -> bool {
    let near = |(a, b): (&u32, &u32)| (f32::from_bits(*a) - f32::from_bits(*b)).abs() < 0.01;
    match sharing {
        Sharing::Lanes { .. } => got == wanted,
        _ => got.len() == wanted.len() && got.iter().zip(wanted).all(near),
    }
}

#[test]
fn loss_of_the_primary_loses_and_repeats_nothing() {
    for (sharing, is_sparse) in shapes() {
        let wanted = undisturbed(sharing, is_sparse);
        for seed in 0..500 {
            let got = run((seed, true), sharing, is_sparse, usual(sharing));
            let got = got.unwrap_or_else(|error| panic!("seed {seed}, {sharing:?}: {error}"));
            assert!(same(&got, &wanted, sharing), "seed {seed}, {sharing:?}, sparse {is_sparse}");
        }
    }
}

#[test]
fn answers_that_do_not_wait_lose_updates() {
    for (sharing, is_sparse) in shapes() {
        let wanted = undisturbed(sharing, is_sparse);
        let broken =
            (0..500).filter(|&seed| match run((seed, false), sharing, is_sparse, usual(sharing)) {
                Ok(got) => !same(&got, &wanted, sharing),
                Err(_) => true,
            });
        assert!(broken.count() > 50, "{sharing:?}, sparse {is_sparse}");
    }
}
