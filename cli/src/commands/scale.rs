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
    /// The run's or application's id, the word "trainers" or "pservers", and their number: heddle scale RUN trainers 4. Or the
    /// id and "auto": the controller sets the numbers again
    #[arg(
        value_names = ["RUN|APPLICATION", "trainers|pservers|auto", "N"],
        num_args = 2..=3,
        required = true
    )]
    words: Vec<String>,
    #[command(flatten)]
    place: WorkDirArgs,
}

pub fn scale(args: &Args, json: bool) -> CommandResult {
    let Order { id, change } = parse(&args.words).ok_or_else(|| {
        CommandFailure::new(
            ExitCode::Usage,
            "expected an id, the word trainers or pservers, and their number; or an id and auto",
        )
        .next("for example: heddle scale application_1700000000000_0001 trainers 4")
    })?;
    let mut job = named_or_newest(Some(id), &args.place)?;
    let operation = match change {
        ScaleChange::Auto => Operation::ScaleAuto,
        ScaleChange::Number(role, count) => {
            let of = |wanted| Some(count).filter(|_| role == wanted);
            Operation::Scale { trainers: of(Role::Trainer), pservers: of(Role::Pserver) }
        }
    };
    am_client::runtime()?.block_on(job.operate(&operation))?;
    let (result, text) = match change {
        ScaleChange::Auto => (
            serde_json::json!({ "id": id, "auto": true }),
            format!("{id}: the controller sets the numbers from now on"),
        ),
        ScaleChange::Number(role, count) => {
            let plural = if count == 1 { "" } else { "s" };
            (
                serde_json::json!({ "id": id, (format!("{role}s")): count }),
                format!("{id}: {count} {role}{plural} from now on"),
            )
        }
    };
    output::done(&result, &text, json)
}

/// What the words order.
#[derive(Debug, PartialEq)]
struct Order<'w> {
    id: &'w str,
    change: ScaleChange,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ScaleChange {
    Number(Role, u32),
    Auto,
}

/// Accepts `ID trainers N`, `trainers N ID`, the same with pservers, `ID auto`, `auto ID`.
fn parse(words: &[String]) -> Option<Order<'_>> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let role = |word| match word {
        "trainers" => Some(Role::Trainer),
        "pservers" => Some(Role::Pserver),
        _ => None,
    };
    let (id, word, count) = match words[..] {
        [id, "auto"] | ["auto", id] => return Some(Order { id, change: ScaleChange::Auto }),
        [id, word, count] if role(word).is_some() => (id, word, count),
        [word, count, id] => (id, word, count),
        _ => return None,
    };
    Some(Order { id, change: ScaleChange::Number(role(word)?, count.parse().ok()?) })
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
            let change = ScaleChange::Number(role, count);
            assert_eq!(parse(&words(text)), Some(Order { id: "1a2b", change }), "{text}");
        }
        for text in ["1a2b auto", "auto 1a2b"] {
            let auto = Order { id: "1a2b", change: ScaleChange::Auto };
            assert_eq!(parse(&words(text)), Some(auto), "{text}");
        }
        for text in ["1a2b nodes 4", "1a2b trainers many", "4 1a2b trainers"] {
            assert_eq!(parse(&words(text)), None, "{text}");
        }
    }
}
