//! Publishers and consumers under load: two paho publishers with QoS 1 and two pika publishers with confirms keep
//! windows of numbered messages in flight to the durable queue `load`.
//!
//! Owns: starting them and others of their kind, what each had confirmed, what a queue holds.
//! Never: judges what was lost.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::process::Process;
use crate::{Agent, Node, repository};

/// How long publishers may take until a number is confirmed, and to notice the end.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Messages of one MQTT publisher in flight: the receive maximum of the server.
pub const MQTT_WINDOW: &str = "20";
/// Messages of one AMQP publisher in flight.
const AMQP_WINDOW: &str = "100";

const MQTT_PUBLISHERS: [&str; 2] = ["mqtt-0", "mqtt-1"];
const AMQP_PUBLISHERS: [&str; 2] = ["amqp-0", "amqp-1"];

/// Running publishers, each with its name.
pub struct Publishers(pub Vec<(&'static str, Process)>);

fn python(name: &str, script: &str, arguments: &[&str]) -> Process {
    let mut command = Command::new(repository::python());
    command
        .arg("-u")
        .arg(repository::root().join("tests/py").join(script))
        .args(arguments);
    Process::start(name, &mut command)
}

impl Publishers {
    /// Starts all four.
    pub fn start(node: &Node) -> Self {
        let mqtt = MQTT_PUBLISHERS.map(|name| (name, mqtt_publisher(node, name, "5", 0)));
        let amqp = AMQP_PUBLISHERS.map(|name| (name, amqp_publisher(node, name, 0)));
        Self(mqtt.into_iter().chain(amqp).collect())
    }

    /// Waits until each has a number of confirmations that `enough` chooses.
    ///
    /// # Panics
    /// When one does not get there.
    pub fn reach(&self, mut enough: impl FnMut() -> u64) {
        for (name, process) in &self.0 {
            let enough = enough();
            let mut confirmed = 0;
            let reached = process.stdout.wait(0, LIMIT, |_| {
                confirmed += 1;
                (confirmed >= enough).then_some(())
            });
            assert!(
                reached.is_some(),
                "{name} stops at {confirmed}\n{}",
                process.story()
            );
        }
    }

    /// Waits until each has so many more confirmations than now.
    ///
    /// # Panics
    /// When one does not get there.
    pub fn go_on(&self, more: usize) {
        for (name, process) in &self.0 {
            let before = process.stdout.all().len();
            let mut left = more;
            let reached = process.stdout.wait(before, LIMIT, |_| {
                left -= 1;
                (left == 0).then_some(())
            });
            assert!(
                reached.is_some(),
                "{name} stops at {before}, {left} before the goal\n{}",
                process.story()
            );
        }
    }

    /// What each had confirmed when its connection was gone, which it must notice. With `refused` one may say that
    /// it was refused instead.
    ///
    /// # Panics
    /// When one does not end.
    pub fn confirmed(self, refused: bool) -> BTreeMap<&'static str, Vec<u64>> {
        let mut confirmed = BTreeMap::new();
        for (name, mut process) in self.0 {
            let status = process.exit_within(LIMIT);
            let status =
                status.unwrap_or_else(|| panic!("{name} notices nothing\n{}", process.story()));
            process.stdout.wait(0, LIMIT, |_| None::<()>);
            assert!(status.success() || refused, "{}", process.story());
            let numbers = process.stdout.all();
            let numbers = numbers.iter().map(|n| n.parse().expect("a number"));
            confirmed.insert(name, numbers.collect());
        }
        confirmed
    }
}

/// A paho publisher of this protocol version, whose messages have at least so many bytes.
pub fn mqtt_publisher(node: &Node, name: &str, version: &str, bytes: usize) -> Process {
    let address = node.addresses().mqtt;
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let (topic, bytes) = (format!("load/{name}"), bytes.to_string());
    let arguments = [&host, &port, name, &topic, MQTT_WINDOW, version, &bytes];
    python(name, "load_mqtt.py", &arguments)
}

/// A pika publisher, whose messages have at least so many bytes.
pub fn amqp_publisher(node: &Node, name: &str, bytes: usize) -> Process {
    let address = node.addresses().amqp;
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let (key, bytes) = (format!("load.{name}"), bytes.to_string());
    let to = [&host, &port, name, "amq.topic", &key, AMQP_WINDOW];
    let arguments = [&to[..], &["guest", "guest", &bytes]].concat();
    python(name, "load_amqp.py", &arguments)
}

/// Makes the durable queue `load`, which gets all that the publishers send.
pub fn declare_queue(node: &Node) {
    let mut application = Agent::pika().connected(node.addresses().amqp, json!({}));
    application.must("queue_declare", json!({ "queue": "load", "durable": true }));
    application.must(
        "queue_bind",
        json!({ "queue": "load", "exchange": "amq.topic", "key": "load.#" }),
    );
}

/// A consumer that acknowledges what it gets.
pub fn consumer(node: &Node) -> Process {
    let address = node.addresses().amqp;
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let arguments = [host.as_str(), &port, "load", "100", "guest", "guest"];
    python("consumer", "consume_amqp.py", &arguments)
}

/// Takes all out of the queue; name of the publisher -> its numbers in the order of arrival.
///
/// # Panics
/// When that does not end.
pub fn drain(node: &Node) -> BTreeMap<String, Vec<u64>> {
    let address = node.addresses().amqp;
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let arguments = [host.as_str(), &port, "load", "guest", "guest"];
    let mut process = python("drain", "drain_amqp.py", &arguments);
    process.close_stdin();
    let status = process.exit_within(LIMIT).expect("the drain ends");
    process.stdout.wait(0, LIMIT, |_| None::<()>);
    assert!(status.success(), "{}", process.story());
    let mut drained: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in process.stdout.all() {
        let (name, number) = numbered(&line);
        drained.entry(name.to_owned()).or_default().push(number);
    }
    drained
}

/// Publisher and number of a line, whether it was flagged as redelivered or not.
///
/// # Panics
/// When it is no such line.
pub fn numbered(line: &str) -> (&str, u64) {
    let body = line.strip_prefix('!').unwrap_or(line);
    let (name, number) = body.split_once(' ').expect("<name> <number>");
    (name, number.parse().expect("a number"))
}

/// Checks that everything confirmed is there, once and in the order of its publisher.
///
/// # Panics
/// When it is not; `when` says when that was.
pub fn all_there(
    when: &str,
    confirmed: &BTreeMap<&'static str, Vec<u64>>,
    drained: &BTreeMap<String, Vec<u64>>,
) {
    for (name, numbers) in confirmed {
        let arrived = drained.get(*name).map_or(&[][..], Vec::as_slice);
        // Nothing was sent twice, so nothing arrives twice: strictly rising.
        if let Some(at) = arrived.windows(2).position(|pair| pair[0] >= pair[1]) {
            panic!("{when}: {name}: {} before {}", arrived[at], arrived[at + 1]);
        }
        let lost: Vec<&u64> = numbers
            .iter()
            .filter(|n| arrived.binary_search(n).is_err())
            .collect();
        assert!(
            lost.is_empty(),
            "{when}: {name}: confirmed and lost: {lost:?}"
        );
    }
}

/// Checks that everything confirmed came to a consumer that acknowledges, whose lines are `consumed`, or was `left`;
/// and what came for the first time came in the order of its publisher.
///
/// # Panics
/// When it is not so; `when` says when that was.
pub fn all_came(
    when: &str,
    confirmed: &BTreeMap<&'static str, Vec<u64>>,
    consumed: &[String],
    left: &BTreeMap<String, Vec<u64>>,
) {
    for (name, numbers) in confirmed {
        let first_times: Vec<u64> = consumed
            .iter()
            .filter(|line| !line.starts_with('!'))
            .map(|line| numbered(line))
            .filter(|(publisher, _)| publisher == name)
            .map(|(_, number)| number)
            .collect();
        assert!(first_times.is_sorted(), "{when}: {name}: out of order");
        let left = left.get(*name).map_or(&[][..], Vec::as_slice);
        assert!(left.is_sorted(), "{when}: {name}: left out of order");
        let arrived: BTreeSet<u64> = first_times.iter().chain(left).copied().collect();
        let lost: Vec<&u64> = numbers.iter().filter(|n| !arrived.contains(n)).collect();
        assert!(
            lost.is_empty(),
            "{when}: {name}: confirmed and lost: {lost:?}"
        );
    }
}
