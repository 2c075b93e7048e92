//! Data connections, from both ends.

use std::net::SocketAddr;

use heddle_client::machine::{Closed, Frame};
use heddle_protocol::frame::{Header, Kind, Status};
use heddle_shard::{Conn, Effect, Rows};

use super::{Body, Container, Data, Item, Wire, World};

impl World {
    pub(super) fn data_of(&self, pserver: u64, conn: Conn) -> Option<u64> {
        self.data
            .iter()
            .find(|(_, d)| d.pserver == pserver && d.conn == conn)
            .map(|(&n, _)| n)
    }

    pub(super) fn open_data(&mut self, number: u64, endpoint: SocketAddr) -> Result<(), String> {
        let Some(member) = self.containers.get(&number).map(|c| c.member) else {
            return Ok(());
        };
        let pserver = self
            .containers
            .iter_mut()
            .find_map(|(&n, c)| match &mut c.body {
                Body::Pserver(p) if p.endpoint == endpoint => Some((n, p)),
                _ => None,
            });
        let mut out = Vec::new();
        let opened = match pserver {
            None => Err((None, Closed::Refused)),
            Some((n, pserver)) => match pserver.connect(member, &mut out) {
                Ok(conn) => Ok((n, conn)),
                Err(()) => Err((Some(n), Closed::NotMember)),
            },
        };
        match opened {
            Ok((pserver, conn)) => {
                let data = self.number();
                self.connects(number, Some(endpoint));
                self.data.insert(
                    data,
                    Data {
                        trainer: number,
                        pserver,
                        endpoint,
                        conn,
                    },
                );
                self.pserver_wants(pserver, out)?;
                if let Some(Container {
                    body: Body::Trainer(trainer),
                    ..
                }) = self.containers.get_mut(&number)
                {
                    trainer.machine.opened(endpoint);
                }
            }
            Err((pserver, how)) => {
                if let Some(pserver) = pserver {
                    self.pserver_wants(pserver, out)?;
                }
                let now_ms = self.now_ms;
                if let Some(Container {
                    body: Body::Trainer(trainer),
                    ..
                }) = self.containers.get_mut(&number)
                {
                    trainer.machine.closed(endpoint, how, now_ms);
                }
            }
        }
        self.pump(number)
    }

    pub(super) fn frame_up(&mut self, data: u64, frame: Frame) -> Result<(), String> {
        let Some((number, conn)) = self.data.get(&data).map(|d| (d.pserver, d.conn)) else {
            return Ok(());
        };
        let Some(Container {
            body: Body::Pserver(pserver),
            ..
        }) = self.containers.get_mut(&number)
        else {
            return Ok(());
        };
        let h = frame.header;
        let what = format_args!(
            "frame {data} {:?} #{} unit {} step {} part {} shard {} flags {:#x}",
            h.kind, h.request, h.unit, h.step, h.part, h.shard, h.flags
        );
        self.log.note(self.events, self.now_ms, what);
        let mut out = Vec::new();
        if !pserver.frame(conn, &frame, &mut out) {
            self.wires
                .entry(Wire::DataUp(data))
                .or_default()
                .push_front(Item::Frame(frame));
        }
        self.pserver_wants(number, out)
    }

    pub(super) fn reply_down(&mut self, data: u64, effect: Effect) -> Result<(), String> {
        let Some((number, pserver, endpoint)) = self
            .data
            .get(&data)
            .map(|d| (d.trainer, d.pserver, d.endpoint))
        else {
            return Ok(());
        };
        let (header, values) = match effect {
            Effect::Reply { header, .. } => (header, Vec::new()),
            Effect::Values { header, rows, .. } => self.values(pserver, &header, &rows),
            Effect::Close { .. } | Effect::Report(_) => return Err("not a reply".to_owned()),
        };
        let h = header;
        let what = format_args!(
            "reply {data} {:?} {:?} #{} unit {} step {} part {} shard {} flags {:#x}",
            h.kind, h.status, h.request, h.unit, h.step, h.part, h.shard, h.flags
        );
        self.log.note(self.events, self.now_ms, what);
        let now_ms = self.now_ms;
        if let Some(Container {
            body: Body::Trainer(trainer),
            ..
        }) = self.containers.get_mut(&number)
        {
            trainer
                .machine
                .frame_with(endpoint, &header, &values, now_ms);
        }
        self.pump(number)
    }

    /// The values of a reply when its turn comes; a shard that has moved on says so instead.
    pub(super) fn values(&self, pserver: u64, header: &Header, rows: &Rows) -> (Header, Vec<f32>) {
        let mut values = Vec::new();
        if let Some(Container {
            body: Body::Pserver(pserver),
            ..
        }) = self.containers.get(&pserver)
        {
            let there = match rows {
                Rows::Range => pserver
                    .host
                    .range(header)
                    .map(|range| values.extend_from_slice(range)),
                Rows::Keys(keys) => pserver.host.gather(header, keys, &mut values),
            };
            if there.is_some() {
                return (*header, values);
            }
        }
        (header.reply(Kind::Refused, Status::Stale), Vec::new())
    }

    pub(super) fn data_ended_at_pserver(&mut self, data: u64) -> Result<(), String> {
        self.wires.remove(&Wire::DataUp(data));
        let Some((number, conn)) = self.data.get(&data).map(|d| (d.pserver, d.conn)) else {
            return Ok(());
        };
        if let Some(Container {
            body: Body::Pserver(pserver),
            ..
        }) = self.containers.get_mut(&number)
        {
            pserver.host.disconnect(conn);
        }
        Ok(())
    }

    pub(super) fn data_ended_at_trainer(&mut self, data: u64, how: Closed) -> Result<(), String> {
        self.wires.remove(&Wire::DataDown(data));
        let Some((number, endpoint)) = self.data.get(&data).map(|d| (d.trainer, d.endpoint)) else {
            return Ok(());
        };
        self.orphan_data(data);
        let now_ms = self.now_ms;
        if let Some(Container {
            body: Body::Trainer(trainer),
            ..
        }) = self.containers.get_mut(&number)
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
