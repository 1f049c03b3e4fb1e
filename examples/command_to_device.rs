//! An application sends a command over AMQP; a device gets it over MQTT; its answer comes back over AMQP.
//!
//! The application publishes to the exchange `amq.topic`, where every MQTT subscription is bound: the
//! routing key `command.pump-7.start` is the topic `command/pump-7/start`. `reply_to` and `correlation_id`
//! arrive as MQTT 5's Response Topic (`$amqp/<vhost>/q/<queue>`, which stands for the application's queue)
//! and Correlation Data. So a device answers as to any other request, and knows nothing of AMQP.
//!
//! Run a node with `anabranch serve --dev`, then `cargo run -p anabranch-examples --example
//! command_to_device`. `ANABRANCH_MQTT` (host:port) and `ANABRANCH_AMQP` (URI) name another node.

use std::error::Error;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::*;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish, PublishProperties};
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

    let amqp = env("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f");
    let application = Connection::connect(&amqp, ConnectionProperties::default()).await?;
    let channel = application.create_channel().await?;
    // The server finds a name for the queue of answers, and it goes with the connection.
    let exclusive = QueueDeclareOptions::exclusive();
    let queue = channel
        .queue_declare("".into(), exclusive, FieldTable::default())
        .await?;
    let no_ack = BasicConsumeOptions {
        no_ack: true,
        ..Default::default()
    };
    let mut answers = channel
        .basic_consume(
            queue.name().clone(),
            "".into(),
            no_ack,
            FieldTable::default(),
        )
        .await?;
    send_command(&channel, queue.name()).await?;

    let command = next_publish(&mut events).await?;
    obey(&device, command).await?;
    // The answer leaves with the next turns of the client, and is safe when it is acknowledged.
    while !matches!(events.poll().await?, Event::Incoming(Packet::PubAck(_))) {}

    let answer = answers.next().await.ok_or("the consumer ended")??;
    let correlation_id = answer.properties.correlation_id().as_ref();
    println!(
        "application: {} answers {}",
        String::from_utf8_lossy(&answer.data),
        correlation_id.map_or("?", ShortString::as_str)
    );
    application.close(200, "done".into()).await?;
    device.disconnect().await?;
    // The goodbye leaves with the next turn of the client; then the connection is over.
    while events.poll().await.is_ok() {}
    Ok(())
}

/// Publishes one command; `mandatory` asks to be told when nobody listens.
async fn send_command(channel: &Channel, answers: &ShortString) -> Fallible<()> {
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let mut headers = FieldTable::default();
    headers.insert("priority".into(), AMQPValue::LongString("high".into()));
    let properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(2)
        .with_headers(headers)
        .with_reply_to(answers.clone())
        .with_correlation_id("start-1".into());
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
    Ok(())
}

/// Does what the command says and answers where it asks for the answer.
async fn obey(device: &AsyncClient, command: Publish) -> Fallible<()> {
    println!(
        "device: {} on {}",
        String::from_utf8_lossy(&command.payload),
        String::from_utf8_lossy(&command.topic)
    );
    let asked = command.properties.ok_or("a command asks for an answer")?;
    println!("device: content type {:?}", asked.content_type);
    println!("device: user properties {:?}", asked.user_properties);
    let topic = asked.response_topic.ok_or("it says where to answer")?;
    let answer = PublishProperties {
        content_type: Some("application/json".to_owned()),
        correlation_data: asked.correlation_data,
        ..Default::default()
    };
    device
        .publish_with_properties(
            topic,
            QoS::AtLeastOnce,
            false,
            r#"{"running": true}"#,
            answer,
        )
        .await?;
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
