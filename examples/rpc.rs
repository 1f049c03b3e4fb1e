//! A client calls a function of a server over AMQP, without a queue for the answers.
//!
//! The client consumes from the pseudo-queue `amq.rabbitmq.reply-to` (without acknowledgements) and names
//! it in `reply_to`. What the server sees there is an address of that client's channel; it publishes to the
//! default exchange with it as routing key. Nothing is declared for the answer, nothing is stored, and
//! nothing has to be deleted.
//!
//! Run a node with `anabranch serve --dev`, then `cargo run -p anabranch-examples --example rpc`.
//! `ANABRANCH_AMQP` (URI) names another node.

use std::error::Error;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::*;
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const QUEUE: &str = "example-squares";
const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";

#[tokio::main]
async fn main() -> Fallible<()> {
    let all = Duration::from_secs(30);
    tokio::time::timeout(all, rpc()).await?
}

async fn rpc() -> Fallible<()> {
    let amqp = env("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f");
    let server = Connection::connect(&amqp, ConnectionProperties::default()).await?;
    let functions = server.create_channel().await?;
    // The queue of calls goes with its last server.
    let auto_delete = QueueDeclareOptions::default().auto_delete();
    functions
        .queue_declare(QUEUE.into(), auto_delete, FieldTable::default())
        .await?;
    let calls = functions
        .basic_consume(
            QUEUE.into(),
            "".into(),
            Default::default(),
            FieldTable::default(),
        )
        .await?;
    let consumer = calls.tag().clone();
    let serving = tokio::spawn(serve(functions.clone(), calls));

    let connection = Connection::connect(&amqp, ConnectionProperties::default()).await?;
    let mut client = Client::start(connection.create_channel().await?).await?;
    for number in [3, 7, 12] {
        println!(
            "client: {number} squared is {}",
            client.square(number).await?
        );
    }
    connection.close(200, "done".into()).await?;
    // The server ends with its consumer, once it has acknowledged what it answered.
    functions.basic_cancel(consumer, Default::default()).await?;
    serving.await??;
    server.close(200, "done".into()).await?;
    Ok(())
}

/// Answers calls until the consumer ends.
async fn serve(channel: Channel, mut calls: Consumer) -> Fallible<()> {
    while let Some(Ok(call)) = calls.next().await {
        square(&channel, &call).await?;
        call.ack(Default::default()).await?;
    }
    Ok(())
}

/// The function: answers the square of a number, to whoever asked.
async fn square(channel: &Channel, call: &Delivery) -> Fallible<()> {
    let number: u64 = str::from_utf8(&call.data)?.parse()?;
    let square = number * number;
    println!("server: the square of {number} is {square}");
    let asked = &call.properties;
    let reply_to = asked
        .reply_to()
        .clone()
        .ok_or("a call asks for an answer")?;
    let correlation_id = asked.correlation_id().clone().unwrap_or_default();
    channel
        .basic_publish(
            "".into(),
            reply_to,
            Default::default(),
            square.to_string().as_bytes(),
            BasicProperties::default().with_correlation_id(correlation_id),
        )
        .await?;
    Ok(())
}

/// Calls, one at a time.
struct Client {
    channel: Channel,
    answers: Consumer,
}

impl Client {
    async fn start(channel: Channel) -> Fallible<Client> {
        let no_ack = BasicConsumeOptions {
            no_ack: true,
            ..Default::default()
        };
        // An answer goes to the channel that asked: this consumer comes first.
        let answers = channel
            .basic_consume(
                DIRECT_REPLY_TO.into(),
                "".into(),
                no_ack,
                FieldTable::default(),
            )
            .await?;
        Ok(Client { channel, answers })
    }

    async fn square(&mut self, number: u64) -> Fallible<u64> {
        let call = ShortString::from(format!("call-{number}"));
        let properties = BasicProperties::default()
            .with_reply_to(DIRECT_REPLY_TO.into())
            .with_correlation_id(call.clone())
            .with_expiration("30000".into());
        self.channel
            .basic_publish(
                "".into(),
                QUEUE.into(),
                Default::default(),
                number.to_string().as_bytes(),
                properties,
            )
            .await?;
        loop {
            let answer = self.answers.next().await.ok_or("the consumer ended")??;
            if answer.properties.correlation_id().as_ref() == Some(&call) {
                return Ok(str::from_utf8(&answer.data)?.parse()?);
            }
        }
    }
}

fn env(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}
