//! A simulated pserver: the real [`Host`] with one data thread, and in place of files a store in memory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use heddle_client::machine::Frame;
use heddle_protocol::control::{Base, Command, Held, Up};
use heddle_protocol::ids::{CutId, Epoch, Member, ShardId, Step};
use heddle_protocol::manifest::{Md5, ShardFile};
use heddle_shard::{Conn, Effect, Flow, Host, Report, Shard};
use uuid::Uuid;

use super::job::Job;

/// A shard's file in the simulated store.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The cut it was saved for.
    pub cut: CutId,
    /// Which shard.
    pub shard: ShardId,
    /// All sections, in their order.
    pub sections: Vec<Vec<f32>>,
    /// The once-only memory.
    pub memory: Vec<u8>,
}

/// Work that takes time.
#[derive(Clone, Debug)]
pub enum Labour {
    /// Write a snapshot.
    Save {
        /// The cut.
        cut: CutId,
        /// The shard.
        shard: ShardId,
    },
    /// Read a shard.
    Load {
        /// For this epoch.
        epoch: Epoch,
        /// The shard.
        shard: ShardId,
        /// Its file; none: initial values.
        file: Option<Uuid>,
    },
}

/// What a pserver wants done.
#[derive(Debug)]
pub enum Output {
    /// Tell the ApplicationMaster.
    Report(Up),
    /// Put this at the end of a data connection's replies.
    Reply(Conn, Effect),
    /// Close a data connection unread.
    Close(Conn),
    /// Do this some time.
    Labour(Labour),
    /// End.
    Exit,
}

/// One pserver's process.
pub struct Pserver {
    /// The shards.
    pub host: Host,
    /// Its data port.
    pub endpoint: SocketAddr,
    job: Job,
    cuts: BTreeMap<CutId, Epoch>,
    hold: Option<(Epoch, u32, u32)>,
    ended: bool,
}

impl Pserver {
    /// A process that has just started.
    #[must_use]
    pub fn new(job: Job, endpoint: SocketAddr) -> Self {
        Self {
            host: Host::new(),
            endpoint,
            job,
            cuts: BTreeMap::new(),
            hold: None,
            ended: false,
        }
    }

    /// What it says when it registers.
    #[must_use]
    pub fn held(&self) -> Option<Held> {
        let host = &self.host;
        (host.epoch() != Epoch::default())
            .then(|| Held::new(host.epoch(), host.heard(), host.states()))
    }

    /// Does what the ApplicationMaster says.
    ///
    /// # Errors
    /// A command that a sound ApplicationMaster never gives.
    pub fn command(
        &mut self,
        command: Command,
        now_ms: u64,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        let mut effects = Vec::new();
        match command {
            Command::Hold {
                epoch,
                shards,
                base,
                phase,
                step,
            } => {
                if epoch > self.host.epoch() {
                    self.go_back(
                        epoch,
                        &shards,
                        base.as_ref(),
                        phase,
                        step,
                        &mut effects,
                        out,
                    )?;
                } else if epoch == self.host.epoch() && self.host.is_whole() {
                    self.say_holding(out);
                }
            }
            Command::Begin { epoch, phase } => {
                if self.host.begin(epoch, phase, &mut effects).is_ok() {
                    out.push(Output::Report(Up::Begun {
                        epoch,
                        phase: phase.no,
                    }));
                }
            }
            Command::Members { trainers } => self.host.members(&trainers, &mut effects),
            Command::Cut {
                cut,
                epoch,
                phase,
                at,
                staging: _,
            } => {
                let now = Duration::from_millis(now_ms);
                if self
                    .host
                    .cut(cut, epoch, phase, &at, now, &mut effects)
                    .is_ok()
                {
                    self.cuts.insert(cut, epoch);
                    out.push(Output::Report(Up::CutArmed { cut, epoch }));
                }
            }
            Command::CutEnd { cut, committed } => {
                self.cuts.remove(&cut);
                self.host.cut_end(cut, committed, &mut effects);
            }
            Command::Stop { .. } => {
                self.ended = true;
                out.push(Output::Exit);
            }
            Command::Welcome(_) | Command::Refused { .. } => {}
            other => return Err(format!("a pserver was told {other:?}")),
        }
        self.carry_out(effects, out);
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one command")]
    fn go_back(
        &mut self,
        epoch: Epoch,
        shards: &[ShardId],
        base: Option<&Base>,
        phase: heddle_protocol::control::Phase,
        step: Step,
        effects: &mut Vec<Effect>,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        let cut = base.map(|base| base.cut);
        let missing = self
            .host
            .hold(epoch, phase, step, shards, cut, effects)
            .map_err(|error| error.to_string())?;
        self.cuts.clear();
        self.hold = Some((
            epoch,
            (shards.len() - missing.len()) as u32,
            missing.len() as u32,
        ));
        for shard in missing {
            let file = match base {
                Some(base) => Some(
                    base.files
                        .get(&shard)
                        .ok_or_else(|| format!("no file of shard {shard}"))?
                        .uuid,
                ),
                None => None,
            };
            out.push(Output::Labour(Labour::Load { epoch, shard, file }));
        }
        if self.host.is_whole() {
            self.say_holding(out);
        }
        Ok(())
    }

    fn say_holding(&self, out: &mut Vec<Output>) {
        if let Some((epoch, from_memory, from_storage)) = self.hold {
            out.push(Output::Report(Up::Holding {
                epoch,
                from_memory,
                from_storage,
                load_ms: 1,
            }));
        }
    }

    /// Finishes a piece of work.
    ///
    /// # Errors
    /// A file that is not there or does not fit.
    pub fn labour(
        &mut self,
        labour: Labour,
        uuid: Uuid,
        store: &mut BTreeMap<Uuid, Saved>,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        let mut effects = Vec::new();
        match labour {
            Labour::Save { cut, shard } => {
                let Some(epoch) = self.cuts.get(&cut).copied() else {
                    return Ok(());
                };
                // A cut that is over meanwhile has nothing to save.
                if let Some(saved) = self.save(cut, shard) {
                    let bytes = saved.memory.len() as u64;
                    store.insert(uuid, saved);
                    let file = ShardFile {
                        shard,
                        uuid,
                        file: ShardFile::name(shard, uuid),
                        md5: Md5([0; 16]),
                        bytes,
                        at_ms: 0,
                    };
                    out.push(Output::Report(Up::Saved { cut, epoch, file }));
                }
                self.host.pump(&mut effects);
            }
            Labour::Load { epoch, shard, file } => {
                if epoch != self.host.epoch() {
                    return Ok(());
                }
                let mut loaded = Shard::new(&self.job.shard(shard));
                if let Some(uuid) = file {
                    let saved = store
                        .get(&uuid)
                        .ok_or_else(|| format!("file {uuid} is not there"))?;
                    for (section, values) in saved.sections.iter().enumerate() {
                        loaded
                            .section_mut(section)
                            .ok_or("a section too many")?
                            .copy_from_slice(values);
                    }
                    loaded
                        .load_memory(&saved.memory)
                        .map_err(|error| error.to_string())?;
                }
                self.host
                    .install(epoch, loaded, &mut effects)
                    .map_err(|error| error.to_string())?;
                if self.host.is_whole() {
                    self.say_holding(out);
                }
            }
        }
        self.carry_out(effects, out);
        Ok(())
    }

    fn save(&mut self, cut: CutId, shard: ShardId) -> Option<Saved> {
        let memory = self.host.snapshot_memory(shard, cut).ok()?;
        let mut sections = Vec::new();
        for (index, section) in self.job.shard(shard).sections().iter().enumerate() {
            let mut values = vec![0.0; section.values()];
            self.host.save(shard, cut, index, 0, &mut values).ok()?;
            sections.push(values);
        }
        Some(Saved {
            cut,
            shard,
            sections,
            memory,
        })
    }

    /// A trainer connects.
    ///
    /// # Errors
    /// It is not one of the job's any more.
    pub fn connect(&mut self, member: Member, out: &mut Vec<Output>) -> Result<Conn, ()> {
        let mut effects = Vec::new();
        let conn = self.host.connect(member, &mut effects).map_err(|_| ());
        self.carry_out(effects, out);
        conn
    }

    /// A frame arrived. False: it has to be handed in again later.
    pub fn frame(&mut self, conn: Conn, frame: &Frame, out: &mut Vec<Output>) -> bool {
        let mut effects = Vec::new();
        let flow = self.host.on_frame(
            conn,
            &frame.header,
            frame.payload.row_keys(),
            frame.payload.values(),
            &mut effects,
        );
        self.carry_out(effects, out);
        matches!(flow, Flow::Taken)
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let mut effects = Vec::new();
        self.host.tick(Duration::from_millis(now_ms), &mut effects);
        self.carry_out(effects, out);
    }

    fn carry_out(&mut self, effects: Vec<Effect>, out: &mut Vec<Output>) {
        let epoch = self.host.epoch();
        for effect in effects {
            match effect {
                Effect::Reply { conn, .. } | Effect::Values { conn, .. } => {
                    out.push(Output::Reply(conn, effect))
                }
                Effect::Close { conn } => out.push(Output::Close(conn)),
                Effect::Report(Report::PhaseEnded { shard, phase, step }) => {
                    out.push(Output::Report(Up::PhaseEnded {
                        epoch,
                        phase,
                        shard,
                        step,
                    }));
                }
                Effect::Report(Report::Snapped { shard, cut, step }) => {
                    out.push(Output::Report(Up::Snapped {
                        cut,
                        epoch,
                        shard,
                        step,
                    }));
                    out.push(Output::Labour(Labour::Save { cut, shard }));
                }
                Effect::Report(Report::LetGo {
                    shard,
                    cut,
                    step,
                    reason,
                }) => {
                    out.push(Output::Report(Up::LetGo {
                        cut,
                        epoch,
                        shard,
                        step,
                        reason,
                    }));
                }
            }
        }
    }
}
