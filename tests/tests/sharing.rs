//! How applications share a queue and speak with each other: one active consumer, priorities, keys,
//! prefetch, recover, transactions and direct replies; what a node without room does with them.

use std::collections::BTreeMap;

use anabranch_tests::{Agent, Node};
use serde_json::{Value, json};

fn pika(node: &Node) -> Agent {
    Agent::pika().connected(node.addresses().amqp, json!({}))
}

fn amqplib(node: &Node) -> Agent {
    Agent::amqplib().connected(node.addresses().amqp, json!({}))
}

fn queue(agent: &mut Agent, name: &str, arguments: Value) {
    agent.must(
        "queue_declare",
        json!({ "queue": name, "durable": true, "arguments": arguments }),
    );
}

fn publish(agent: &mut Agent, key: &str, body: &str) {
    agent.must("publish", json!({ "key": key, "body": body }));
}

fn ready(agent: &mut Agent, name: &str) -> Value {
    agent.must("queue_declare", json!({ "queue": name, "passive": true }))["messages"].take()
}

fn bodies(messages: &[Value]) -> Vec<&str> {
    messages
        .iter()
        .map(|message| message["body"].as_str().expect("text"))
        .collect()
}

/// `x-single-active-consumer`: the first is served; when it dies, the next gets what it had, in order.
#[test]
fn a_single_active_consumer_is_followed_by_the_next() {
    let node = Node::dev();
    let mut publisher = pika(&node);
    publisher.must("confirm", json!({}));
    queue(
        &mut publisher,
        "q",
        json!({ "x-single-active-consumer": true }),
    );
    let mut first = pika(&node);
    first.must("consume", json!({ "queue": "q" }));
    let mut second = amqplib(&node);
    second.must("consume", json!({ "queue": "q" }));
    let sent: Vec<String> = (0..8).map(|number| number.to_string()).collect();
    for body in &sent {
        publish(&mut publisher, "q", body);
    }
    let held = first.take(8);
    assert_eq!(bodies(&held), sent);
    first.must("ack", json!({ "tag": held[2]["tag"], "multiple": true }));
    // The acknowledgement is read before the end of the channel.
    first.must("close", json!({}));
    let rest = second.take(5);
    assert_eq!(bodies(&rest), sent[3..]);
    assert!(rest.iter().all(|message| message["redelivered"] == true));
    publish(&mut publisher, "q", "new");
    assert_eq!(second.take_one()["redelivered"], false);
}

/// `x-priority`: who has the highest is served while it takes; then the next.
#[test]
fn consumers_of_higher_priority_come_first() {
    let node = Node::dev();
    let mut agent = pika(&node);
    agent.must("confirm", json!({}));
    queue(&mut agent, "q", json!({}));
    for (tag, priority) in [("low", 0), ("high", 10), ("middle", 5)] {
        agent.must("qos", json!({ "prefetch": 2, "channel": tag }));
        let arguments = json!({ "x-priority": priority });
        let consume = json!({ "queue": "q", "tag": tag, "channel": tag, "arguments": arguments });
        agent.must("consume", consume);
    }
    for number in 0..5 {
        publish(&mut agent, "q", &number.to_string());
    }
    let messages = agent.take(5);
    let mut by_consumer: BTreeMap<&str, usize> = BTreeMap::new();
    for message in &messages {
        *by_consumer
            .entry(message["consumer"].as_str().unwrap())
            .or_default() += 1;
    }
    assert_eq!(
        by_consumer,
        BTreeMap::from([("high", 2), ("middle", 2), ("low", 1)])
    );
}

/// Ours: `x-subscription-mode: key_shared`. Messages of one key have one worker at a time, in order; a
/// dead worker's keys go on with another, from the first that was not acknowledged.
#[test]
fn key_shared_workers_keep_keys_in_order() {
    let node = Node::dev();
    let mut publisher = pika(&node);
    publisher.must("confirm", json!({}));
    queue(
        &mut publisher,
        "q",
        json!({ "x-subscription-mode": "key_shared" }),
    );
    let mut workers = [pika(&node), pika(&node)];
    for worker in &mut workers {
        worker.must("consume", json!({ "queue": "q" }));
    }
    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for number in 0..40 {
        let key = format!("k{}", number % 10);
        let body = format!("{key} {number:02}");
        let properties = json!({ "headers": { "x-key": key } });
        publisher.must(
            "publish",
            json!({ "key": "q", "body": body, "properties": properties }),
        );
        by_key.entry(key).or_default().push(body);
    }
    let key_of = |message: &Value| message["body"].as_str().unwrap()[..2].to_owned();
    let [first, second] = &mut workers;
    // Four messages of a key come to one worker, in order.
    let mut of_first = Vec::new();
    let mut of_second = Vec::new();
    while of_first.len() + of_second.len() < 40 {
        for (worker, theirs) in [(&mut *first, &mut of_first), (&mut *second, &mut of_second)] {
            let more = worker.ask("take", json!({ "count": 40, "within_ms": 200 }));
            theirs.extend(more["messages"].as_array().unwrap().clone());
        }
    }
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in of_first.iter().chain(&of_second) {
        let body = message["body"].as_str().unwrap().to_owned();
        seen.entry(key_of(message)).or_default().push(body);
    }
    assert_eq!(seen, by_key);
    assert!(
        !of_first.is_empty() && !of_second.is_empty(),
        "both have keys"
    );
    let shared = of_first.iter().any(|mine| {
        of_second
            .iter()
            .any(|theirs| key_of(mine) == key_of(theirs))
    });
    assert!(!shared, "{:?} {:?}", bodies(&of_first), bodies(&of_second));
    // The first is lost without an acknowledgement.
    let [first, mut second] = workers;
    first.vanish();
    let again = second.take(of_first.len());
    assert!(again.iter().all(|message| message["redelivered"] == true));
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in &again {
        let body = message["body"].as_str().unwrap().to_owned();
        seen.entry(key_of(message)).or_default().push(body);
    }
    by_key.retain(|key, _| of_first.iter().any(|message| key_of(message) == *key));
    assert_eq!(seen, by_key);
}

/// A window of the whole channel bounds its consumers together; `basic.recover` gives all back.
#[test]
fn a_channels_window_and_recover() {
    let node = Node::dev();
    let mut agent = pika(&node);
    agent.must("confirm", json!({ "channel": "out" }));
    for name in ["a", "b"] {
        queue(&mut agent, name, json!({}));
        for number in 0..4 {
            let body = format!("{name}{number}");
            agent.must(
                "publish",
                json!({ "key": name, "body": body, "channel": "out" }),
            );
        }
    }
    agent.must("qos", json!({ "prefetch": 3, "whole_channel": true }));
    agent.must("consume", json!({ "queue": "a" }));
    agent.must("consume", json!({ "queue": "b" }));
    let held = agent.take(3);
    agent.must("qos", json!({ "prefetch": 0, "channel": "out" }));
    let more = agent.ask("take", json!({ "count": 1, "within_ms": 0 }));
    assert_eq!(more["messages"], json!([]), "{held:#?}");
    agent.must("ack", json!({ "tag": held[0]["tag"] }));
    agent.take_one();
    agent.must("recover", json!({}));
    let again = agent.take(3);
    assert!(
        again.iter().all(|message| message["redelivered"] == true),
        "{again:#?}"
    );
}

/// What a transaction holds takes effect at its commit, and not at all when it is rolled back.
#[test]
fn transactions_take_effect_as_one() {
    let mut node = Node::dev();
    let mut agent = pika(&node);
    queue(&mut agent, "in", json!({}));
    queue(&mut agent, "out", json!({}));
    agent.must(
        "publish",
        json!({ "key": "in", "body": "work", "channel": "plain" }),
    );
    agent.must("tx_select", json!({}));
    let held = agent.must("get", json!({ "queue": "in" }));
    publish(&mut agent, "out", "result");
    agent.must("ack", json!({ "tag": held["tag"] }));
    let passive = json!({ "queue": "out", "passive": true, "channel": "plain" });
    assert_eq!(agent.must("queue_declare", passive.clone())["messages"], 0);
    agent.must("tx_rollback", json!({}));
    // Rolled back, the acknowledgement never was: the message is still held, and is acknowledged now.
    assert_eq!(agent.must("queue_declare", passive.clone())["messages"], 0);
    publish(&mut agent, "out", "result");
    agent.must("ack", json!({ "tag": held["tag"] }));
    agent.must("tx_commit", json!({}));
    assert_eq!(agent.must("queue_declare", passive)["messages"], 1);
    node.kill();
    node.restart();
    let mut agent = pika(&node);
    assert_eq!(ready(&mut agent, "in"), 0);
    assert_eq!(ready(&mut agent, "out"), 1);
    // A channel is transactional or confirms, never both.
    agent.must("tx_select", json!({}));
    let refused = agent.ask("confirm", json!({}));
    assert_eq!(refused["channel_closed"]["code"], 406, "{refused}");
    let refused = agent.ask("tx_commit", json!({ "channel": "2" }));
    assert_eq!(refused["channel_closed"]["code"], 406, "{refused}");
}

/// Direct reply-to: a client asks without a queue of its own, by pika and by amqplib.
#[test]
fn direct_replies_find_who_asked() {
    let node = Node::dev();
    let mut server = pika(&node);
    queue(&mut server, "rpc", json!({}));
    for mut client in [pika(&node), amqplib(&node)] {
        client.must(
            "consume",
            json!({ "queue": "amq.rabbitmq.reply-to", "no_ack": true }),
        );
        let properties = json!({ "reply_to": "amq.rabbitmq.reply-to", "correlation_id": "c" });
        client.must(
            "publish",
            json!({ "key": "rpc", "body": "ask", "properties": properties }),
        );
        let answered = server.must("answer", json!({ "queue": "rpc" }));
        let reply_to = answered["reply_to"].as_str().unwrap();
        assert!(reply_to.starts_with("amq.rabbitmq.reply-to."), "{reply_to}");
        let reply = client.take_one();
        assert_eq!(reply["body"], "ASK");
        assert_eq!(reply["properties"]["correlation_id"], "c");
    }
    let mut careless = pika(&node);
    let refused = careless.ask("consume", json!({ "queue": "amq.rabbitmq.reply-to" }));
    assert_eq!(refused["channel_closed"]["code"], 406, "{refused}");
}

/// Back-pressure: while a node has no room in memory its publishers are parked and told so, and their
/// acknowledgements are still read, which makes room: all that was sent arrives.
#[test]
fn parked_publishers_are_freed_by_their_own_acknowledgements() {
    let config = "[store]\nvolatile_bytes_max = 1048576\nparked_bytes_max = 8388608\n";
    let node = Node::start(anabranch_tests::node::Start {
        dev: true,
        config: Some(config.to_owned()),
        ..Default::default()
    });
    let mut agent = pika(&node);
    agent.must("queue_declare", json!({ "queue": "q" }));
    agent.must("qos", json!({ "prefetch": 4, "channel": "in" }));
    agent.must("consume", json!({ "queue": "q", "channel": "in" }));
    // Three times as much as there is room for, on the connection whose acknowledgements make room.
    let body = "x".repeat(32 * 1024);
    for number in 0..96 {
        let body = format!("{number:02}{body}");
        agent.must(
            "publish",
            json!({ "key": "q", "body": body, "channel": "out" }),
        );
    }
    let told = agent.must("wait_blocked", json!({ "blocked": true }));
    assert_eq!(told["told"], json!([true]));
    let mut taken = Vec::new();
    while taken.len() < 96 {
        let message = agent.take_one();
        taken.push(message["body"].as_str().unwrap()[..2].to_owned());
        agent.must("ack", json!({ "tag": message["tag"], "channel": "in" }));
    }
    let sent: Vec<String> = (0..96).map(|number| format!("{number:02}")).collect();
    assert_eq!(taken, sent);
    let told = agent.must("wait_blocked", json!({ "blocked": false }));
    assert_eq!(told["told"].as_array().unwrap().last(), Some(&json!(false)));
}

/// The older way to log in, as amqplib does it.
#[test]
fn amqplain_logs_in_as_plain_does() {
    let node = Node::dev();
    let mut agent =
        Agent::amqplib().connected(node.addresses().amqp, json!({ "mechanism": "amqplain" }));
    agent.must("queue_declare", json!({ "queue": "q" }));
    let wrong = json!({ "mechanism": "amqplain", "password": "wrong" });
    let refused = Agent::amqplib().connect(node.addresses().amqp, wrong);
    let text = refused["refused"]["text"].as_str().unwrap_or_default();
    assert!(text.contains("403"), "{refused}");
}
