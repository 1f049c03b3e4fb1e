//! Encryption at rest, as an operator has it: what devices and applications send stands nowhere in the data folder,
//! survives `kill -9` and a new key, and is not opened without the keys.

use std::path::Path;

use anabranch_tests::node::{self, Start};
use anabranch_tests::{Agent, Node, mosquitto};
use serde_json::{Value, json};

/// What must be found nowhere on the disk.
const SECRET: &str = "the-valve-is-open";

/// A line of a key file.
fn key(name: &str, letter: char) -> String {
    format!("{name}:{}A=\n", letter.to_string().repeat(42))
}

/// Files below `folder` that hold the secret.
fn that_show_it(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(that_show_it(&path));
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let secret = SECRET.as_bytes();
        if bytes.windows(secret.len()).any(|window| window == secret) {
            found.push(path.display().to_string());
        }
    }
    found
}

fn publish(node: &Node, topic: &str, body: &str) {
    let arguments = ["-q", "1", "-t", topic, "-m", body];
    let (code, story) = mosquitto::publish(node.addresses().mqtt, &arguments);
    assert_eq!(code, 0, "{story}");
}

fn application(node: &Node) -> Agent {
    Agent::pika().connected(node.addresses().amqp, json!({}))
}

fn bodies(taken: &[Value]) -> Vec<String> {
    let body = |one: &Value| one["body"].as_str().unwrap_or_default().to_owned();
    taken.iter().map(body).collect()
}

#[test]
fn messages_are_unreadable_on_the_disk_and_survive_a_kill_and_a_new_key() {
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&keys, key("first", 'B')).unwrap();
    let config = format!(
        "[store]\nsegment_bytes = 1048576\ncompression = \"zstd\"\n\
         [store.encryption]\nkey_file = {:?}\n",
        keys.path()
    );
    let mut node = Node::start(Start {
        dev: true,
        config: Some(config),
        ..Start::default()
    });
    let mut consumer = application(&node);
    consumer.must(
        "queue_declare",
        json!({ "queue": "valves", "durable": true }),
    );
    consumer.must(
        "queue_bind",
        json!({ "queue": "valves", "exchange": "amq.topic", "key": "valve.#" }),
    );
    drop(consumer);
    // Some that compress, more than one segment, and one that is retained.
    let body = |number: u32| {
        let len = if number.is_multiple_of(3) { 2000 } else { 1 };
        format!("{number} {}", SECRET.repeat(len))
    };
    for number in 0..60 {
        publish(&node, "valve/1", &body(number));
    }
    let retained = ["-r", "-q", "1", "-t", "valve-state/1", "-m", SECRET];
    assert_eq!(mosquitto::publish(node.addresses().mqtt, &retained).0, 0);
    node.kill();
    assert_eq!(that_show_it(node.data()), Vec::<String>::new());

    // A new key; the old one still opens. And, after that start, more under the new one.
    std::fs::write(&keys, key("second", 'C') + &key("first", 'B')).unwrap();
    node.restart();
    for number in 60..70 {
        publish(&node, "valve/1", &body(number));
    }
    node.kill();
    assert_eq!(that_show_it(node.data()), Vec::<String>::new());

    // Without the old key it does not start, and says which one is missing.
    let data = node.data().display().to_string();
    std::fs::write(&keys, key("second", 'C')).unwrap();
    let file = keys.path().display().to_string();
    let environment = [("ANABRANCH_STORE__ENCRYPTION__KEY_FILE", file.as_str())];
    let listen = [
        "--mqtt",
        "127.0.0.1:0",
        "--amqp",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ];
    let serve = [&["serve", "--dev", "--data", &data][..], &listen].concat();
    let refused = node::run(&serve, &environment);
    assert_eq!(refused.code, Some(1), "{}", refused.output());
    assert!(refused.stderr.contains("`first`"), "{}", refused.stderr);
    let none = node::run(&serve, &[]);
    assert_eq!(none.code, Some(1), "{}", none.output());
    assert!(
        none.stderr.contains("store.encryption.key_file"),
        "{}",
        none.stderr
    );

    std::fs::write(&keys, key("second", 'C') + &key("first", 'B')).unwrap();
    node.restart();
    let mut consumer = application(&node);
    consumer.must("consume", json!({ "queue": "valves" }));
    let taken = consumer.take(70);
    assert_eq!(bodies(&taken), (0..70).map(body).collect::<Vec<_>>());
}

#[test]
fn keys_that_cannot_be_read_are_refused_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data").display().to_string();
    let run = |variables: &[(&str, &str)]| {
        let refused = node::run(&["serve", "--dev", "--data", &data], variables);
        assert_ne!(refused.code, Some(0), "{}", refused.output());
        refused.stderr
    };
    const FILE: &str = "ANABRANCH_STORE__ENCRYPTION__KEY_FILE";
    const COMMAND: &str = "ANABRANCH_STORE__ENCRYPTION__KEY_COMMAND";
    let missing = folder.path().join("none").display().to_string();
    let told = run(&[(FILE, &missing)]);
    assert!(told.contains(FILE) && told.contains(&missing), "{told}");
    let told = run(&[(COMMAND, "echo first:short")]);
    assert!(told.contains(COMMAND) && told.contains("line 1"), "{told}");
    let told = run(&[(COMMAND, "exit 7")]);
    assert!(told.contains("exit status: 7"), "{told}");
    let told = run(&[(COMMAND, "true"), (FILE, &missing)]);
    assert!(told.contains("one of them"), "{told}");
    let told = run(&[("ANABRANCH_STORE__COMPRESSION", "gzip")]);
    assert!(told.contains("`none` or `lz4` or `zstd`"), "{told}");
    assert!(!folder.path().join("data").exists(), "nothing was made");
}
