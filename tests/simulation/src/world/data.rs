//! Data connections, from both ends.

use std::net::SocketAddr;

use heddle_client::machine::{Closed, RequestFrame};
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_shard::{Conn, PulledRows, ShardEffect};

use super::{Body, Container, Data, Item, Wire, World};

impl World {
    pub(super) fn data_of(&self, pserver: u64, thread: usize, conn: Conn) -> Option<u64> {
        self.data
            .iter()
            .find(|(_, d)| d.pserver == pserver && d.thread == thread && d.conn == conn)
            .map(|(&n, _)| n)
    }

    pub(super) fn open_data(&mut self, number: u64, endpoint: SocketAddr) -> Result<(), String> {
        let Some(member) = self.containers.get(&number).map(|c| c.member) else {
            return Ok(());
        };
        let events = self.events;
        let pserver = self.containers.iter_mut().find_map(|(&n, c)| match &mut c.body {
            Body::Pserver(p) => Some((n, p.thread_at(endpoint)?, p)),
            Body::Trainer(_) => None,
        });
        let mut out = Vec::new();
        let opened = match pserver {
            None => Err((None, Closed::Refused)),
            Some((n, thread, pserver)) => {
                if self.trouble.cuts_off(number, n, events)
                    || self.trouble.cuts_off(n, number, events)
                {
                    Err((None, Closed::Failed))
                } else {
                    match pserver.connect(thread, member, &mut out) {
                        Ok(conn) => Ok((n, thread, conn)),
                        Err(()) => Err((Some(n), Closed::NotMember)),
                    }
                }
            }
        };
        match opened {
            Ok((pserver, thread, conn)) => {
                let data = self.number();
                self.connects(number, Some(endpoint));
                let opened = Data {
                    trainer: number,
                    member,
                    pserver,
                    thread,
                    endpoint,
                    conn,
                    is_closed: false,
                    clock: None,
                };
                self.data.insert(data, opened);
                self.pserver_wants(pserver, out)?;
                if let Some(Container { body: Body::Trainer(trainer), .. }) =
                    self.containers.get_mut(&number)
                {
                    trainer.machine.opened(endpoint, self.now_ms);
                }
            }
            Err((pserver, how)) => {
                if let Some(pserver) = pserver {
                    self.pserver_wants(pserver, out)?;
                }
                let now_ms = self.now_ms;
                if let Some(Container { body: Body::Trainer(trainer), .. }) =
                    self.containers.get_mut(&number)
                {
                    trainer.machine.closed(endpoint, how, now_ms);
                }
            }
        }
        self.pump(number)
    }

    pub(super) fn frame_up(&mut self, data: u64, frame: RequestFrame) -> Result<(), String> {
        let at = |d: &Data| (d.pserver, d.thread, d.conn);
        let Some((number, thread, conn)) = self.data.get(&data).map(at) else {
            return Ok(());
        };
        let h = frame.header;
        let what = format_args!(
            "frame {data} {:?} #{} unit {} step {} part {} shard {} flags {:#x}",
            h.kind, h.request, h.unit, h.step, h.part, h.shard, h.flags
        );
        self.log.note(self.events, self.now_ms, what);
        let Some(pserver) = self.pserver(number) else {
            return Ok(());
        };
        let is_cut_open = pserver.hosts[thread].deadline().is_some();
        let mut out = Vec::new();
        let is_taken = pserver.frame(thread, conn, &frame, &mut out);
        let may_be_held = is_cut_open || pserver.hosts[thread].has_held(conn);
        if !is_taken {
            self.wires.entry(Wire::DataUp(data)).or_default().push_front(Item::Frame(frame));
        } else if h.kind == Kind::Clock {
            self.clock_arrives(data, &h, may_be_held, &out);
        }
        self.pserver_wants(number, out)
    }

    pub(super) fn reply_down(&mut self, data: u64, effect: ShardEffect) -> Result<(), String> {
        let Some(&Data { trainer: number, pserver, thread, endpoint, .. }) = self.data.get(&data)
        else {
            return Ok(());
        };
        let (header, values) = match effect {
            ShardEffect::Reply { header, .. } => (header, Vec::new()),
            ShardEffect::Values { header, rows, .. } => {
                self.values((pserver, thread), &header, &rows)
            }
            ShardEffect::Close { .. }
            | ShardEffect::Report(_)
            | ShardEffect::Local(_)
            | ShardEffect::Replicate
            | ShardEffect::CannotServe { .. }
            | ShardEffect::Settled { .. } => {
                return Err("not a reply".to_owned());
            }
        };
        let h = header;
        let what = format_args!(
            "reply {data} {:?} {:?} #{} unit {} step {} part {} shard {} flags {:#x}",
            h.kind, h.status, h.request, h.unit, h.step, h.part, h.shard, h.flags
        );
        self.log.note(self.events, self.now_ms, what);
        let now_ms = self.now_ms;
        if let Some(Container { body: Body::Trainer(trainer), .. }) =
            self.containers.get_mut(&number)
        {
            trainer.machine.frame_with(endpoint, &header, &values, now_ms);
        }
        self.pump(number)
    }

    /// The values of a reply when its turn comes; a shard that has moved on rejects it instead.
    fn values(
        &self,
        (pserver, thread): (u64, usize),
        header: &Header,
        rows: &PulledRows,
    ) -> (Header, Vec<f32>) {
        let mut values = Vec::new();
        if let Some(Container { body: Body::Pserver(pserver), .. }) = self.containers.get(&pserver)
            && let Some(host) = pserver.hosts.get(thread)
        {
            let there = match rows {
                PulledRows::Range => {
                    host.range(header).map(|range| values.extend_from_slice(range))
                }
                PulledRows::Keys(keys) => host.gather(header, keys, &mut values),
            };
            if there.is_some() {
                return (*header, values);
            }
        }
        (header.reply(Kind::Refused, Status::Stale), Vec::new())
    }

    pub(super) fn data_ended_at_pserver(&mut self, data: u64) -> Result<(), String> {
        self.wires.remove(&Wire::DataUp(data));
        let at = |d: &Data| (d.pserver, d.thread, d.conn);
        let Some((number, thread, conn)) = self.data.get(&data).map(at) else {
            return Ok(());
        };
        self.stop_counting(data);
        let mut out = Vec::new();
        if let Some(pserver) = self.pserver(number) {
            pserver.disconnect(thread, conn, &mut out);
        }
        self.pserver_wants(number, out)
    }

    pub(super) fn data_ended_at_trainer(&mut self, data: u64, how: Closed) -> Result<(), String> {
        self.wires.remove(&Wire::DataDown(data));
        let Some((number, endpoint)) = self.data.get(&data).map(|d| (d.trainer, d.endpoint)) else {
            return Ok(());
        };
        self.orphan_data(data);
        let now_ms = self.now_ms;
        if let Some(Container { body: Body::Trainer(trainer), .. }) =
            self.containers.get_mut(&number)
        {
            trainer.machine.closed(endpoint, how, now_ms);
        }
        self.pump(number)
    }

    /// The trainer's end is gone; the pserver's may still be reading.
    pub(super) fn orphan_data(&mut self, data: u64) {
        if let Some(link) = self.data.get_mut(&data) {
            link.trainer = 0;
        }
    }
}

/// What a frame's first bytes are to the other end when no more of them come: nothing, whatever they are.
pub(super) fn half_frame(bytes: &[u8]) -> Result<(), String> {
    let Some((header, rest)) = bytes.split_first_chunk() else {
        return Ok(());
    };
    let header =
        Header::decode(header).map_err(|error| format!("the header of a half frame: {error}"))?;
    match rest.len() < header.payload_bytes() {
        true => Ok(()),
        false => Err("a half frame is whole".to_owned()),
    }
}

/// The bytes of a frame.
pub(super) fn bytes_of(frame: &RequestFrame) -> Vec<u8> {
    let mut header = frame.header;
    let (keys, values) = (frame.payload.key_words(), frame.payload.values());
    header.key_bytes = (keys.len() * 4) as u32;
    header.value_bytes = (values.len() * 4) as u32;
    let mut bytes = header.encode().to_vec();
    bytes.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}
