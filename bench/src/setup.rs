//! Connects publishers and consumers.
//!
//! Owns names on the broker and what is declared there. Never sends a message. Next: `flow.rs`,
//! `staged.rs`.

use std::time::Duration;

use crate::amqp::client::Plan;
use crate::amqp::script::{self, Step};
use crate::engine::{Client, Engine};
use crate::failure::EngineError;
use crate::lane::{Role, Template};
use crate::mqtt::client::Subscription;
use crate::mqtt::codec::Version;
use crate::mqtt::encode::Connect;
use crate::numbers::digits;
use crate::row::{Flow, Queue, Shape, Side};
use crate::target::Target;
use crate::{amqp, mqtt};

/// How long connections, queues and subscriptions may take.
pub const SET_UP_LIMIT: Duration = Duration::from_secs(20);
/// Deliveries a durable consumer may hold unacknowledged.
pub const PREFETCH: u16 = 200;
/// The topic exchange that MQTT messages go through too.
const TOPIC_EXCHANGE: &str = "amq.topic";
/// The exchange that gives every queue bound to it each message.
const FAN_OUT_EXCHANGE: &str = "amq.fanout";

/// Names on the broker, told apart by run.
pub struct Names {
    /// Number of the run.
    pub run: u32,
}

impl Names {
    /// The topic of a lane.
    pub fn topic(&self, lane: usize) -> String {
        format!("bench/{}/{lane}", self.run)
    }

    /// The topic of this number among many; the digits end it.
    pub fn numbered_topic(&self, number: u64) -> String {
        format!("bench/{}/{}", self.run, digits(number))
    }

    /// Filters all of them.
    pub fn every_topic(&self) -> String {
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
    pub fn client(&self, kind: char, number: usize) -> String {
        format!("bench{}{kind}{number}", self.run)
    }
}

fn missing(target: &Target, role: Role) -> EngineError {
    EngineError::NoListener {
        broker: target.name.clone(),
        who: role.to_string(),
    }
}

/// A payload to be stamped.
pub fn filler(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| b'a' + (index % 26) as u8).collect()
}

/// The exchange that AMQP publishers of a flow use.
fn exchange(flow: &Flow) -> &'static str {
    match (flow.publish, flow.consume, flow.shape) {
        (Side::Amqp(_), Side::Amqp(_), Shape::FanOut(_)) => FAN_OUT_EXCHANGE,
        (Side::Amqp(_), Side::Amqp(_), _) if flow.bindings == 0 => "",
        _ => TOPIC_EXCHANGE,
    }
}

/// How many of a flow's bindings belong to each pair.
fn bindings_each(flow: &Flow) -> u64 {
    match flow.shape {
        Shape::Pairs(count) | Shape::FanOut(count) => (flow.bindings / count) as u64,
        Shape::FanIn(_) | Shape::Shared(..) => flow.bindings as u64,
    }
}

/// The bindings of a receiver's queue.
fn bindings(flow: &Flow, names: &Names, receiver: usize) -> Vec<Step> {
    let queue = names.queue(receiver);
    let bind = |key: &str| script::bind_queue(&queue, exchange(flow), key);
    match exchange(flow) {
        "" => Vec::new(),
        _ if flow.bindings > 0 => {
            let each = bindings_each(flow);
            let first = receiver as u64 * each;
            let numbers = first..first + each;
            numbers
                .map(|number| bind(&format!("bench.*.{}", digits(number))))
                .collect()
        }
        _ => vec![bind(&names.routing_key(receiver))],
    }
}

/// Opens connection `number` of a flow's consumers and has it subscribe or consume; gives its
/// number in the engine.
///
/// # Errors
/// When the broker lacks the protocol or refuses the connection.
pub fn consumer(
    engine: &mut Engine,
    target: &Target,
    flow: &Flow,
    names: &Names,
    number: usize,
) -> Result<usize, EngineError> {
    let receiver = match flow.shape {
        Shape::Shared(..) => 0,
        Shape::Pairs(_) | Shape::FanOut(_) | Shape::FanIn(_) => number,
    };
    let role = Role::Receiver(receiver);
    match flow.consume {
        Side::Mqtt(version, qos) => {
            let filter = match flow.shape {
                Shape::Pairs(_) => names.topic(number),
                Shape::FanOut(_) => names.topic(0),
                Shape::FanIn(_) => names.every_topic(),
                Shape::Shared(..) => format!("$share/bench/{}", names.every_topic()),
            };
            let subscription = Some(Subscription { filter, qos });
            let id = names.client('s', number);
            mqtt_link(engine, target, role, (version, &id, true), subscription)
        }
        Side::Amqp(queue) => {
            let name = names.queue(number);
            let mut steps = vec![script::declare_queue(&name, queue)];
            steps.extend(bindings(flow, names, number));
            steps.extend(consume(&name, queue));
            amqp_link(engine, target, role, queue.is_durable(), steps)
        }
    }
}

/// What a consumer of a declared queue sends.
pub fn consume(name: &str, queue: Queue) -> Vec<Step> {
    let durable = queue.is_durable();
    let mut steps: Vec<Step> = durable
        .then(|| script::prefetch(PREFETCH))
        .into_iter()
        .collect();
    steps.push(script::consume(name, durable));
    steps
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
    let filler = filler(flow.payload_bytes);
    match flow.publish {
        Side::Mqtt(version, qos) => {
            let topic = names.topic(lane);
            let template = mqtt::encode::PublishTemplate::new(version, &topic, qos, &filler);
            let id = names.client('p', lane);
            let link = mqtt_link(engine, target, role, (version, &id, true), None)?;
            Ok((link, Template::Mqtt(template)))
        }
        Side::Amqp(queue) => {
            let durable = queue.is_durable();
            let exchange = exchange(flow);
            let new =
                |key: &str| amqp::publish::PublishTemplate::new(exchange, key, durable, &filler);
            let template = if flow.bindings > 0 {
                let each = bindings_each(flow);
                let key = format!("bench.{}.{}", names.run, digits(0));
                new(&key).numbered(lane as u64 * each, each)
            } else if exchange.is_empty() {
                new(&names.queue(lane))
            } else {
                new(&names.routing_key(lane))
            };
            let confirms = durable.then(script::select_confirms);
            let link = amqp_link(engine, target, role, false, confirms)?;
            Ok((link, Template::Amqp(template)))
        }
    }
}

/// Connects an MQTT client of this version, identifier and cleanness.
///
/// # Errors
/// When the broker has no MQTT or refuses the connection.
pub fn mqtt_link(
    engine: &mut Engine,
    target: &Target,
    role: Role,
    (version, client_id, clean): (Version, &str, bool),
    subscription: Option<Subscription>,
) -> Result<usize, EngineError> {
    let address = target.mqtt.ok_or_else(|| missing(target, role))?;
    let connect = Connect {
        version,
        client_id,
        login: target.mqtt_login(),
        clean,
    };
    engine.connect(address, role, |out| {
        Client::Mqtt(mqtt::client::Client::connect(&connect, subscription, out))
    })
}

/// Connects an AMQP client that takes these steps on channel 1.
///
/// # Errors
/// When the broker has no AMQP or refuses the connection.
pub fn amqp_link(
    engine: &mut Engine,
    target: &Target,
    role: Role,
    acknowledge: bool,
    steps: impl IntoIterator<Item = Step>,
) -> Result<usize, EngineError> {
    let plan = Plan {
        channel: true,
        script: steps.into_iter().collect(),
        acknowledge,
    };
    let address = target.amqp.ok_or_else(|| missing(target, role))?;
    engine.connect(address, role, |out| {
        let login = target.amqp_login();
        Client::Amqp(amqp::client::Client::connect(login, plan, out))
    })
}
