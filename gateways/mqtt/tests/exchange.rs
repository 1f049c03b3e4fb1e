//! Exchanges of QoS 1 and 2 in both directions, with answers in any order: a client that keeps the
//! rules is never sent away, every message is acknowledged and settled once, and the client never
//! has more than its receive maximum at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_core::address::Address;
use anabranch_core::authority::Principal;
use anabranch_core::gateway::{
    Answer, Command, Connection, Delivery, Gateway, Input, Outputs, PublishOutcome, Reply, Seat,
};
use anabranch_core::id::{
    ConnectionId, ConsumerTag, MonotonicMs, Now, Offset, Token, UnixMs, WorkerId,
};
use anabranch_core::message::{Message, Quality};
use anabranch_core::properties::Codecs;
use anabranch_mqtt::codec::{
    Ack, Connect, Decoder, Packet, Properties, PropertiesBuilder, PropertyId, Publish,
    PublishNotes, QoS, ReasonCode, Version, encode,
};
use anabranch_mqtt::map::ORIGIN;
use anabranch_mqtt::{MqttConfig, MqttGateway};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

const NOW: Now = Now {
    monotonic: MonotonicMs(1),
    unix: UnixMs(1),
};
/// Of the client; the session and each group have it as their credit.
const RECEIVE_MAX: usize = 3;
/// Consumers: the session and two groups.
const CONSUMERS: u32 = 3;

/// What happens next; numbers choose among what is possible.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The client publishes under this identifier, or does what comes next for it.
    Client(u16, bool),
    /// The broker answers one of its questions.
    Answer(usize, bool),
    /// The broker hands out a message.
    Deliver(u32, bool),
    /// The client goes on with a delivery.
    Go(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1u16..4, any::<bool>()).prop_map(|(id, twice)| Step::Client(id, twice)),
        (any::<usize>(), any::<bool>()).prop_map(|(at, well)| Step::Answer(at, well)),
        (0..CONSUMERS, any::<bool>()).prop_map(|(of, twice)| Step::Deliver(of, twice)),
        (any::<usize>(), any::<bool>()).prop_map(|(at, well)| Step::Go(at, well)),
    ]
}

/// How far the client is with what it publishes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Out {
    Published,
    /// PUBREC came.
    Received,
    /// PUBREL was sent.
    Released,
}

/// How far the client is with what it is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum In {
    AtLeastOnce,
    ExactlyOnce,
    Received,
    Released,
}

struct Talk {
    connection: Box<dyn Connection>,
    reader: Decoder,
    questions: Vec<Command>,
    publishing: BTreeMap<u16, Out>,
    receiving: BTreeMap<u16, In>,
    /// Handed out and not settled, by consumer.
    unsettled: BTreeSet<(u32, u64)>,
    next_offset: [u64; CONSUMERS as usize],
    published: u32,
    completed: u32,
}

impl Talk {
    fn open(durable: bool) -> Talk {
        let gateway = MqttGateway::new(MqttConfig::default(), Codecs::default()).expect("legal");
        let seat = Seat {
            id: ConnectionId::new(WorkerId(0), 1),
            peer: "127.0.0.1:50000".parse().expect("an address"),
            now: NOW,
            seed: 1,
        };
        let mut reader = Decoder::new(usize::MAX);
        reader.set_version(Version::V5);
        let mut talk = Talk {
            connection: gateway.accept(seat),
            reader,
            questions: Vec::new(),
            publishing: BTreeMap::new(),
            receiving: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            next_offset: [0; CONSUMERS as usize],
            published: 0,
            completed: 0,
        };
        let properties = PropertiesBuilder::new()
            .int(PropertyId::RECEIVE_MAXIMUM, RECEIVE_MAX as u32)
            .int(PropertyId::SESSION_EXPIRY, u32::from(durable) * 60)
            .build();
        talk.client(Packet::Connect(Box::new(Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive_s: 0,
            client_id: "dev".to_owned(),
            will: None,
            username: None,
            password: None,
            properties,
        })));
        for _ in 0..3 {
            talk.answer(0, true);
        }
        talk
    }

    fn client(&mut self, packet: Packet) {
        let mut bytes = BytesMut::new();
        encode(&packet, Version::V5, &mut bytes).expect("a form");
        self.handle(Input::Bytes(bytes.freeze()));
    }

    fn handle(&mut self, input: Input<'_>) {
        let mut out = Outputs::default();
        self.connection.handle(NOW, input, &mut out);
        assert_eq!(out.close, None, "a client that keeps the rules stays");
        for command in out.commands.drain(..) {
            self.on_command(command);
        }
        self.reader.feed(Bytes::from(out.send.take_all()));
        while let Some(packet) = self.reader.next_packet().expect("legal bytes") {
            self.on_packet(packet);
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Settle {
                consumer,
                first,
                last,
                ..
            } => {
                for offset in first.0..=last.0 {
                    let known = self.unsettled.remove(&(consumer.0, offset));
                    assert!(known, "settled once: {consumer} {offset}");
                }
            }
            Command::Forget { token, .. } if token == Token::NONE => {}
            Command::Publish { .. } => {
                self.published += 1;
                self.questions.push(command);
            }
            other => self.questions.push(other),
        }
    }

    fn on_packet(&mut self, packet: Packet) {
        match packet {
            Packet::ConnAck(packet) => assert_eq!(packet.reason, ReasonCode::SUCCESS),
            Packet::PubRec(ack) => {
                if ack.reason.is_failure() {
                    // Of a repetition there may be no more to free.
                    if self.publishing.remove(&ack.packet_id).is_some() {
                        self.completed += 1;
                    }
                } else if self.publishing.get(&ack.packet_id) == Some(&Out::Published) {
                    self.publishing.insert(ack.packet_id, Out::Received);
                }
            }
            Packet::PubComp(ack) => {
                assert_eq!(self.publishing.remove(&ack.packet_id), Some(Out::Released));
                assert_eq!(ack.reason, ReasonCode::SUCCESS);
                self.completed += 1;
            }
            Packet::Publish(packet) if packet.qos == QoS::AtMostOnce => {}
            Packet::Publish(packet) => {
                let begun = if packet.qos == QoS::AtLeastOnce {
                    In::AtLeastOnce
                } else {
                    In::ExactlyOnce
                };
                let before = self.receiving.insert(packet.packet_id, begun);
                assert_eq!(before, None, "identifiers in flight are different");
                assert!(self.receiving.len() <= RECEIVE_MAX, "the receive maximum");
            }
            Packet::PubRel(ack) => {
                let before = self.receiving.insert(ack.packet_id, In::Released);
                assert_eq!(before, Some(In::Received));
            }
            other => panic!("not expected: {other:?}"),
        }
    }

    fn answer(&mut self, at: usize, well: bool) {
        if self.questions.is_empty() {
            return;
        }
        let question = self.questions.remove(at % self.questions.len());
        let done = |token, reply| Answer::Done {
            token,
            result: Ok(reply),
        };
        let answer = match question {
            Command::Login { token, .. } => {
                done(token, Reply::Principal(Arc::new(Principal::default())))
            }
            Command::Enter { token, .. }
            | Command::Forget { token, .. }
            | Command::Receive { token, .. } => done(token, Reply::Done),
            Command::OpenSession { token, .. } => done(token, Reply::Session { present: false }),
            Command::Publish { token, .. } => Answer::Published {
                first: token,
                last: token,
                outcome: if well {
                    PublishOutcome::Routed
                } else {
                    PublishOutcome::Refused(anabranch_core::error::ErrorKind::Busy)
                },
            },
            other => panic!("not expected: {other:?}"),
        };
        self.handle(Input::Answers(&mut vec![answer]));
    }

    fn publish(&mut self, packet_id: u16, dup: bool) {
        self.client(Packet::Publish(Publish {
            dup,
            qos: QoS::ExactlyOnce,
            retain: false,
            topic: Bytes::from_static(b"a"),
            packet_id,
            properties: Properties::EMPTY,
            notes: PublishNotes::default(),
            payload: Bytes::new(),
        }));
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Client(id, twice) => match self.publishing.get(&id) {
                None => {
                    self.publishing.insert(id, Out::Published);
                    let before = self.published;
                    self.publish(id, false);
                    assert_eq!(self.published, before + 1);
                }
                Some(Out::Published) => {
                    let before = self.published;
                    self.publish(id, true);
                    assert_eq!(self.published, before, "a repetition is not published");
                }
                Some(Out::Received) if twice => self.publish(id, true),
                Some(Out::Received) => {
                    self.publishing.insert(id, Out::Released);
                    self.client(Packet::PubRel(Ack::new(id, ReasonCode::SUCCESS)));
                }
                Some(Out::Released) => {}
            },
            Step::Answer(at, well) => self.answer(at, well),
            Step::Deliver(consumer, twice) => {
                let held = self.unsettled.iter().filter(|(of, _)| *of == consumer);
                if held.count() < RECEIVE_MAX {
                    self.deliver(consumer, twice);
                }
            }
            Step::Go(at, well) => {
                let open =
                    |(id, step): (&u16, &In)| (*step != In::Received).then_some((*id, *step));
                let open: Vec<_> = self.receiving.iter().filter_map(open).collect();
                if !open.is_empty() {
                    let (id, step) = open[at % open.len()];
                    self.go_on(id, step, well);
                }
            }
        }
    }

    fn deliver(&mut self, consumer: u32, twice: bool) {
        let next = &mut self.next_offset[consumer as usize];
        let offset = *next;
        *next += 1;
        self.unsettled.insert((consumer, offset));
        // Groups are granted no more than QoS 1.
        let quality = if twice && consumer == 0 {
            Quality::ExactlyOnce
        } else {
            Quality::AtLeastOnce
        };
        let message = Message {
            address: Address(Bytes::from_static(b"a")),
            origin: ORIGIN,
            quality,
            ..Message::default()
        };
        let delivery = Delivery {
            consumer: ConsumerTag(consumer),
            offset: Offset(offset),
            attempt: 1,
            quality,
            retain: false,
            identifier: 0,
            more_identifiers: None,
            received: false,
            message: Arc::new(message),
        };
        self.handle(Input::Deliveries(&mut vec![delivery]));
    }

    fn go_on(&mut self, id: u16, step: In, well: bool) {
        let code = |well: bool| match well {
            true => ReasonCode::SUCCESS,
            false => ReasonCode::UNSPECIFIED_ERROR,
        };
        match step {
            In::AtLeastOnce => {
                self.receiving.remove(&id);
                self.client(Packet::PubAck(Ack::new(id, code(well))));
            }
            In::ExactlyOnce => {
                if well {
                    self.receiving.insert(id, In::Received);
                } else {
                    self.receiving.remove(&id);
                }
                self.client(Packet::PubRec(Ack::new(id, code(well))));
            }
            In::Received => {}
            In::Released => {
                self.receiving.remove(&id);
                self.client(Packet::PubComp(Ack::new(id, ReasonCode::SUCCESS)));
            }
        }
    }

    /// Brings everything to its end.
    fn finish(&mut self) {
        for _ in 0..1000 {
            self.answer(0, true);
            for id in 1..4 {
                if self.publishing.get(&id) == Some(&Out::Received) {
                    self.step(Step::Client(id, false));
                }
            }
            self.step(Step::Go(0, true));
        }
        assert_eq!(self.unsettled, BTreeSet::new(), "all is settled");
        assert_eq!(self.publishing, BTreeMap::new(), "all is completed");
        assert_eq!(self.completed, self.published, "each once");
        assert!(self.receiving.is_empty() && self.questions.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// [MQTT-4.3.3-8], [MQTT-4.3.3-10], [MQTT-3.3.4-9]
    #[test]
    fn exchanges_end_once_whatever_the_order_of_answers(
        durable in any::<bool>(),
        steps in proptest::collection::vec(step(), 0..120),
    ) {
        let mut talk = Talk::open(durable);
        for step in steps {
            talk.step(step);
        }
        talk.finish();
    }
}
