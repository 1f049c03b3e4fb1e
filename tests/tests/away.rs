//! What was published while a device or an application was away is there when it comes back, also
//! when the node was stopped or killed in between; what was never durable is gone.

use anabranch_tests::{Agent, Node};
use serde_json::{Value, json};

fn device(node: &Node, client_id: &str, more: Value) -> (Agent, Value) {
    let mut agent = Agent::paho();
    let mut arguments = json!({ "client_id": client_id });
    arguments
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let answer = agent.connect(node.addresses().mqtt, arguments);
    assert_eq!(answer["reason"], 0, "{answer}");
    (agent, answer)
}

fn pika(node: &Node) -> Agent {
    Agent::pika().connected(node.addresses().amqp, json!({}))
}

fn bodies(messages: &[Value]) -> Vec<&str> {
    messages
        .iter()
        .map(|message| message["body"].as_str().expect("text"))
        .collect()
}

/// Both subscribers go away, `between` stops and starts the node twice around the publishing.
fn away_across(between: fn(&mut Node)) {
    let mut node = Node::dev();

    let keep_5 = json!({ "version": "5", "clean": false, "expiry_s": 3_600 });
    let keep_3 = json!({ "version": "3.1.1", "clean": false });
    let (mut five, answer) = device(&node, "five", keep_5.clone());
    assert_eq!(answer["session_present"], false);
    five.must("subscribe", json!({ "filters": [["plant/+/temp", 1]] }));
    five.ask("disconnect", json!({}));
    let (mut three, answer) = device(&node, "three", keep_3.clone());
    assert_eq!(answer["session_present"], false);
    three.must("subscribe", json!({ "filters": [["plant/#", 1]] }));
    // No DISCONNECT: the line is cut.
    three.vanish();
    let mut application = pika(&node);
    application.must(
        "queue_declare",
        json!({ "queue": "temps", "durable": true }),
    );
    application.must(
        "queue_bind",
        json!({ "queue": "temps", "exchange": "amq.topic", "key": "plant.*.temp" }),
    );
    application.ask("close", json!({}));

    // First half before the node ends, by a device; second half after, by an application.
    let (mut publisher, _) = device(&node, "publisher", json!({}));
    for number in 0..20 {
        let publish =
            json!({ "topic": "plant/1/temp", "body": format!("device {number}"), "qos": 1 });
        publisher.must("publish", publish);
    }
    between(&mut node);
    let mut application = pika(&node);
    application.must("confirm", json!({}));
    for number in 0..20 {
        let publish = json!({
            "exchange": "amq.topic",
            "key": "plant.2.temp",
            "body": format!("application {number}"),
            "properties": { "delivery_mode": 2 },
        });
        application.must("publish", publish);
    }
    between(&mut node);

    let published: Vec<String> = ["device", "application"]
        .iter()
        .flat_map(|who| (0..20).map(move |number| format!("{who} {number}")))
        .collect();
    for (client_id, keep) in [("five", keep_5), ("three", keep_3)] {
        let (mut back, answer) = device(&node, client_id, keep);
        assert_eq!(answer["session_present"], true, "{client_id}");
        let messages = back.take(40);
        assert_eq!(bodies(&messages), published, "{client_id}");
        assert!(
            messages.iter().all(|message| message["qos"] == 1),
            "{messages:#?}"
        );
        // The subscription is there too, and nothing comes twice: the next is the new one.
        let (mut publisher, _) = device(&node, "publisher", json!({}));
        publisher.must(
            "publish",
            json!({ "topic": "plant/1/temp", "body": "new", "qos": 1 }),
        );
        assert_eq!(back.take_one()["body"], "new", "{client_id}");
        back.ask("disconnect", json!({}));
    }
    let mut application = pika(&node);
    application.must("consume", json!({ "queue": "temps" }));
    let messages = application.take(42);
    assert_eq!(bodies(&messages[..40]), published, "the queue");
    assert_eq!(bodies(&messages[40..]), ["new", "new"]);
    assert!(
        messages
            .iter()
            .all(|message| message["redelivered"] == false),
        "{messages:#?}"
    );
}

#[test]
fn messages_wait_across_a_stop() {
    away_across(|node| {
        node.stop();
        node.restart();
    });
}

#[test]
fn messages_wait_across_a_kill() {
    away_across(|node| {
        node.kill();
        node.restart();
    });
}

/// Acknowledged is gone, unacknowledged comes again and says so.
#[test]
fn unacknowledged_deliveries_come_again_after_a_stop() {
    let mut node = Node::dev();
    let mut application = pika(&node);
    application.must("queue_declare", json!({ "queue": "work", "durable": true }));
    application.must("confirm", json!({}));
    for number in 0..10 {
        application.must(
            "publish",
            json!({ "key": "work", "body": format!("{number}"), "properties": { "delivery_mode": 2 } }),
        );
    }
    application.must("consume", json!({ "queue": "work" }));
    let messages = application.take(10);
    application.must(
        "ack",
        json!({ "tag": messages[4]["tag"], "multiple": true }),
    );
    application.must("ack", json!({ "tag": messages[7]["tag"] }));
    // A confirmed publish behind them: the acknowledgements were read before it, and a drain settles
    // what was read.
    application.must("publish", json!({ "key": "work", "body": "last" }));
    node.stop();
    node.restart();
    let mut application = pika(&node);
    application.must("consume", json!({ "queue": "work" }));
    let messages = application.take(5);
    assert_eq!(bodies(&messages), ["5", "6", "8", "9", "last"]);
    for message in &messages[..4] {
        assert_eq!(message["redelivered"], true, "{message:#}");
    }
}

/// A device that did not acknowledge gets the message again, flagged as a duplicate, in order.
#[test]
fn unacknowledged_publishes_come_again_when_the_session_resumes() {
    let mut node = Node::dev();
    let keep = json!({ "clean": false, "expiry_s": 3_600, "manual_ack": true });
    let (mut subscriber, _) = device(&node, "slow", keep.clone());
    subscriber.must("subscribe", json!({ "filters": [["jobs", 1]] }));
    let (mut publisher, _) = device(&node, "publisher", json!({}));
    for body in ["one", "two", "three"] {
        publisher.must(
            "publish",
            json!({ "topic": "jobs", "body": body, "qos": 1 }),
        );
    }
    let messages = subscriber.take(3);
    subscriber.ask("ack", json!({ "mid": messages[0]["mid"] }));
    // The acknowledgement and the goodbye travel in order on one connection.
    subscriber.ask("disconnect", json!({}));
    node.stop();
    node.restart();
    let (mut subscriber, answer) = device(&node, "slow", keep);
    assert_eq!(answer["session_present"], true);
    let again = subscriber.take(2);
    assert_eq!(bodies(&again), ["two", "three"]);
    // [MQTT-4.4.0-1], [MQTT-3.3.1-1]: the old packet ids, flagged as sent before.
    for (first, second) in messages[1..].iter().zip(&again) {
        assert_eq!(first["mid"], second["mid"]);
        assert_eq!(second["dup"], true, "{second:#}");
    }
}

#[test]
fn what_is_not_durable_is_gone_after_a_restart() {
    let mut node = Node::dev();
    let mut application = pika(&node);
    application.must("queue_declare", json!({ "queue": "kept", "durable": true }));
    application.must("queue_declare", json!({ "queue": "transient" }));
    application.must(
        "exchange_declare",
        json!({ "exchange": "kept-x", "durable": true }),
    );
    application.must("exchange_declare", json!({ "exchange": "transient-x" }));
    let (mut clean, _) = device(&node, "clean", json!({ "clean": true }));
    clean.must("subscribe", json!({ "filters": [["a", 1]] }));
    node.stop();
    node.restart();

    let mut application = pika(&node);
    let passive = |name: &str| json!({ "queue": name, "passive": true });
    application.must("queue_declare", passive("kept"));
    let gone = application.ask("queue_declare", passive("transient"));
    assert_eq!(gone["channel_closed"]["code"], 404, "{gone}");
    application.must(
        "exchange_declare",
        json!({ "exchange": "kept-x", "passive": true }),
    );
    let gone = application.ask(
        "exchange_declare",
        json!({ "exchange": "transient-x", "passive": true }),
    );
    assert_eq!(gone["channel_closed"]["code"], 404, "{gone}");
    let (_clean, answer) = device(&node, "clean", json!({ "clean": false, "expiry_s": 60 }));
    assert_eq!(answer["session_present"], false);
}

/// [MQTT-3.1.2-4]: a clean start forgets the session and what waited in it.
#[test]
fn a_clean_start_forgets_what_waited() {
    let node = Node::dev();
    let (mut subscriber, _) = device(&node, "s", json!({ "clean": false, "expiry_s": 3_600 }));
    subscriber.must("subscribe", json!({ "filters": [["old", 1]] }));
    subscriber.ask("disconnect", json!({}));
    let (mut publisher, _) = device(&node, "p", json!({}));
    publisher.must(
        "publish",
        json!({ "topic": "old", "body": "forgotten", "qos": 1 }),
    );
    let (mut subscriber, answer) = device(&node, "s", json!({ "clean": true, "expiry_s": 3_600 }));
    assert_eq!(answer["session_present"], false);
    subscriber.must("subscribe", json!({ "filters": [["new", 1]] }));
    publisher.must(
        "publish",
        json!({ "topic": "old", "body": "unwanted", "qos": 1 }),
    );
    publisher.must(
        "publish",
        json!({ "topic": "new", "body": "wanted", "qos": 1 }),
    );
    assert_eq!(subscriber.take_one()["body"], "wanted");
}

/// [MQTT-3.1.4-3]: the newer connection of a client takes the session over; the older one hears it.
#[test]
fn a_second_connection_takes_the_session_over() {
    let node = Node::dev();
    let keep = json!({ "clean": false, "expiry_s": 3_600 });
    let (mut first, _) = device(&node, "one", keep.clone());
    first.must("subscribe", json!({ "filters": [["a", 1]] }));
    let (mut second, answer) = device(&node, "one", keep);
    assert_eq!(answer["session_present"], true);
    let closed = first.ask("wait_closed", json!({}));
    assert_eq!(closed["closed"]["reason"], 0x8E, "{closed}");
    let (mut publisher, _) = device(&node, "p", json!({}));
    publisher.must("publish", json!({ "topic": "a", "body": "b", "qos": 1 }));
    assert_eq!(second.take_one()["body"], "b");
}
