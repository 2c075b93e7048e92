//! Which DataNode a writer of this process sends to: the first of its pipeline, whose death is the hardest.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};

use super::cluster::Cluster;
use super::net::datanode_ports;

/// State of a connection in Linux's `/proc/net/tcp`.
const ESTABLISHED: &str = "01";

impl Cluster {
    /// The DataNode with which this process has a data connection.
    ///
    /// # Errors
    /// There is none, or there are several: another user in this process reads or writes, or did so recently.
    pub fn pipeline_head(&self) -> Result<u8> {
        let mut sockets = BTreeSet::new();
        for entry in fs::read_dir("/proc/self/fd")? {
            if let Ok(target) = fs::read_link(entry?.path()) {
                sockets.insert(target.to_string_lossy().into_owned());
            }
        }
        let mut heads = BTreeSet::new();
        for line in fs::read_to_string("/proc/self/net/tcp")?.lines().skip(1) {
            // sl, local, remote (address:port), state, …, inode
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (Some(remote), Some(state), Some(inode)) =
                (fields.get(2), fields.get(3), fields.get(9))
            else {
                continue;
            };
            if *state != ESTABLISHED || !sockets.contains(&format!("socket:[{inode}]")) {
                continue;
            }
            let (_, port) = remote.rsplit_once(':').context("address:port")?;
            let port = u16::from_str_radix(port, 16)?;
            heads.extend((1..=3).filter(|n| datanode_ports(self.network(), *n)[0] == port));
        }
        let mut found = heads.iter().copied();
        let head = found.next().context("no connection with a DataNode")?;
        ensure!(found.next().is_none(), "connections with {heads:?}");
        Ok(head)
    }
}
