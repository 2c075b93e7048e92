//! An end of the exchange that `scripts/compare-peers.sh` measures: a pserver, or a worker that pushes or pulls for a while.
//!
//! The server prints the addresses of its data threads, then its processor time, in seconds, for each line that it reads. A
//! worker prints `ready`, waits for a line, and prints its rate (requests a second), the time between replies (µs, median and
//! 99th percentile), its processor time and the number of its requests.

use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Parser;
use heddle_bench::Samples;
use heddle_bench::peer::{TrainerPeer, pserver, sparse_pserver};
use heddle_bench::random::SplitMix;
use heddle_bench::requests::{Request, Requests, position_words};
use heddle_optimizer::Optimizer;
use heddle_protocol::ids::ShardId;
use heddle_protocol::job_spec::position::{position_of_key, shard_of_position};
use nix::sys::resource::{UsageWho, getrusage};

/// Values of a sparse row.
const COLS: usize = 16;
/// Different requests of a worker.
const REQUESTS: usize = 16;
const WARM_UP: Duration = Duration::from_millis(300);

#[derive(Parser)]
enum End {
    Server {
        /// Rows of a sparse table; without it a dense table of 16 MiB
        #[arg(long)]
        rows: Option<u32>,
        /// Data threads, one shard each, of a sparse table
        #[arg(long, default_value_t = 1)]
        threads: u32,
    },
    Worker {
        /// 0 or 1; worker 0 creates the rows of a sparse table
        #[arg(long)]
        index: u32,
        #[arg(long)]
        push: bool,
        /// Rows of a sparse table
        #[arg(long)]
        rows: Option<u64>,
        /// Bytes of a dense request, rows of a sparse one
        #[arg(long)]
        size: usize,
        /// Requests in flight
        #[arg(long, default_value_t = 1)]
        window: usize,
        #[arg(long, default_value_t = 0.6)]
        seconds: f64,
        /// The data threads
        endpoints: Vec<SocketAddr>,
    },
}

fn main() -> io::Result<()> {
    let end = End::parse();
    let mut lines = io::stdin().lock().lines();
    match end {
        End::Server { rows, threads } => {
            let server = match rows {
                Some(rows) => sparse_pserver(COLS as u32, Optimizer::sgd(0.1), rows, 0, threads)?,
                None => pserver(4 << 20, 0, 1)?,
            };
            let endpoints: Vec<_> = server.endpoints().iter().map(ToString::to_string).collect();
            println!("{}", endpoints.join(" "));
            lines.for_each(|_| println!("{:.6}", processor_seconds()));
            Ok(())
        }
        End::Worker { index, push, rows, size, window, seconds, endpoints } => {
            let peers = endpoints.iter().zip(0..).map(|(endpoint, shard)| {
                Ok(TrainerPeer::connect(*endpoint, index)?.of_shard(ShardId(shard)))
            });
            let mut worker = Worker { peers: peers.collect::<io::Result<_>>()?, push };
            if let (Some(rows), 0) = (rows, index) {
                worker.create(rows)?;
            }
            let requests = worker.requests(index, rows, size);
            println!("ready");
            lines.next();
            let mut values = vec![1e-6; if rows.is_some() { size * COLS } else { size / 4 }];
            let mut run = |limit: Duration| worker.run(&requests, &mut values, window, limit);
            run(WARM_UP)?;
            let before = processor_seconds();
            let (begun, times) = (Instant::now(), run(Duration::from_secs_f64(seconds))?);
            let rate = times.count() as f64 / begun.elapsed().as_secs_f64();
            let used = processor_seconds() - before;
            println!(
                "{rate:.2} {:.1} {:.1} {used:.6} {}",
                times.median(),
                times.quantile(0.99),
                times.count()
            );
            Ok(())
        }
    }
}

/// Of this process so far.
fn processor_seconds() -> f64 {
    let used = getrusage(UsageWho::RUSAGE_SELF).expect("it is this process");
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6;
    seconds(used.user_time()) + seconds(used.system_time())
}

/// Values of a data thread's part of a request, of those that are left. A dense table has one part.
fn own_values(positions: &[u32], left: usize) -> usize {
    if positions.is_empty() { left } else { positions.len() / 2 * COLS }
}

/// Connections to all data threads.
struct Worker {
    peers: Vec<TrainerPeer>,
    push: bool,
}

/// The positions of a request as words, for each data thread.
type Parts = Vec<Vec<u32>>;

impl Worker {
    /// The positions of rows, each with the data thread that has its shard.
    fn parts(&self, keys: impl Iterator<Item = u64>) -> Parts {
        let mut parts = vec![Vec::new(); self.peers.len()];
        for position in keys.map(position_of_key) {
            let shard = shard_of_position(position, self.peers.len() as u32);
            parts[shard.0 as usize].push(position);
        }
        parts.into_iter().map(position_words).collect()
    }

    fn create(&mut self, rows: u64) -> io::Result<()> {
        for first in (0..rows).step_by(10_000) {
            let parts = self.parts(first..rows.min(first + 10_000));
            for (peer, positions) in self.peers.iter_mut().zip(&parts) {
                peer.push_positions(positions, &vec![1e-3; positions.len() / 2 * COLS])?;
            }
        }
        Ok(())
    }

    fn requests(&self, index: u32, rows: Option<u64>, size: usize) -> Vec<Parts> {
        let Some(rows) = rows else { return vec![vec![Vec::new(); self.peers.len()]] };
        let mut random = SplitMix(7 + u64::from(index));
        let mut keys = || random.keys(size, rows).into_iter().map(u64::from);
        (0..REQUESTS).map(|_| self.parts(keys())).collect()
    }

    /// Requests until the limit; returns the time of each since the last one, µs.
    fn run(
        &mut self,
        requests: &[Parts],
        values: &mut [f32],
        window: usize,
        limit: Duration,
    ) -> io::Result<Samples> {
        let (begun, mut times) = (Instant::now(), Samples::default());
        let (mut sent, mut last) = (0, Duration::ZERO);
        for answered in 0.. {
            let is_over = begun.elapsed() >= limit;
            while !is_over && sent < answered + window {
                self.ask(&requests[sent % requests.len()], values)?;
                sent += 1;
            }
            if answered == sent {
                break;
            }
            self.take(&requests[answered % requests.len()], values)?;
            let now = begun.elapsed();
            times.add_micros(now - last);
            last = now;
        }
        Ok(times)
    }

    fn ask(&mut self, parts: &Parts, values: &[f32]) -> io::Result<()> {
        let mut rest = values;
        for (peer, positions) in self.peers.iter_mut().zip(parts) {
            let (own, after) = rest.split_at(own_values(positions, rest.len()));
            peer.request(Request { is_push: self.push, positions }, own)?;
            rest = after;
        }
        Ok(())
    }

    fn take(&mut self, parts: &Parts, values: &mut [f32]) -> io::Result<()> {
        let mut rest = values;
        for (peer, positions) in self.peers.iter_mut().zip(parts) {
            let count = own_values(positions, rest.len());
            let (own, after) = rest.split_at_mut(count);
            peer.reply(Request { is_push: self.push, positions }, own)?;
            rest = after;
        }
        Ok(())
    }
}
