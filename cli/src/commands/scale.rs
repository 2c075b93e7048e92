//! `heddle scale`: changes the number of trainers of a running job.

use heddle_protocol::control::Operation;
use heddle_protocol::exit_code::ExitCode;

use super::{WorkDirArgs, named_or_newest};
use crate::am_client;
use crate::failure::{CommandFailure, CommandResult};
use crate::output;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's or application's id, the word "trainers", and their number: heddle scale RUN trainers 4
    #[arg(
        value_names = ["RUN|APPLICATION", "trainers", "N"],
        num_args = 3,
        required = true
    )]
    words: Vec<String>,
    #[command(flatten)]
    place: WorkDirArgs,
}

pub fn scale(args: &Args, json: bool) -> CommandResult {
    let (id, trainers) = parse(&args.words).ok_or_else(|| {
        CommandFailure::new(ExitCode::Usage, "expected an id, the word trainers, and their number")
            .next("for example: heddle scale application_1700000000000_0001 trainers 4")
    })?;
    let mut job = named_or_newest(Some(id), &args.place)?;
    am_client::runtime()?.block_on(job.operate(&Operation::Scale { trainers }))?;
    let plural = if trainers == 1 { "" } else { "s" };
    let text = format!("{id}: {trainers} trainer{plural} from now on");
    output::done(&serde_json::json!({ "id": id, "trainers": trainers }), &text, json)
}

/// Accepts `ID trainers N` and `trainers N ID`.
fn parse(words: &[String]) -> Option<(&str, u32)> {
    let at = words.iter().position(|word| word == "trainers")?;
    let trainers = words.get(at + 1)?.parse().ok()?;
    let id = match (at, words.len()) {
        (0, 3) => &words[2],
        (1, 3) => &words[0],
        _ => return None,
    };
    Some((id, trainers))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Option<(String, u32)> {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        parse(&words).map(|(id, n)| (id.to_owned(), n))
    }

    #[test]
    fn id_is_first_or_last() {
        let meant = Some(("1a2b".to_owned(), 4));
        assert_eq!(said("1a2b trainers 4"), meant);
        assert_eq!(said("trainers 4 1a2b"), meant);
        for text in ["1a2b pservers 4", "1a2b trainers many", "4 1a2b trainers"] {
            assert_eq!(said(text), None, "{text}");
        }
    }
}
