//! A device publishes over MQTT and an application consumes over AMQP, and the other way round:
//! payloads, addresses and properties arrive intact, with clients nobody here wrote.

use anabranch_tests::mosquitto::{self, Subscriber};
use anabranch_tests::{Agent, Node};
use serde_json::{Value, json};

/// Addresses as MQTT and as AMQP write them; each line is a bijection in both directions.
const ADDRESSES: &[(&str, &str)] = &[
    ("plant/7/temp", "plant.7.temp"),
    // A dot inside a level is no separator, so `a.b/c` and `a/b/c` never meet.
    ("x/a.b/c", "x.a%2Eb.c"),
    ("x/a/b/c", "x.a.b.c"),
    ("x/spBv1.0/g", "x.spBv1%2E0.g"),
    // Empty levels, also at the end.
    ("x//c", "x..c"),
    ("x/", "x."),
    ("x///", "x..."),
    // A percent sign is text; only what looks like an escape gains one.
    ("x/50%/y", "x.50%.y"),
    ("x/50%2E/y", "x.50%252E.y"),
    ("x/%252E", "x.%25252E"),
    // AMQP's wildcards are text in an MQTT topic.
    ("x/*/y", "x.%2A.y"),
    ("x/a*b", "x.a%2Ab"),
    // MQTT's wildcards and separator are text in an AMQP key.
    ("x/a%2Fb/c", "x.a/b.c"),
    ("x/a%2Bb", "x.a+b"),
    // UTF-8, a blank, and characters outside the basic plane.
    ("x/Größe/°C/温度/🌡", "x.Größe.°C.温度.🌡"),
    ("x/a b", "x.a b"),
];

fn paho(node: &Node, client_id: &str) -> Agent {
    Agent::paho().connected(node.addresses().mqtt, json!({ "client_id": client_id }))
}

fn pika(node: &Node) -> Agent {
    Agent::pika().connected(node.addresses().amqp, json!({}))
}

/// pika with a durable queue `readings` on `amq.topic` for `key`, consuming.
fn pika_consuming(node: &Node, key: &str) -> Agent {
    let mut application = pika(node);
    application.must(
        "queue_declare",
        json!({ "queue": "readings", "durable": true }),
    );
    application.must(
        "queue_bind",
        json!({ "queue": "readings", "exchange": "amq.topic", "key": key }),
    );
    application.must("consume", json!({ "queue": "readings" }));
    application
}

#[test]
fn mosquitto_pub_reaches_pika_on_a_durable_queue() {
    let node = Node::dev();
    let mut application = pika_consuming(&node, "plant.#");
    for (qos, delivery_mode) in [("0", 1), ("1", 2)] {
        let (code, output) = mosquitto::publish(
            node.addresses().mqtt,
            &["-V", "5", "-t", "plant/7/temp", "-m", "21.5 °C", "-q", qos],
        );
        assert_eq!(code, 0, "{output}");
        let delivery = application.take_one();
        assert_eq!(delivery["exchange"], "amq.topic");
        assert_eq!(delivery["key"], "plant.7.temp");
        assert_eq!(delivery["body"], "21.5 °C");
        assert_eq!(delivery["redelivered"], false);
        assert_eq!(
            delivery["properties"]["delivery_mode"], delivery_mode,
            "{delivery:#}"
        );
        assert_eq!(
            delivery["properties"]["headers"]["x-mqtt-topic"],
            "plant/7/temp"
        );
        assert_eq!(
            delivery["properties"]["headers"]["x-mqtt-qos"].to_string(),
            qos
        );
        application.must("ack", json!({ "tag": delivery["tag"] }));
    }
}

#[test]
fn mosquitto_pub_of_3_1_1_reaches_pika() {
    let node = Node::dev();
    let mut application = pika_consuming(&node, "plant.*.temp");
    let (code, output) = mosquitto::publish(
        node.addresses().mqtt,
        &["-V", "311", "-t", "plant/7/temp", "-m", "x", "-q", "1"],
    );
    assert_eq!(code, 0, "{output}");
    assert_eq!(application.take_one()["body"], "x");
}

#[test]
fn pika_and_amqplib_reach_mosquitto_sub_and_paho() {
    let node = Node::dev();
    let mut shell = Subscriber::start(
        node.addresses().mqtt,
        &["-V", "5", "-q", "1", "-t", "plant/#"],
        "%t|%q|%p",
    );
    let mut device = paho(&node, "device");
    device.must("subscribe", json!({ "filters": [["plant/#", 1]] }));
    let mut python = pika(&node);
    python.must("confirm", json!({}));
    let node_js = Agent::amqplib().connected(node.addresses().amqp, json!({}));
    for (mut application, name) in [(python, "pika"), (node_js, "amqplib")] {
        for (delivery_mode, qos) in [(1, 0), (2, 1)] {
            let body = format!("from {name} in mode {delivery_mode}");
            let publish = json!({
                "exchange": "amq.topic",
                "key": "plant.7.set",
                "body": body,
                "properties": { "delivery_mode": delivery_mode },
            });
            application.must("publish", publish);
            assert_eq!(shell.take_one(), format!("plant/7/set|{qos}|{body}"));
            let message = device.take_one();
            assert_eq!(message["topic"], "plant/7/set");
            assert_eq!(message["body"], body);
            assert_eq!(message["qos"], qos, "{message:#}");
            assert_eq!(message["retain"], false);
        }
    }
    shell.stop();
}

#[test]
fn mqtt_js_and_amqplib_talk_to_each_other() {
    let node = Node::dev();
    let mut device = Agent::mqtt_js().connected(
        node.addresses().mqtt,
        json!({ "client_id": "js", "version": "5" }),
    );
    device.must("subscribe", json!({ "filters": [["to/js", 1]] }));
    let mut application = Agent::amqplib().connected(node.addresses().amqp, json!({}));
    let queue = application.must("queue_declare", json!({ "exclusive": true }));
    application.must(
        "queue_bind",
        json!({ "queue": queue["queue"], "exchange": "amq.topic", "key": "from.js" }),
    );
    application.must(
        "consume",
        json!({ "queue": queue["queue"], "no_ack": true }),
    );

    device.must(
        "publish",
        json!({ "topic": "from/js", "body": "ping", "qos": 1 }),
    );
    assert_eq!(application.take_one()["body"], "ping");
    application.must(
        "publish",
        json!({ "exchange": "amq.topic", "key": "to.js", "body": "pong" }),
    );
    assert_eq!(device.take_one()["body"], "pong");
}

#[test]
fn addresses_are_a_bijection_from_mqtt_to_amqp() {
    let node = Node::dev();
    let mut application = pika_consuming(&node, "#");
    let mut device = paho(&node, "device");
    for (topic, key) in ADDRESSES {
        device.must(
            "publish",
            json!({ "topic": topic, "body": topic, "qos": 1 }),
        );
        let delivery = application.take_one();
        assert_eq!(delivery["key"], *key, "of topic {topic}");
        assert_eq!(delivery["properties"]["headers"]["x-mqtt-topic"], *topic);
        assert_eq!(delivery["body"], *topic);
    }
}

#[test]
fn addresses_are_a_bijection_from_amqp_to_mqtt() {
    let node = Node::dev();
    let mut device = paho(&node, "device");
    device.must("subscribe", json!({ "filters": [["#", 1]] }));
    let mut application = pika(&node);
    for (topic, key) in ADDRESSES {
        application.must(
            "publish",
            json!({ "exchange": "amq.topic", "key": key, "body": key }),
        );
        let message = device.take_one();
        assert_eq!(message["topic"], *topic, "of key {key}");
        assert_eq!(message["body"], *key);
    }
}

/// A filter of one protocol sees what the other publishes; `a.b/c` and `a/b/c` never meet.
#[test]
fn filters_match_canonical_levels() {
    let node = Node::dev();
    let mut application = pika_consuming(&node, "a.b.c");
    let mut device = paho(&node, "device");
    device.must("subscribe", json!({ "filters": [["a/+/c", 1]] }));

    device.must(
        "publish",
        json!({ "topic": "a.b/c", "body": "not this", "qos": 1 }),
    );
    device.must(
        "publish",
        json!({ "topic": "a/b/c", "body": "this", "qos": 1 }),
    );
    assert_eq!(application.take_one()["body"], "this");
    assert_eq!(device.take_one()["body"], "this");
    application.must(
        "publish",
        json!({ "exchange": "amq.topic", "key": "a.x.c", "body": "plus" }),
    );
    assert_eq!(device.take_one()["topic"], "a/x/c");
}

/// Section 8 of the design: content type, correlation, user properties, expiry, quality.
#[test]
fn properties_arrive_from_mqtt_at_amqp() {
    let node = Node::dev();
    let mut application = pika_consuming(&node, "#");
    let mut device = paho(&node, "device");
    let mut publish = |properties: Value| {
        let publish = json!({ "topic": "p/x", "body": "b", "qos": 1, "properties": properties });
        device.must("publish", publish);
        application.take_one()["properties"].take()
    };

    let got = publish(json!({
        "content_type": "application/json; charset=utf-8",
        "correlation": "order 17",
        "expiry_s": 60,
        "user": [["unit", "°C"], ["empty", ""]],
        "response_topic": "answers/7.1",
        "payload_format": 1,
    }));
    assert_eq!(got["content_type"], "application/json; charset=utf-8");
    assert_eq!(got["correlation_id"], "order 17");
    assert_eq!(got["headers"]["x-mqtt-correlation-data"], "order 17");
    assert_eq!(got["headers"]["unit"], "°C");
    assert_eq!(got["headers"]["empty"], "");
    assert_eq!(got["headers"]["x-mqtt-response-topic"], "answers/7.1");
    assert_eq!(got["reply_to"], "mqtt:answers/7.1");
    assert!(got["headers"]["x-mqtt-payload-format"] == 1, "{got:#}");
    let left_ms: u64 = got["expiration"]
        .as_str()
        .expect("a text")
        .parse()
        .expect("a number");
    assert!((1..=60_000).contains(&left_ms), "{left_ms} ms");

    // Repeated names: the first value is the header, the ordered list holds all.
    let got = publish(json!({ "user": [["k", "1"], ["other", "x"], ["k", "2"]] }));
    assert_eq!(got["headers"]["k"], "1");
    assert_eq!(got["headers"]["other"], "x");
    let list = &got["headers"]["x-mqtt-user-properties"];
    assert_eq!(
        *list,
        json!([["k", "1"], ["other", "x"], ["k", "2"]]),
        "{got:#}"
    );

    // What does not fit travels in a header.
    let got =
        publish(json!({ "correlation": { "hex": "00ff80" }, "content_type": "t".repeat(300) }));
    assert_eq!(got.get("correlation_id"), None, "{got:#}");
    assert_eq!(
        got["headers"]["x-mqtt-correlation-data"],
        json!({ "hex": "00ff80" })
    );
    assert_eq!(got.get("content_type"), None);
    assert_eq!(got["headers"]["x-mqtt-content-type"], "t".repeat(300));

    // Nothing is made up.
    let got = publish(json!({}));
    for name in [
        "content_type",
        "correlation_id",
        "expiration",
        "reply_to",
        "message_id",
    ] {
        assert_eq!(got.get(name), None, "{got:#}");
    }
}

#[test]
fn properties_arrive_from_amqp_at_mqtt() {
    let node = Node::dev();
    let mut device = paho(&node, "device");
    device.must("subscribe", json!({ "filters": [["#", 1]] }));
    let mut application = pika(&node);
    let mut publish = |properties: Value| {
        application.must(
            "publish",
            json!({ "exchange": "amq.topic", "key": "p.x", "body": "b", "properties": properties }),
        );
        device.take_one()
    };

    let got = publish(json!({
        "content_type": "text/plain",
        "correlation_id": "order 17",
        "expiration": "60500",
        "delivery_mode": 2,
        "headers": { "unit": "°C", "n": 5, "yes": true },
        "message_id": "m-1",
        "app_id": "pump",
        "type": "reading",
        "priority": 3,
        "timestamp": 1_700_000_000,
    }));
    assert_eq!(got["qos"], 1);
    let properties = &got["properties"];
    assert_eq!(properties["content_type"], "text/plain");
    assert_eq!(properties["correlation"], "order 17");
    // Rounded up: a message that lives never shows 0.
    let left_s = properties["expiry_s"].as_u64().expect("a number");
    assert!((1..=61).contains(&left_s), "{left_s} s");
    let user = properties["user"].as_array().expect("user properties");
    for pair in [
        ["unit", "°C"],
        ["n", "5"],
        ["yes", "true"],
        ["amqp-message_id", "m-1"],
        ["amqp-app_id", "pump"],
        ["amqp-type", "reading"],
        ["amqp-priority", "3"],
        ["amqp-timestamp", "1700000000"],
    ] {
        assert!(user.contains(&json!(pair)), "{pair:?} in {user:#?}");
    }

    // No mode given is transient.
    let got = publish(json!({}));
    assert_eq!(got["qos"], 0);
    assert_eq!(got["properties"], json!({}), "nothing is made up");
}

/// A device's message that an application sends on as it came is the message the device sent.
#[test]
fn properties_survive_the_way_there_and_back() {
    let node = Node::dev();
    let mut application = pika_consuming(&node, "there.#");
    let mut device = paho(&node, "device");
    device.must("subscribe", json!({ "filters": [["back", 1]] }));
    let sent = json!({
        "content_type": "text/plain",
        "correlation": { "hex": "00ff" },
        "user": [["k", "1"], ["other", "x"], ["k", "2"]],
        "response_topic": "r/s.t",
        "payload_format": 1,
    });
    device.must(
        "publish",
        json!({ "topic": "there", "body": "b", "qos": 1, "properties": sent }),
    );
    let delivery = application.take_one();
    let back = json!({
        "exchange": "amq.topic",
        "key": "back",
        "body": delivery["body"],
        "properties": delivery["properties"],
    });
    application.must("publish", back);
    let got = device.take_one();
    assert_eq!(got["properties"], sent);
    assert_eq!(got["qos"], 1);
}

/// In the same protocol what came in goes out, types, order and repetitions included.
#[test]
fn the_same_protocol_forwards_the_original_properties() {
    let node = Node::dev();
    let mut device = paho(&node, "device");
    device.must("subscribe", json!({ "filters": [["m/#", 1]] }));
    let sent = json!({
        "content_type": "text/plain",
        "correlation": { "hex": "00ff" },
        "user": [["k", "2"], ["a", ""], ["k", "1"]],
        "response_topic": "r/s",
        "payload_format": 1,
    });
    device.must(
        "publish",
        json!({ "topic": "m/1", "body": "b", "qos": 1, "properties": sent }),
    );
    assert_eq!(device.take_one()["properties"], sent);

    let mut application = pika_consuming(&node, "a.#");
    let sent = json!({
        "content_type": "application/x",
        "content_encoding": "gzip",
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "readings",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "t",
        "app_id": "a",
        "headers": {
            "text": "x",
            "number": -5,
            "big": 1_099_511_627_776_i64,
            "yes": true,
            "nothing": null,
            "bytes": { "hex": "00ff" },
            "list": [1, "two", [3]],
            "table": { "inner": { "deep": 1 } },
        },
    });
    application.must(
        "publish",
        json!({ "exchange": "amq.topic", "key": "a.1", "body": "b", "properties": sent }),
    );
    assert_eq!(application.take_one()["properties"], sent);
}

#[test]
fn payloads_of_any_bytes_and_sizes_arrive() {
    let node = Node::dev();
    let mut application = pika_consuming(&node, "#");
    let mut device = paho(&node, "device");
    device.must("subscribe", json!({ "filters": [["back", 1]] }));
    let every_byte: String = (0..=255).map(|byte: u8| format!("{byte:02x}")).collect();
    let bodies = [
        json!(""),
        json!({ "hex": every_byte }),
        json!("x".repeat(1_024)),
        // More than one AMQP frame of the default size.
        json!("0123456789".repeat(30_000)),
    ];
    for body in bodies {
        device.must(
            "publish",
            json!({ "topic": "there", "body": body, "qos": 1 }),
        );
        let delivery = application.take_one();
        assert!(
            delivery["body"] == body,
            "a body of {} characters",
            body.to_string().len()
        );
        application.must("ack", json!({ "tag": delivery["tag"] }));
        application.must(
            "publish",
            json!({ "exchange": "amq.topic", "key": "back", "body": body }),
        );
        assert!(device.take_one()["body"] == body);
        // The application's own queue has it too.
        let delivery = application.take_one();
        application.must("ack", json!({ "tag": delivery["tag"] }));
    }
}

/// 64 KiB of topic and properties in all: nothing is cut but the routing key, which cannot be longer
/// than 255 bytes; the whole topic is in the header.
#[test]
fn sixty_four_kib_of_topic_and_properties_arrive() {
    let node = Node::dev();
    let mut application = pika_consuming(&node, "big.#");
    let mut device = paho(&node, "device");
    let level = "t".repeat(149);
    let topic = format!("big{}", format!("/{level}").repeat(100));
    let value = "v".repeat(498);
    let count = (65_536 - topic.len()) / 500;
    let user: Vec<Value> = (0..count).map(|_| json!(["k", value])).collect();
    let sent = json!({ "user": user });
    device.must("subscribe", json!({ "filters": [["big/#", 1]] }));
    device.must(
        "publish",
        json!({ "topic": topic, "body": "b", "qos": 1, "properties": sent }),
    );

    let delivery = application.take_one();
    let headers = &delivery["properties"]["headers"];
    assert!(headers["x-mqtt-topic"] == topic, "the whole topic");
    assert!(
        headers["x-mqtt-user-properties"] == json!(user),
        "all user properties"
    );
    let key = delivery["key"].as_str().expect("a text");
    assert!(
        key.len() <= 255 && key.starts_with("big.ttt") && key.contains('~'),
        "{key}"
    );

    let message = device.take_one();
    assert!(
        message["topic"] == topic && message["properties"] == sent,
        "within MQTT as well"
    );
}

/// The same size from the other side: as many headers as fit, and the longest key.
#[test]
fn sixty_four_kib_of_headers_arrive() {
    let node = Node::dev();
    let mut device = paho(&node, "device");
    device.must("subscribe", json!({ "filters": [["big/#", 1]] }));
    let mut application = pika(&node);
    let key = format!("big.{}", "k".repeat(251));
    let value = "v".repeat(990);
    let headers: serde_json::Map<String, Value> = (0..64)
        .map(|n| (format!("h{n:02}"), json!(value)))
        .collect();
    application.must(
        "publish",
        json!({
            "exchange": "amq.topic",
            "key": key,
            "body": "b",
            "properties": { "headers": headers },
        }),
    );
    let message = device.take_one();
    assert_eq!(message["topic"], key.replacen('.', "/", 1));
    let user = message["properties"]["user"]
        .as_array()
        .expect("user properties");
    assert_eq!(user.len(), headers.len());
    for pair in user {
        let name = pair[0].as_str().expect("a name");
        assert!(headers.get(name) == Some(&pair[1]), "{name}");
    }
}

/// A message whose time is over arrives nowhere; what is behind it does.
#[test]
fn expired_messages_are_delivered_to_neither_protocol() {
    let node = Node::dev();
    let mut application = pika(&node);
    application.must("queue_declare", json!({ "queue": "late", "durable": true }));
    application.must(
        "queue_bind",
        json!({ "queue": "late", "exchange": "amq.topic", "key": "late" }),
    );
    application.must("confirm", json!({}));
    let expiring = json!({ "delivery_mode": 2, "expiration": "1" });
    application.must(
        "publish",
        json!({ "exchange": "amq.topic", "key": "late", "body": "expires", "properties": expiring }),
    );
    // A publish of another client and its acknowledgement take longer than a millisecond.
    let mut device = paho(&node, "device");
    device.must(
        "publish",
        json!({ "topic": "late", "body": "stays", "qos": 1 }),
    );
    let first = application.must("get", json!({ "queue": "late", "no_ack": true }));
    assert_eq!(first["body"], "stays", "{first:#}");
}
