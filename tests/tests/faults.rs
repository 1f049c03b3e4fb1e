//! Disks that fail under the real server: a sync that fails, a disk that is full.
//!
//! Read next: `kill_loop.rs`, where the process dies instead.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_tests::load::{
    LIMIT, Publishers, all_came, all_there, amqp_publisher, consumer, declare_queue, drain,
    mqtt_publisher,
};
use anabranch_tests::node::Start;
use anabranch_tests::process::Process;
use anabranch_tests::{Agent, Api, Node};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long it may take until a node notices what has happened to its disk.
const NOTICE_LIMIT: Duration = Duration::from_secs(30);

/// Makes each sync of a shard's files fail with an input/output error, until [`BrokenSync::mend`].
struct BrokenSync(Process);

impl BrokenSync {
    /// `None` where one process may not trace another.
    fn inject(node: &Node, shard: &str) -> Option<Self> {
        let mut command = Command::new("strace");
        command.args(["-f", "-p", &node.id().to_string()]);
        command.args(["-e", "trace=fdatasync,fsync"]);
        command.args(["-e", "inject=fdatasync,fsync:error=EIO"]);
        for file in std::fs::read_dir(node.data().join(shard)).unwrap() {
            command.arg("-P").arg(file.unwrap().path());
        }
        let strace = Process::start("strace", &mut command);
        let attached = strace.stderr.wait(0, NOTICE_LIMIT, |line| {
            let refused = line.contains("Operation not permitted");
            (refused || line.contains("attached")).then_some(!refused)
        });
        let attached =
            attached.unwrap_or_else(|| panic!("strace does not attach\n{}", strace.story()));
        if !attached {
            println!("skipped: this user may not trace another process");
        }
        attached.then_some(Self(strace))
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

    let Some(broken) = BrokenSync::inject(&node, "shard-1") else {
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
    assert!(
        why.contains("shard 1 stopped: Input/output error"),
        "{ready}"
    );

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

#[test]
fn after_a_failed_sync_of_metadata_nothing_is_declared_and_the_node_is_not_ready() {
    let mut node = Node::dev();
    declare_queue(&node);
    let anybody = Api::anonymous(node.addresses().http);
    let pika = |node: &Node| Agent::pika().connected(node.addresses().amqp, json!({}));
    let another = json!({ "queue": "another", "durable": true });
    let mut application = pika(&node);

    let Some(broken) = BrokenSync::inject(&node, "meta") else {
        return;
    };
    let told = application.ask("queue_declare", another.clone());
    assert_eq!(told["connection_closed"]["code"], 541, "{told}");
    broken.mend();
    let told = pika(&node).ask("queue_declare", another.clone());
    assert_eq!(told["connection_closed"]["code"], 541, "{told}");
    let ready = anybody.readyz().expect(503);
    let why = ready["reason"].as_str().unwrap_or_default();
    assert!(
        why.contains("metadata shard stopped: Input/output error"),
        "{ready}"
    );
    // What needs no metadata goes on.
    let mut application = pika(&node);
    application.must("confirm", json!({}));
    application.must("publish", to_exchange("late 1"));

    node.stop();
    node.restart();
    assert_eq!(anybody.readyz().status, 200);
    assert_eq!(drain(&node)["late"], [1]);
    pika(&node).must("queue_declare", another);
}

/// Bytes of a message that is to fill a disk.
const LARGE: usize = 16 * 1024;
/// Confirmations after which publishing goes on for sure: more than the windows of all.
const MORE: usize = 200;

/// A disk of its own, small; it goes with the value.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// `None` where this user may not mount one.
    fn mount(mib: u32) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("mount");
        command.args([
            "-t",
            "tmpfs",
            "-o",
            &format!("size={mib}m"),
            "anabranch-test",
        ]);
        let done = command.arg(folder.path()).output().expect("mount runs");
        if !done.status.success() {
            let why = String::from_utf8_lossy(&done.stderr);
            println!("skipped: no disk can be mounted: {why}");
        }
        done.status.success().then_some(Self(folder))
    }

    fn node(&self, low_water_bytes: u64) -> Node {
        let config = format!(
            "[store]\nsegment_bytes = 2097152\ncheckpoint_bytes = 4194304\nlow_water_bytes = {low_water_bytes}\n"
        );
        Node::start(Start {
            dev: true,
            config: Some(config),
            data: Some(self.0.path().join("data")),
            ..Start::default()
        })
    }

    fn foreign_file(&self) -> PathBuf {
        self.0.path().join("foreign")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a node that is about to end holds it up no longer than it lives.
        let unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.0.path().display());
        }
    }
}

/// Takes what room there is for a file, and gives the bytes that were taken.
fn take_all_room(file: &mut File) -> usize {
    let zeros = [0; 64 * 1024];
    let mut taken = 0;
    for piece in [zeros.len(), 4096] {
        loop {
            match file.write(&zeros[..piece]) {
                Ok(written) => taken += written,
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    taken
}

/// Waits until the publisher is told this, at or after the line `from` of what it says.
fn told(publisher: &Process, from: usize, word: &str) {
    let told = publisher
        .stderr
        .wait(from, LIMIT, |line| (line == word).then_some(()));
    assert!(told.is_some(), "not {word}\n{}", publisher.story());
}

/// What a device of 5.0 is told about a message: stored (0), or no room (0x97).
fn reason(device: &mut Agent) -> u64 {
    let answer = device.ask("publish", to_topic("device 1"));
    let reason = answer["reasons"][0].as_u64();
    let reason = reason.unwrap_or_else(|| panic!("an answer: {answer}"));
    assert!([0, 0x97].contains(&reason), "{answer}");
    reason
}

/// Publishes until a message is stored: publishers that are faster than the consumer leave no room from time to time.
fn goes_through(node: &Node, device: &mut Agent) {
    let deadline = Instant::now() + LIMIT;
    while reason(device) != 0 {
        assert!(Instant::now() < deadline, "{}", node.output());
    }
}

/// Kills the node and checks that everything confirmed came, or is there after a restart.
fn nothing_is_lost(mut node: Node, publishers: Publishers, mut consumer: Process) {
    node.kill();
    let confirmed = publishers.confirmed(true);
    let ended = consumer.exit_within(LIMIT);
    assert!(ended.is_some(), "{}", consumer.story());
    consumer.stdout.wait(0, LIMIT, |_| None::<()>);
    let consumed = consumer.stdout.all();
    node.restart();
    let left = drain(&node);
    all_came("after a full disk", &confirmed, &consumed, &left);
    let counts: Vec<usize> = confirmed.values().map(Vec::len).collect();
    println!("{counts:?} confirmed, {} consumed, 0 lost", consumed.len());
}

/// Publishers fill the disk down to its reserve; what is consumed makes room.
#[test]
fn a_disk_that_publishers_fill_stops_them_and_a_consumer_sets_them_free() {
    let Some(disk) = SmallDisk::mount(64) else {
        return;
    };
    let node = disk.node(16 << 20);
    declare_queue(&node);
    let publishers = Publishers(vec![
        ("amqp", amqp_publisher(&node, "amqp", LARGE)),
        ("old", mqtt_publisher(&node, "old", "3.1.1", LARGE)),
    ]);
    let application = &publishers.0[0].1;
    told(application, 0, "blocked");
    // One of 5.0 is refused instead of held up.
    let mut device = Agent::paho().connected(node.addresses().mqtt, json!({}));
    assert_eq!(reason(&mut device), 0x97);
    let overview = node.api().get("/overview").expect(200);
    assert_eq!(
        overview["alarms"][0]["name"], "disk",
        "{}",
        overview["alarms"]
    );

    let consumer = consumer(&node);
    told(application, 0, "unblocked");
    publishers.go_on(MORE);
    goes_through(&node, &mut device);
    nothing_is_lost(node, publishers, consumer);
}

/// Somebody else takes all that is left of the disk, the reserve too: the disk itself refuses room.
#[test]
fn a_disk_that_others_fill_stops_publishers_until_they_leave() {
    let Some(disk) = SmallDisk::mount(64) else {
        return;
    };
    let node = disk.node(8 << 20);
    declare_queue(&node);
    let consumer = consumer(&node);
    let mut publishers = Publishers(vec![
        ("amqp", amqp_publisher(&node, "amqp", LARGE)),
        ("old", mqtt_publisher(&node, "old", "3.1.1", LARGE)),
    ]);
    publishers.go_on(MORE);

    let api = node.api();
    let is_short = || {
        let overview = api.get("/overview").expect(200);
        let alarms = overview["alarms"].as_array().unwrap();
        alarms.iter().any(|alarm| alarm["name"] == "disk")
    };
    let mut file = File::create(disk.foreign_file()).unwrap();
    let mut taken = take_all_room(&mut file);
    let deadline = Instant::now() + LIMIT;
    // What the node gives back meanwhile is taken, too.
    while !is_short() {
        assert!(Instant::now() < deadline, "{}", node.output());
        taken += take_all_room(&mut file);
    }
    let late = amqp_publisher(&node, "late", LARGE);
    let blocked = |line: &str| (line == "blocked").then_some(());
    let pace = Duration::from_millis(50);
    while late.stderr.wait(0, pace, blocked).is_none() {
        assert!(Instant::now() < deadline, "{}", late.story());
        taken += take_all_room(&mut file);
    }
    let mut device = Agent::paho().connected(node.addresses().mqtt, json!({}));
    assert_eq!(reason(&mut device), 0x97);
    println!("others took {taken} bytes");

    drop(file);
    std::fs::remove_file(disk.foreign_file()).unwrap();
    told(&late, 0, "unblocked");
    publishers.0.push(("late", late));
    publishers.go_on(MORE);
    goes_through(&node, &mut device);
    assert_eq!(Api::anonymous(node.addresses().http).readyz().status, 200);
    nothing_is_lost(node, publishers, consumer);
}
