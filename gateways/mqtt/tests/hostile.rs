//! Damaged bytes against an open connection: it never panics, and what it answers is legal.

use std::sync::Arc;

use anabranch_core::address::Address;
use anabranch_core::authority::Principal;
use anabranch_core::gateway::{Answer, Command, Delivery, Gateway, Input, Outputs, Reply, Seat};
use anabranch_core::id::{
    ConnectionId, ConsumerTag, MonotonicMs, Now, Offset, Token, UnixMs, WorkerId,
};
use anabranch_core::message::{Message, Quality};
use anabranch_core::properties::Codecs;
use anabranch_mqtt::codec::{Decoder, Packet, Version};
use anabranch_mqtt::map::ORIGIN;
use anabranch_mqtt::{MqttConfig, MqttGateway};
use bytes::Bytes;
use proptest::prelude::*;

const NOW: Now = Now {
    monotonic: MonotonicMs(1),
    unix: UnixMs(1),
};

/// The bytes of every corpus file; each starts with a CONNECT.
fn corpus() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/decode");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("the corpus is committed")
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).expect("a readable file"))
        .collect()
}

/// Yes to everything that was asked.
fn answers(commands: &[Command]) -> Vec<Answer> {
    let done = |token: Token, reply: Reply| Answer::Done {
        token,
        result: Ok(reply),
    };
    commands
        .iter()
        .filter_map(|command| match command {
            Command::Login { token, .. } => Some(done(
                *token,
                Reply::Principal(Arc::new(Principal::default())),
            )),
            Command::Enter { token, .. } => Some(done(*token, Reply::Done)),
            Command::OpenSession { token, .. } => {
                Some(done(*token, Reply::Session { present: false }))
            }
            Command::Subscribe { token, filters } => {
                let granted = vec![Ok(Quality::AtLeastOnce); filters.len()];
                Some(done(*token, Reply::Subscribed(granted)))
            }
            Command::Receive { token, .. } => Some(done(*token, Reply::Done)),
            Command::Forget { token, .. } if *token != Token::NONE => {
                Some(done(*token, Reply::Done))
            }
            Command::Unsubscribe { token, filters } => Some(done(
                *token,
                Reply::Unsubscribed(vec![false; filters.len()]),
            )),
            Command::Publish { token, .. } if *token != Token::NONE => Some(Answer::Published {
                first: *token,
                last: *token,
                outcome: anabranch_core::gateway::PublishOutcome::Routed,
            }),
            _ => None,
        })
        .collect()
}

/// Feeds a client's bytes to a connection, answers all it asks, and gives its packets.
fn converse(bytes: &[u8]) -> Vec<Packet> {
    let gateway = MqttGateway::new(MqttConfig::default(), Codecs::default()).expect("the defaults");
    let mut connection = gateway.accept(Seat {
        id: ConnectionId::new(WorkerId(0), 1),
        peer: "127.0.0.1:50000".parse().expect("an address"),
        now: NOW,
        seed: 1,
    });
    let mut out = Outputs::default();
    connection.handle(NOW, Input::Bytes(Bytes::copy_from_slice(bytes)), &mut out);
    while out.close.is_none() {
        let mut answers = answers(&std::mem::take(&mut out.commands));
        if answers.is_empty() {
            break;
        }
        connection.handle(NOW, Input::Answers(&mut answers), &mut out);
    }
    let mut reader = Decoder::new(usize::MAX);
    reader.set_version(if bytes.get(8) == Some(&5) {
        Version::V5
    } else {
        Version::V311
    });
    reader.feed(Bytes::from(out.send.take_all()));
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet().expect("the server's bytes are legal") {
        packets.push(packet);
    }
    assert_eq!(reader.held_bytes(), 0, "whole packets only");
    packets
}

#[test]
fn the_corpus_is_answered_with_legal_packets() {
    let answered = corpus()
        .iter()
        .filter(|bytes| !converse(bytes).is_empty())
        .count();
    assert!(
        answered >= 20,
        "only {answered} conversations were answered"
    );
}

/// What a client may say of a delivery, right or wrong.
#[derive(Clone, Copy, Debug)]
struct Said {
    /// PUBACK, PUBREC, PUBREL or PUBCOMP.
    packet: u8,
    /// Near the identifiers in use, of the session and of groups.
    packet_id: u16,
    code: u8,
}

fn said() -> impl Strategy<Value = Said> {
    let packet_id = prop_oneof![1u16..6, 32_768u16..32_772];
    let code = prop_oneof![3 => Just(0), 1 => Just(0x80), 1 => any::<u8>()];
    (4u8..8, packet_id, code).prop_map(|(packet, packet_id, code)| Said {
        packet,
        packet_id,
        code,
    })
}

/// The bytes of one acknowledgement of 5.0, flags as they must be.
fn acknowledgement(said: Said) -> Bytes {
    let flags = if said.packet == 6 { 2 } else { 0 };
    let [high, low] = said.packet_id.to_be_bytes();
    Bytes::copy_from_slice(&[said.packet << 4 | flags, 3, high, low, said.code])
}

fn delivery(consumer: u32, offset: u64, quality: Quality) -> Delivery {
    let message = Message {
        address: Address(Bytes::from_static(b"a")),
        origin: ORIGIN,
        quality,
        ..Message::default()
    };
    Delivery {
        consumer: ConsumerTag(consumer),
        offset: Offset(offset),
        attempt: 1,
        quality,
        retain: false,
        identifier: 0,
        more_identifiers: None,
        received: false,
        message: Arc::new(message),
    }
}

/// Opens a session, hands it deliveries, lets the client say things about them, and gives what was
/// settled.
fn acknowledge(durable: bool, all: &[Said]) -> Vec<(ConsumerTag, u64)> {
    const CONNECT: &[u8] = b"\x10\x15\0\x04MQTT\x05\x02\0\0\x05\x11\0\0\0\0\0\x03dev";
    let gateway = MqttGateway::new(MqttConfig::default(), Codecs::default()).expect("the defaults");
    let mut connection = gateway.accept(Seat {
        id: ConnectionId::new(WorkerId(0), 1),
        peer: "127.0.0.1:50000".parse().expect("an address"),
        now: NOW,
        seed: 1,
    });
    let mut connect = CONNECT.to_vec();
    connect[17] = u8::from(durable) * 60;
    let mut inputs = vec![Bytes::from(connect)];
    inputs.extend(all.iter().copied().map(acknowledgement));
    let mut settled = Vec::new();
    let mut out = Outputs::default();
    for (index, input) in inputs.into_iter().enumerate() {
        connection.handle(NOW, Input::Bytes(input), &mut out);
        while out.close.is_none() {
            let commands = std::mem::take(&mut out.commands);
            for command in &commands {
                if let Command::Settle {
                    consumer,
                    first,
                    last,
                    ..
                } = command
                {
                    settled.extend((first.0..=last.0).map(|offset| (*consumer, offset)));
                }
            }
            let mut answers = answers(&commands);
            if answers.is_empty() {
                break;
            }
            connection.handle(NOW, Input::Answers(&mut answers), &mut out);
        }
        if out.close.is_some() {
            break;
        }
        if index == 0 {
            let mut deliveries = vec![
                delivery(0, 0, Quality::AtLeastOnce),
                delivery(0, 1, Quality::ExactlyOnce),
                delivery(0, 2, Quality::ExactlyOnce),
                delivery(1, 0, Quality::AtLeastOnce),
                delivery(2, 0, Quality::AtLeastOnce),
            ];
            connection.handle(NOW, Input::Deliveries(&mut deliveries), &mut out);
        }
    }
    let mut reader = Decoder::new(usize::MAX);
    reader.set_version(Version::V5);
    reader.feed(Bytes::from(out.send.take_all()));
    let mut packets = 0;
    while reader.next_packet().expect("legal bytes").is_some() {
        packets += 1;
    }
    assert!(packets >= 6, "CONNACK and five messages at least");
    settled
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn damaged_conversations_get_legal_answers(
        file in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let corpus = corpus();
        let mut bytes = file.get(&corpus).clone();
        // The CONNECT's version stays, so that the answers can be read.
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            if !(2..=8).contains(&at) {
                bytes[at] = byte;
            }
        }
        converse(&bytes);
    }

    /// [MQTT-4.13.1-1]: whatever is said of it, a delivery is settled once at most.
    #[test]
    fn wrong_acknowledgements_settle_nothing_twice(
        durable in any::<bool>(),
        all in proptest::collection::vec(said(), 0..30),
    ) {
        let mut settled = acknowledge(durable, &all);
        settled.sort_unstable();
        let before = settled.len();
        settled.dedup();
        prop_assert_eq!(settled.len(), before);
        let known = |(consumer, offset): &(ConsumerTag, u64)| {
            matches!((consumer.0, *offset), (0, 0..=2) | (1 | 2, 0))
        };
        prop_assert!(settled.iter().all(known), "{:?}", settled);
    }
}
