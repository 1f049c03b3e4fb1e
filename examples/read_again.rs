//! What a device publishes is kept in a stream; an application reads all of it, a device from where it likes.
//!
//! The stream is bound to `amq.topic` like a queue, but keeps what was read: each reader has a place of its own. Here
//! the application asks for `x-stream-offset` `first`, the device subscribes to `$stream/<name>` from offset 1 on.
//!
//! Run a node with `anabranch serve --dev`, then `cargo run -p anabranch-examples --example
//! read_again`. `ANABRANCH_MQTT` (host:port) and `ANABRANCH_AMQP` (URI) name another node.

use std::error::Error;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::*;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, SubscribeProperties};
use rumqttc::v5::{AsyncClient, Event, MqttOptions};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const STREAM: &str = "example-history";
const READINGS: [&str; 3] = ["21.4", "21.6", "21.9"];

#[tokio::main]
async fn main() -> Fallible<()> {
    let all = Duration::from_secs(30);
    tokio::time::timeout(all, read_again()).await?
}

async fn read_again() -> Fallible<()> {
    let amqp = env("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f");
    let application = Connection::connect(&amqp, ConnectionProperties::default()).await?;
    let channel = application.create_channel().await?;
    let durable = QueueDeclareOptions {
        durable: true,
        ..Default::default()
    };
    let mut kept = FieldTable::default();
    kept.insert("x-queue-type".into(), text("stream"));
    kept.insert("x-max-age".into(), text("7D"));
    channel.queue_declare(STREAM.into(), durable, kept).await?;
    channel
        .queue_bind(
            STREAM.into(),
            "amq.topic".into(),
            "plant.*.temp".into(),
            Default::default(),
            FieldTable::default(),
        )
        .await?;

    publish_readings().await?;
    read_all(&channel).await?;
    read_from("1").await?;

    channel
        .queue_delete(STREAM.into(), Default::default())
        .await?;
    application.close(200, "done".into()).await?;
    Ok(())
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// The application: from the first message on. A prefetch count and acknowledgements are needed; they only say how
/// much may be on the way.
async fn read_all(channel: &Channel) -> Fallible<()> {
    channel.basic_qos(10, Default::default()).await?;
    let mut first = FieldTable::default();
    first.insert("x-stream-offset".into(), text("first"));
    let mut consumer = channel
        .basic_consume(STREAM.into(), "".into(), Default::default(), first)
        .await?;
    for _ in READINGS {
        let delivery = consumer.next().await.ok_or("the consumer ended")??;
        let headers = delivery.properties.headers().as_ref();
        let offset = headers.and_then(|headers| headers.inner().get("x-stream-offset"));
        let Some(AMQPValue::LongLongInt(offset)) = offset else {
            return Err("a delivery without an offset".into());
        };
        let reading = String::from_utf8_lossy(&delivery.data);
        println!("application: {reading} is offset {offset}");
        delivery.ack(Default::default()).await?;
    }
    Ok(())
}

/// Publishes all readings with QoS 1 and waits until each is safe.
async fn publish_readings() -> Fallible<()> {
    let (device, mut events) = AsyncClient::new(options("example-sensor-8")?, 10);
    for reading in READINGS {
        device
            .publish("plant/8/temp", QoS::AtLeastOnce, false, reading)
            .await?;
    }
    let mut safe = 0;
    while safe < READINGS.len() {
        if let Event::Incoming(Packet::PubAck(_)) = events.poll().await? {
            safe += 1;
        }
    }
    println!("device: all {safe} are acknowledged");
    device.disconnect().await?;
    while events.poll().await.is_ok() {}
    Ok(())
}

/// A device: from an offset on. Each message tells where it was, so that the device can go on behind it.
async fn read_from(offset: &str) -> Fallible<()> {
    let (device, mut events) = AsyncClient::new(options("example-reader-8")?, 10);
    let from = SubscribeProperties {
        id: None,
        user_properties: vec![("offset".to_owned(), offset.to_owned())],
    };
    let stream = format!("$stream/{STREAM}");
    device
        .subscribe_with_properties(stream, QoS::AtLeastOnce, from)
        .await?;
    let mut left = READINGS.len() - 1;
    while left > 0 {
        let Event::Incoming(Packet::Publish(message)) = events.poll().await? else {
            continue;
        };
        let told = message.properties.unwrap_or_default().user_properties;
        let offset = told.iter().find(|(name, _)| name == "x-stream-offset");
        let (_, offset) = offset.ok_or("a message without an offset")?;
        println!(
            "device: {} is offset {offset} on {}",
            String::from_utf8_lossy(&message.payload),
            String::from_utf8_lossy(&message.topic)
        );
        left -= 1;
    }
    device.disconnect().await?;
    while events.poll().await.is_ok() {}
    Ok(())
}

fn options(client_id: &str) -> Fallible<MqttOptions> {
    let mqtt = env("ANABRANCH_MQTT", "127.0.0.1:1883");
    let (host, port) = mqtt.rsplit_once(':').ok_or("ANABRANCH_MQTT is host:port")?;
    Ok(MqttOptions::new(client_id, host, port.parse()?))
}

fn env(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}
