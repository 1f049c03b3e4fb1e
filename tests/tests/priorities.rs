//! Queues with priorities (`x-max-priority`), as applications and devices see them, over restarts and crashes. Every test
//! holds on another AMQP broker too, except where its title says what is ours.

use anabranch_tests::{Agent, Node};
use serde_json::{Value, json};

fn pika(node: &Node) -> Agent {
    let mut agent = Agent::pika().connected(node.addresses().amqp, json!({}));
    agent.must("confirm", json!({}));
    agent
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

fn publish(agent: &mut Agent, body: &str, priority: Option<u8>) {
    let mut properties = json!({ "delivery_mode": 2 });
    if let Some(priority) = priority {
        properties["priority"] = priority.into();
    }
    agent.must(
        "publish",
        json!({ "key": "q", "body": body, "properties": properties }),
    );
}

/// Takes all.
fn drain(agent: &mut Agent) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let one = agent.must("get", json!({ "queue": "q", "no_ack": true }));
        if one["empty"] == true {
            return all;
        }
        all.push(one["body"].as_str().expect("text").to_owned());
    }
}

fn bodies(messages: &[Value]) -> Vec<&str> {
    let texts = messages.iter();
    texts
        .map(|message| message["body"].as_str().expect("text"))
        .collect()
}

const MIXED: [(&str, Option<u8>); 6] = [
    ("a", None),
    ("b", Some(5)),
    ("c", Some(1)),
    ("d", Some(200)),
    ("e", Some(5)),
    ("f", Some(0)),
];

/// [RabbitMQ, Priority Queue Support]: larger numbers first, above the most as the most, without one as 0.
#[test]
fn higher_priorities_are_delivered_first_to_both_clients() {
    let node = Node::dev();
    let mut agent = pika(&node);
    queue(&mut agent, "q", json!({ "x-max-priority": 10 }));
    for (body, priority) in MIXED {
        publish(&mut agent, body, priority);
    }
    let counted = agent.must("queue_declare", json!({ "queue": "q", "passive": true }));
    assert_eq!(counted["messages"], 6);
    let mut other = amqplib(&node);
    other.must("qos", json!({ "prefetch": 1 }));
    other.must("consume", json!({ "queue": "q" }));
    let mut got = Vec::new();
    for _ in 0..3 {
        let message = other.take_one();
        got.push(message["body"].as_str().expect("text").to_owned());
        other.must("ack", json!({ "tag": message["tag"] }));
    }
    assert_eq!(got, ["d", "b", "e"]);
    // The fourth is with that consumer; it comes back to its place.
    assert_eq!(bodies(&[other.take_one()]), ["c"]);
    publish(&mut agent, "g", Some(1));
    other.must("close", json!({}));
    agent.must("consume", json!({ "queue": "q" }));
    assert_eq!(bodies(&agent.take(4)), ["c", "g", "a", "f"]);
}

/// Declared otherwise it is another queue; a level of its own is none of a quorum queue's.
#[test]
fn a_redeclaration_with_other_levels_is_refused() {
    let node = Node::dev();
    let mut agent = pika(&node);
    queue(&mut agent, "q", json!({ "x-max-priority": 10 }));
    queue(&mut agent, "q", json!({ "x-max-priority": 10 }));
    for arguments in [
        json!({ "x-max-priority": 9 }),
        json!({}),
        json!({ "x-max-priority": 10, "x-queue-type": "quorum" }),
    ] {
        let mut other = amqplib(&node);
        let declare = json!({ "queue": "q", "durable": true, "arguments": arguments });
        let refused = other.ask("queue_declare", declare);
        assert!(refused.to_string().contains("406"), "{refused:#}");
        other.vanish();
    }
}

/// [RabbitMQ, Priority Queue Support, Interaction with Other Features]: a full queue drops from its head, and that is its
/// highest level. What ends goes in every level: that is ours.
#[test]
fn a_full_queue_drops_from_its_highest_level_and_each_level_expires() {
    let node = Node::dev();
    let mut agent = pika(&node);
    agent.must("queue_declare", json!({ "queue": "dead", "durable": true }));
    let arguments = json!({
        "x-max-priority": 5,
        "x-max-length": 3,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    });
    queue(&mut agent, "q", arguments);
    for (body, priority) in [("a", 0), ("b", 5), ("c", 3), ("d", 3)] {
        publish(&mut agent, body, Some(priority));
    }
    agent.must("consume", json!({ "queue": "dead", "no_ack": true }));
    let dead = agent.take_one();
    let story = &dead["properties"]["headers"]["x-death"][0];
    assert_eq!(
        (&dead["body"], &story["reason"]),
        (&json!("b"), &json!("maxlen"))
    );
    assert_eq!(
        (&story["queue"], &dead["properties"]["priority"]),
        (&json!("q"), &json!(5))
    );
    let properties = json!({ "delivery_mode": 2, "priority": 1, "expiration": "300" });
    let brief = json!({ "key": "q", "body": "brief", "properties": properties });
    // Behind one that stays.
    let mut other = pika(&node);
    let got = other.must("get", json!({ "queue": "q", "no_ack": true }));
    assert_eq!(got["body"], "c");
    agent.must("publish", brief);
    let dead = agent.take_one();
    assert_eq!(dead["body"], "brief");
    assert_eq!(
        dead["properties"]["headers"]["x-death"][0]["reason"],
        "expired"
    );
    assert_eq!(drain(&mut other), ["d", "a"]);
}

/// What was confirmed is there after a stop and after a kill, each level in its order.
#[test]
fn levels_survive_a_restart_and_a_kill() {
    let mut node = Node::dev();
    let mut agent = pika(&node);
    queue(&mut agent, "q", json!({ "x-max-priority": 4 }));
    let mut left: Vec<(u8, u32)> = Vec::new();
    for round in 0..2 {
        for number in 0..60 {
            let (priority, number) = ((number % 5) as u8, round * 60 + number);
            publish(&mut agent, &format!("{number:03}"), Some(priority));
            left.push((4 - priority, number));
        }
        left.sort_unstable();
        let taken: Vec<(u8, u32)> = left.drain(..10).collect();
        let names = |all: &[(u8, u32)]| -> Vec<String> {
            let names = all.iter();
            names.map(|(_, number)| format!("{number:03}")).collect()
        };
        agent.must("qos", json!({ "prefetch": 10 }));
        agent.must("consume", json!({ "queue": "q", "tag": "t" }));
        let got = agent.take(10);
        assert_eq!(bodies(&got), names(&taken));
        agent.must("ack", json!({ "tag": got[9]["tag"], "multiple": true }));
        agent.take(10);
        // Answered behind the acknowledgement; what is written within some milliseconds survives.
        agent.must("queue_declare", json!({ "queue": "q", "passive": true }));
        publish(&mut agent, "last", Some(0));
        if round == 0 {
            drop(agent);
            node.stop();
        } else {
            node.kill();
        }
        node.restart();
        agent = pika(&node);
        let mut there = drain(&mut agent);
        assert_eq!(there.pop().as_deref(), Some("last"));
        // A kill may bring back what was acknowledged at the very end.
        let again = names(&taken);
        there.retain(|body| !(round == 1 && again.contains(body)));
        assert_eq!(there, names(&left));
        left.clear();
    }
}

/// Ours: a device says a priority with the user property that it is told one by.
#[test]
fn a_device_says_a_priority_too() {
    let node = Node::dev();
    let mut agent = pika(&node);
    queue(&mut agent, "q", json!({ "x-max-priority": 10 }));
    let bind = json!({ "queue": "q", "exchange": "amq.topic", "key": "alarms.#" });
    agent.must("queue_bind", bind);
    let to = node.addresses().mqtt;
    let mut device = Agent::paho().connected(to, json!({ "client_id": "device" }));
    for (body, user) in [
        ("plain", json!([])),
        ("urgent", json!([["amqp-priority", "9"]])),
        ("mild", json!([["room", "4"], ["amqp-priority", "2"]])),
    ] {
        let properties = json!({ "user": user });
        let topic = "alarms/fire";
        device.must(
            "publish",
            json!({ "topic": topic, "body": body, "qos": 1, "properties": properties }),
        );
    }
    assert_eq!(drain(&mut agent), ["urgent", "mild", "plain"]);
}

/// Ours: the API shows messages in the order in which they go out, and a purge counts all levels.
#[test]
fn the_api_sees_one_queue() {
    let node = Node::dev();
    let mut agent = pika(&node);
    queue(&mut agent, "q", json!({ "x-max-priority": 10 }));
    for (body, priority) in MIXED {
        publish(&mut agent, body, priority);
    }
    let api = node.api();
    let shown = api.stream("q");
    assert_eq!(shown["ready"], 6, "{shown:#}");
    assert_eq!(shown["limits"]["priority_max"], 10, "{shown:#}");
    let purged = agent.must("queue_purge", json!({ "queue": "q" }));
    assert_eq!(purged["messages"], 6, "{purged:#}");
}
