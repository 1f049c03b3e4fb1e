//! Messages that wait until they are due: an application's by an exchange that delays, a device's by its topic. That they
//! wait, that they come, and that no crash loses one. Titles cite what is relied on.

use std::time::{Duration, Instant};

use anabranch_tests::{Agent, Api, Node, mosquitto};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);

fn pika(node: &Node) -> Agent {
    let mut agent = Agent::pika().connected(node.addresses().amqp, json!({}));
    agent.must("confirm", json!({}));
    agent
}

/// An exchange that delays, and a durable queue bound to it.
fn declare(agent: &mut Agent, exchange: &str, kind: &str, queue: &str, key: &str) {
    let arguments = json!({ "x-delayed-type": kind });
    agent.must(
        "exchange_declare",
        json!({ "exchange": exchange, "exchange_type": "x-delayed-message", "durable": true, "arguments": arguments }),
    );
    agent.must("queue_declare", json!({ "queue": queue, "durable": true }));
    agent.must(
        "queue_bind",
        json!({ "queue": queue, "exchange": exchange, "key": key }),
    );
}

fn publish(agent: &mut Agent, exchange: &str, key: &str, body: &str, headers: Value) {
    let properties = json!({ "delivery_mode": 2, "headers": headers });
    let answer = agent.must(
        "publish",
        json!({ "exchange": exchange, "key": key, "body": body, "properties": properties }),
    );
    assert!(answer.get("nacked").is_none(), "{answer}");
}

fn delayed(api: &Api, exchange: &str) -> u64 {
    let all = api.get("/exchanges").expect(200);
    let rows = all["items"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["name"] == exchange);
    row.expect("the exchange")["delayed"]
        .as_u64()
        .expect("a number")
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// [rabbitmq-delayed-message-exchange, README]: `x-delay` milliseconds; absent is at once; the sooner one comes
/// first; the header comes back negated.
#[test]
fn an_exchange_of_type_x_delayed_message_delivers_when_it_is_due() {
    let node = Node::dev();
    let mut agent = pika(&node);
    declare(&mut agent, "late", "topic", "jobs", "a.#");
    let began = Instant::now();
    publish(
        &mut agent,
        "late",
        "a.b",
        "second",
        json!({ "x-delay": 900 }),
    );
    publish(
        &mut agent,
        "late",
        "a.b",
        "first",
        json!({ "x-delay": 300 }),
    );
    publish(&mut agent, "late", "a.b", "at once", json!({}));
    agent.must("consume", json!({ "queue": "jobs", "no_ack": true }));
    let mut messages = agent.take(1);
    assert!(began.elapsed() < Duration::from_millis(900));
    messages.extend(agent.take(2));
    assert!(began.elapsed() >= Duration::from_millis(900));
    let bodies: Vec<&Value> = messages.iter().map(|message| &message["body"]).collect();
    assert_eq!(bodies, ["at once", "first", "second"]);
    assert_eq!(messages[1]["properties"]["headers"]["x-delay"], -300);
    assert_eq!(messages[2]["exchange"], "late");
}

/// [rabbitmq-delayed-message-exchange, README, Limitations] are none here: what was confirmed survives a kill, and a
/// delay is as long as it likes.
#[test]
fn delayed_messages_survive_a_kill() {
    let mut node = Node::dev();
    let mut agent = pika(&node);
    declare(&mut agent, "late", "direct", "jobs", "k");
    for number in 0..50 {
        let body = number.to_string();
        publish(&mut agent, "late", "k", &body, json!({ "x-delay": 1500 }));
    }
    let days: i64 = 60 * 86_400_000;
    publish(
        &mut agent,
        "late",
        "k",
        "in 60 days",
        json!({ "x-delay": days }),
    );
    node.kill();
    node.restart();
    let api = node.api();
    assert!(delayed(&api, "late") >= 1);
    let mut agent = pika(&node);
    agent.must("consume", json!({ "queue": "jobs", "no_ack": true }));
    let mut numbers: Vec<u64> = agent
        .take(50)
        .iter()
        .map(|message| message["body"].as_str().unwrap().parse().unwrap())
        .collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..50));
    wait_for("what was delivered waits no more", || {
        delayed(&api, "late") == 1
    });
    let waiting = api.get("/exchanges/%2F/late/delayed").expect(200);
    let row = &waiting["items"][0];
    assert_eq!(row["body"], "in 60 days");
    let wait_ms = row["due_at_ms"].as_u64().unwrap() - row["published_at_ms"].as_u64().unwrap();
    assert_eq!(wait_ms, days as u64);
}

/// [EMQX, Delayed Publish]: a device's message to `$delayed/<seconds>/<topic>`, to devices and applications alike.
#[test]
fn a_topic_below_delayed_is_published_when_it_is_due() {
    let node = Node::dev();
    let mut listener = Agent::paho().connected(node.addresses().mqtt, json!({ "client_id": "l" }));
    listener.must("subscribe", json!({ "filters": [["plant/#", 1]] }));
    let mut application = pika(&node);
    application.must("queue_declare", json!({ "queue": "q", "durable": true }));
    application.must(
        "queue_bind",
        json!({ "queue": "q", "exchange": "amq.topic", "key": "plant.#" }),
    );
    application.must("consume", json!({ "queue": "q", "no_ack": true }));
    let began = Instant::now();
    let arguments = ["-t", "$delayed/1/plant/7", "-m", "later", "-q", "1"];
    let (code, said) = mosquitto::publish(node.addresses().mqtt, &arguments);
    assert_eq!(code, 0, "{said}");
    let mut device = Agent::paho().connected(node.addresses().mqtt, json!({ "client_id": "d" }));
    device.must(
        "publish",
        json!({ "topic": "$delayed/0/plant/7", "body": "now", "qos": 1 }),
    );
    for agent in [&mut listener, &mut application] {
        let messages = agent.take(2);
        let bodies: Vec<&Value> = messages.iter().map(|message| &message["body"]).collect();
        assert_eq!(bodies, ["now", "later"]);
    }
    assert!(began.elapsed() >= Duration::from_secs(1));
}

/// Ours: what waits is counted, shown and dropped by the API.
#[test]
fn an_operator_sees_and_drops_what_waits() {
    let node = Node::dev();
    let mut agent = pika(&node);
    declare(&mut agent, "late", "fanout", "jobs", "");
    for body in ["b", "a"] {
        let hours = if body == "a" { 1 } else { 2 };
        publish(
            &mut agent,
            "late",
            "",
            body,
            json!({ "x-delay": hours * 3_600_000 }),
        );
    }
    let api = node.api();
    assert_eq!(delayed(&api, "late"), 2);
    let gauges = &api.get("/overview").expect(200)["gauges"];
    assert_eq!(
        (&gauges["delayed"], &gauges["ready"]),
        (&json!(2), &json!(0))
    );
    let waiting = api.get("/exchanges/%2F/late/delayed").expect(200);
    let bodies: Vec<&Value> = waiting["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["body"])
        .collect();
    assert_eq!(bodies, ["a", "b"]);
    let dropped = api.delete("/exchanges/%2F/late/delayed").expect(200);
    assert_eq!(dropped["dropped"], 2);
    wait_for("nothing waits", || delayed(&api, "late") == 0);
}
