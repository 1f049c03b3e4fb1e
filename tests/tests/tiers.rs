//! Old segments in an object store, with a real node: what was moved is replayed to applications and devices as if it
//! were on the disk; while the store is away its readers wait and everybody else goes on.

use std::path::Path;
use std::time::{Duration, Instant};

use anabranch_tests::node::Start;
use anabranch_tests::{Agent, Node};
use serde_json::{Value, json};

/// Messages of 64 KiB: more than eight segments of 1 MiB.
const MESSAGES: u32 = 150;
const BODY: usize = 64 * 1024;
/// How long segments may take to move.
const MOVE_LIMIT: Duration = Duration::from_secs(60);

fn node(folder: &Path) -> Node {
    let config = format!(
        "[store]\nsegment_bytes = 1048576\ncheckpoint_bytes = 1048576\n\n[store.tier]\nurl = \"file://{}\"\nlocal_bytes = 0\n",
        folder.display()
    );
    Node::start(Start {
        dev: true,
        config: Some(config),
        ..Start::default()
    })
}

fn body(number: u32) -> String {
    format!("{number} {}", "x".repeat(BODY))
}

fn pika(node: &Node) -> Agent {
    let mut agent = Agent::pika().connected(node.addresses().amqp, json!({}));
    agent.must("confirm", json!({}));
    agent.must("qos", json!({ "prefetch": 20 }));
    agent
}

fn overview(node: &Node) -> Value {
    node.api().get("/overview").expect(200)
}

/// Waits until the overview is as it should be.
fn until(node: &Node, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + MOVE_LIMIT;
    loop {
        let overview = overview(node);
        if is_so(&overview) {
            return overview;
        }
        assert!(Instant::now() < deadline, "{what}: {overview:#}");
        std::thread::yield_now();
    }
}

fn gauge(overview: &Value, name: &str) -> u64 {
    overview["gauges"][name].as_u64().expect("a number")
}

/// Reads all of the stream, acknowledging as it goes.
fn read_all(agent: &mut Agent, queue: &str) {
    let arguments = json!({ "x-stream-offset": "first" });
    agent.must("consume", json!({ "queue": queue, "arguments": arguments }));
    for number in 0..MESSAGES {
        let message = agent.take_one();
        assert!(message["body"] == body(number), "message {number}");
        agent.must("ack", json!({ "tag": message["tag"] }));
    }
}

#[test]
fn a_stream_in_an_object_store_is_replayed_whole_and_waits_while_that_is_away() {
    let outside = tempfile::tempdir().expect("a folder");
    let (there, away) = (outside.path().join("there"), outside.path().join("away"));
    std::fs::create_dir(&there).expect("a folder");
    let mut node = node(&there);
    let mut owner = pika(&node);
    let stream =
        json!({ "queue": "s", "durable": true, "arguments": { "x-queue-type": "stream" } });
    owner.must("queue_declare", stream);
    for number in 0..MESSAGES {
        owner.must("publish", json!({ "key": "s", "body": body(number) }));
    }
    let moved = until(&node, "segments move", |overview| {
        gauge(overview, "store_tier_segments") >= 6 && gauge(overview, "store_tier_waiting") == 0
    });
    assert_eq!(moved["alarms"], json!([]));
    assert!(gauge(&moved, "store_tier_bytes") > 5 << 20);
    read_all(&mut owner, "s");

    // A device reads the same history, after a kill.
    owner.vanish();
    node.kill();
    node.restart();
    let mut device =
        Agent::paho().connected(node.addresses().mqtt, json!({ "client_id": "device" }));
    device.must(
        "subscribe",
        json!({ "filters": [["$stream/s", 1]], "user": [["offset", "first"]] }),
    );
    for number in 0..MESSAGES {
        assert!(
            device.take_one()["body"] == body(number),
            "message {number}"
        );
    }
    assert!(overview(&node)["totals"]["store_tier_range_reads"].as_u64() > Some(0));

    // The store is away, and the memory for what was read is that of another life.
    node.stop();
    std::fs::rename(&there, &away).expect("a folder");
    node.restart();
    let mut reader = pika(&node);
    let arguments = json!({ "x-stream-offset": "first" });
    reader.must("consume", json!({ "queue": "s", "arguments": arguments }));
    let alarmed = until(&node, "the alarm", |overview| {
        overview["alarms"] != json!([])
    });
    let alarm = &alarmed["alarms"][0];
    assert_eq!(alarm["name"], "tier");
    let text = alarm["text"].as_str().expect("text");
    assert!(text.contains("Nothing is lost"), "{text}");
    let mut other = pika(&node);
    other.must("queue_declare", json!({ "queue": "q", "durable": true }));
    other.must("consume", json!({ "queue": "q" }));
    for number in 0..5 {
        other.must("publish", json!({ "key": "q", "body": number.to_string() }));
        assert_eq!(other.take_one()["body"], number.to_string());
    }
    std::fs::rename(&away, &there).expect("a folder");
    for number in 0..MESSAGES {
        let message = reader.take_one();
        assert!(message["body"] == body(number), "message {number}");
        reader.must("ack", json!({ "tag": message["tag"] }));
    }
    until(&node, "all is well", |overview| {
        overview["alarms"] == json!([])
    });
}
