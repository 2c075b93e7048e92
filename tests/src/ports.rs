//! Ports of a process, as the kernel knows them.

use std::net::SocketAddr;

use nix::unistd::Pid;

/// Ports on which a process listens, by its sockets and the kernel's table (proc(5), `/proc/net/tcp`).
///
/// # Panics
/// The process does not exist.
pub fn listening(pid: Pid) -> Vec<SocketAddr> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    let inodes: Vec<String> = links
        .flatten()
        .filter_map(|entry| {
            let link = std::fs::read_link(entry.path()).ok()?;
            let text = link.to_str()?.strip_prefix("socket:[")?;
            Some(text.trim_end_matches(']').to_owned())
        })
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).expect("a table");
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
            if *state != "0A" || !inodes.iter().any(|own| own == inode) {
                return None;
            }
            let port = u16::from_str_radix(local.split_once(':')?.1, 16).ok()?;
            Some(SocketAddr::from(([127, 0, 0, 1], port)))
        })
        .collect()
}
