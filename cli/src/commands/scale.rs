//! `heddle scale`: changes the number of trainers or of pservers of a running job.

use heddle_protocol::control::Operation;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::Role;

use super::{WorkDirArgs, named_or_newest};
use crate::am_client;
use crate::failure::{CommandFailure, CommandResult};
use crate::output;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's or application's id, the word "trainers" or "pservers", and their number: heddle scale RUN trainers 4
    #[arg(
        value_names = ["RUN|APPLICATION", "trainers|pservers", "N"],
        num_args = 3,
        required = true
    )]
    words: Vec<String>,
    #[command(flatten)]
    place: WorkDirArgs,
}

pub fn scale(args: &Args, json: bool) -> CommandResult {
    let Order { id, role, count } = parse(&args.words).ok_or_else(|| {
        CommandFailure::new(
            ExitCode::Usage,
            "expected an id, the word trainers or pservers, and their number",
        )
        .next("for example: heddle scale application_1700000000000_0001 trainers 4")
    })?;
    let of = |wanted| Some(count).filter(|_| role == wanted);
    let (trainers, pservers) = (of(Role::Trainer), of(Role::Pserver));
    let mut job = named_or_newest(Some(id), &args.place)?;
    am_client::runtime()?.block_on(job.operate(&Operation::Scale { trainers, pservers }))?;
    let plural = if count == 1 { "" } else { "s" };
    let text = format!("{id}: {count} {role}{plural} from now on");
    output::done(&serde_json::json!({ "id": id, (format!("{role}s")): count }), &text, json)
}

/// What the words say.
#[derive(Debug, PartialEq)]
struct Order<'w> {
    id: &'w str,
    role: Role,
    count: u32,
}

/// Accepts `ID trainers N` and `trainers N ID`, and the same with pservers.
fn parse(words: &[String]) -> Option<Order<'_>> {
    let role = |word: &String| match word.as_str() {
        "trainers" => Some(Role::Trainer),
        "pservers" => Some(Role::Pserver),
        _ => None,
    };
    let (at, role) = words.iter().enumerate().find_map(|(at, word)| Some((at, role(word)?)))?;
    let count = words.get(at + 1)?.parse().ok()?;
    let id = match (at, words.len()) {
        (0, 3) => &words[2],
        (1, 3) => &words[0],
        _ => return None,
    };
    Some(Order { id, role, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_first_or_last() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (text, role, count) in [
            ("1a2b trainers 4", Role::Trainer, 4),
            ("trainers 4 1a2b", Role::Trainer, 4),
            ("1a2b pservers 2", Role::Pserver, 2),
        ] {
            assert_eq!(parse(&words(text)), Some(Order { id: "1a2b", role, count }), "{text}");
        }
        for text in ["1a2b nodes 4", "1a2b trainers many", "4 1a2b trainers"] {
            assert_eq!(parse(&words(text)), None, "{text}");
        }
    }
}
