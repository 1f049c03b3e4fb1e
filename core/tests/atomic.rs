//! What is asked to take effect together does: one batch, one frame, whatever its size.

mod node;

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::message::{Message, Quality};
use bytes::Bytes;
use node::{Node, publishing};

#[test]
fn a_large_transaction_is_one_frame_with_its_settlements() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare(client, "jobs", true).unwrap();
    node.publish(client, "", "jobs", "old", 1);
    node.consume(client, "jobs", 1).unwrap();
    let old = node.mail(client).deliveries.remove(0);
    let frames = |node: &Node| node.data[&ShardId(1)].journal.frames.len();
    let before = frames(&node);
    let publish = |number: u64| {
        publishing(
            100 + number,
            Message {
                exchange: Bytes::new(),
                address: "jobs".parse().unwrap(),
                quality: Quality::AtLeastOnce,
                publisher: client.id,
                ..Message::default()
            },
        )
    };
    let mut commands: Vec<Command> = (0..10_000).map(publish).collect();
    commands.push(Command::Settle {
        consumer: old.consumer,
        first: old.offset,
        last: old.offset,
        outcome: Outcome::Accepted,
    });
    node.ask(client, Command::Atomic { commands });
    let answers = node.mail(client).answers;
    assert_eq!(
        answers,
        [Answer::Published {
            first: Token(100),
            last: Token(10_099),
            outcome: PublishOutcome::Routed,
        }]
    );
    assert_eq!(frames(&node), before + 1);
}

#[test]
fn one_publish_that_is_refused_refuses_all_and_gives_back_what_was_settled() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.declare(client, "jobs", true).unwrap();
    node.publish(client, "", "jobs", "old", 1);
    node.consume(client, "jobs", 1).unwrap();
    let old = node.mail(client).deliveries.remove(0);
    let publish = |token: u64, exchange: &'static [u8]| {
        publishing(
            token,
            Message {
                exchange: Bytes::from_static(exchange),
                address: "jobs".parse().unwrap(),
                ..Message::default()
            },
        )
    };
    let settle = Command::Settle {
        consumer: old.consumer,
        first: old.offset,
        last: old.offset,
        outcome: Outcome::Accepted,
    };
    let commands = vec![publish(100, b""), publish(101, b"nowhere"), settle];
    node.ask(client, Command::Atomic { commands });
    let refused = PublishOutcome::Refused(ErrorKind::NotFound);
    let mail = node.mail(client);
    assert_eq!(
        mail.answers,
        [Answer::Published {
            first: Token(100),
            last: Token(101),
            outcome: refused,
        }]
    );
    let stat = node.stat("jobs");
    assert_eq!(
        (stat.ready, stat.unsettled),
        (0, 1),
        "and again to its consumer"
    );
    assert_eq!(mail.deliveries[0].attempt, 2);
}
