//! The names of shards in texts.

use heddle_protocol::ids::ShardId;

/// Shards that are named.
const NAMED: usize = 20;

/// `shard 3`, `shards 3, 5 and 9`, or `shards 3, 5, … and 40 more`.
pub(crate) fn shards_text(shards: &[ShardId]) -> String {
    if let Some((named, others)) = shards.split_at_checked(NAMED)
        && !others.is_empty()
    {
        let names: Vec<String> = named.iter().map(|shard| shard.to_string()).collect();
        return format!("shards {} and {} more", names.join(", "), others.len());
    }
    let names: Vec<String> = shards.iter().map(|shard| shard.to_string()).collect();
    match names.split_last() {
        Some((only, [])) => format!("shard {only}"),
        Some((last, first)) => format!("shards {} and {last}", first.join(", ")),
        None => "no shard".to_owned(),
    }
}
