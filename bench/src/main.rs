//! Load generator against any MQTT or AMQP broker: what a message costs the broker, how many go
//! through, how long they take, and whether they arrive once and in order.
//!
//! Owns the command line. Never links the server's crates: it knows a broker only by its
//! protocols and by `/proc`. Next: `README.md`, then `compare.rs`, `rows.rs`, `engine.rs`.

mod amqp;
mod brokers;
mod compare;
mod cost;
mod engine;
mod failure;
#[cfg(test)]
mod fake_broker;
mod flow;
mod histogram;
mod idle;
mod lane;
mod link;
mod mqtt;
mod numbers;
mod pace;
mod process;
mod receiver;
mod report;
mod row;
mod rows;
mod sample;
mod sequence;
mod setup;
mod staged;
mod table;
mod target;
mod window;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use clap::{Args, Parser, Subcommand, ValueEnum};
use rustix::process::{Resource, getrlimit, setrlimit};

use brokers::guard::{self, Guard};
use brokers::{Broker, Place};
use compare::Extent;
use report::Report;
use target::Target;

/// Measures MQTT and AMQP brokers side by side.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start Anabranch and its peers, run rows on all of them in interleaved rounds, stop them.
    Compare(CompareArgs),
    /// Run rows on brokers that are running already.
    Run(RunArgs),
    /// List the rows and what they mean.
    Rows,
    /// Clean up after a bench that was interrupted (started by `compare` itself).
    #[command(name = guard::COMMAND, hide = true)]
    Guard,
}

#[derive(Args)]
struct ExtentArgs {
    /// Rows to run, by name (`m-offline` is short for all its stages); all when left out.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Measured seconds per row, broker and round.
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
    /// Rounds; the median of them is printed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Write the whole result to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct CompareArgs {
    #[command(flatten)]
    extent: ExtentArgs,
    /// Peers to start.
    #[arg(long, value_delimiter = ',', default_value = "mosquitto,rabbitmq")]
    peers: Vec<Peer>,
    /// Start no peers.
    #[arg(long, conflicts_with = "peers")]
    without_peers: bool,
    /// Anabranch's binary; the one beside this program when left out.
    #[arg(long)]
    anabranch: Option<PathBuf>,
    /// An older binary of Anabranch, measured beside it: what a change made slower or faster.
    #[arg(long)]
    earlier: Option<PathBuf>,
    /// Measure the peers alone.
    #[arg(long, conflicts_with = "anabranch")]
    without_anabranch: bool,
    /// Folder for the brokers' data; syncs cost what its disk makes them cost.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
}

#[derive(Args)]
struct RunArgs {
    #[command(flatten)]
    extent: ExtentArgs,
    /// A broker: `NAME=mqtt:HOST:PORT,amqp:HOST:PORT[,http:HOST:PORT][,pid:N][,login:USER:PASSWORD][,mqtt311]`.
    #[arg(long = "broker", required = true)]
    brokers: Vec<Target>,
}

/// A peer that `compare` can start.
#[derive(Clone, Copy, ValueEnum)]
enum Peer {
    /// /usr/sbin/mosquitto
    Mosquitto,
    /// RabbitMQ from /usr/lib/rabbitmq
    Rabbitmq,
}

/// Longest measured time of one row: an hour would be a soak test, not a comparison.
const SECONDS_MAX: f64 = 600.0;

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let right = (0.1..=SECONDS_MAX).contains(&value);
    right
        .then_some(value)
        .ok_or_else(|| format!("must be 0.1 to {SECONDS_MAX}"))
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Compare(args) => compare_command(args),
        Command::Run(args) => run_command(args),
        Command::Rows => {
            for row in rows::ROWS {
                let aims: Vec<String> = row.aims.iter().map(ToString::to_string).collect();
                let aims = match aims.join(", ") {
                    none if none.is_empty() => none,
                    some => format!(" (aim: {some})"),
                };
                println!("{:<16} {}{}", row.name, row.meaning, aims);
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Guard => {
            guard::run(std::io::stdin().lock());
            Ok(ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("anabranch-bench: {error}");
        ExitCode::FAILURE
    })
}

fn compare_command(args: CompareArgs) -> Result<ExitCode, String> {
    let extent = extent(&args.extent)?;
    let mut brokers = Vec::new();
    if !args.without_anabranch {
        brokers.push(Broker::Anabranch(
            args.anabranch.map_or_else(beside_this, Ok)?,
        ));
    }
    brokers.extend(args.earlier.map(Broker::Earlier));
    let peers = args.peers.iter().filter(|_| !args.without_peers);
    brokers.extend(peers.map(|peer| match peer {
        Peer::Mosquitto => Broker::Mosquitto,
        Peer::Rabbitmq => Broker::RabbitMq,
    }));
    let guard = Guard::start().map_err(|error| error.to_string())?;
    let place = Place {
        folder: args.folder,
        guard: Rc::new(guard),
    };
    finish(
        &compare::compare(&brokers, &extent, &place),
        args.extent.json,
    )
}

fn run_command(args: RunArgs) -> Result<ExitCode, String> {
    let extent = extent(&args.extent)?;
    finish(&compare::run(&args.brokers, &extent), args.extent.json)
}

fn extent(args: &ExtentArgs) -> Result<Extent, String> {
    let rows = rows::select(&args.rows)
        .map_err(|name| format!("no row {name:?}; `anabranch-bench rows` lists them"))?;
    raise_open_files();
    Ok(Extent {
        rows,
        rounds: args.rounds,
        seconds: args.seconds,
    })
}

/// Prints and writes the report; fails when a row was not clean.
fn finish(report: &Report, json: Option<PathBuf>) -> Result<ExitCode, String> {
    print!("{}", report.table());
    if let Some(path) = json {
        let text = format!("{:#}\n", report.json());
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(2)
    })
}

fn beside_this() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let path = this.with_file_name("anabranch");
    if path.exists() {
        Ok(path)
    } else {
        Err(format!(
            "{} does not exist; name it with --anabranch, or --without-anabranch",
            path.display()
        ))
    }
}

/// Idle rows hold thousands of sockets here and in the brokers, which inherit the limit.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        eprintln!("cannot raise the limit of open files: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn seconds_have_bounds() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for wrong in ["0", "-1", "601", "NaN", "x"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
