//! `anabranch stream`.

use std::str::FromStr;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Map, Value, json};

use super::argument::{Argument, object};
use super::client::{Client, Failure, encode, query};
use super::limits::LimitFlags;
use super::quantity::Bytes;
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
    "kept.first_offset",
    "kept.last_offset",
    "kept.first_at_ms",
    "kept.last_at_ms",
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
    /// Declare a stream: it keeps its messages, and each reader reads it from where it likes
    Create(KeepFlags),
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
        #[command(flatten)]
        from: FromFlags,
    },
}

/// Where to begin; by default at the oldest message there is.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("from").args(["offset", "since"]))]
pub struct FromFlags {
    /// Begin at this offset
    #[arg(long, value_name = "NUMBER")]
    offset: Option<u64>,
    /// Begin at the first message that came in then or later: 2026-01-31T08:00:00Z, or milliseconds
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
}

impl FromFlags {
    /// As a part of a query, in front of `next` when there was something already.
    pub(super) fn query(&self, next: Option<u64>) -> String {
        match (next.or(self.offset), &self.since) {
            (Some(offset), _) => format!("&offset={offset}"),
            (None, Some(since)) => format!("&since={}", encode(since)),
            (None, None) => String::new(),
        }
    }
}

/// A stream in words.
#[derive(Debug, Args)]
pub struct KeepFlags {
    #[command(flatten)]
    name: Name,
    /// Keep what is published to these topics, such as sensors/+/temp; may be given several times
    #[arg(long, value_name = "FILTER")]
    capture: Vec<String>,
    /// Keep messages for so long: a number and s, m, h or d, such as 7d
    #[arg(long, value_name = "AGE")]
    max_age: Option<Age>,
    /// Keep so many bytes of bodies: a number, or with KiB, MiB, GiB or TiB
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<Bytes>,
}

impl KeepFlags {
    fn body(&self) -> Value {
        let mut arguments = Map::new();
        if let Some(Age(age)) = &self.max_age {
            arguments.insert("x-max-age".to_owned(), age.clone().into());
        }
        if let Some(bytes) = self.max_bytes {
            arguments.insert("x-max-length-bytes".to_owned(), bytes.0.into());
        }
        json!({
            "kind": "stream",
            "durable": true,
            "arguments": arguments,
            "capture": self.capture,
        })
    }
}

/// A length of time as declarations write it.
#[derive(Debug, Clone, PartialEq)]
struct Age(String);

impl FromStr for Age {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Age, &'static str> {
        let wrong = "it is a number and s, m, h or d, such as 7d";
        let unit = text.chars().next_back().ok_or(wrong)?;
        let number = &text[..text.len() - unit.len_utf8()];
        let known = matches!(unit, 's' | 'm' | 'h' | 'd');
        match number.parse::<u64>() {
            Ok(number) if known && number > 0 => {
                // Days are written large there.
                let unit = if unit == 'd' { 'D' } else { unit };
                Ok(Age(format!("{number}{unit}")))
            }
            _ => Err(wrong),
        }
    }
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
    /// Messages of higher priorities go out first, up to this one; 10 or less is advised
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..))]
    priority_max: Option<u8>,
    /// An argument as applications write it, such as x-queue-type=quorum; may be given several times
    #[arg(long = "argument", value_name = "NAME=VALUE")]
    arguments: Vec<Argument>,
}

impl QueueFlags {
    /// What an application would write.
    fn arguments(&self) -> Map<String, Value> {
        let mut all = object(&self.arguments);
        all.extend(self.limits.arguments());
        if let Some(most) = self.priority_max {
            all.insert("x-max-priority".to_owned(), most.into());
        }
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
        Verb::Create(flags) => {
            let answer = client.put(&flags.name.path(""), &flags.body())?;
            output::done(
                shape,
                &answer,
                &format!("stream {} declared", flags.name.name),
            );
        }
        Verb::Peek { name, count, from } => {
            let from = from.query(None);
            let answer = client.get(&name.path(&format!("/peek?count={count}{from}")))?;
            output::items(shape, &answer, MESSAGES);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_written_as_people_do() {
        let age = |text: &str| text.parse::<Age>().ok().map(|age| age.0);
        assert_eq!(age("7d").as_deref(), Some("7D"));
        assert_eq!(age("90s").as_deref(), Some("90s"));
        for wrong in ["", "d", "7", "0d", "7w", "-1d", "7ü"] {
            assert_eq!(age(wrong), None, "{wrong}");
        }
    }
}
