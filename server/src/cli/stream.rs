//! `anabranch stream`.

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Map, Value, json};

use super::argument::{Argument, object};
use super::client::{Client, Failure, encode, query};
use super::limits::LimitFlags;
use super::{ServerFlags, output};

const COLUMNS: &[&str] = &[
    "vhost",
    "name",
    "kind",
    "mode",
    "durable",
    "state",
    "ready",
    "unacknowledged",
    "consumers",
    "bytes",
];
const SHOWN: &[&str] = &[
    "vhost",
    "name",
    "kind",
    "mode",
    "durable",
    "state",
    "ready",
    "unacknowledged",
    "consumers",
    "bytes",
    "policies",
    "limits",
];
const MESSAGES: &[&str] = &["offset", "address", "attempts", "body_bytes", "body"];

/// What to do with streams.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Queues, streams, sessions and groups with their depth
    List {
        /// Only of this vhost
        #[arg(long)]
        vhost: Option<String>,
    },
    /// One of them
    Show(Name),
    /// Declare a queue
    Add(Box<QueueFlags>),
    /// Delete it with its messages
    Delete {
        #[command(flatten)]
        name: Name,
        /// Only without messages
        #[arg(long)]
        if_empty: bool,
        /// Only without consumers
        #[arg(long)]
        if_unused: bool,
    },
    /// Drop what waits for delivery
    Purge(Name),
    /// Move a queue's subscription; what lies before the place is dropped
    #[command(group = ArgGroup::new("place").args(["start", "end", "offset", "time"]).required(true))]
    Seek {
        #[command(flatten)]
        name: Name,
        /// To the oldest message there is: what readers hold comes back
        #[arg(long)]
        start: bool,
        /// Behind the newest message
        #[arg(long)]
        end: bool,
        /// To this offset, as `peek` shows it
        #[arg(long, value_name = "NUMBER")]
        offset: Option<u64>,
        /// To the first message that came in at this time or later: 2026-01-31T08:00:00Z, or milliseconds
        #[arg(long)]
        time: Option<String>,
    },
    /// The next messages; nothing is taken
    Peek {
        #[command(flatten)]
        name: Name,
        /// How many
        #[arg(long, default_value_t = 10)]
        count: u32,
    },
}

/// A queue in words. Every flag of a limit is the argument of the same meaning.
#[derive(Debug, Args)]
pub struct QueueFlags {
    #[command(flatten)]
    name: Name,
    /// Keep it in memory only
    #[arg(long)]
    transient: bool,
    /// Delete it when its last consumer goes
    #[arg(long)]
    auto_delete: bool,
    #[command(flatten)]
    limits: LimitFlags,
    /// An argument as applications write it, such as x-queue-type=quorum; may be given several times
    #[arg(long = "argument", value_name = "NAME=VALUE")]
    arguments: Vec<Argument>,
}

impl QueueFlags {
    /// What an application would write.
    fn arguments(&self) -> Map<String, Value> {
        let mut all = object(&self.arguments);
        all.extend(self.limits.arguments());
        all
    }
}

/// Which stream.
#[derive(Debug, Args)]
pub struct Name {
    /// Its name
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Its vhost
    #[arg(long, default_value = "/")]
    vhost: String,
}

impl Name {
    pub(super) fn path(&self, rest: &str) -> String {
        format!(
            "/streams/{}/{}{rest}",
            encode(&self.vhost),
            encode(&self.name)
        )
    }
}

pub(super) fn run(server: &ServerFlags, verb: Verb) -> Result<(), Failure> {
    let client = Client::new(server)?;
    let shape = server.output;
    match verb {
        Verb::List { vhost } => {
            let path = format!("/streams{}", query(&[("vhost", vhost)]));
            output::items(shape, &client.get(&path)?, COLUMNS);
        }
        Verb::Show(name) => output::items(shape, &client.get(&name.path(""))?, SHOWN),
        Verb::Add(flags) => {
            let declare = json!({
                "kind": "queue",
                "durable": !flags.transient,
                "auto_delete": flags.auto_delete,
                "arguments": flags.arguments(),
            });
            let answer = client.put(&flags.name.path(""), &declare)?;
            output::done(
                shape,
                &answer,
                &format!("queue {} declared", flags.name.name),
            );
        }
        Verb::Delete {
            name,
            if_empty,
            if_unused,
        } => {
            let only = |wanted: bool| wanted.then(|| "true".to_owned());
            let when = query(&[("if_empty", only(if_empty)), ("if_unused", only(if_unused))]);
            let answer = client.delete(&name.path(&when))?;
            output::done(shape, &answer, &format!("stream {} deleted", name.name));
        }
        Verb::Purge(name) => {
            let answer = client.post(&name.path("/purge"), &json!({}))?;
            output::done(
                shape,
                &answer,
                &format!("{} messages dropped", answer["purged"]),
            );
        }
        Verb::Seek {
            name,
            start,
            end: _,
            offset,
            time,
        } => {
            let place = match (offset, time) {
                (Some(offset), _) => json!({ "offset": offset }),
                (None, Some(time)) => match time.parse::<u64>() {
                    Ok(ms) => json!({ "time": ms }),
                    Err(_) => json!({ "time": time }),
                },
                (None, None) => json!({"to": if start { "start" } else { "end" }}),
            };
            let answer = client.post(&name.path("/seek"), &place)?;
            output::done(
                shape,
                &answer,
                &format!("{} messages dropped", answer["left"]),
            );
        }
        Verb::Peek { name, count } => {
            let answer = client.get(&name.path(&format!("/peek?count={count}")))?;
            output::items(shape, &answer, MESSAGES);
        }
    }
    Ok(())
}
