//! What a row is: its load, what a broker must offer for it, and what is aimed at.
//!
//! Owns these types. Never runs anything. Next: `rows.rs`, the table of them, then `flow.rs`,
//! `staged.rs` and `idle.rs`, which run a row.

use crate::mqtt::codec::Version;
use crate::sample::Figure;

/// What a figure is to stay below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aim {
    /// The figure.
    pub figure: Figure,
    /// The peer whose figure it is measured by; without one `at_most` is the figure itself.
    pub peer: Option<&'static str>,
    /// At most this part of the peer's figure, or this much.
    pub at_most: f64,
}

impl std::fmt::Display for Aim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (at_most, figure) = (self.at_most, self.figure.words());
        match self.peer {
            Some(peer) => write!(f, "{figure} <= {at_most} of {peer}'s"),
            None => write!(f, "{figure} <= {at_most}"),
        }
    }
}

/// What not every broker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// MQTT 3.1.1.
    Mqtt,
    /// MQTT 5.0.
    Mqtt5,
    /// QoS 2 to subscribers.
    Qos2,
    /// `$share` groups.
    SharedSubscription,
    /// Retained messages for a subscription with wildcards.
    RetainedByWildcard,
    /// AMQP 0-9-1.
    Amqp,
}

impl Feature {
    /// What is said of a broker that lacks it.
    pub fn absence(self) -> &'static str {
        match self {
            Feature::Mqtt => "no MQTT",
            Feature::Mqtt5 => "no MQTT 5",
            Feature::Qos2 => "no QoS 2 to subscribers",
            Feature::SharedSubscription => "no shared subscriptions",
            Feature::RetainedByWildcard => "no retained messages for a wildcard subscription",
            Feature::Amqp => "no AMQP",
        }
    }
}

/// What an AMQP side uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// An exclusive queue in memory, transient messages, no acknowledgement either way.
    Transient,
    /// A durable queue, persistent messages with confirms, prefetch and manual acknowledgement.
    Durable,
    /// The same with `x-queue-type: quorum`.
    Quorum,
}

impl Queue {
    /// Whether queue and messages outlive the broker, and both sides are acknowledged.
    pub fn is_durable(self) -> bool {
        match self {
            Queue::Transient => false,
            Queue::Durable | Queue::Quorum => true,
        }
    }
}

/// One side of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// MQTT at this edition and QoS.
    Mqtt(Version, u8),
    /// AMQP.
    Amqp(Queue),
}

impl Side {
    /// Whether the broker answers for each message (PUBACK, PUBCOMP or a confirm).
    pub fn is_confirmed(self) -> bool {
        match self {
            Side::Mqtt(_, qos) => qos > 0,
            Side::Amqp(queue) => queue.is_durable(),
        }
    }

    fn needs(self) -> Vec<Feature> {
        match self {
            Side::Mqtt(version, qos) => {
                let mut needs = vec![Feature::Mqtt];
                needs.extend((version == Version::V5).then_some(Feature::Mqtt5));
                needs.extend((qos == 2).then_some(Feature::Qos2));
                needs
            }
            Side::Amqp(_) => vec![Feature::Amqp],
        }
    }
}

/// Who hears whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// So many publishers, each with a receiver of its own.
    Pairs(usize),
    /// One publisher, so many receivers.
    FanOut(usize),
    /// So many publishers, one receiver.
    FanIn(usize),
    /// So many publishers, and one `$share` group of so many members, in which each message
    /// arrives once and no order is promised.
    Shared(usize, usize),
}

/// A row that sends messages.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Who hears whom.
    pub shape: Shape,
    /// How messages are published.
    pub publish: Side,
    /// How they are consumed.
    pub consume: Side,
    /// Messages in flight per publisher: sent, and not yet both confirmed and received.
    pub window: u64,
    /// Bytes of each message's payload.
    pub payload_bytes: usize,
    /// Messages each publisher is to send per second, however the broker keeps up.
    pub per_second: Option<u32>,
    /// Bindings with a wildcard over all receivers, one of which matches each message; 0 for
    /// what the shape needs.
    pub bindings: usize,
}

impl Flow {
    /// A closed loop of small messages.
    pub const fn new(shape: Shape, publish: Side, consume: Side, window: u64) -> Self {
        Self {
            shape,
            publish,
            consume,
            window,
            payload_bytes: SMALL_BYTES,
            per_second: None,
            bindings: 0,
        }
    }

    /// With larger messages.
    pub const fn of_16_kib(mut self) -> Self {
        self.payload_bytes = 16 << 10;
        self
    }

    /// As an open loop.
    pub const fn open_loop(mut self, per_second: u32) -> Self {
        self.per_second = Some(per_second);
        self.window = u64::MAX;
        self
    }

    /// Through so many bindings.
    pub const fn through(mut self, bindings: usize) -> Self {
        self.bindings = bindings;
        self
    }
}

/// Payload of every row that does not say otherwise.
pub const SMALL_BYTES: usize = 128;

/// Where a staged row's messages lie between its stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stock {
    /// The session of a QoS 1 subscriber that is away.
    Session,
    /// The topics themselves, one message each; read by a subscriber that comes later.
    Retained,
    /// A durable queue without a consumer.
    Queue,
}

/// A row in two stages: first all messages are stored, then all are read.
#[derive(Clone, Copy, Debug)]
pub struct Staged {
    /// Where they lie in between.
    pub stock: Stock,
    /// How many.
    pub messages: u64,
    /// Messages the publisher may have unconfirmed.
    pub window: u64,
}

/// A stage of such a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Published, until all are confirmed.
    Store,
    /// Read, from connecting until all have arrived and are acknowledged.
    Drain,
}

/// What is held and left idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// MQTT connections.
    Mqtt,
    /// AMQP connections without a channel.
    Amqp,
    /// AMQP channels.
    AmqpChannels,
}

/// What a row does.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Sends messages.
    Flow(Flow),
    /// Stores messages, then drains them; the row is about one of these stages.
    Staged(Staged, Stage),
    /// Holds what is idle.
    Idle(Idle),
}

/// One row of the report.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// What it does, for people.
    pub meaning: &'static str,
    /// What it does.
    pub kind: Kind,
    /// What is aimed at.
    pub aims: &'static [Aim],
}

impl Row {
    /// Whether it holds what is idle and sends nothing.
    pub fn is_idle(&self) -> bool {
        matches!(self.kind, Kind::Idle(_))
    }

    /// The stage it is about, when it has stages.
    pub fn stage(&self) -> Option<Stage> {
        match self.kind {
            Kind::Staged(_, stage) => Some(stage),
            Kind::Flow(_) | Kind::Idle(_) => None,
        }
    }

    /// The name shared by the stages of one load, which run together.
    pub fn group(&self) -> &'static str {
        self.name
            .split_once('.')
            .map_or(self.name, |(group, _)| group)
    }

    /// What a broker must have.
    pub fn needs(&self) -> Vec<Feature> {
        match self.kind {
            Kind::Flow(flow) => {
                let mut needs = flow.publish.needs();
                needs.extend(flow.consume.needs());
                let shared = matches!(flow.shape, Shape::Shared(..));
                needs.extend(shared.then_some(Feature::SharedSubscription));
                needs
            }
            Kind::Staged(staged, stage) => match (staged.stock, stage) {
                (Stock::Session, _) | (Stock::Retained, Stage::Store) => vec![Feature::Mqtt],
                (Stock::Retained, Stage::Drain) => {
                    vec![Feature::Mqtt, Feature::RetainedByWildcard]
                }
                (Stock::Queue, _) => vec![Feature::Amqp],
            },
            Kind::Idle(Idle::Mqtt) => vec![Feature::Mqtt],
            Kind::Idle(Idle::Amqp | Idle::AmqpChannels) => vec![Feature::Amqp],
        }
    }
}
