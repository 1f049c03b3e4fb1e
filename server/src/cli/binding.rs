//! `anabranch binding`.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::argument::{Argument, object};
use super::client::{Client, Failure, query};
use super::{ServerFlags, output};

const COLUMNS: &[&str] = &[
    "vhost",
    "exchange",
    "pattern",
    "destination_kind",
    "destination",
    "arguments",
];

/// What to do with bindings.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Bindings, those of live subscriptions too
    List {
        /// Only of this vhost
        #[arg(long)]
        vhost: Option<String>,
        /// Only from this exchange
        #[arg(long)]
        exchange: Option<String>,
        /// Only to this queue, session, group or exchange
        #[arg(long)]
        to: Option<String>,
    },
    /// Bind a queue or an exchange to an exchange
    Add(BindingFlags),
    /// Undo a binding; all that was given when it was made tells it apart
    Delete(BindingFlags),
}

/// A binding in words.
#[derive(Debug, Args)]
pub struct BindingFlags {
    /// The exchange it takes messages from
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    exchange: String,
    /// The queue it sends them to
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    destination: String,
    /// Routing key or pattern: plant.*.temp
    #[arg(default_value = "")]
    pattern: String,
    /// The destination is an exchange
    #[arg(long)]
    to_exchange: bool,
    /// The vhost
    #[arg(long, default_value = "/")]
    vhost: String,
    /// An argument, for headers exchanges; may be given several times
    #[arg(long = "argument", value_name = "NAME=VALUE")]
    arguments: Vec<Argument>,
}

impl BindingFlags {
    fn body(&self) -> Value {
        json!({
            "vhost": self.vhost,
            "exchange": self.exchange,
            "destination_kind": if self.to_exchange { "exchange" } else { "queue" },
            "destination": self.destination,
            "pattern": self.pattern,
            "arguments": object(&self.arguments),
        })
    }
}

pub(super) fn run(server: &ServerFlags, verb: Verb) -> Result<(), Failure> {
    let client = Client::new(server)?;
    let shape = server.output;
    match verb {
        Verb::List {
            vhost,
            exchange,
            to,
        } => {
            let which = query(&[
                ("vhost", vhost),
                ("exchange", exchange),
                ("destination", to),
            ]);
            output::items(shape, &client.get(&format!("/bindings{which}"))?, COLUMNS);
        }
        Verb::Add(flags) => {
            let answer = client.post("/bindings", &flags.body())?;
            let text = format!("{} bound to {}", flags.destination, flags.exchange);
            output::done(shape, &answer, &text);
        }
        Verb::Delete(flags) => {
            let answer = client.delete_with("/bindings", &flags.body())?;
            let text = format!(
                "{} not bound to {} any more",
                flags.destination, flags.exchange
            );
            output::done(shape, &answer, &text);
        }
    }
    Ok(())
}
