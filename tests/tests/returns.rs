//! What consumers give back or keep too long, and publishers that are held until there is room. Titles cite what is relied
//! on, or say what is ours.

use std::time::{Duration, Instant};

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
    let properties = json!({ "delivery_mode": 2 });
    agent.must(
        "publish",
        json!({ "key": key, "body": body, "properties": properties }),
    );
}

/// [RabbitMQ consumers guide, Delivery Acknowledgement Timeout]: 406 and its words; the delivery goes to another.
#[test]
fn a_delivery_that_is_not_acknowledged_in_time_closes_its_channel() {
    let node = Node::dev();
    let mut slow = pika(&node);
    queue(&mut slow, "work", json!({ "x-consumer-timeout": 1000 }));
    publish(&mut slow, "work", "x");
    slow.must("consume", json!({ "queue": "work" }));
    assert_eq!(slow.take_one()["body"], "x");
    let lost = slow.ask("wait_lost", json!({ "within_ms": 20_000 }));
    let closed = &lost["channel_closed"];
    assert_eq!(closed["code"], 406, "{lost}");
    let text = closed["text"].as_str().expect("a text");
    assert!(
        text.contains(
            "delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms"
        ),
        "{text}"
    );
    let mut other = amqplib(&node);
    other.must("consume", json!({ "queue": "work" }));
    let again = other.take_one();
    assert_eq!(
        (&again["body"], &again["redelivered"]),
        (&json!("x"), &json!(true))
    );
    other.must("ack", json!({ "tag": again["tag"] }));
}

/// [RabbitMQ 4.3 quorum queues, delayed retry] by its arguments: it waits, and holds up nobody.
#[test]
fn what_is_given_back_waits_before_it_comes_again() {
    let node = Node::dev();
    let mut agent = pika(&node);
    let arguments = json!({ "x-delayed-retry-type": "all", "x-delayed-retry-min": 400 });
    queue(&mut agent, "work", arguments);
    agent.must("consume", json!({ "queue": "work" }));
    publish(&mut agent, "work", "again");
    let first = agent.take_one();
    let began = Instant::now();
    agent.must("nack", json!({ "tag": first["tag"] }));
    publish(&mut agent, "work", "next");
    let next = agent.take_one();
    assert_eq!(next["body"], "next");
    assert!(began.elapsed() < Duration::from_millis(400));
    let again = agent.take_one();
    assert!(began.elapsed() >= Duration::from_millis(400));
    assert_eq!(
        (&again["body"], &again["redelivered"]),
        (&json!("again"), &json!(true))
    );
}

/// Ours: `x-overflow` `hold-publisher`. Publishers of both protocols wait, others do not, and all comes in order.
#[test]
fn a_full_queue_holds_its_publishers_and_loses_nothing() {
    let node = Node::dev();
    let mut publisher = pika(&node);
    publisher.must("confirm", json!({}));
    let arguments = json!({ "x-max-length": 1, "x-overflow": "hold-publisher" });
    queue(&mut publisher, "narrow", arguments);
    queue(&mut publisher, "wide", json!({}));
    publisher.must(
        "queue_bind",
        json!({ "queue": "narrow", "exchange": "amq.topic", "key": "narrow" }),
    );
    publish(&mut publisher, "narrow", "1");
    let held = json!({ "key": "narrow", "body": "2", "properties": { "delivery_mode": 2 } });
    publisher.begin("publish", held);
    // The one before this queue is not held; that of the device comes behind the other.
    let mut other = amqplib(&node);
    publish(&mut other, "wide", "x");
    let mut blocked = node.api();
    let is_held = |api: &mut anabranch_tests::Api| {
        let rows = api.get("/connections").expect(200);
        let rows = rows["items"].as_array().expect("rows").clone();
        rows.iter().any(|row| row["state"] == "blocked")
    };
    let end = Instant::now() + Duration::from_secs(20);
    while !is_held(&mut blocked) {
        assert!(Instant::now() < end, "the publisher is held");
        std::thread::yield_now();
    }
    let mut device = Agent::paho().connected(node.addresses().mqtt, json!({ "client_id": "d" }));
    let sent = device.must("send", json!({ "topic": "narrow", "bodies": ["3", "4"] }));
    let mut consumer = amqplib(&node);
    consumer.must("consume", json!({ "queue": "narrow", "no_ack": true }));
    let bodies: Vec<Value> = consumer
        .take(4)
        .iter()
        .map(|message| message["body"].clone())
        .collect();
    assert_eq!(bodies, ["1", "2", "3", "4"]);
    assert_eq!(publisher.finish("publish")["confirmed"], true);
    let reasons = device.must("sent", json!({ "mids": sent["mids"] }));
    assert_eq!(reasons["reasons"], json!([0, 0]));
}
