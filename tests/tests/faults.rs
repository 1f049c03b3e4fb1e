//! Disks that fail under the real server: a sync that fails, a disk that is full.
//!
//! Read next: `kill_loop.rs`, where the process dies instead.

use std::process::Command;
use std::time::Duration;

use anabranch_tests::load::{Publishers, all_there, declare_queue, drain};
use anabranch_tests::process::Process;
use anabranch_tests::{Agent, Api, Node};
use rustix::process::Signal;
use serde_json::{Value, json};

/// How long it may take until a node notices what has happened to its disk.
const NOTICE_LIMIT: Duration = Duration::from_secs(30);

/// Makes each sync of a running process fail with an input/output error, until [`BrokenSync::mend`].
struct BrokenSync(Process);

impl BrokenSync {
    /// `None` where one process may not trace another.
    fn inject(node: &Node) -> Option<Self> {
        let mut command = Command::new("strace");
        command.args(["-f", "-p", &node.id().to_string()]);
        command.args(["-e", "trace=fdatasync,fsync"]);
        command.args(["-e", "inject=fdatasync,fsync:error=EIO"]);
        let strace = Process::start("strace", &mut command);
        let attached = strace.stderr.wait(0, NOTICE_LIMIT, |line| {
            let refused = line.contains("Operation not permitted");
            (refused || line.contains("attached")).then_some(!refused)
        });
        attached
            .unwrap_or_else(|| panic!("strace does not attach\n{}", strace.story()))
            .then_some(Self(strace))
    }

    fn mend(mut self) {
        self.0.signal(Signal::TERM);
        let ended = self.0.exit_within(NOTICE_LIMIT);
        assert!(ended.is_some(), "strace goes on\n{}", self.0.story());
    }
}

/// A message for the queue `load`, as paho publishes it.
fn to_topic(body: &str) -> Value {
    json!({ "topic": "load/late", "body": body, "qos": 1 })
}

/// A message for the queue `load`, as pika publishes it.
fn to_exchange(body: &str) -> Value {
    let properties = json!({ "delivery_mode": 2 });
    json!({ "exchange": "amq.topic", "key": "load.late", "body": body, "properties": properties })
}

#[test]
fn after_a_failed_sync_nothing_is_confirmed_until_a_restart_which_has_all_that_was() {
    let mut node = Node::dev();
    declare_queue(&node);
    let to = node.addresses();
    let device = |id: &str, version: &str| {
        let about = json!({ "client_id": id, "version": version });
        Agent::paho().connected(to.mqtt, about)
    };
    let (mut new, mut old) = (device("new", "5"), device("old", "3.1.1"));
    let mut application = Agent::pika().connected(to.amqp, json!({}));
    application.must("confirm", json!({}));
    let running = Publishers::start(&node);
    running.reach(|| 200);
    let anybody = Api::anonymous(to.http);
    assert_eq!(anybody.readyz().status, 200);

    let Some(broken) = BrokenSync::inject(&node) else {
        println!("skipped: this user may not trace another process");
        return;
    };
    // Who was in the middle of it is told, and so is who comes later.
    let confirmed = running.confirmed(true);
    let told = new.ask("publish", to_topic("late 1"));
    assert_eq!(told["closed"], json!({ "reason": 0x80, "by_server": true }));
    let told = old.ask("publish", to_topic("late 2"));
    assert!(told["closed"].is_object(), "{told}");
    let told = application.ask("publish", to_exchange("late 3"));
    assert_eq!(told["nacked"], true, "{told}");
    let ready = anybody.readyz().expect(503);
    let why = ready["reason"].as_str().unwrap_or_default();
    assert!(why.contains("stopped: Input/output error"), "{ready}");

    // A sync that works again proves nothing about what was written before.
    broken.mend();
    let refused = Agent::paho().connect(to.mqtt, json!({ "client_id": "again" }));
    assert_eq!(refused["reason"], 0x88, "{refused}");
    let told = application.ask("publish", to_exchange("late 4"));
    assert_eq!(told["nacked"], true, "{told}");
    assert_eq!(anybody.readyz().expect(503), ready);
    let alarms = &node.api().get("/overview").expect(200)["alarms"];
    assert_eq!(alarms[0]["name"], "journal", "{alarms}");
    for once in ["the journal stops", "a frame was not confirmed"] {
        assert_eq!(node.output().matches(once).count(), 1, "{}", node.output());
    }

    node.stop();
    node.restart();
    assert_eq!(anybody.readyz().status, 200);
    let left = drain(&node);
    all_there("after the restart", &confirmed, &left);
    assert!(
        !left.contains_key("late"),
        "refused, and there: {:?}",
        left["late"]
    );
    let mut application = Agent::pika().connected(to.amqp, json!({}));
    application.must("confirm", json!({}));
    application.must("publish", to_exchange("late 5"));
    device("new", "5").must("publish", to_topic("late 6"));
    assert_eq!(drain(&node)["late"], [5, 6]);
    let counts: Vec<usize> = confirmed.values().map(Vec::len).collect();
    println!("{counts:?} confirmed before, 0 lost");
}
