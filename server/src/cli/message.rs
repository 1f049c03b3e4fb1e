//! `anabranch pub` and `anabranch sub`.
//!
//! `sub` looks on: it peeks at a queue from where it stands and takes nothing, so that it can be used
//! beside the queue's consumers. What they take between two looks is not seen.

use std::io::Read;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde_json::{Map, Value, json};

use super::client::{Client, Failure};
use super::stream::{FromFlags, Name};
use super::{Output, ServerFlags, output};

/// Between two looks at a queue in which nothing new was.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Messages of one look.
const LOOK_COUNT: u64 = 100;

/// What to publish.
#[derive(Debug, Args)]
pub struct PublishFlags {
    /// Routing key, with . between the levels of a topic: plant.7.temp
    address: String,
    /// The body; `-` is standard input, whatever bytes it has
    body: String,
    /// The exchange [default: the topic exchange of devices]
    #[arg(long, default_value = "amq.topic")]
    exchange: String,
    /// The vhost
    #[arg(long, default_value = "/")]
    vhost: String,
    /// Mark it as not to be stored
    #[arg(long)]
    transient: bool,
    /// Keep it as the last value of its address; an empty one removes that
    #[arg(long)]
    retain: bool,
    /// Keep it so many milliseconds before it is routed
    #[arg(long, default_value_t = 0, value_name = "MS")]
    delay: u64,
    /// Media type of the body
    #[arg(long)]
    content_type: Option<String>,
    /// A header; may be given several times
    #[arg(long = "header", value_name = "NAME=VALUE")]
    headers: Vec<String>,
}

/// What to look at.
#[derive(Debug, Args)]
pub struct FollowFlags {
    #[command(flatten)]
    queue: Name,
    /// End after so many messages
    #[arg(long)]
    count: Option<u64>,
    #[command(flatten)]
    from: FromFlags,
}

pub(super) fn publish(server: &ServerFlags, flags: PublishFlags) -> Result<(), Failure> {
    let client = Client::new(server)?;
    let mut headers = Map::new();
    for header in &flags.headers {
        let Some((name, value)) = header.split_once('=') else {
            return Err(Failure::Usage(format!(
                "--header {header}: it is NAME=VALUE"
            )));
        };
        headers.insert(name.to_owned(), value.into());
    }
    let (body, encoding) = if flags.body == "-" {
        let mut bytes = Vec::new();
        let read = std::io::stdin().read_to_end(&mut bytes);
        read.map_err(|error| Failure::Failed(format!("standard input: {error}")))?;
        match String::from_utf8(bytes) {
            Ok(text) => (text, "utf8"),
            Err(binary) => (STANDARD.encode(binary.as_bytes()), "base64"),
        }
    } else {
        (flags.body, "utf8")
    };
    let answer = client.post(
        "/publish",
        &json!({
            "vhost": flags.vhost,
            "exchange": flags.exchange,
            "address": flags.address,
            "body": body,
            "body_encoding": encoding,
            "durable": !flags.transient,
            "retain": flags.retain,
            "content_type": flags.content_type,
            "headers": headers,
            "delay_ms": flags.delay,
        }),
    )?;
    let text = match answer["routed"].as_u64() {
        Some(_) if flags.delay > 0 => "kept until it is due".to_owned(),
        Some(0) if flags.retain => "kept; nobody wanted it now".to_owned(),
        Some(0) => "nobody wanted it".to_owned(),
        _ => format!("routed to {}", answer["routed"]),
    };
    output::done(server.output, &answer, &text);
    Ok(())
}

pub(super) fn follow(server: &ServerFlags, flags: &FollowFlags) -> Result<(), Failure> {
    let client = Client::new(server)?;
    let mut next = None;
    let mut left = flags.count;
    while left != Some(0) {
        let count = left.unwrap_or(LOOK_COUNT).min(LOOK_COUNT);
        let from = flags.from.query(next);
        let answer = client.get(&flags.queue.path(&format!("/peek?count={count}{from}")))?;
        let messages = answer["items"].as_array().map_or(&[][..], Vec::as_slice);
        for message in messages {
            show(server.output, message);
            next = message["offset"].as_u64().map(|offset| offset + 1);
            left = left.map(|left| left.saturating_sub(1));
        }
        if messages.is_empty() {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    Ok(())
}

fn show(shape: Output, message: &Value) {
    match shape {
        // One object per line, so that a program can read on.
        Output::Json => output::line(&message.to_string()),
        Output::Table => {
            let text = |key: &str| message[key].as_str().unwrap_or_default();
            output::line(&format!("{} {}", text("address"), text("body")));
        }
    }
}
