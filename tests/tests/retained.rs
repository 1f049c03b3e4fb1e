//! Retained messages, set and read by devices and by applications: the last value of each topic, there
//! for who comes later.

use anabranch_tests::{Agent, Node};
use serde_json::{Value, json};

fn connected(agent: Agent, node: &Node, client_id: &str, mut more: Value) -> Agent {
    more["client_id"] = json!(client_id);
    agent.connected(node.addresses().mqtt, more)
}

fn paho(node: &Node, client_id: &str) -> Agent {
    connected(Agent::paho(), node, client_id, json!({}))
}

fn retain(agent: &mut Agent, topic: &str, body: &str) {
    agent.must(
        "publish",
        json!({ "topic": topic, "body": body, "qos": 1, "retain": true }),
    );
}

/// Topic, body and retain flag, sorted by topic.
fn summary(messages: &[Value]) -> Vec<(&str, &str, bool)> {
    let mut all: Vec<(&str, &str, bool)> = messages
        .iter()
        .map(|message| {
            (
                message["topic"].as_str().expect("a topic"),
                message["body"].as_str().expect("text"),
                message["retain"] == true,
            )
        })
        .collect();
    all.sort_unstable();
    all
}

/// Subscribes and gives the last values that come for it: those before the one that it asks for next.
fn found(agent: &mut Agent, filter: &str, more: Value) -> Vec<Value> {
    let mut arguments = more;
    arguments["filters"] = json!([[filter, 1]]);
    agent.must("subscribe", arguments);
    agent.must("subscribe", json!({ "filters": [["$fence", 1]] }));
    let mut messages = Vec::new();
    loop {
        let message = agent.take_one();
        if message["topic"] == "$fence" {
            return messages;
        }
        messages.push(message);
    }
}

/// A device, after it has set the value that [`found`] asks for last.
fn device(node: &Node) -> Agent {
    let mut device = paho(node, "d");
    retain(&mut device, "$fence", "fence");
    device
}

/// [MQTT-3.3.1-6] to [MQTT-3.3.1-8]: the last value of each topic that a filter matches, until an empty
/// message clears it; across restarts and kills.
#[test]
fn the_last_value_of_each_topic_is_found_by_wildcards() {
    let mut node = Node::dev();
    let mut device = device(&node);
    for (topic, body) in [
        ("plant/1/temp", "old"),
        ("plant/1/temp", "20"),
        ("plant/2/temp", "21"),
        ("plant/2/level/a", "3"),
        ("other", "x"),
        ("$own/secret", "y"),
    ] {
        retain(&mut device, topic, body);
    }
    let not_kept = json!({ "topic": "plant/3/temp", "body": "22", "qos": 1 });
    device.must("publish", not_kept);
    let all = [
        ("other", "x", true),
        ("plant/1/temp", "20", true),
        ("plant/2/level/a", "3", true),
        ("plant/2/temp", "21", true),
    ];
    let see = |node: &Node, filter: &str, wanted: &[(&str, &str, bool)]| {
        for agent in [Agent::paho(), Agent::mqtt_js()] {
            let mut agent = connected(agent, node, "reader", json!({}));
            let messages = found(&mut agent, filter, json!({}));
            assert_eq!(summary(&messages), wanted, "{filter}");
        }
    };
    see(&node, "plant/+/temp", &[all[1], all[3]]);
    see(&node, "plant/2/#", &all[2..]);
    see(&node, "plant/2/temp", &all[3..]);
    see(&node, "+/2/+/a", &all[2..3]);
    // [MQTT-4.7.2-1]
    see(&node, "#", &all);
    see(&node, "$own/#", &[("$own/secret", "y", true)]);

    // [MQTT-3.3.1-10], [MQTT-3.3.1-11]: cleared, and who listens is told as of any message.
    let mut live = paho(&node, "live");
    found(&mut live, "plant/#", json!({}));
    retain(&mut device, "plant/2/temp", "");
    assert_eq!(summary(&live.take(1)), [("plant/2/temp", "", false)]);
    see(&node, "#", &all[..3]);
    for stop in [Node::kill, Node::stop] {
        stop(&mut node);
        node.restart();
        see(&node, "#", &all[..3]);
    }
}

/// [MQTT-3.3.1-9] to [MQTT-3.3.1-13]: what a subscription says about last values.
#[test]
fn a_subscription_chooses_when_it_gets_last_values() {
    let node = Node::dev();
    let mut device = device(&node);
    retain(&mut device, "a/1", "kept");
    let wanted = [("a/1", "kept", true)];
    for kind in [Agent::paho, Agent::mqtt_js] {
        for (handling, first, again) in [(0, 1, 1), (1, 1, 0), (2, 0, 0)] {
            let mut agent = connected(kind(), &node, "s", json!({}));
            for count in [first, again] {
                let more = json!({ "handling": handling });
                let messages = found(&mut agent, "a/+", more);
                assert_eq!(summary(&messages), wanted[..count], "handling {handling}");
            }
        }
        for as_published in [false, true] {
            let mut agent = connected(kind(), &node, "s", json!({}));
            let more = json!({ "handling": 2, "as_published": as_published });
            found(&mut agent, "b", more);
            retain(&mut device, "b", "live");
            assert_eq!(summary(&agent.take(1)), [("b", "live", as_published)]);
        }
    }
    // A shared subscription gets none.
    let mut member = paho(&node, "member");
    let none = found(&mut member, "$share/g/a/+", json!({}));
    assert!(none.is_empty(), "{none:#?}");
}

/// A session that was away gets the value that it had missed as a message, and only the newest as last
/// value when it subscribes again.
#[test]
fn a_session_that_comes_back_is_not_sent_last_values() {
    let node = Node::dev();
    let lasting = json!({ "clean": false, "expiry_s": 3_600 });
    let mut away = connected(Agent::paho(), &node, "away", lasting);
    away.must("subscribe", json!({ "filters": [["a", 1]] }));
    away.ask("disconnect", json!({}));
    let mut device = device(&node);
    retain(&mut device, "a", "1");
    retain(&mut device, "a", "2");
    let answer = away.ask("reconnect", json!({}));
    assert_eq!(answer["session_present"], true);
    let missed = [("a", "1", false), ("a", "2", false)];
    assert_eq!(summary(&away.take(2)), missed);
    let again = found(&mut away, "a", json!({}));
    assert_eq!(summary(&again), [("a", "2", true)]);
}

/// An application sets and clears last values with a header; devices find them.
#[test]
fn applications_set_last_values_by_header() {
    let node = Node::dev();
    let mut pika = Agent::pika().connected(node.addresses().amqp, json!({}));
    pika.must("confirm", json!({}));
    let mut amqplib = Agent::amqplib().connected(node.addresses().amqp, json!({}));
    let set = |agent: &mut Agent, key: &str, body: &str| {
        let properties = json!({ "delivery_mode": 2, "headers": { "x-mqtt-retain": true } });
        agent.must(
            "publish",
            json!({ "exchange": "amq.topic", "key": key, "body": body, "properties": properties }),
        );
    };
    set(&mut pika, "set.pika", "p");
    set(&mut amqplib, "set.amqplib", "a");
    device(&node);
    let both = [("set/amqplib", "a", true), ("set/pika", "p", true)];
    for (agent, version) in [(Agent::paho(), "3.1.1"), (Agent::mqtt_js(), "5")] {
        let mut agent = connected(agent, &node, "s", json!({ "version": version }));
        let messages = found(&mut agent, "set/#", json!({}));
        assert_eq!(summary(&messages), both);
    }
    set(&mut pika, "set.amqplib", "");
    let mut agent = paho(&node, "s");
    let messages = found(&mut agent, "set/#", json!({}));
    assert_eq!(summary(&messages), both[1..]);
}

/// An application reads last values by binding a queue with an argument.
#[test]
fn applications_read_last_values_by_a_binding() {
    let mut node = Node::dev();
    let mut device = paho(&node, "d");
    retain(&mut device, "plant/1/temp", "20");
    retain(&mut device, "plant/2/temp", "21");
    retain(&mut device, "plant/2/level", "3");
    node.kill();
    node.restart();
    for (agent, queue) in [(Agent::pika(), "by-pika"), (Agent::amqplib(), "by-amqplib")] {
        let mut agent = agent.connected(node.addresses().amqp, json!({}));
        agent.must("queue_declare", json!({ "queue": queue, "durable": true }));
        let mut bind = json!({ "queue": queue, "exchange": "amq.topic", "key": "plant.*.temp" });
        agent.must("queue_bind", bind.clone());
        let declared = agent.must("queue_declare", json!({ "queue": queue, "passive": true }));
        assert_eq!(declared["messages"], 0, "without the argument: nothing");
        bind["arguments"] = json!({ "x-retained": true });
        agent.must("queue_bind", bind);
        agent.must("consume", json!({ "queue": queue, "no_ack": true }));
        let mut messages = agent.take(2);
        messages.sort_by_key(|message| message["key"].to_string());
        for (message, (key, body)) in messages
            .iter()
            .zip([("plant.1.temp", "20"), ("plant.2.temp", "21")])
        {
            assert_eq!(
                (&message["key"], &message["body"]),
                (&json!(key), &json!(body))
            );
            let headers = &message["properties"]["headers"];
            assert_eq!(headers["x-mqtt-retain"], true, "{message:#}");
        }
        // What is published from now on comes as it always does.
        let mut device = paho(&node, "d");
        retain(&mut device, "plant/1/temp", "20");
        assert_eq!(agent.take_one()["body"], "20");
    }
}
