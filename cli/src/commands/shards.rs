//! `heddle shards`: where the shards of a job are, and which of them move.

use std::collections::BTreeMap;

use heddle_am::report::format;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{ShardId, Slot};
use heddle_protocol::view::{JobView, RefillView};
use serde::Serialize;

use super::NamedJobArgs;
use crate::am_client;
use crate::failure::CommandResult;
use crate::output;

/// A shard as it is printed.
#[derive(Debug, PartialEq, Serialize)]
struct ShardRow {
    shard: ShardId,
    /// The pserver that serves it.
    served_by: Slot,
    /// Pservers with copies that may be promoted.
    backups: Vec<Slot>,
    /// Bytes of its file in the last checkpoint.
    bytes: Option<u64>,
    /// The copy that is being filled, with bytes done.
    #[serde(skip_serializing_if = "Option::is_none")]
    copied: Option<RefillView>,
}

pub fn shards(args: &NamedJobArgs, json: bool) -> CommandResult {
    let mut job = args.named()?;
    let view = am_client::runtime()?.block_on(job.view())?;
    let rows = rows(&view);
    match json {
        true => output::json(&rows)?,
        false => output::line(&output::columns(&in_words(&rows)))?,
    }
    Ok(ExitCode::Ok)
}

fn rows(view: &JobView) -> Vec<ShardRow> {
    let places = &view.shards;
    let refills = view.replication.iter().flat_map(|copies| &copies.refills);
    let mut copied: BTreeMap<ShardId, RefillView> =
        refills.map(|refill| (refill.shard, *refill)).collect();
    let row = |(at, served_by): (usize, &u32)| {
        let shard = ShardId(at as u32);
        let backups = places.backups.get(at).into_iter().flatten();
        ShardRow {
            shard,
            served_by: Slot::pserver(*served_by),
            backups: backups.map(|index| Slot::pserver(*index)).collect(),
            bytes: places.bytes.get(at).copied(),
            copied: copied.remove(&shard),
        }
    };
    places.served_by.iter().enumerate().map(row).collect()
}

fn in_words(rows: &[ShardRow]) -> Vec<Vec<String>> {
    let head = ["shard", "served by", "copies", "saved", ""].map(str::to_owned).to_vec();
    let row = |row: &ShardRow| {
        let copied = row.copied.as_ref().map(|refill| {
            let (done, of) = (format::size(refill.bytes), format::size(refill.of_bytes));
            format!("copied to {}: {done} of {of}", refill.to)
        });
        let backups: Vec<String> = row.backups.iter().map(Slot::to_string).collect();
        vec![
            row.shard.to_string(),
            row.served_by.to_string(),
            backups.join(" "),
            row.bytes.map_or_else(|| "–".to_owned(), format::size),
            copied.unwrap_or_default(),
        ]
    };
    std::iter::once(head).chain(rows.iter().map(row)).collect()
}

#[cfg(test)]
mod tests {
    use heddle_protocol::ids::{Attempt, RunId};
    use heddle_protocol::view::ReplicationView;

    use super::*;

    #[test]
    fn a_shard_that_moves_is_named_with_its_bytes() {
        let mut view = JobView::starting(RunId(uuid::Uuid::nil()), "job", Attempt(1), 0);
        assert!(rows(&view).is_empty());
        view.shards.served_by = vec![0, 1];
        view.shards.backups = vec![vec![1], vec![]];
        view.shards.bytes = vec![2048, 4096];
        let (from, to) = (Slot::pserver(1), Slot::pserver(2));
        let refill = RefillView { shard: ShardId(1), from, to, bytes: 1024, of_bytes: 4096 };
        let refills = vec![refill];
        view.replication = Some(ReplicationView { refills, ..ReplicationView::default() });
        let text = output::columns(&in_words(&rows(&view)));
        assert_eq!(
            text,
            "shard  served by  copies     saved\n\
             0      pserver-0  pserver-1  2.0 KiB\n\
             1      pserver-1             4.0 KiB  copied to pserver-2: 1.0 KiB of 4.0 KiB"
        );
    }
}
