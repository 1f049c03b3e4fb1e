//! `anabranch exchange`.

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
    "auto_delete",
    "internal",
    "alternate",
    "delays",
    "delayed",
];
const DELAYED_COLUMNS: &[&str] = &["due_at_ms", "address", "body_bytes", "body"];

/// What to do with exchanges.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// All exchanges
    List {
        /// Only of this vhost
        #[arg(long)]
        vhost: Option<String>,
    },
    /// Declare one
    Add(ExchangeFlags),
    /// Delete one with its bindings
    Delete {
        #[command(flatten)]
        name: Name,
        /// Only when nothing is bound to it
        #[arg(long)]
        if_unused: bool,
    },
    /// The messages that wait in one until they are due, the next one first
    Delayed {
        #[command(flatten)]
        name: Name,
        /// How many at most
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100))]
        count: u64,
    },
    /// Drop all messages that wait in one
    DropDelayed {
        #[command(flatten)]
        name: Name,
    },
}

/// Which exchange.
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
    fn delayed(&self) -> String {
        let (vhost, of) = (encode(&self.vhost), encode(&self.name));
        format!("/exchanges/{vhost}/{of}/delayed")
    }
}

/// An exchange in words.
#[derive(Debug, Args)]
pub struct ExchangeFlags {
    #[command(flatten)]
    name: Name,
    /// How it chooses among its bindings: by equal key, all of them, by pattern, by headers
    #[arg(long, default_value = "topic", value_parser = ["direct", "fanout", "topic", "headers"])]
    kind: String,
    /// Keep it in memory only
    #[arg(long)]
    transient: bool,
    /// Delete it when its last binding goes
    #[arg(long)]
    auto_delete: bool,
    /// Clients may not publish to it
    #[arg(long)]
    internal: bool,
    /// Keep each message for as long as its header x-delay (milliseconds) or x-deliver-at says, then route it: what
    /// applications call the type x-delayed-message
    #[arg(long)]
    delays: bool,
    /// The exchange that gets what no binding of this one takes
    #[arg(long, value_name = "EXCHANGE")]
    alternate: Option<String>,
}

pub(super) fn run(server: &ServerFlags, verb: Verb) -> Result<(), Failure> {
    let client = Client::new(server)?;
    let shape = server.output;
    match verb {
        Verb::List { vhost } => {
            let path = format!("/exchanges{}", query(&[("vhost", vhost)]));
            output::items(shape, &client.get(&path)?, COLUMNS);
        }
        Verb::Add(flags) => {
            let exchange = json!({
                "vhost": flags.name.vhost,
                "name": flags.name.name,
                "kind": flags.kind,
                "durable": !flags.transient,
                "auto_delete": flags.auto_delete,
                "internal": flags.internal,
                "delays": flags.delays,
                "alternate": flags.alternate,
            });
            let answer = client.post("/exchanges", &exchange)?;
            let text = format!("exchange {} declared", flags.name.name);
            output::done(shape, &answer, &text);
        }
        Verb::Delete { name, if_unused } => {
            let when = query(&[("if_unused", if_unused.then(|| "true".to_owned()))]);
            let (vhost, of) = (encode(&name.vhost), encode(&name.name));
            let answer = client.delete(&format!("/exchanges/{vhost}/{of}{when}"))?;
            output::done(shape, &answer, &format!("exchange {} deleted", name.name));
        }
        Verb::Delayed { name, count } => {
            let path = format!("{}?count={count}", name.delayed());
            output::items(shape, &client.get(&path)?, DELAYED_COLUMNS);
        }
        Verb::DropDelayed { name } => {
            let answer = client.delete(&name.delayed())?;
            let text = format!("{} messages dropped", answer["dropped"]);
            output::done(shape, &answer, &text);
        }
    }
    Ok(())
}
