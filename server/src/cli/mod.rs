//! The command line: what may be typed, and what each command does.
//!
//! `serve` runs a node. Everything else, but `config`, `store` and `version`, asks a running node over its HTTP
//! API: nouns with verbs (`user list`, `stream purge`), a table for people or JSON with `-o json`.
//!
//! The exit codes, which are stable, stand in [`EXIT_CODES`].
//!
//! Owns: the grammar, the exit codes.
//! Never: opens the data folder of a node (but for the administrator's first password, and in `store.rs`).
//! Next: `client.rs` (HTTP), one file per noun.

mod argument;
mod binding;
mod client;
mod configuration;
mod connection;
mod exchange;
mod limits;
mod message;
mod output;
mod policy;
mod quantity;
mod retained;
mod rule;
mod store;
mod stream;
mod tier;
mod user;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::json;

pub use client::PASSWORD_FILE;

/// What the help of the program, and of `serve`, ends with.
const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  refused by the server, or failed
  2  the command line or the configuration is wrong
  3  no server answers";
/// Heading of the flags that say which server is asked.
const SERVER: &str = "Server";
/// Place in the help of flags that every command has: behind its own.
const LAST: usize = 900;

/// One server for devices over MQTT and applications over AMQP, on one log.
#[derive(Debug, Parser)]
#[command(name = "anabranch", version, propagate_version = true, after_help = EXIT_CODES)]
pub struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node until it is told to stop
    #[command(after_help = EXIT_CODES)]
    Serve(ServeFlags),
    /// Users and their passwords, roles and groups
    User {
        #[command(flatten)]
        server: ServerFlags,
        #[command(subcommand)]
        verb: user::Verb,
    },
    /// Rules: who may do what
    Rule {
        #[command(flatten)]
        server: ServerFlags,
        #[command(subcommand)]
        verb: rule::Verb,
    },
    /// Policies: limits and modes for all queues, streams or groups whose name matches
    Policy {
        #[command(flatten)]
        server: ServerFlags,
        #[command(subcommand)]
        verb: policy::Verb,
    },
    /// Exchanges: where everything published goes first
    Exchange {
        #[command(flatten)]
        server: ServerFlags,
        #[command(subcommand)]
        verb: exchange::Verb,
    },
    /// Bindings: where an exchange sends what it gets
    Binding {
        #[command(flatten)]
        server: ServerFlags,
        #[command(subcommand)]
        verb: binding::Verb,
    },
    /// Queues, streams, sessions and groups of shared subscriptions
    Stream {
        #[command(flatten)]
        server: ServerFlags,
        #[command(subcommand)]
        verb: stream::Verb,
    },
    /// Retained messages: the last value of each address, which new subscribers get first
    Retained {
        #[command(flatten)]
        server: ServerFlags,
        #[command(subcommand)]
        verb: retained::Verb,
    },
    /// The object store that old segments go to
    Tier {
        #[command(flatten)]
        server: ServerFlags,
        #[command(subcommand)]
        verb: tier::Verb,
    },
    /// Live connections
    Connection {
        #[command(flatten)]
        server: ServerFlags,
        #[command(subcommand)]
        verb: connection::Verb,
    },
    /// Publish one message and wait until it is stored
    Pub {
        #[command(flatten)]
        server: ServerFlags,
        #[command(flatten)]
        publish: message::PublishFlags,
    },
    /// Print the messages of a queue as they come; nothing is taken from it
    Sub {
        #[command(flatten)]
        server: ServerFlags,
        #[command(flatten)]
        follow: message::FollowFlags,
    },
    /// Show or check the configuration that `serve` would use
    Config {
        #[command(subcommand)]
        verb: configuration::Verb,
    },
    /// Look at a data folder, or mend one: what is wrong, what is in it
    Store {
        #[command(subcommand)]
        verb: store::Verb,
    },
    /// Print the version
    Version {
        /// How to print
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
}

/// What `serve` can be told.
#[derive(Debug, Clone, Default, Args)]
pub struct ServeFlags {
    /// Allow anonymous access and guest/guest with all rights; on loopback only
    #[arg(long)]
    pub dev: bool,
    #[command(flatten)]
    pub node: NodeFlags,
}

/// Flags that are keys of the configuration.
#[derive(Debug, Clone, Default, Args)]
pub struct NodeFlags {
    /// Data folder, created when missing [default: ./data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Where devices connect [default: 0.0.0.0:1883; 127.0.0.1:1883 with --dev]
    #[arg(long, value_name = "ADDR")]
    pub mqtt: Option<String>,
    /// Where devices connect by TLS [default: nowhere]
    #[arg(long, value_name = "ADDR")]
    pub mqtt_tls: Option<String>,
    /// Where devices and pages connect by WebSocket [default: nowhere]
    #[arg(long, value_name = "ADDR")]
    pub mqtt_ws: Option<String>,
    /// Where devices and pages connect by WebSocket in TLS [default: nowhere]
    #[arg(long, value_name = "ADDR")]
    pub mqtt_wss: Option<String>,
    /// Where applications connect [default: 0.0.0.0:5672; 127.0.0.1:5672 with --dev]
    #[arg(long, value_name = "ADDR")]
    pub amqp: Option<String>,
    /// Where applications connect by TLS [default: nowhere]
    #[arg(long, value_name = "ADDR")]
    pub amqp_tls: Option<String>,
    /// Certificate for TLS, in PEM, with those that link it to its root
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Where API and console are [default: 127.0.0.1:15672]
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "ANABRANCH_CONFIG")]
    pub config: Option<PathBuf>,
    /// Form of the log [default: text]
    #[arg(long, value_name = "FORM", value_parser = ["text", "json"])]
    pub log: Option<String>,
}

/// Which server to ask, and as whom.
#[derive(Debug, Clone, Args)]
pub struct ServerFlags {
    /// The server's HTTP address
    #[arg(
        long,
        global = true,
        help_heading = SERVER,
        display_order = LAST,
        env = "ANABRANCH_URL",
        default_value = "http://127.0.0.1:15672"
    )]
    pub url: String,
    /// Who asks [default: admin]
    #[arg(
        long,
        global = true,
        help_heading = SERVER,
        display_order = LAST,
        env = "ANABRANCH_USER"
    )]
    pub user: Option<String>,
    /// The password; by default the one in DATA/admin-password
    #[arg(
        long,
        global = true,
        help_heading = SERVER,
        display_order = LAST,
        env = "ANABRANCH_PASSWORD",
        hide_env_values = true
    )]
    pub password: Option<String>,
    /// The data folder of a node on this machine, for the administrator's first password
    #[arg(
        long,
        global = true,
        help_heading = SERVER,
        display_order = LAST,
        value_name = "DIR",
        default_value = "./data"
    )]
    pub data: PathBuf,
    /// How to print
    #[arg(
        short,
        long,
        global = true,
        display_order = LAST,
        value_enum,
        default_value_t = Output::Table
    )]
    pub output: Output,
}

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Columns
    Table,
    /// JSON as the API gives it
    Json,
}

/// Does what the command line says, `serve` excepted, and gives the exit code.
pub fn run(command: Command) -> ExitCode {
    let result = match command {
        Command::Serve(_) => Ok(()),
        Command::User { server, verb } => user::run(&server, verb),
        Command::Rule { server, verb } => rule::run(&server, verb),
        Command::Policy { server, verb } => policy::run(&server, verb),
        Command::Exchange { server, verb } => exchange::run(&server, verb),
        Command::Binding { server, verb } => binding::run(&server, verb),
        Command::Stream { server, verb } => stream::run(&server, verb),
        Command::Retained { server, verb } => retained::run(&server, verb),
        Command::Tier { server, verb } => tier::run(&server, verb),
        Command::Connection { server, verb } => connection::run(&server, verb),
        Command::Pub { server, publish } => message::publish(&server, publish),
        Command::Sub { server, follow } => message::follow(&server, &follow),
        Command::Config { verb } => configuration::run(&verb),
        Command::Store { verb } => return store::run(&verb),
        Command::Version { output } => {
            let version = env!("CARGO_PKG_VERSION");
            let answer = json!({"name": "anabranch", "version": version});
            output::done(output, &answer, &format!("anabranch {version}"));
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("anabranch: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_sound() {
        CommandLine::command().debug_assert();
    }

    /// A verb's flag with the id of a flag for the server would set both.
    #[test]
    fn whom_a_question_is_about_is_not_who_asks() {
        let line = "anabranch rule explain --who anna --action publish --name a";
        let parsed = CommandLine::try_parse_from(line.split(' ')).unwrap();
        let Command::Rule { server, .. } = parsed.command else {
            panic!("not a rule command");
        };
        assert_ne!(server.user.as_deref(), Some("anna"));
    }

    #[test]
    fn flags_for_the_server_may_stand_after_the_verb() {
        let line = [
            "anabranch",
            "user",
            "list",
            "-o",
            "json",
            "--url",
            "http://127.0.0.1:9",
        ];
        let parsed = CommandLine::try_parse_from(line).unwrap();
        let Command::User { server, .. } = parsed.command else {
            panic!("not a user command");
        };
        assert_eq!(
            (server.output, server.url.as_str()),
            (Output::Json, "http://127.0.0.1:9")
        );
    }
}
