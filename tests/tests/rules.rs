//! Who may do what, in both protocols alike: a user who may only read `plant/+/temp` is refused
//! everything else, and a change of the rules acts on live connections within a second.

use std::time::{Duration, Instant};

use anabranch_tests::{Agent, Api, Node};
use serde_json::{Value, json};

/// What a change may take until it acts.
const ACTS_WITHIN: Duration = Duration::from_secs(1);

const READER: &str = "reader";
const PASSWORD: &str = "a password of the test";

fn anything() -> Value {
    json!({ "vhost": "/", "kind": "*", "match": "prefix", "pattern": "" })
}

fn topics(filter: &str) -> Value {
    json!({ "vhost": "/", "kind": "topic", "match": "filter", "pattern": filter })
}

fn queue(name: &str) -> Value {
    json!({ "vhost": "/", "kind": "queue", "match": "literal", "pattern": name })
}

/// Names of the reader's rules.
struct Rules {
    topics: String,
    queue: String,
}

/// A node whose `reader` may read `plant/+/temp`: as topic, and from the queue `temps`.
fn node_with_reader() -> (Node, Api, Rules) {
    let node = Node::secured();
    let api = node.api();
    api.create_user(READER, PASSWORD);
    api.allow(READER, &["connect"], anything());
    let topics = api.allow(READER, &["subscribe", "receive"], topics("plant/+/temp"));
    let queue = api.allow(READER, &["consume"], queue("temps"));
    (node, api, Rules { topics, queue })
}

fn device(node: &Node, user: &str, password: &str, version: &str) -> Agent {
    let arguments = json!({
        "client_id": format!("{user}-{version}"),
        "user": user,
        "password": password,
        "version": version,
    });
    Agent::paho().connected(node.addresses().mqtt, arguments)
}

fn application(node: &Node, user: &str, password: &str) -> Agent {
    Agent::pika().connected(
        node.addresses().amqp,
        json!({ "user": user, "password": password }),
    )
}

/// `admin` over AMQP, with the queues of the tests: `temps` gets temperatures and humidity.
fn administrator(node: &Node) -> Agent {
    let mut admin = application(node, "admin", &node.admin_password());
    for name in ["temps", "secret"] {
        admin.must("queue_declare", json!({ "queue": name, "durable": true }));
    }
    for key in ["plant.*.temp", "plant.*.hum"] {
        admin.must(
            "queue_bind",
            json!({ "queue": "temps", "exchange": "amq.topic", "key": key }),
        );
    }
    admin.must("confirm", json!({}));
    admin
}

/// Repeats `attempt` until it succeeds and gives the time it took since the first.
fn until(what: &str, mut attempt: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !attempt() {
        assert!(started.elapsed() < Duration::from_secs(10), "never: {what}");
    }
    started.elapsed()
}

#[test]
fn a_reader_over_mqtt_is_refused_everything_else() {
    let (node, _api, _) = node_with_reader();
    let mut admin = administrator(&node);
    let mut reader = device(&node, READER, PASSWORD, "5");
    for filter in ["plant/+/temp", "plant/7/temp"] {
        let granted = reader.ask("subscribe", json!({ "filters": [[filter, 1]] }));
        assert_eq!(granted["reasons"], json!([1]), "{filter}");
    }
    let refused = [
        "#",
        "plant/#",
        "plant/+/+",
        "+/7/temp",
        "plant/7/hum",
        "plant/7/temp/inner",
        "plant/temp",
        "$SYS/#",
    ];
    for filter in refused {
        let answer = reader.ask("subscribe", json!({ "filters": [[filter, 1]] }));
        assert_eq!(answer["reasons"], json!([0x87]), "{filter}: {answer}");
    }
    // One refusal among several leaves the others granted.
    let filters = json!([["plant/8/temp", 1], ["plant/8/hum", 1]]);
    let answer = reader.ask("subscribe", json!({ "filters": filters }));
    assert_eq!(answer["reasons"], json!([1, 0x87]));
    // Publishing is refused by name, to any topic.
    for topic in ["plant/7/temp", "other"] {
        let answer = reader.ask("publish", json!({ "topic": topic, "body": "x", "qos": 1 }));
        assert_eq!(answer["reasons"], json!([0x87]), "{topic}: {answer}");
    }
    // What it may read arrives; of overlapping subscriptions one copy or several, but no humidity.
    for (key, body) in [("plant.7.hum", "no"), ("plant.7.temp", "yes")] {
        admin.must(
            "publish",
            json!({ "exchange": "amq.topic", "key": key, "body": body }),
        );
    }
    assert_eq!(reader.take_one()["body"], "yes");
}

#[test]
fn a_reader_over_mqtt_3_1_1_is_refused_in_its_words() {
    let (node, _api, _) = node_with_reader();
    let mut reader = device(&node, READER, PASSWORD, "3.1.1");
    let answer = reader.ask(
        "subscribe",
        json!({ "filters": [["plant/+/temp", 1], ["plant/#", 1]] }),
    );
    assert_eq!(answer["reasons"], json!([1, 0x80]), "{answer}");
    // 3.1.1 has no negative acknowledgement [MQTT-3.3.5-2]: the connection is closed.
    let answer = reader.ask(
        "publish",
        json!({ "topic": "plant/7/temp", "body": "x", "qos": 1 }),
    );
    assert!(answer["closed"].is_object(), "{answer}");
}

#[test]
fn a_reader_over_amqp_is_refused_everything_else() {
    let (node, _api, _) = node_with_reader();
    let mut admin = administrator(&node);
    let mut reader = application(&node, READER, PASSWORD);
    let refused = [
        ("queue_declare", json!({ "queue": "mine" })),
        (
            "queue_declare",
            json!({ "queue": "temps", "durable": true }),
        ),
        ("queue_delete", json!({ "queue": "temps" })),
        ("queue_purge", json!({ "queue": "temps" })),
        (
            "queue_bind",
            json!({ "queue": "temps", "exchange": "amq.topic", "key": "#" }),
        ),
        (
            "queue_unbind",
            json!({ "queue": "temps", "exchange": "amq.topic", "key": "plant.*.hum" }),
        ),
        (
            "exchange_declare",
            json!({ "exchange": "mine", "exchange_type": "fanout" }),
        ),
        ("consume", json!({ "queue": "secret" })),
        ("get", json!({ "queue": "secret" })),
    ];
    for (operation, arguments) in refused {
        let answer = reader.ask(operation, arguments.clone());
        assert_eq!(
            answer["channel_closed"]["code"], 403,
            "{operation} {arguments}: {answer}"
        );
    }
    for (channel, exchange, key) in [
        ("p1", "amq.topic", "plant.7.temp"),
        ("p2", "amq.topic", "other"),
        ("p3", "", "temps"),
        ("p4", "amq.fanout", ""),
    ] {
        let publish = json!({ "exchange": exchange, "key": key, "body": "x", "channel": channel });
        let answer = reader.ask("publish", publish);
        let answer = match answer.get("channel_closed") {
            Some(_) => answer,
            None => reader.ask("wait_lost", json!({ "channel": channel })),
        };
        assert_eq!(
            answer["channel_closed"]["code"], 403,
            "{exchange} {key}: {answer}"
        );
    }

    // `receive` is asked again at delivery: humidity is in the queue, and is skipped.
    for (key, body) in [
        ("plant.7.hum", "no"),
        ("plant.7.temp", "yes"),
        ("plant.8.hum", "no"),
    ] {
        admin.must(
            "publish",
            json!({ "exchange": "amq.topic", "key": key, "body": body }),
        );
    }
    reader.must("consume", json!({ "queue": "temps" }));
    let delivery = reader.take_one();
    assert_eq!(delivery["body"], "yes", "{delivery:#}");
    reader.must("ack", json!({ "tag": delivery["tag"] }));
    // What it may not have does not block what comes behind it.
    let publish = json!({ "exchange": "amq.topic", "key": "plant.9.temp", "body": "and on" });
    admin.must("publish", publish);
    assert_eq!(reader.take_one()["body"], "and on");
}

#[test]
fn a_lost_right_ends_live_subscriptions_and_consumers_within_a_second() {
    let (node, api, rules) = node_with_reader();
    let mut admin = administrator(&node);
    let mut mqtt_reader = device(&node, READER, PASSWORD, "5");
    mqtt_reader.must("subscribe", json!({ "filters": [["plant/+/temp", 1]] }));
    let mut amqp_reader = application(&node, READER, PASSWORD);
    amqp_reader.must("consume", json!({ "queue": "temps" }));
    let publish = json!({ "exchange": "amq.topic", "key": "plant.7.temp", "body": "before" });
    admin.must("publish", publish);
    assert_eq!(mqtt_reader.take_one()["body"], "before");
    let delivery = amqp_reader.take_one();
    amqp_reader.must("ack", json!({ "tag": delivery["tag"] }));

    mqtt_reader.begin("wait_closed", json!({}));
    amqp_reader.begin("wait_lost", json!({}));
    let started = Instant::now();
    api.delete_rule(&rules.queue);
    let lost = amqp_reader.finish("wait_lost");
    let took = started.elapsed();
    assert!(lost["cancelled"].is_string(), "basic.cancel: {lost}");
    assert!(took < ACTS_WITHIN, "the consumer ended after {took:?}");

    let started = Instant::now();
    api.delete_rule(&rules.topics);
    let closed = mqtt_reader.finish("wait_closed");
    let took = started.elapsed();
    assert_eq!(closed["closed"]["reason"], 0x87, "not authorized: {closed}");
    assert!(took < ACTS_WITHIN, "the subscription ended after {took:?}");

    let answer = amqp_reader.ask("consume", json!({ "queue": "temps", "channel": "again" }));
    assert_eq!(answer["channel_closed"]["code"], 403, "{answer}");
    let mut mqtt_reader = device(&node, READER, PASSWORD, "5");
    let answer = mqtt_reader.ask("subscribe", json!({ "filters": [["plant/+/temp", 1]] }));
    assert_eq!(answer["reasons"], json!([0x87]), "{answer}");
}

#[test]
fn publishers_are_refused_and_allowed_at_their_next_message() {
    let node = Node::secured();
    let api = node.api();
    let mut admin = administrator(&node);
    admin.must("consume", json!({ "queue": "temps", "no_ack": true }));
    api.create_user("writer", PASSWORD);
    api.allow("writer", &["connect"], anything());
    let mut mqtt_writer = device(&node, "writer", PASSWORD, "5");
    let mut amqp_writer = application(&node, "writer", PASSWORD);
    amqp_writer.must("confirm", json!({ "channel": "1" }));

    let mut by_mqtt = || {
        let publish = json!({ "topic": "plant/7/temp", "body": "m", "qos": 1 });
        let answer = mqtt_writer.ask("publish", publish);
        match answer["reasons"][0].as_u64() {
            Some(0) => true,
            Some(0x87) => false,
            _ => panic!("neither taken nor refused: {answer}"),
        }
    };
    let mut channel = 1;
    let mut by_amqp = || {
        let publish = json!({
            "exchange": "amq.topic",
            "key": "plant.7.temp",
            "body": "a",
            "channel": channel.to_string(),
        });
        let answer = amqp_writer.ask("publish", publish);
        if answer["confirmed"] == true {
            return true;
        }
        assert_eq!(answer["channel_closed"]["code"], 403, "{answer}");
        // The refusal closed the channel; the next attempt opens another.
        channel += 1;
        amqp_writer.must("confirm", json!({ "channel": channel.to_string() }));
        false
    };
    assert!(!by_mqtt() && !by_amqp(), "no rule yet");

    let rule = api.allow("writer", &["publish"], topics("plant/+/temp"));
    let took = until("allowed over MQTT", &mut by_mqtt);
    assert!(took < ACTS_WITHIN, "allowed over MQTT after {took:?}");
    let took = until("allowed over AMQP", &mut by_amqp);
    assert!(took < ACTS_WITHIN, "allowed over AMQP after {took:?}");
    let mut bodies: Vec<String> = admin
        .take(2)
        .iter()
        .map(|m| m["body"].as_str().unwrap().to_owned())
        .collect();
    bodies.sort();
    assert_eq!(bodies, ["a", "m"]);

    api.delete_rule(&rule);
    let took = until("refused over MQTT", || !by_mqtt());
    assert!(took < ACTS_WITHIN, "refused over MQTT after {took:?}");
    let took = until("refused over AMQP", || !by_amqp());
    assert!(took < ACTS_WITHIN, "refused over AMQP after {took:?}");
}

/// A deny inside an allowed wildcard: `receive` is decided message by message.
#[test]
fn a_deny_inside_an_allowed_wildcard_holds_at_delivery() {
    let (node, api, _) = node_with_reader();
    api.rule("deny", 10, READER, &["receive"], topics("plant/9/temp"));
    let mut admin = administrator(&node);
    let mut mqtt_reader = device(&node, READER, PASSWORD, "5");
    mqtt_reader.must("subscribe", json!({ "filters": [["plant/+/temp", 1]] }));
    let mut amqp_reader = application(&node, READER, PASSWORD);
    amqp_reader.must("consume", json!({ "queue": "temps" }));
    for (key, body) in [("plant.9.temp", "no"), ("plant.1.temp", "yes")] {
        admin.must(
            "publish",
            json!({ "exchange": "amq.topic", "key": key, "body": body }),
        );
    }
    assert_eq!(mqtt_reader.take_one()["body"], "yes");
    assert_eq!(amqp_reader.take_one()["body"], "yes");
}

#[test]
fn deleting_a_user_ends_its_connections() {
    let (node, api, _) = node_with_reader();
    let mut mqtt_reader = device(&node, READER, PASSWORD, "5");
    let mut amqp_reader = application(&node, READER, PASSWORD);
    amqp_reader.must("qos", json!({ "prefetch": 1 }));
    mqtt_reader.begin("wait_closed", json!({}));
    amqp_reader.begin("wait_lost", json!({}));
    let started = Instant::now();
    api.delete("/users/reader").expect(204);
    let closed = mqtt_reader.finish("wait_closed");
    let lost = amqp_reader.finish("wait_lost");
    let took = started.elapsed();
    assert!(closed["closed"]["by_server"] == true, "{closed}");
    assert!(lost["connection_closed"].is_object(), "{lost}");
    assert!(took < ACTS_WITHIN, "{took:?}");
}

/// The rule that decides is named, and the answer is the one that the protocols give.
#[test]
fn explain_names_the_deciding_rule() {
    let (node, api, rules) = node_with_reader();
    let explain = |action: &str, kind: &str, name: &str| {
        let query = format!(
            "/rules/explain?user={READER}&action={action}&vhost=%2F&kind={kind}&name={}",
            name.replace('/', "%2F")
                .replace('+', "%2B")
                .replace('#', "%23")
        );
        api.get(&query).expect(200)
    };
    let answer = explain("receive", "topic", "plant/7/temp");
    assert_eq!(answer["allowed"], true, "{answer:#}");
    assert_eq!(answer["rule"], rules.topics, "{answer:#}");
    let answer = explain("publish", "topic", "plant/7/temp");
    assert_eq!(answer["allowed"], false);
    assert_eq!(answer["rule"], Value::Null);
    let answer = explain("consume", "queue", "temps");
    assert_eq!(
        (&answer["allowed"], &answer["rule"]),
        (&json!(true), &json!(rules.queue))
    );
    drop(node);
}
