//! The web console, driven in Chromium by `browser/console.mjs`, beside live connections of both
//! protocols.

use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_tests::process::Process;
use anabranch_tests::{Agent, Node, repository};
use serde_json::{Value, json};

/// How long a step in the browser may take.
const LIMIT: Duration = Duration::from_secs(90);

/// A browser that runs one scenario of the script.
struct Browser {
    process: Process,
}

impl Browser {
    fn start(node: &Node, scenario: &str, more: &[&str]) -> Self {
        let mut command = Command::new("node");
        command.arg(repository::root().join("tests/browser/console.mjs"));
        command.args(["--base", &format!("http://{}", node.addresses().http)]);
        command.args(["--user", "admin", "--password", &node.admin_password()]);
        command
            .args(["--scenario", scenario, "--seconds", "60"])
            .args(more);
        Self {
            process: Process::start("console.mjs", &mut command),
        }
    }

    /// Waits for a step and gives what the script says of it.
    fn step(&self, name: &str, matches: impl Fn(&Value) -> bool) -> Value {
        let found = self.process.stdout.wait(0, LIMIT, |line| {
            let step: Value = serde_json::from_str(line).ok()?;
            (step["step"] == name && matches(&step)).then_some(step)
        });
        found.unwrap_or_else(|| panic!("no step `{name}`\n{}", self.process.story()))
    }

    fn done(&mut self) {
        self.step("done", |_| true);
        let status = self.process.exit_within(LIMIT).expect("the browser closes");
        assert!(status.success(), "{}", self.process.story());
    }
}

#[test]
fn an_administrator_logs_in_and_out() {
    let node = Node::secured();
    let mut browser = Browser::start(&node, "login", &[]);
    let refused = browser.step("refused", |_| true);
    assert!(
        refused["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{refused}"
    );
    browser.step("signed-in", |_| true);
    browser.step("themes", |_| true);
    browser.step("signed-out", |_| true);
    browser.done();
}

/// A user and a rule made in the console let a device in, and nobody else.
#[test]
fn a_user_and_a_rule_made_in_the_console_work_at_once() {
    let node = Node::secured();
    let password = "a password typed in the browser";
    let mut browser = Browser::start(
        &node,
        "manage",
        &[
            "--new-user",
            "pump",
            "--new-password",
            password,
            "--pattern",
            "plant/${user}/#",
        ],
    );
    browser.step("rule", |_| true);
    browser.done();
    let login = json!({ "client_id": "pump", "user": "pump", "password": password });
    let mut device = Agent::paho().connected(node.addresses().mqtt, login);
    device.must(
        "publish",
        json!({ "topic": "plant/pump/temp", "body": "1", "qos": 1 }),
    );
    let answer = device.ask("publish", json!({ "topic": "plant/other/temp", "qos": 1 }));
    assert_eq!(answer["reasons"], json!([0x87]), "{answer}");
}

/// A policy written in the console counts for the queue that it names, and a retained message cleared there is
/// sent to nobody any more.
#[test]
fn a_policy_and_a_retained_message_are_looked_at_and_removed() {
    let node = Node::secured();
    let password = node.admin_password();
    let mut application = Agent::pika().connected(
        node.addresses().amqp,
        json!({ "user": "admin", "password": password }),
    );
    application.must("queue_declare", json!({ "queue": "bounded" }));
    let login =
        |client: &str| json!({ "client_id": client, "user": "admin", "password": password });
    let mut device = Agent::paho().connected(node.addresses().mqtt, login("sensor"));
    let value = json!({ "topic": "plant/7/temp", "body": "21.5", "qos": 1, "retain": true });
    device.must("publish", value);
    let flags = ["--queue", "bounded", "--topic", "plant/7/temp"];
    let mut browser = Browser::start(&node, "policies", &flags);
    let preview = browser.step("preview", |_| true);
    assert_eq!(preview["matches"], 1, "{preview}");
    for step in ["policy", "limits", "policy-deleted"] {
        browser.step(step, |_| true);
    }
    let shown = browser.step("retained", |_| true);
    assert_eq!(shown["value"], "21.5", "{shown}");
    browser.step("cleared", |_| true);
    browser.done();
    device.must("subscribe", json!({ "filters": [["plant/#", 1]] }));
    let later = json!({ "topic": "plant/8/temp", "body": "the first", "qos": 1 });
    device.must("publish", later);
    assert_eq!(device.take_one()["body"], "the first");
}

/// Live connections of both protocols and a queue's depth move before the administrator's eyes.
#[test]
fn live_connections_and_a_queues_depth_move() {
    let node = Node::secured();
    let password = node.admin_password();
    let mut application = Agent::pika().connected(
        node.addresses().amqp,
        json!({ "user": "admin", "password": password }),
    );
    application.must(
        "queue_declare",
        json!({ "queue": "watched", "durable": true }),
    );
    application.must(
        "queue_bind",
        json!({ "queue": "watched", "exchange": "amq.topic", "key": "watched.#" }),
    );
    let login = json!({ "client_id": "sensor", "user": "admin", "password": password });
    let mut device = Agent::paho().connected(node.addresses().mqtt, login);

    let mut browser = Browser::start(&node, "watch", &["--queue", "watched"]);
    browser.step("watching", |_| true);
    // The traffic goes on until the browser has seen all there is to see.
    let started = Instant::now();
    let mut sent = 0_u64;
    while browser
        .process
        .exit_within(Duration::from_millis(50))
        .is_none()
    {
        assert!(started.elapsed() < LIMIT, "the browser does not see it");
        device.must(
            "publish",
            json!({ "topic": "watched/device", "body": "d", "qos": 1 }),
        );
        application.must(
            "publish",
            json!({ "exchange": "amq.topic", "key": "watched.application", "body": "a" }),
        );
        sent += 2;
    }
    for protocol in ["mqtt", "amqp"] {
        browser.step("connection", |step| step["protocol"] == protocol);
    }
    let depth = browser.step("depth", |_| true);
    assert_ne!(depth["from"], depth["to"]);
    browser.done();
    // What the console showed is what the queue holds.
    let answer = application.must(
        "queue_declare",
        json!({ "queue": "watched", "durable": true, "passive": true }),
    );
    assert_eq!(answer["messages"], sent);
}

/// A rule turned into a deny in the console acts on the live connections within a second.
#[test]
fn a_rule_changed_in_the_console_acts_within_a_second() {
    let node = Node::secured();
    let api = node.api();
    let password = "a password of the test";
    api.create_user("reader", password);
    let anything = json!({ "vhost": "/", "kind": "*", "match": "prefix", "pattern": "" });
    api.allow("reader", &["connect"], anything);
    let temperatures =
        json!({ "vhost": "/", "kind": "topic", "match": "filter", "pattern": "plant/+/temp" });
    let topics = api.allow("reader", &["subscribe", "receive", "publish"], temperatures);
    let login = json!({ "client_id": "reader", "user": "reader", "password": password });
    let mut device = Agent::paho().connected(node.addresses().mqtt, login.clone());
    device.must("subscribe", json!({ "filters": [["plant/+/temp", 1]] }));
    let mut application = Agent::pika().connected(
        node.addresses().amqp,
        json!({ "user": "reader", "password": password }),
    );
    application.must("confirm", json!({}));
    let publish = json!({ "exchange": "amq.topic", "key": "plant.7.temp", "body": "b" });
    application.must("publish", publish.clone());
    assert_eq!(device.take_one()["body"], "b");

    let mut browser = Browser::start(&node, "rule-change", &["--rule", &topics]);
    browser.step("ready", |_| true);
    device.begin("wait_closed", json!({ "within_ms": 30_000 }));
    browser.process.say("now");
    browser.step("changed", |_| true);
    let started = Instant::now();
    let closed = device.finish("wait_closed");
    let took = started.elapsed();
    assert_eq!(closed["closed"]["reason"], 0x87, "{closed}");
    assert!(
        took < Duration::from_secs(1),
        "the subscription ended after {took:?}"
    );
    let refused = application.ask("publish", publish);
    assert_eq!(refused["channel_closed"]["code"], 403, "{refused}");
    browser.done();
}
