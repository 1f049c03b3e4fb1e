//! `anabranch connection`.

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;

use super::client::{Client, Failure, encode, query};
use super::{ServerFlags, output};

const COLUMNS: &[&str] = &[
    "id",
    "protocol",
    "transport",
    "user",
    "client_id",
    "peer",
    "vhost",
    "state",
    "unacknowledged",
];

/// What to do with connections.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Live connections: one's own, or everyone's with the right to see them
    List {
        /// Only of this vhost
        #[arg(long)]
        vhost: Option<String>,
    },
    /// Close one
    Close {
        /// Its id, as the list shows it
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        id: String,
        /// Why, for the log
        #[arg(long)]
        reason: Option<String>,
    },
}

pub(super) fn run(server: &ServerFlags, verb: Verb) -> Result<(), Failure> {
    let client = Client::new(server)?;
    match verb {
        Verb::List { vhost } => {
            let path = format!("/connections{}", query(&[("vhost", vhost)]));
            output::items(server.output, &client.get(&path)?, COLUMNS);
        }
        Verb::Close { id, reason } => {
            let path = format!(
                "/connections/{}{}",
                encode(&id),
                query(&[("reason", reason)])
            );
            let answer = client.delete(&path)?;
            output::done(server.output, &answer, &format!("connection {id} closed"));
        }
    }
    Ok(())
}
