//! `anabranch policy`.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::client::{Client, Failure, encode, query};
use super::{ServerFlags, output};

const COLUMNS: &[&str] = &[
    "vhost",
    "name",
    "pattern",
    "applies_to",
    "priority",
    "settings",
];

/// What to do with policies.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// All policies
    List {
        /// Only of this vhost
        #[arg(long)]
        vhost: Option<String>,
    },
    /// Make or replace one; it counts within a second, for queues and groups already made too
    Set(Box<PolicyFlags>),
    /// Delete one; what it set is undone within a second
    Delete(Name),
}

/// Which policy.
#[derive(Debug, Args)]
pub struct Name {
    /// Its name
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Its vhost
    #[arg(long, default_value = "/")]
    vhost: String,
}

/// A policy in words.
#[derive(Debug, Args)]
pub struct PolicyFlags {
    #[command(flatten)]
    name: Name,
    /// Regular expression looked for in the name, such as ^telemetry
    #[arg(long, value_name = "REGEX")]
    pattern: String,
    /// What it is about; groups are those of shared subscriptions ($share/GROUP/...)
    #[arg(long, default_value = "queues", value_parser = ["queues", "groups", "all"])]
    applies_to: String,
    /// Of several that set the same, the highest counts
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i64,
    /// How readers share it
    #[arg(long, value_parser = ["shared", "exclusive", "failover", "key_shared"])]
    mode: Option<String>,
    /// The queue goes when unused for so long
    #[arg(long, value_name = "MS")]
    expires_ms: Option<u64>,
    /// Messages end after so long
    #[arg(long, value_name = "MS")]
    message_ttl_ms: Option<u64>,
    /// Messages that may wait
    #[arg(long, value_name = "COUNT")]
    messages_max: Option<u64>,
    /// Bytes of bodies that may wait
    #[arg(long, value_name = "BYTES")]
    bytes_max: Option<u64>,
    /// What happens when no more may wait
    #[arg(long, value_parser = ["drop_oldest", "reject", "reject_and_dead_letter"])]
    overflow: Option<String>,
    /// How often a message may come back
    #[arg(long, value_name = "COUNT")]
    delivery_limit: Option<u32>,
    /// Exchange that gets what is dropped
    #[arg(long, value_name = "EXCHANGE")]
    dead_letter_exchange: Option<String>,
    /// ... with this routing key [default: the message's own]
    #[arg(long, value_name = "KEY", requires = "dead_letter_exchange")]
    dead_letter_key: Option<String>,
}

impl Name {
    fn path(&self) -> String {
        format!("/policies/{}/{}", encode(&self.vhost), encode(&self.name))
    }
}

impl PolicyFlags {
    fn body(&self) -> Value {
        let mut settings = Map::new();
        let given = [
            ("mode", self.mode.clone().map(Value::from)),
            ("expires_ms", self.expires_ms.map(Value::from)),
            ("message_ttl_ms", self.message_ttl_ms.map(Value::from)),
            ("messages_max", self.messages_max.map(Value::from)),
            ("bytes_max", self.bytes_max.map(Value::from)),
            ("overflow", self.overflow.clone().map(Value::from)),
            ("delivery_limit", self.delivery_limit.map(Value::from)),
            (
                "dead_letter_exchange",
                self.dead_letter_exchange.clone().map(Value::from),
            ),
            (
                "dead_letter_key",
                self.dead_letter_key.clone().map(Value::from),
            ),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                settings.insert(name.to_owned(), value);
            }
        }
        json!({
            "pattern": self.pattern,
            "applies_to": self.applies_to,
            "priority": self.priority,
            "settings": settings,
        })
    }
}

pub(super) fn run(server: &ServerFlags, verb: Verb) -> Result<(), Failure> {
    let client = Client::new(server)?;
    let shape = server.output;
    match verb {
        Verb::List { vhost } => {
            let path = format!("/policies{}", query(&[("vhost", vhost)]));
            output::items(shape, &client.get(&path)?, COLUMNS);
        }
        Verb::Set(flags) => {
            let answer = client.put(&flags.name.path(), &flags.body())?;
            output::done(shape, &answer, &format!("policy {} set", flags.name.name));
        }
        Verb::Delete(name) => {
            let answer = client.delete(&name.path())?;
            output::done(shape, &answer, &format!("policy {} deleted", name.name));
        }
    }
    Ok(())
}
