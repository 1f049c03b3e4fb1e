//! `anabranch store`: a folder is looked at while clients publish, what was flipped is found at its place, and what was
//! mended starts again.

use std::path::{Path, PathBuf};

use anabranch_tests::load::{Publishers, all_there, declare_queue, drain};
use anabranch_tests::node::{self, Finished, Start};
use anabranch_tests::{Agent, Node};
use serde_json::{Value, json};

/// Small segments and many checkpoints.
const SMALL: &str = "[store]\nsegment_bytes = 1048576\ncheckpoint_bytes = 1048576\n";
/// Small segments, and no checkpoint while the node runs.
const UNCOVERED: &str = "[store]\nsegment_bytes = 1048576\n";

fn start(config: &str) -> Node {
    Node::start(Start {
        dev: true,
        config: Some(config.to_owned()),
        ..Start::default()
    })
}

fn store(node: &Node, verb: &str, more: &[&str]) -> Finished {
    let data = node.data().to_str().unwrap();
    node::run(&[&["store", verb, data], more].concat(), &[])
}

/// Runs a command that finds nothing wrong.
fn fine(node: &Node, verb: &str, more: &[&str]) -> String {
    let finished = store(node, verb, more);
    assert_eq!(finished.code, Some(0), "{verb}: {}", finished.output());
    finished.stdout
}

/// What a command says of the data shard, with `--format json`.
fn of_shard_1(text: &str) -> Value {
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let mut lines = lines.filter(|line: &Value| line["shard"] == "shard-1");
    lines.next().expect("a line for shard-1")
}

/// Publishes durable messages of 16 KiB that wait for a confirm each.
fn publish(node: &Node, queue: &str, count: usize) {
    let mut agent = Agent::pika().connected(node.addresses().amqp, json!({}));
    agent.must("queue_declare", json!({ "queue": queue, "durable": true }));
    agent.must("confirm", json!({}));
    let properties = json!({ "delivery_mode": 2 });
    for number in 0..count {
        let body = format!("{queue} {number} {}", "x".repeat(16 * 1024));
        agent.must(
            "publish",
            json!({ "key": queue, "body": body, "properties": properties }),
        );
    }
}

fn waiting(node: &Node, queue: &str) -> u64 {
    let mut agent = Agent::pika().connected(node.addresses().amqp, json!({}));
    let told = agent.must("queue_declare", json!({ "queue": queue, "passive": true }));
    told["messages"].as_u64().unwrap()
}

fn files(node: &Node, ends: &str) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(node.data().join("shard-1")).unwrap();
    let paths = folder.map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| path.to_string_lossy().ends_with(ends);
    let mut paths: Vec<PathBuf> = paths.filter(named).collect();
    paths.sort();
    paths
}

fn flip(path: &Path, offset: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[offset] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

#[test]
fn a_live_folder_is_looked_at_while_clients_publish() {
    let mut node = start(SMALL);
    declare_queue(&node);
    publish(&node, "large", 100);
    let publishers = Publishers::start(&node);
    publishers.reach(|| 50);
    let mut frames = 0;
    for _ in 0..5 {
        let told = of_shard_1(&fine(&node, "check", &["--format", "json"]));
        assert_eq!(told["defects"], 0);
        let more = told["frames"].as_u64().unwrap();
        assert!(more > frames, "{more} after {frames}");
        frames = more;
        let numbers = of_shard_1(&fine(&node, "stats", &["--format", "json"]));
        let streams = numbers["top_streams"].as_array().unwrap();
        let large = streams.iter().find(|stream| stream["name"] == "large");
        let large = large.unwrap_or_else(|| panic!("{numbers}"));
        assert_eq!(
            (&large["entries"], &large["vhost"], &large["kind"]),
            (&json!(100), &json!("/"), &json!("queue"))
        );
        assert!(numbers["segments"].as_u64() > Some(1) && numbers["damaged"] == 0);
    }
    let last = fine(&node, "dump", &["--shard", "1", "--limit", "3"]);
    assert_eq!(last.matches("frame=").count(), 3, "{last}");
    let from = frames.to_string();
    let arguments = [
        "--shard", "1", "--from", &from, "--format", "json", "--bodies",
    ];
    let dumped = fine(&node, "dump", &arguments);
    assert!(dumped.contains("\"body\":\"mqtt-0 "), "{dumped}");
    let refused = store(&node, "repair", &[]);
    assert_eq!(refused.code, Some(2), "{}", refused.output());
    assert!(
        refused
            .stderr
            .contains("another server uses this data folder")
    );

    node.kill();
    let confirmed = publishers.confirmed(false);
    let text = fine(&node, "check", &[]);
    assert!(text.contains("shard-1: nothing is wrong"), "{text}");
    // A torn tail is cut, and nothing else.
    fine(&node, "repair", &[]);
    node.restart();
    all_there("mended", &confirmed, &drain(&node));
    node.stop();
    fine(&node, "check", &[]);
}

#[test]
fn a_flipped_bit_is_named_and_what_is_mended_starts_again() {
    let mut node = start(UNCOVERED);
    publish(&node, "large", 300);
    node.kill();
    let tables = files(&node, ".tab");
    assert!(tables.len() >= 2, "{tables:?}");

    flip(&tables[1], 40);
    let checked = store(&node, "check", &[]);
    assert_eq!(checked.code, Some(1), "{}", checked.output());
    for word in [name(&tables[1]), "at offset 0", "it means", "to do"] {
        assert!(checked.stdout.contains(word), "{word}: {}", checked.stdout);
    }
    let planned = store(&node, "repair", &["--dry-run"]);
    assert_eq!(planned.code, Some(1), "{}", planned.output());
    assert!(planned.stdout.contains("would be made again"));
    assert!(planned.stdout.contains("DEFECT"), "{}", planned.stdout);
    let mended = fine(&node, "repair", &[]);
    assert!(mended.contains("was made again"), "{mended}");
    node.restart();
    assert_eq!(waiting(&node, "large"), 300);
    node.kill();

    // A byte of a message in the middle of the journal, which no checkpoint covers.
    let segments = files(&node, ".seg");
    let path = &segments[segments.len() / 2];
    let middle = std::fs::read(path).unwrap();
    let text = b"large ";
    let at = middle.windows(text.len()).position(|found| found == text);
    let at = at.expect("a message") + 1000;
    flip(path, at);
    let checked = store(&node, "check", &["--format", "json"]);
    assert_eq!(checked.code, Some(1), "{}", checked.output());
    let told = of_shard_1(&checked.stdout);
    let found = &told["findings"][0];
    assert_eq!(found["kind"], "frame", "{told}");
    assert!(found["file"].as_str().unwrap().ends_with(name(path)));
    let offset = found["offset"].as_u64().unwrap() as usize;
    assert!(offset < at && at < offset + (1 << 20), "{offset}, {at}");

    let kept = store(&node, "repair", &[]);
    assert_eq!(kept.code, Some(1), "{}", kept.output());
    assert!(
        kept.stdout.contains("needs --lose-corrupt"),
        "{}",
        kept.stdout
    );
    let asked = store(&node, "repair", &["--lose-corrupt"]);
    assert_eq!(asked.code, Some(2), "{}", asked.output());
    assert!(asked.stderr.contains("--yes"), "{}", asked.stderr);
    fine(&node, "repair", &["--lose-corrupt", "--yes"]);
    let aside = node.data().join("shard-1/quarantine");
    assert!(std::fs::read_dir(&aside).unwrap().count() >= 2);
    node.restart();
    let left = waiting(&node, "large");
    assert!((1..300).contains(&left), "{left} of 300");
    publish(&node, "large", 1);
    assert_eq!(waiting(&node, "large"), left + 1);
    node.stop();
    fine(&node, "check", &[]);
}

#[test]
fn what_cannot_be_looked_at_has_a_code_of_its_own() {
    let nowhere = tempfile::tempdir().unwrap();
    let path = nowhere.path().to_str().unwrap();
    for verb in ["check", "dump", "repair", "stats"] {
        let finished = node::run(&["store", verb, path], &[]);
        assert_eq!(finished.code, Some(2), "{}", finished.output());
        assert!(finished.stderr.contains("is no data folder"));
        let help = node::run(&["store", verb, "--help"], &[]);
        assert!(help.stdout.contains("Exit codes"), "{}", help.stdout);
    }
}
