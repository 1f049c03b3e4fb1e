//! Queues as AMQP clients know them: what is counted, what is refused by which code, what comes again
//! and in which place. Every test here holds on another AMQP broker too.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anabranch_tests::{Agent, Node};
use serde_json::{Value, json};

fn pika(node: &Node) -> Agent {
    Agent::pika().connected(node.addresses().amqp, json!({}))
}

/// A connection in confirm mode with a fresh queue `q` that holds these bodies.
fn with_messages(node: &Node, bodies: &[&str]) -> Agent {
    let mut agent = pika(node);
    agent.must("queue_declare", json!({ "queue": "q", "durable": true }));
    agent.must("queue_purge", json!({ "queue": "q" }));
    agent.must("confirm", json!({}));
    for body in bodies {
        agent.must("publish", json!({ "key": "q", "body": body }));
    }
    agent
}

fn ready(agent: &mut Agent) -> Value {
    agent.must("queue_declare", json!({ "queue": "q", "passive": true }))["messages"].take()
}

fn bodies(messages: &[Value]) -> Vec<&str> {
    messages
        .iter()
        .map(|message| message["body"].as_str().expect("text"))
        .collect()
}

/// Only what is ready is counted: not what is delivered and unacknowledged.
#[test]
fn counts_are_of_ready_messages() {
    let node = Node::dev();
    let mut agent = with_messages(&node, &["a", "b", "c"]);
    assert_eq!(ready(&mut agent), 3);
    let got = agent.must("get", json!({ "queue": "q" }));
    assert_eq!((&got["body"], &got["left"]), (&json!("a"), &json!(2)));
    assert_eq!(ready(&mut agent), 2);
    assert_eq!(
        agent.must("queue_purge", json!({ "queue": "q" }))["messages"],
        2
    );
    // The one that is out is still the client's to give back.
    agent.must("nack", json!({ "tag": got["tag"] }));
    let again = agent.must("get", json!({ "queue": "q", "no_ack": true }));
    assert_eq!(
        (&again["body"], &again["redelivered"]),
        (&json!("a"), &json!(true))
    );
    assert_eq!(agent.must("get", json!({ "queue": "q" }))["empty"], true);
}

#[test]
fn if_empty_looks_at_ready_messages_and_if_unused_at_consumers() {
    let node = Node::dev();
    let mut agent = with_messages(&node, &["a"]);
    let refused = agent.ask("queue_delete", json!({ "queue": "q", "if_empty": true }));
    assert_eq!(refused["channel_closed"]["code"], 406, "{refused}");
    agent.must("get", json!({ "queue": "q", "channel": "holder" }));
    let deleted = agent.ask(
        "queue_delete",
        json!({ "queue": "q", "if_empty": true, "if_unused": true, "channel": "2" }),
    );
    assert_eq!(deleted["messages"], 0, "{deleted}");

    let mut agent = with_messages(&node, &[]);
    agent.must("consume", json!({ "queue": "q", "channel": "consumer" }));
    let refused = agent.ask(
        "queue_delete",
        json!({ "queue": "q", "if_unused": true, "channel": "3" }),
    );
    assert_eq!(refused["channel_closed"]["code"], 406, "{refused}");
}

/// Requeued messages go back to their original place, whatever the order in which they are returned.
#[test]
fn requeued_messages_return_to_their_place() {
    let node = Node::dev();
    let mut agent = with_messages(&node, &["a", "b", "c", "d", "e"]);
    let mut tags = Vec::new();
    for _ in 0..3 {
        tags.push(agent.must("get", json!({ "queue": "q" }))["tag"].take());
    }
    for tag in [&tags[1], &tags[0], &tags[2]] {
        agent.must("reject", json!({ "tag": tag, "requeue": true }));
    }
    agent.must("consume", json!({ "queue": "q", "no_ack": true }));
    let messages = agent.take(5);
    assert_eq!(bodies(&messages), ["a", "b", "c", "d", "e"]);
    let redelivered: Vec<bool> = messages
        .iter()
        .map(|message| message["redelivered"] == true)
        .collect();
    assert_eq!(redelivered, [true, true, true, false, false]);
}

#[test]
fn a_closed_channel_gives_back_what_it_held() {
    let node = Node::dev();
    let mut agent = with_messages(&node, &["a", "b", "c"]);
    agent.must("consume", json!({ "queue": "q", "channel": "lost" }));
    agent.take(3);
    agent.must("close_channel", json!({ "channel": "lost" }));
    agent.must("consume", json!({ "queue": "q", "no_ack": true }));
    let messages = agent.take(3);
    assert_eq!(bodies(&messages), ["a", "b", "c"]);
    assert!(
        messages
            .iter()
            .all(|message| message["redelivered"] == true)
    );
}

#[test]
fn rejected_without_requeue_is_gone() {
    let node = Node::dev();
    let mut agent = with_messages(&node, &["a", "b"]);
    let got = agent.must("get", json!({ "queue": "q" }));
    agent.must("reject", json!({ "tag": got["tag"], "requeue": false }));
    let next = agent.must("get", json!({ "queue": "q", "no_ack": true }));
    assert_eq!(
        (&next["body"], &next["redelivered"]),
        (&json!("b"), &json!(false))
    );
    assert_eq!(agent.must("get", json!({ "queue": "q" }))["empty"], true);
}

/// A consumer holds no more than its prefetch; an acknowledgement makes room for the next.
#[test]
fn prefetch_bounds_what_a_consumer_holds() {
    let node = Node::dev();
    let mut agent = with_messages(&node, &["a", "b", "c", "d"]);
    agent.must("qos", json!({ "prefetch": 2, "channel": "bounded" }));
    agent.must("consume", json!({ "queue": "q", "channel": "bounded" }));
    let held = agent.take(2);
    assert_eq!(bodies(&held), ["a", "b"]);
    // Two are left for others, who get them although the first consumer came first.
    assert_eq!(ready(&mut agent), 2);
    agent.must(
        "ack",
        json!({ "tag": held[0]["tag"], "channel": "bounded" }),
    );
    assert_eq!(agent.take_one()["body"], "c");
    assert_eq!(ready(&mut agent), 1);
    agent.must(
        "ack",
        json!({ "tag": held[1]["tag"], "channel": "bounded" }),
    );
    assert_eq!(agent.take_one()["body"], "d");
}

/// Consumers of one queue share its messages, each message once.
#[test]
fn consumers_share_a_queue() {
    let node = Node::dev();
    let mut publisher = with_messages(&node, &[]);
    let mut consumers = [pika(&node), pika(&node)];
    for consumer in &mut consumers {
        consumer.must("qos", json!({ "prefetch": 10 }));
        consumer.must("consume", json!({ "queue": "q" }));
    }
    let sent: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    for body in &sent {
        publisher.must("publish", json!({ "key": "q", "body": body }));
    }
    // Nobody acknowledges, so each consumer's ten are what it holds.
    let mut seen = HashSet::new();
    for consumer in &mut consumers {
        for message in consumer.take(10) {
            assert!(
                seen.insert(message["body"].as_str().unwrap().to_owned()),
                "twice: {message}"
            );
        }
    }
    assert_eq!(seen, sent.into_iter().collect());
}

/// basic.return comes before the confirm, and only for who asked.
#[test]
fn unroutable_messages_are_returned_to_who_asked() {
    let node = Node::dev();
    let mut agent = pika(&node);
    agent.must("confirm", json!({}));
    let answer = agent.ask("publish", json!({ "key": "nobody", "mandatory": true }));
    assert_eq!(answer["returned"]["code"], 312, "{answer}");
    let answer = agent.ask("publish", json!({ "key": "nobody" }));
    assert_eq!(answer["confirmed"], true, "{answer}");
}

/// AMQP 0-9-1: an exclusive queue is its connection's alone and goes with it.
#[test]
fn exclusive_queues_belong_to_one_connection() {
    let node = Node::dev();
    let mut owner = pika(&node);
    owner.must(
        "queue_declare",
        json!({ "queue": "mine", "exclusive": true }),
    );
    let mut other = pika(&node);
    for (operation, arguments) in [
        ("queue_declare", json!({ "queue": "mine", "passive": true })),
        ("consume", json!({ "queue": "mine" })),
        ("get", json!({ "queue": "mine" })),
        ("queue_delete", json!({ "queue": "mine" })),
        (
            "queue_bind",
            json!({ "queue": "mine", "exchange": "amq.topic", "key": "x" }),
        ),
    ] {
        let answer = other.ask(operation, arguments);
        assert_eq!(
            answer["channel_closed"]["code"], 405,
            "{operation}: {answer}"
        );
    }
    // Publishing to it is nobody's secret.
    other.must("confirm", json!({}));
    let answer = other.ask("publish", json!({ "key": "mine", "mandatory": true }));
    assert_eq!(answer["confirmed"], true, "{answer}");
    owner.ask("close", json!({}));
    // It goes when the broker has seen the connection end; until then it stays locked.
    let passive = json!({ "queue": "mine", "passive": true });
    let started = Instant::now();
    loop {
        let answer = other.ask("queue_declare", passive.clone());
        match answer["channel_closed"]["code"].as_u64() {
            Some(404) => break,
            Some(405) => assert!(started.elapsed() < Duration::from_secs(10), "{answer}"),
            _ => panic!("neither gone nor locked: {answer}"),
        }
    }
}

#[test]
fn an_exclusive_consumer_keeps_others_out() {
    let node = Node::dev();
    let mut agent = with_messages(&node, &[]);
    let mut other = pika(&node);
    agent.must("consume", json!({ "queue": "q", "exclusive": true }));
    let answer = other.ask("consume", json!({ "queue": "q" }));
    assert_eq!(answer["channel_closed"]["code"], 403, "{answer}");
    // basic.get is no consumer.
    assert_eq!(other.must("get", json!({ "queue": "q" }))["empty"], true);
}

#[test]
fn auto_delete_queues_go_with_their_last_consumer() {
    let node = Node::dev();
    let mut agent = pika(&node);
    agent.must(
        "queue_declare",
        json!({ "queue": "auto", "auto_delete": true }),
    );
    for _ in 0..2 {
        let passive = json!({ "queue": "auto", "passive": true, "channel": "look" });
        agent.must("queue_declare", passive);
    }
    let consumer = agent.must("consume", json!({ "queue": "auto" }));
    agent.must("cancel", json!({ "consumer": consumer["consumer"] }));
    let gone = agent.ask("queue_declare", json!({ "queue": "auto", "passive": true }));
    assert_eq!(gone["channel_closed"]["code"], 404, "{gone}");
}

#[test]
fn deleting_a_queue_tells_its_consumers() {
    let node = Node::dev();
    let mut agent = with_messages(&node, &["a"]);
    let mut consumer = pika(&node);
    let tag = consumer.must("consume", json!({ "queue": "q" }))["consumer"].take();
    consumer.take_one();
    consumer.begin("wait_lost", json!({}));
    agent.must("queue_delete", json!({ "queue": "q" }));
    assert_eq!(consumer.finish("wait_lost")["cancelled"], tag);
}

/// Each kind of exchange routes as it says.
#[test]
fn exchanges_route_by_their_kind() {
    let node = Node::dev();
    let mut agent = pika(&node);
    agent.must("confirm", json!({}));
    for queue in ["one", "two"] {
        agent.must("queue_declare", json!({ "queue": queue }));
    }
    let bind = |agent: &mut Agent, kind: &str, queue: &str, key: &str, arguments: Value| {
        let exchange = format!("x-{kind}");
        agent.must(
            "exchange_declare",
            json!({ "exchange": exchange, "exchange_type": kind }),
        );
        let binding = json!({
            "queue": queue,
            "exchange": exchange,
            "key": key,
            "arguments": arguments,
        });
        agent.must("queue_bind", binding);
    };
    bind(&mut agent, "direct", "one", "a", Value::Null);
    bind(&mut agent, "direct", "two", "b", Value::Null);
    bind(&mut agent, "fanout", "one", "", Value::Null);
    bind(&mut agent, "fanout", "two", "ignored", Value::Null);
    bind(&mut agent, "topic", "one", "a.*", Value::Null);
    bind(&mut agent, "topic", "two", "a.#", Value::Null);
    bind(
        &mut agent,
        "headers",
        "one",
        "",
        json!({ "x-match": "all", "k": "1", "l": "2" }),
    );
    bind(
        &mut agent,
        "headers",
        "two",
        "",
        json!({ "x-match": "any", "k": "1", "l": "2" }),
    );
    for (kind, key, headers, expected) in [
        ("direct", "a", json!({}), (1, 0)),
        ("direct", "b", json!({}), (0, 1)),
        ("direct", "c", json!({}), (0, 0)),
        ("fanout", "whatever", json!({}), (1, 1)),
        ("topic", "a", json!({}), (0, 1)),
        ("topic", "a.b", json!({}), (1, 1)),
        ("topic", "a.b.c", json!({}), (0, 1)),
        ("topic", "a.", json!({}), (1, 1)),
        ("topic", "b.a", json!({}), (0, 0)),
        ("headers", "", json!({ "k": "1", "l": "2" }), (1, 1)),
        ("headers", "", json!({ "k": "1" }), (0, 1)),
        ("headers", "", json!({ "k": "2" }), (0, 0)),
    ] {
        let publish = json!({
            "exchange": format!("x-{kind}"),
            "key": key,
            "properties": { "headers": headers },
        });
        agent.must("publish", publish);
        let mut purged = |queue: &str| {
            agent.must("queue_purge", json!({ "queue": queue }))["messages"]
                .as_u64()
                .unwrap()
        };
        let arrived = (purged("one"), purged("two"));
        assert_eq!(arrived, expected, "{kind} {key:?} {headers}");
    }
}

/// A message goes to a queue once, however many of its bindings match.
#[test]
fn overlapping_bindings_give_one_copy() {
    let node = Node::dev();
    let mut agent = with_messages(&node, &[]);
    for key in ["a.b", "a.*", "a.#", "#"] {
        agent.must(
            "queue_bind",
            json!({ "queue": "q", "exchange": "amq.topic", "key": key }),
        );
    }
    agent.must(
        "publish",
        json!({ "exchange": "amq.topic", "key": "a.b", "body": "once" }),
    );
    assert_eq!(ready(&mut agent), 1);
    agent.must(
        "queue_unbind",
        json!({ "queue": "q", "exchange": "amq.topic", "key": "#" }),
    );
    agent.must(
        "publish",
        json!({ "exchange": "amq.topic", "key": "c", "body": "nobody" }),
    );
    assert_eq!(ready(&mut agent), 1);
}
