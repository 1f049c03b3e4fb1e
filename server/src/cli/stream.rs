//! `anabranch stream`.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::json;

use super::client::{Client, Failure, encode, query};
use super::{ServerFlags, output};

const COLUMNS: &[&str] = &[
    "vhost",
    "name",
    "kind",
    "durable",
    "state",
    "ready",
    "unacknowledged",
    "consumers",
    "bytes",
];
const MESSAGES: &[&str] = &["offset", "address", "attempts", "body_bytes", "body"];

/// What to do with streams.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Queues, streams and sessions with their depth
    List {
        /// Only of this vhost
        #[arg(long)]
        vhost: Option<String>,
    },
    /// One of them
    Show(Name),
    /// Declare a queue
    Add {
        #[command(flatten)]
        name: Name,
        /// Keep it in memory only
        #[arg(long)]
        transient: bool,
        /// Delete it when its last consumer goes
        #[arg(long)]
        auto_delete: bool,
    },
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
    /// The next messages; nothing is taken
    Peek {
        #[command(flatten)]
        name: Name,
        /// How many
        #[arg(long, default_value_t = 10)]
        count: u32,
    },
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
        Verb::Show(name) => output::items(shape, &client.get(&name.path(""))?, COLUMNS),
        Verb::Add {
            name,
            transient,
            auto_delete,
        } => {
            let declare =
                json!({"kind": "queue", "durable": !transient, "auto_delete": auto_delete});
            let answer = client.put(&name.path(""), &declare)?;
            output::done(shape, &answer, &format!("queue {} declared", name.name));
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
        Verb::Peek { name, count } => {
            let answer = client.get(&name.path(&format!("/peek?count={count}")))?;
            output::items(shape, &answer, MESSAGES);
        }
    }
    Ok(())
}
