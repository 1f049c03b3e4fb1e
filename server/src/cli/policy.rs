//! `anabranch policy`.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::{Client, Failure, encode, query};
use super::limits::LimitFlags;
use super::quantity::Millis;
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
    /// Make or replace one; it counts within a second, for queues, streams and groups already made too
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
    #[arg(long, default_value = "queues", value_parser = ["queues", "streams", "groups", "all"])]
    applies_to: String,
    /// Of several that set the same, the highest counts
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i64,
    #[command(flatten)]
    limits: LimitFlags,
    /// How long streams keep messages: milliseconds, or a number with s, m, h or d, such as 7d
    #[arg(long, value_name = "TIME")]
    age_max_ms: Option<Millis>,
    /// Streams keep what is published to these topics, such as sensors/+/temp; may be given several times. With a
    /// pattern that is one whole name (^telemetry$) the stream is made
    #[arg(long, value_name = "FILTER")]
    capture: Vec<String>,
}

impl Name {
    fn path(&self) -> String {
        format!("/policies/{}/{}", encode(&self.vhost), encode(&self.name))
    }
}

impl PolicyFlags {
    fn body(&self) -> Value {
        let mut settings = self.limits.settings();
        if let Some(ms) = self.age_max_ms {
            settings.insert("age_max_ms".to_owned(), ms.0.into());
        }
        if !self.capture.is_empty() {
            settings.insert("capture".to_owned(), self.capture.clone().into());
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
