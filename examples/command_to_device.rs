//! An application sends a command over AMQP; a device gets it over MQTT.
//!
//! The application publishes to the exchange `amq.topic`, where every MQTT subscription is bound. The
//! routing key `command.pump-7.start` is the topic `command/pump-7/start`.
//!
//! Run a node with `anabranch serve --dev`, then `cargo run -p anabranch-examples --example
//! command_to_device`. `ANABRANCH_MQTT` (host:port) and `ANABRANCH_AMQP` (URI) name another node.

use std::error::Error;
use std::time::Duration;

use lapin::options::*;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish};
use rumqttc::v5::{AsyncClient, Event, EventLoop, MqttOptions};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Fallible<()> {
    let all = Duration::from_secs(30);
    tokio::time::timeout(all, command_to_device()).await?
}

async fn command_to_device() -> Fallible<()> {
    let mqtt = env("ANABRANCH_MQTT", "127.0.0.1:1883");
    let (host, port) = mqtt.rsplit_once(':').ok_or("ANABRANCH_MQTT is host:port")?;
    let options = MqttOptions::new("example-pump-7", host, port.parse()?);
    let (device, mut events) = AsyncClient::new(options, 10);
    device
        .subscribe("command/pump-7/#", QoS::AtLeastOnce)
        .await?;
    // Whatever is published from here on reaches the device.
    while !matches!(events.poll().await?, Event::Incoming(Packet::SubAck(_))) {}
    println!("device: listens to command/pump-7/#");

    send_command().await?;

    let command = next_publish(&mut events).await?;
    println!(
        "device: {} on {}",
        String::from_utf8_lossy(&command.payload),
        String::from_utf8_lossy(&command.topic)
    );
    if let Some(properties) = command.properties {
        println!("device: content type {:?}", properties.content_type);
        println!("device: user properties {:?}", properties.user_properties);
    }
    device.disconnect().await?;
    // The goodbye leaves with the next turn of the client; then the connection is over.
    while events.poll().await.is_ok() {}
    Ok(())
}

/// Publishes one command; `mandatory` asks to be told when nobody listens.
async fn send_command() -> Fallible<()> {
    let amqp = env("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f");
    let application = Connection::connect(&amqp, ConnectionProperties::default()).await?;
    let channel = application.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let mut headers = FieldTable::default();
    headers.insert("priority".into(), AMQPValue::LongString("high".into()));
    let properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(2)
        .with_headers(headers);
    let mandatory = BasicPublishOptions {
        mandatory: true,
        ..Default::default()
    };
    let confirmation = channel
        .basic_publish(
            "amq.topic".into(),
            "command.pump-7.start".into(),
            mandatory,
            br#"{"rpm": 1200}"#,
            properties,
        )
        .await?
        .await?;
    match confirmation {
        Confirmation::Ack(None) => println!("application: the command has a taker"),
        other => return Err(format!("the command was not taken: {other:?}").into()),
    }
    application.close(200, "done".into()).await?;
    Ok(())
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
