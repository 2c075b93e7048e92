//! `heddle predict`: scores files with a model, one score a line, in input order.

use std::io::{self, Write};

use heddle_storage::Location;
use heddle_trainer::predict::{
    LinearModel, ModelError, PredictError, predict_files, predict_stream,
};
use heddle_trainer::reader::ReadError;

use super::checkpoint::{location, reached, unusable};
use crate::am_client;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model: its folder, or one of its files
    #[arg(value_name = "MODEL")]
    model: String,
    /// Files or globs to score, in the format the model was trained on; - is standard input
    #[arg(value_name = "DATA", required = true)]
    data: Vec<String>,
}

pub fn predict(args: &Args, json: bool) -> Outcome {
    let place = location(&args.model)?;
    am_client::runtime()?.block_on(reached(&place))?;
    let model = LinearModel::open(&place).map_err(|error| {
        let fact = format!("{} is no model to score with", args.model);
        match &error {
            ModelError::Storage(error) if !error.is_not_found() => unusable(&fact, error),
            error => Failure::caused(Exit::Input, fact, error),
        }
    })?;
    let mut out = Scores {
        out: io::BufWriter::with_capacity(1 << 16, io::stdout().lock()),
        json,
        half: Vec::new(),
    };
    let scored = match args.data.as_slice() {
        [only] if only == "-" => predict_stream(&model, &mut io::stdin().lock(), &mut out),
        files => {
            let inputs: Vec<Location> = files
                .iter()
                .map(|file| location(file))
                .collect::<Result<_, _>>()?;
            predict_files(&model, &inputs, &mut out)
        }
    };
    match scored.and_then(|_| Ok(out.flush()?)) {
        Ok(()) => Ok(Exit::Ok),
        Err(PredictError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Err(output::broken(&error))
        }
        Err(error) => {
            // What was right stays written.
            let _told_below = out.flush();
            const FACT: &str = "not everything was scored";
            Err(match &error {
                PredictError::Storage(error) | PredictError::Read(ReadError::Storage(error)) => {
                    unusable(FACT, error)
                }
                error => Failure::caused(Exit::Input, FACT, error),
            })
        }
    }
}

/// Lines of scores as they are, or each as a JSON object.
struct Scores<W: Write> {
    out: W,
    json: bool,
    half: Vec<u8>,
}

impl<W: Write> Write for Scores<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.json {
            return self.out.write(bytes);
        }
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.half.extend_from_slice(line);
            if self.half.last() == Some(&b'\n') {
                self.half.pop();
                self.out.write_all(b"{\"score\":")?;
                self.out.write_all(&self.half)?;
                self.out.write_all(b"}\n")?;
                self.half.clear();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
