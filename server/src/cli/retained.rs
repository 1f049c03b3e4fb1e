//! `anabranch retained`.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::{Client, Failure, query};
use super::{Output, ServerFlags, output};

const COLUMNS: &[&str] = &["address", "body_bytes", "body"];
/// Values of one question.
const PAGE: u64 = 100;

/// What to do with last values.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Last values, in the order of their addresses
    List {
        /// Which addresses: + is one level, # any number
        #[arg(default_value = "#")]
        filter: String,
        /// The vhost
        #[arg(long, default_value = "/")]
        vhost: String,
        /// How many at most
        #[arg(long, default_value_t = 1000)]
        count: u64,
    },
    /// Print the last value of an address
    Get(Topic),
    /// Remove it: new subscribers are sent none
    Clear(Topic),
}

/// Which address.
#[derive(Debug, Args)]
pub struct Topic {
    /// The address, with / between levels: plant/7/temp
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    topic: String,
    /// Its vhost
    #[arg(long, default_value = "/")]
    vhost: String,
}

pub(super) fn run(server: &ServerFlags, verb: Verb) -> Result<(), Failure> {
    let client = Client::new(server)?;
    let shape = server.output;
    match verb {
        Verb::List {
            filter,
            vhost,
            count,
        } => {
            let items = list(&client, &vhost, &filter, count)?;
            output::items(shape, &json!({ "items": items }), COLUMNS);
        }
        Verb::Get(of) => {
            let items = list(&client, &of.vhost, &of.topic, 1)?;
            let value = items.first().filter(|value| value["address"] == *of.topic);
            let Some(value) = value else {
                let why = format!("there is no last value of {}", of.topic);
                return Err(Failure::Refused(why));
            };
            match shape {
                Output::Json => output::json(value),
                Output::Table => output::line(value["body"].as_str().unwrap_or_default()),
            }
        }
        Verb::Clear(of) => {
            let which = query(&[
                ("vhost", Some(of.vhost.clone())),
                ("topic", Some(of.topic.clone())),
            ]);
            let answer = client.delete(&format!("/retained{which}"))?;
            output::done(shape, &answer, &format!("{} cleared", of.topic));
        }
    }
    Ok(())
}

/// Asks page after page.
fn list(client: &Client, vhost: &str, filter: &str, count: u64) -> Result<Vec<Value>, Failure> {
    let mut items: Vec<Value> = Vec::new();
    let mut after = None;
    loop {
        let left = count.saturating_sub(items.len() as u64);
        if left == 0 {
            return Ok(items);
        }
        let which = query(&[
            ("vhost", Some(vhost.to_owned())),
            ("filter", Some(filter.to_owned())),
            ("count", Some(left.min(PAGE).to_string())),
            ("after", after),
        ]);
        let page = client.get(&format!("/retained{which}"))?;
        if let Some(more) = page["items"].as_array() {
            items.extend(more.iter().cloned());
        }
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => return Ok(items),
        }
    }
}
