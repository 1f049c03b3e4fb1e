//! Connects the publishers and receivers of a flow.
//!
//! Owns names on the broker and what is declared there. Never sends a message. Next: `flow.rs`.

use crate::amqp::client::Plan;
use crate::amqp::script;
use crate::engine::{Client, Engine, EngineError};
use crate::lane::{PAYLOAD_BYTES, Role, Template};
use crate::rows::{Flow, Shape, Side};
use crate::target::Target;
use crate::{amqp, mqtt};

/// Deliveries a durable consumer may hold unacknowledged.
const PREFETCH: u16 = 200;

/// Names on the broker, told apart by run.
pub struct Names {
    /// Number of the run.
    pub run: u32,
}

impl Names {
    fn topic(&self, lane: usize) -> String {
        format!("bench/{}/{lane}", self.run)
    }

    fn every_topic(&self) -> String {
        format!("bench/{}/+", self.run)
    }

    /// The topic as AMQP writes it.
    fn routing_key(&self, lane: usize) -> String {
        self.topic(lane).replace('/', ".")
    }

    /// The queue of a receiver.
    pub fn queue(&self, receiver: usize) -> String {
        format!("bench-{}-{receiver}", self.run)
    }

    /// At most 23 letters and digits, the most every MQTT 3.1.1 server must take.
    fn client(&self, kind: char, number: usize) -> String {
        format!("bench{}{kind}{number}", self.run)
    }
}

fn missing(target: &Target, role: Role) -> EngineError {
    EngineError::NoListener {
        broker: target.name.clone(),
        who: format!("{role:?}"),
    }
}

/// Connects the receiver of this number and has it subscribe or consume; gives its connection.
///
/// # Errors
/// When the broker lacks the protocol or refuses the connection.
pub fn consumer(
    engine: &mut Engine,
    target: &Target,
    flow: &Flow,
    names: &Names,
    receiver: usize,
) -> Result<usize, EngineError> {
    let role = Role::Receiver(receiver);
    match flow.consume {
        Side::Mqtt(version, qos) => {
            let filter = match flow.shape {
                Shape::Pairs(_) => names.topic(receiver),
                Shape::FanOut(_) => names.topic(0),
                Shape::FanIn(_) => names.every_topic(),
            };
            let address = target.mqtt.ok_or_else(|| missing(target, role))?;
            let subscription = Some(mqtt::client::Subscription { filter, qos });
            let id = names.client('s', receiver);
            engine.connect(address, role, |out| {
                let login = target.mqtt_login();
                Client::Mqtt(mqtt::client::Client::connect(
                    version,
                    &id,
                    login,
                    subscription,
                    out,
                ))
            })
        }
        Side::Amqp { durable } => {
            let queue = names.queue(receiver);
            let mut plan = Plan {
                channel: true,
                acknowledge: durable,
                ..Plan::default()
            };
            plan.script
                .push_back(script::declare_queue(&queue, durable));
            if matches!(flow.publish, Side::Mqtt(..)) {
                plan.script.push_back(script::bind_queue(
                    &queue,
                    "amq.topic",
                    &names.routing_key(receiver),
                ));
            }
            if durable {
                plan.script.push_back(script::prefetch(PREFETCH));
            }
            plan.script.push_back(script::consume(&queue, durable));
            amqp_link(engine, target, role, plan)
        }
    }
}

/// Connects the publisher of this number; gives its connection and how its messages look.
///
/// # Errors
/// When the broker lacks the protocol or refuses the connection.
pub fn publisher(
    engine: &mut Engine,
    target: &Target,
    flow: &Flow,
    names: &Names,
    lane: usize,
) -> Result<(usize, Template), EngineError> {
    let role = Role::Publisher(lane);
    let filler: Vec<u8> = (0..PAYLOAD_BYTES)
        .map(|index| b'a' + (index % 26) as u8)
        .collect();
    match flow.publish {
        Side::Mqtt(version, qos) => {
            let template =
                mqtt::codec::PublishTemplate::new(version, &names.topic(lane), qos, &filler);
            let address = target.mqtt.ok_or_else(|| missing(target, role))?;
            let id = names.client('p', lane);
            let link = engine.connect(address, role, |out| {
                let login = target.mqtt_login();
                Client::Mqtt(mqtt::client::Client::connect(
                    version, &id, login, None, out,
                ))
            })?;
            Ok((link, Template::Mqtt(template)))
        }
        Side::Amqp { durable } => {
            let (exchange, key) = match flow.consume {
                Side::Amqp { .. } => ("", names.queue(lane)),
                Side::Mqtt(..) => ("amq.topic", names.routing_key(lane)),
            };
            let template = amqp::codec::PublishTemplate::new(exchange, &key, durable, &filler);
            let mut plan = Plan {
                channel: true,
                ..Plan::default()
            };
            plan.script.extend(durable.then(script::select_confirms));
            Ok((
                amqp_link(engine, target, role, plan)?,
                Template::Amqp(template),
            ))
        }
    }
}

fn amqp_link(
    engine: &mut Engine,
    target: &Target,
    role: Role,
    plan: Plan,
) -> Result<usize, EngineError> {
    let address = target.amqp.ok_or_else(|| missing(target, role))?;
    engine.connect(address, role, |out| {
        Client::Amqp(amqp::client::Client::connect(
            target.amqp_login(),
            plan,
            out,
        ))
    })
}
