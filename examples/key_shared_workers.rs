//! Several workers share one queue, and yet each device's messages are handled in their order, one at a time.
//!
//! The queue is declared with `x-subscription-mode: key_shared`. Messages with the same key go to the same
//! worker as long as one of them is not acknowledged; other keys go to other workers. The key is the header
//! `x-key`, over MQTT the user property of that name; without it, it is the routing key or topic. Here a
//! device publishes to two topics, so it names itself as the key.
//!
//! The same among MQTT subscribers: they subscribe to `$share/workers/reading/#`, and the group has its mode
//! from `anabranch policy set workers --applies-to groups --pattern '^workers$' --mode key_shared`.
//!
//! Run a node with `anabranch serve --dev`, then `cargo run -p anabranch-examples --example
//! key_shared_workers`. `ANABRANCH_MQTT` (host:port) and `ANABRANCH_AMQP` (URI) name another node.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, PublishProperties};
use rumqttc::v5::{AsyncClient, Event, MqttOptions};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const QUEUE: &str = "example-work";
const WORKERS: [&str; 3] = ["worker-1", "worker-2", "worker-3"];
const DEVICES: [&str; 6] = ["pump-1", "pump-2", "pump-3", "pump-4", "pump-5", "pump-6"];
const READINGS: usize = 5;

/// What a worker says of itself.
enum Step {
    Listens,
    Begins { device: String, number: String },
    Ends { device: String },
}

type Steps = mpsc::UnboundedSender<(&'static str, Step)>;

/// What the workers did.
#[derive(Default)]
struct Ledger {
    busy: BTreeMap<String, &'static str>,
    order: BTreeMap<String, Vec<String>>,
    served: BTreeMap<&'static str, BTreeSet<String>>,
    done: usize,
}

impl Ledger {
    fn write(&mut self, worker: &'static str, step: Step) -> Fallible<()> {
        match step {
            Step::Listens => {
                self.served.insert(worker, BTreeSet::new());
            }
            Step::Begins { device, number } => {
                if let Some(other) = self.busy.insert(device.clone(), worker) {
                    return Err(format!("{device} is at {other} and {worker} at once").into());
                }
                let served = self.served.entry(worker).or_default();
                served.insert(device.clone());
                self.order.entry(device).or_default().push(number);
            }
            Step::Ends { device } => {
                self.busy.remove(&device);
                self.done += 1;
            }
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Fallible<()> {
    let all = Duration::from_secs(30);
    tokio::time::timeout(all, key_shared_workers()).await?
}

async fn key_shared_workers() -> Fallible<()> {
    let amqp = env("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f");
    let application = Connection::connect(&amqp, ConnectionProperties::default()).await?;
    let channel = application.create_channel().await?;
    declare(&channel).await?;

    let (said, mut steps) = mpsc::unbounded_channel();
    let (stop, stopped) = watch::channel(false);
    let mut workers = JoinSet::new();
    for name in WORKERS {
        workers.spawn(work(name, amqp.clone(), said.clone(), stopped.clone()));
    }
    // The ledger ends with the last worker, also when all of them fail.
    drop(said);
    let mut ledger = Ledger::default();
    let mut published = false;
    while ledger.done < DEVICES.len() * READINGS {
        let (worker, step) = steps.recv().await.ok_or("the workers ended")?;
        ledger.write(worker, step)?;
        // All listen before the first message is there, so each gets its share of the keys.
        if !published && ledger.served.len() == WORKERS.len() {
            publish_readings().await?;
            published = true;
        }
    }
    stop.send(true)?;
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    channel
        .queue_delete(QUEUE.into(), Default::default())
        .await?;
    application.close(200, "done".into()).await?;

    for (worker, devices) in ledger.served {
        let devices: Vec<String> = devices.into_iter().collect();
        println!("{worker}: served {}", devices.join(", "));
    }
    for (device, order) in ledger.order {
        println!("{device}: {}, one worker at a time", order.join(" "));
    }
    Ok(())
}

async fn declare(channel: &Channel) -> Fallible<()> {
    let mut mode = FieldTable::default();
    let key_shared = AMQPValue::LongString("key_shared".into());
    mode.insert("x-subscription-mode".into(), key_shared);
    channel
        .queue_declare(QUEUE.into(), QueueDeclareOptions::durable(), mode)
        .await?;
    channel
        .queue_bind(
            QUEUE.into(),
            "amq.topic".into(),
            "reading.#".into(),
            Default::default(),
            FieldTable::default(),
        )
        .await?;
    Ok(())
}

/// One worker: holds up to four messages, and handles one after the other until it is told to stop.
async fn work(
    name: &'static str,
    amqp: String,
    said: Steps,
    mut stopped: watch::Receiver<bool>,
) -> Fallible<()> {
    let connection = Connection::connect(&amqp, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(4, Default::default()).await?;
    let mut deliveries = channel
        .basic_consume(
            QUEUE.into(),
            "".into(),
            Default::default(),
            FieldTable::default(),
        )
        .await?;
    said.send((name, Step::Listens))?;
    loop {
        let delivery = tokio::select! {
            delivery = deliveries.next() => delivery.ok_or("the consumer ended")??,
            _ = stopped.changed() => break,
        };
        let device = key(&delivery)?;
        let number = String::from_utf8_lossy(&delivery.data).into_owned();
        said.send((
            name,
            Step::Begins {
                device: device.clone(),
                number,
            },
        ))?;
        tokio::time::sleep(Duration::from_millis(10)).await; // the work
        said.send((name, Step::Ends { device }))?;
        delivery.ack(Default::default()).await?;
    }
    connection.close(200, "done".into()).await?;
    Ok(())
}

/// The device that a message is of.
fn key(delivery: &Delivery) -> Fallible<String> {
    let headers = delivery.properties.headers().as_ref();
    match headers.and_then(|headers| headers.inner().get("x-key")) {
        Some(AMQPValue::LongString(device)) => Ok(device.to_string()),
        other => Err(format!("a reading has a key: {other:?}").into()),
    }
}

/// Publishes all devices' readings, as one gateway for them all; a device's in their order.
async fn publish_readings() -> Fallible<()> {
    let mqtt = env("ANABRANCH_MQTT", "127.0.0.1:1883");
    let (host, port) = mqtt.rsplit_once(':').ok_or("ANABRANCH_MQTT is host:port")?;
    let options = MqttOptions::new("example-gateway", host, port.parse()?);
    let all = DEVICES.len() * READINGS;
    let (gateway, mut events) = AsyncClient::new(options, all);
    for number in 1..=READINGS {
        let kind = if number % 2 == 1 { "temp" } else { "flow" };
        for device in DEVICES {
            let properties = PublishProperties {
                user_properties: vec![("x-key".to_owned(), device.to_owned())],
                ..Default::default()
            };
            let topic = format!("reading/{device}/{kind}");
            let reading = number.to_string();
            gateway
                .publish_with_properties(topic, QoS::AtLeastOnce, false, reading, properties)
                .await?;
        }
    }
    let mut safe = 0;
    while safe < all {
        if let Event::Incoming(Packet::PubAck(_)) = events.poll().await? {
            safe += 1;
        }
    }
    gateway.disconnect().await?;
    // The goodbye leaves with the next turn of the client; then the connection is over.
    while events.poll().await.is_ok() {}
    println!(
        "devices: {} published {READINGS} readings each",
        DEVICES.len()
    );
    Ok(())
}

fn env(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}
