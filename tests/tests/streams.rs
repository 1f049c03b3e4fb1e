//! Streams that keep what was read: applications read them by `x-stream-offset`, devices by `$stream/<name>`, each from
//! a place of its own, and nothing leaves but by age and size.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_tests::{Agent, Node};
use serde_json::{Value, json};

fn pika(node: &Node) -> Agent {
    Agent::pika().connected(node.addresses().amqp, json!({}))
}

fn amqplib(node: &Node) -> Agent {
    Agent::amqplib().connected(node.addresses().amqp, json!({}))
}

fn paho(node: &Node, client_id: &str) -> Agent {
    Agent::paho().connected(node.addresses().mqtt, json!({ "client_id": client_id }))
}

/// A connection in confirm mode that has declared a stream `s`.
fn with_stream(node: &Node, more: Value) -> Agent {
    let mut agent = pika(node);
    let mut arguments = json!({ "x-queue-type": "stream" });
    if let (Value::Object(all), Value::Object(more)) = (&mut arguments, more) {
        all.extend(more);
    }
    let declare = json!({ "queue": "s", "durable": true, "arguments": arguments });
    agent.must("queue_declare", declare);
    agent.must("confirm", json!({}));
    agent
}

fn publish(agent: &mut Agent, bodies: std::ops::Range<u32>) {
    for body in bodies {
        agent.must("publish", json!({ "key": "s", "body": body.to_string() }));
    }
}

/// Body and offset of each.
fn told(messages: &[Value]) -> Vec<(String, i64)> {
    let one = |message: &Value| {
        let offset = &message["properties"]["headers"]["x-stream-offset"];
        let body = message["body"].as_str().expect("text").to_owned();
        assert_eq!(message["redelivered"], false);
        (body, offset.as_i64().expect("an offset"))
    };
    messages.iter().map(one).collect()
}

fn numbered(range: std::ops::Range<u32>) -> Vec<(String, i64)> {
    range.map(|n| (n.to_string(), i64::from(n))).collect()
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_secs()
}

/// RabbitMQ, Streams: "Consuming".
#[test]
fn applications_read_from_every_place_as_often_as_they_like() {
    let node = Node::dev();
    let mut owner = with_stream(&node, json!({ "x-max-age": "1D" }));
    publish(&mut owner, 0..10);
    for (client, place, from) in [
        (pika(&node), json!("first"), 0),
        (pika(&node), json!("last"), 9),
        (pika(&node), json!(7), 7),
        (pika(&node), json!("1h"), 0),
        (pika(&node), json!({ "time_s": now_s() - 60 }), 0),
        (amqplib(&node), json!("first"), 0),
        (amqplib(&node), json!(4), 4),
        (amqplib(&node), json!(99), 10),
    ] {
        let mut client = client;
        client.must("qos", json!({ "prefetch": 100 }));
        let arguments = json!({ "x-stream-offset": place });
        client.must("consume", json!({ "queue": "s", "arguments": arguments }));
        let messages = client.take(10 - from as usize);
        assert_eq!(told(&messages), numbered(from..10), "{place}");
    }
    let mut next = amqplib(&node);
    next.must("qos", json!({ "prefetch": 2 }));
    next.must("consume", json!({ "queue": "s" }));
    publish(&mut owner, 10..15);
    let two = next.take(2);
    assert_eq!(told(&two), numbered(10..12));
    // An acknowledgement makes room, a refusal too, and what was refused does not come again.
    next.must("ack", json!({ "tag": two[0]["tag"] }));
    next.must("nack", json!({ "tag": two[1]["tag"] }));
    assert_eq!(told(&next.take(2)), numbered(12..14));
    assert_eq!(node.api().stream("s")["ready"], 15);
}

/// RabbitMQ, Streams: "Feature comparison" and "Consuming".
#[test]
fn what_a_stream_does_not_do_is_refused_as_elsewhere() {
    let node = Node::dev();
    let mut agent = with_stream(&node, json!({}));
    let code = |answer: &Value| {
        let closed = ["channel_closed", "connection_closed"];
        let found = closed
            .iter()
            .find_map(|kind| answer[*kind]["code"].as_u64());
        found.unwrap_or_default()
    };
    let stream = json!({ "x-queue-type": "stream" });
    for wrong in [
        json!({ "queue": "t", "arguments": stream }),
        json!({ "queue": "t", "durable": true, "exclusive": true, "arguments": stream }),
        json!({ "queue": "t", "durable": true, "auto_delete": true, "arguments": stream }),
        json!({ "queue": "s", "durable": true }),
        json!({ "queue": "t", "durable": true, "arguments": { "x-queue-type": "stream", "x-max-age": "soon" } }),
    ] {
        let answer = agent.ask("queue_declare", wrong.clone());
        assert_eq!(code(&answer), 406, "{wrong}: {answer}");
    }
    let no_prefetch = agent.ask("consume", json!({ "queue": "s", "channel": "2" }));
    assert_eq!(code(&no_prefetch), 406, "{no_prefetch}");
    for (operation, arguments) in [
        ("consume", json!({ "queue": "s", "no_ack": true })),
        ("get", json!({ "queue": "s" })),
        ("queue_purge", json!({ "queue": "s" })),
    ] {
        let answer = pika(&node).ask(operation, arguments);
        assert_eq!(code(&answer), 540, "{operation}: {answer}");
    }
}

/// RabbitMQ, "Stream Filtering"; here the broker does it exactly.
#[test]
fn a_consumer_chooses_by_value() {
    let node = Node::dev();
    let mut owner = with_stream(&node, json!({}));
    for (body, value) in [("0", "emea"), ("1", "apac"), ("2", "emea"), ("3", "amer")] {
        let properties = json!({ "headers": { "x-stream-filter-value": value } });
        owner.must(
            "publish",
            json!({ "key": "s", "body": body, "properties": properties }),
        );
    }
    publish(&mut owner, 4..5);
    for (filter, unfiltered, offsets) in [
        (json!("emea"), false, vec![0, 2]),
        (json!(["apac", "amer"]), false, vec![1, 3]),
        (json!("emea"), true, vec![0, 2, 4]),
    ] {
        let mut reader = pika(&node);
        reader.must("qos", json!({ "prefetch": 10 }));
        let arguments = json!({
            "x-stream-offset": "first",
            "x-stream-filter": filter,
            "x-stream-match-unfiltered": unfiltered,
        });
        reader.must("consume", json!({ "queue": "s", "arguments": arguments }));
        let came: Vec<i64> = told(&reader.take(offsets.len()))
            .iter()
            .map(|one| one.1)
            .collect();
        assert_eq!(came, offsets, "{filter}");
    }
}

/// The user property of this name.
fn told_by(message: &Value, name: &str) -> String {
    let pairs = message["properties"]["user"]
        .as_array()
        .expect("user properties");
    let found = pairs.iter().find(|pair| pair[0] == name);
    let value = found.unwrap_or_else(|| panic!("no {name} in {message}"));
    value[1].as_str().expect("text").to_owned()
}

#[test]
fn a_device_s_topic_is_kept_and_read_again_in_both_protocols() {
    let node = Node::dev();
    let mut application = with_stream(&node, json!({}));
    application.must(
        "queue_bind",
        json!({ "queue": "s", "exchange": "amq.topic", "key": "sensors.*.temp" }),
    );
    let mut device = paho(&node, "device");
    for number in 0..5 {
        let topic = format!("sensors/{number}/temp");
        device.must(
            "publish",
            json!({ "topic": topic, "body": number.to_string(), "qos": 1 }),
        );
        device.must("publish", json!({ "topic": "sensors/x/wind", "qos": 1 }));
    }
    let mut other = paho(&node, "other");
    let subscribe =
        |user: Value| json!({ "filters": [["$stream/s", 1]], "user": user, "identifier": 9 });
    other.must("subscribe", subscribe(json!([["offset", "first"]])));
    let all = other.take(5);
    for (number, message) in all.iter().enumerate() {
        assert_eq!(message["topic"], format!("sensors/{number}/temp"));
        assert_eq!(told_by(message, "x-stream-offset"), number.to_string());
        assert_eq!(told_by(message, "x-stream"), "s");
        assert_eq!(message["properties"]["subscriptions"], json!([9]));
    }
    // It goes on behind what it has, by offset or by time.
    let since = told_by(&all[3], "x-stream-time");
    other.must("subscribe", subscribe(json!([["since", since]])));
    let again = other.take_one();
    assert!(
        told_by(&again, "x-stream-offset")
            .parse::<u64>()
            .expect("a number")
            <= 3
    );
    let mut third = paho(&node, "third");
    third.must("subscribe", subscribe(json!([["offset", "4"]])));
    assert_eq!(third.take_one()["body"], "4");
    device.must(
        "publish",
        json!({ "topic": "sensors/5/temp", "body": "5", "qos": 1 }),
    );
    assert_eq!(third.take_one()["body"], "5");
    third.must("unsubscribe", json!({ "filters": ["$stream/s"] }));
    let bad = third.ask("subscribe", subscribe(json!([["offset", "soon"]])));
    assert_eq!(bad["reasons"], json!([0x83]));
    let none = third.ask(
        "subscribe",
        json!({ "filters": [["$stream/none", 1], ["own", 1]] }),
    );
    assert_eq!(none["reasons"], json!([0x83, 1]));
    // What it unsubscribed from does not come any more.
    device.must(
        "publish",
        json!({ "topic": "sensors/6/temp", "body": "6", "qos": 1 }),
    );
    device.must(
        "publish",
        json!({ "topic": "own", "body": "own", "qos": 1 }),
    );
    assert_eq!(third.take_one()["body"], "own");

    let mut old = Agent::mqtt_js().connected(
        node.addresses().mqtt,
        json!({ "client_id": "old", "version": "3.1.1" }),
    );
    old.must("subscribe", json!({ "filters": [["$stream/s", 1]] }));
    device.must(
        "publish",
        json!({ "topic": "sensors/7/temp", "body": "7", "qos": 1 }),
    );
    assert_eq!(old.take_one()["body"], "7");

    application.must("qos", json!({ "prefetch": 100 }));
    let arguments = json!({ "x-stream-offset": "first" });
    application.must("consume", json!({ "queue": "s", "arguments": arguments }));
    let read = application.take(8);
    assert_eq!(read[2]["key"], "sensors.2.temp");
    assert_eq!(told(&read), numbered(0..8));
}

#[test]
fn kill_9_keeps_messages_offsets_and_retention() {
    let mut node = Node::dev();
    let mut owner = with_stream(&node, json!({ "x-max-length-bytes": 4000 }));
    publish(&mut owner, 0..20);
    owner.vanish();
    node.kill();
    node.restart();
    let mut owner = pika(&node);
    owner.must("confirm", json!({}));
    owner.must("qos", json!({ "prefetch": 100 }));
    let arguments = json!({ "x-stream-offset": "first" });
    owner.must("consume", json!({ "queue": "s", "arguments": arguments }));
    assert_eq!(told(&owner.take(20)), numbered(0..20));
    let large = "x".repeat(1000);
    for _ in 0..30 {
        owner.must("publish", json!({ "key": "s", "body": large }));
    }
    let shown = node.api().stream("s");
    assert_eq!(shown["ready"], 4, "{shown}");
    node.kill();
    node.restart();
    let mut reader = pika(&node);
    reader.must("qos", json!({ "prefetch": 100 }));
    reader.must(
        "consume",
        json!({ "queue": "s", "arguments": { "x-stream-offset": "first" } }),
    );
    let offsets: Vec<i64> = told(&reader.take(4)).iter().map(|one| one.1).collect();
    assert_eq!(offsets, [46, 47, 48, 49]);
}

#[test]
fn what_is_too_old_leaves_though_nobody_publishes() {
    let node = Node::dev();
    let mut owner = with_stream(&node, json!({ "x-max-age": "2s" }));
    publish(&mut owner, 0..3);
    assert_eq!(node.api().stream("s")["ready"], 3);
    let deadline = Instant::now() + Duration::from_secs(20);
    while node.api().stream("s")["ready"] != 0 {
        assert!(Instant::now() < deadline, "{}", node.api().stream("s"));
        std::thread::yield_now();
    }
    publish(&mut owner, 3..4);
    owner.must("qos", json!({ "prefetch": 9 }));
    owner.must(
        "consume",
        json!({ "queue": "s", "arguments": { "x-stream-offset": "first" } }),
    );
    assert_eq!(told(&owner.take(1)), numbered(3..4));
}
