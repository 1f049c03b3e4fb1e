//! A device publishes its readings over MQTT; an application takes them from a durable queue over AMQP.
//!
//! The queue is bound to `amq.topic`, the exchange that MQTT publishes go to: nothing else connects the
//! two. The topic `plant/7/temp` is the routing key `plant.7.temp`.
//!
//! Run a node with `anabranch serve --dev`, then `cargo run -p anabranch-examples --example
//! device_to_queue`. `ANABRANCH_MQTT` (host:port) and `ANABRANCH_AMQP` (URI) name another node.

use std::error::Error;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::*;
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, PublishProperties};
use rumqttc::v5::{AsyncClient, Event, MqttOptions};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const QUEUE: &str = "example-readings";
const READINGS: [&str; 3] = ["21.4", "21.6", "21.9"];

#[tokio::main]
async fn main() -> Fallible<()> {
    let all = Duration::from_secs(30);
    tokio::time::timeout(all, device_to_queue()).await?
}

async fn device_to_queue() -> Fallible<()> {
    let amqp = env("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f");
    let application = Connection::connect(&amqp, ConnectionProperties::default()).await?;
    let channel = application.create_channel().await?;
    let durable = QueueDeclareOptions {
        durable: true,
        ..Default::default()
    };
    channel
        .queue_declare(QUEUE.into(), durable, FieldTable::default())
        .await?;
    channel
        .queue_bind(
            QUEUE.into(),
            "amq.topic".into(),
            "plant.*.temp".into(),
            Default::default(),
            FieldTable::default(),
        )
        .await?;
    println!("application: queue {QUEUE} takes plant.*.temp");

    // Nobody consumes yet: the queue keeps what the device says.
    publish_readings().await?;

    let mut consumer = channel
        .basic_consume(
            QUEUE.into(),
            "".into(),
            Default::default(),
            FieldTable::default(),
        )
        .await?;
    for _ in READINGS {
        let delivery = consumer.next().await.ok_or("the consumer ended")??;
        println!(
            "application: {} on {} ({})",
            String::from_utf8_lossy(&delivery.data),
            delivery.routing_key,
            delivery
                .properties
                .content_type()
                .as_ref()
                .map_or("?", |kind| kind.as_str())
        );
        delivery.ack(Default::default()).await?;
    }
    channel
        .queue_delete(QUEUE.into(), Default::default())
        .await?;
    application.close(200, "done".into()).await?;
    Ok(())
}

/// Publishes all readings with QoS 1 and waits until each is safe: a PUBACK comes after the sync.
async fn publish_readings() -> Fallible<()> {
    let mqtt = env("ANABRANCH_MQTT", "127.0.0.1:1883");
    let (host, port) = mqtt.rsplit_once(':').ok_or("ANABRANCH_MQTT is host:port")?;
    let options = MqttOptions::new("example-sensor-7", host, port.parse()?);
    let (device, mut events) = AsyncClient::new(options, 10);
    for reading in READINGS {
        let properties = PublishProperties {
            content_type: Some("text/plain".to_owned()),
            ..Default::default()
        };
        device
            .publish_with_properties("plant/7/temp", QoS::AtLeastOnce, false, reading, properties)
            .await?;
        println!("device: published {reading} on plant/7/temp");
    }
    let mut safe = 0;
    while safe < READINGS.len() {
        if let Event::Incoming(Packet::PubAck(_)) = events.poll().await? {
            safe += 1;
        }
    }
    println!("device: all {safe} are acknowledged");
    device.disconnect().await?;
    // The goodbye leaves with the next turn of the client; then the connection is over.
    while events.poll().await.is_ok() {}
    Ok(())
}

fn env(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}
