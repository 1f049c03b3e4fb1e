//! Damaged bytes against an open connection: it never panics, and what it answers is legal.

use std::sync::Arc;

use anabranch_core::authority::Principal;
use anabranch_core::gateway::{Answer, Command, Gateway, Input, Outputs, Reply, Seat};
use anabranch_core::id::{ConnectionId, MonotonicMs, Now, Token, UnixMs, WorkerId};
use anabranch_core::message::Quality;
use anabranch_core::properties::Codecs;
use anabranch_mqtt::codec::{Decoder, Packet, Version};
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
}
