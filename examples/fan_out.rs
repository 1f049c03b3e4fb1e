//! One published message reaches several queues and several MQTT subscribers.
//!
//! An exchange of type fanout leads to every queue bound to it. It is bound to `amq.topic` too, the
//! exchange of all MQTT subscriptions: so devices that subscribe to `alarm/#` get what is published with
//! the routing key `alarm.plant-7`. A shard stores it once, however many take it.
//!
//! Run a node with `anabranch serve --dev`, then `cargo run -p anabranch-examples --example fan_out`.
//! `ANABRANCH_MQTT` (host:port) and `ANABRANCH_AMQP` (URI) name another node.

use std::error::Error;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::*;
use lapin::types::FieldTable;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind,
};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish};
use rumqttc::v5::{AsyncClient, Event, EventLoop, MqttOptions};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const EXCHANGE: &str = "example-alarms";
const QUEUES: [&str; 2] = ["example-alarms-log", "example-alarms-mail"];
const DEVICES: [&str; 2] = ["example-siren", "example-display"];

#[tokio::main]
async fn main() -> Fallible<()> {
    let all = Duration::from_secs(30);
    tokio::time::timeout(all, fan_out()).await?
}

async fn fan_out() -> Fallible<()> {
    let amqp = env("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f");
    let application = Connection::connect(&amqp, ConnectionProperties::default()).await?;
    let channel = application.create_channel().await?;
    declare(&channel).await?;
    let mut devices = Vec::new();
    for name in DEVICES {
        devices.push(start_device(name).await?);
    }

    publish_alarm(&channel).await?;

    for name in QUEUES {
        let mut alarms = channel
            .basic_consume(
                name.into(),
                "".into(),
                Default::default(),
                FieldTable::default(),
            )
            .await?;
        let alarm = alarms.next().await.ok_or("the consumer ended")??;
        println!(
            "queue {name}: {} ({})",
            String::from_utf8_lossy(&alarm.data),
            alarm.routing_key
        );
        alarm.ack(Default::default()).await?;
    }
    for (name, (device, mut events)) in DEVICES.into_iter().zip(devices) {
        let alarm = next_publish(&mut events).await?;
        println!(
            "device {name}: {} ({})",
            String::from_utf8_lossy(&alarm.payload),
            String::from_utf8_lossy(&alarm.topic)
        );
        device.disconnect().await?;
        // The goodbye leaves with the next turn of the client; then the connection is over.
        while events.poll().await.is_ok() {}
    }

    for name in QUEUES {
        channel
            .queue_delete(name.into(), Default::default())
            .await?;
    }
    channel
        .exchange_delete(EXCHANGE.into(), Default::default())
        .await?;
    application.close(200, "done".into()).await?;
    Ok(())
}

/// The exchange leads to both queues, and to `amq.topic`.
async fn declare(channel: &Channel) -> Fallible<()> {
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..Default::default()
    };
    channel
        .exchange_declare(
            EXCHANGE.into(),
            ExchangeKind::Fanout,
            durable,
            FieldTable::default(),
        )
        .await?;
    channel
        .exchange_bind(
            "amq.topic".into(),
            EXCHANGE.into(),
            "".into(),
            Default::default(),
            FieldTable::default(),
        )
        .await?;
    for name in QUEUES {
        let durable = QueueDeclareOptions::durable();
        channel
            .queue_declare(name.into(), durable, FieldTable::default())
            .await?;
        channel
            .queue_bind(
                name.into(),
                EXCHANGE.into(),
                "".into(),
                Default::default(),
                FieldTable::default(),
            )
            .await?;
    }
    Ok(())
}

async fn publish_alarm(channel: &Channel) -> Fallible<()> {
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let properties = BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_delivery_mode(2);
    let confirmation = channel
        .basic_publish(
            EXCHANGE.into(),
            "alarm.plant-7".into(),
            Default::default(),
            b"pressure is high",
            properties,
        )
        .await?
        .await?;
    match confirmation {
        Confirmation::Ack(None) => println!("application: published one alarm"),
        other => return Err(format!("the alarm was not taken: {other:?}").into()),
    }
    Ok(())
}

/// Connects a device that listens to alarms.
async fn start_device(name: &str) -> Fallible<(AsyncClient, EventLoop)> {
    let mqtt = env("ANABRANCH_MQTT", "127.0.0.1:1883");
    let (host, port) = mqtt.rsplit_once(':').ok_or("ANABRANCH_MQTT is host:port")?;
    let options = MqttOptions::new(name, host, port.parse()?);
    let (device, mut events) = AsyncClient::new(options, 10);
    device.subscribe("alarm/#", QoS::AtLeastOnce).await?;
    while !matches!(events.poll().await?, Event::Incoming(Packet::SubAck(_))) {}
    Ok((device, events))
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
