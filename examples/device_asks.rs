//! A device asks over MQTT; an application answers over AMQP; the device has the answer.
//!
//! The device asks as MQTT 5 says: with a Response Topic that it subscribes to, and Correlation Data. The
//! application takes questions from a queue bound to `amq.topic`. It finds where to answer in `reply_to`,
//! as `mqtt:<topic>`, and in the header `x-mqtt-response-topic`; it answers by publishing to `amq.topic`
//! with that topic as routing key.
//!
//! Run a node with `anabranch serve --dev`, then `cargo run -p anabranch-examples --example device_asks`.
//! `ANABRANCH_MQTT` (host:port) and `ANABRANCH_AMQP` (URI) name another node.

use std::error::Error;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::*;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish, PublishProperties};
use rumqttc::v5::{AsyncClient, Event, EventLoop, MqttOptions};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const QUEUE: &str = "example-questions";
const ANSWERS: &str = "settings/meter-7/answers";

#[tokio::main]
async fn main() -> Fallible<()> {
    let all = Duration::from_secs(30);
    tokio::time::timeout(all, device_asks()).await?
}

async fn device_asks() -> Fallible<()> {
    let amqp = env("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f");
    let application = Connection::connect(&amqp, ConnectionProperties::default()).await?;
    let channel = application.create_channel().await?;
    let durable = QueueDeclareOptions::durable();
    channel
        .queue_declare(QUEUE.into(), durable, FieldTable::default())
        .await?;
    channel
        .queue_bind(
            QUEUE.into(),
            "amq.topic".into(),
            "settings.get".into(),
            Default::default(),
            FieldTable::default(),
        )
        .await?;
    let mut questions = channel
        .basic_consume(
            QUEUE.into(),
            "".into(),
            Default::default(),
            FieldTable::default(),
        )
        .await?;

    let (device, mut events) = ask().await?;

    let question = questions.next().await.ok_or("the consumer ended")??;
    answer(&channel, &question).await?;

    let answer = next_publish(&mut events).await?;
    let properties = answer.properties.unwrap_or_default();
    println!(
        "device: {} answers {}",
        String::from_utf8_lossy(&answer.payload),
        String::from_utf8_lossy(&properties.correlation_data.unwrap_or_default())
    );
    device.disconnect().await?;
    // The goodbye leaves with the next turn of the client; then the connection is over.
    while events.poll().await.is_ok() {}
    channel
        .queue_delete(QUEUE.into(), Default::default())
        .await?;
    application.close(200, "done".into()).await?;
    Ok(())
}

/// Connects the device: first it listens to answers, then it asks.
async fn ask() -> Fallible<(AsyncClient, EventLoop)> {
    let mqtt = env("ANABRANCH_MQTT", "127.0.0.1:1883");
    let (host, port) = mqtt.rsplit_once(':').ok_or("ANABRANCH_MQTT is host:port")?;
    let options = MqttOptions::new("example-meter-7", host, port.parse()?);
    let (device, mut events) = AsyncClient::new(options, 10);
    device.subscribe(ANSWERS, QoS::AtLeastOnce).await?;
    while !matches!(events.poll().await?, Event::Incoming(Packet::SubAck(_))) {}
    let asks = PublishProperties {
        response_topic: Some(ANSWERS.to_owned()),
        correlation_data: Some("question-1".into()),
        ..Default::default()
    };
    device
        .publish_with_properties("settings/get", QoS::AtLeastOnce, false, "interval", asks)
        .await?;
    while !matches!(events.poll().await?, Event::Incoming(Packet::PubAck(_))) {}
    println!("device: asks for its interval");
    Ok((device, events))
}

/// Answers a question where it says.
async fn answer(channel: &Channel, question: &Delivery) -> Fallible<()> {
    let asked = &question.properties;
    println!(
        "application: {} on {}",
        String::from_utf8_lossy(&question.data),
        question.routing_key
    );
    let reply_to = asked.reply_to().as_ref();
    println!(
        "application: reply to {}",
        reply_to.map_or("?", ShortString::as_str)
    );
    let headers = asked.headers().as_ref().ok_or("a question has headers")?;
    let topic = match headers.inner().get("x-mqtt-response-topic") {
        Some(AMQPValue::LongString(topic)) => topic.to_string(),
        other => return Err(format!("it says where to answer: {other:?}").into()),
    };
    let correlation_id = asked
        .correlation_id()
        .clone()
        .ok_or("it says which it is")?;
    let properties = BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_correlation_id(correlation_id);
    channel
        .basic_publish(
            "amq.topic".into(),
            routing_key(&topic).into(),
            Default::default(),
            setting(&question.data)?.as_bytes(),
            properties,
        )
        .await?;
    question.ack(Default::default()).await?;
    Ok(())
}

fn setting(name: &[u8]) -> Fallible<&'static str> {
    match name {
        b"interval" => Ok("60 s"),
        _ => Err("there is no such setting".into()),
    }
}

/// A topic's levels are a routing key's words. (A `.` within a level would be written `%2E`.)
fn routing_key(topic: &str) -> String {
    topic.replace('/', ".")
}

async fn next_publish(events: &mut EventLoop) -> Fallible<Publish> {
    loop {
        if let Event::Incoming(Packet::Publish(publish)) = events.poll().await? {
            return Ok(publish);
        }
    }
}

fn env(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}
