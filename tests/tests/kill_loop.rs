//! Every confirmed publish survives `kill -9`, in order per publisher (promises 1 and 2), and QoS 2 is
//! exactly once across kills (promise 3).
//!
//! Two paho publishers with QoS 1 and two pika publishers with confirms keep windows of messages in
//! flight. The node is killed when a seeded number of confirmations was seen, so at a moment the seed
//! chooses but the machine's speed does not. After the restart the queue is drained. Publishers and
//! subscribers of QoS 2 live on through all kills instead, on sessions that last.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use anabranch_tests::process::Process;
use anabranch_tests::{Agent, Node, repository};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

/// How long the publishers may take until the chosen number is confirmed, and to notice the end.
const LIMIT: Duration = Duration::from_secs(120);

/// Messages of one MQTT publisher in flight: the receive maximum of the server.
const MQTT_WINDOW: &str = "20";
/// Messages of one AMQP publisher in flight.
const AMQP_WINDOW: &str = "100";

const MQTT_PUBLISHERS: [&str; 2] = ["mqtt-0", "mqtt-1"];
const AMQP_PUBLISHERS: [&str; 2] = ["amqp-0", "amqp-1"];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn publishers(node: &Node) -> Vec<(&'static str, Process)> {
    let python = |script: &str, arguments: &[&str]| {
        let mut command = Command::new(repository::python());
        command
            .arg("-u")
            .arg(repository::root().join("tests/py").join(script))
            .args(arguments);
        Process::start(arguments[2], &mut command)
    };
    let host = node.addresses().mqtt.ip().to_string();
    let mqtt = node.addresses().mqtt.port().to_string();
    let amqp = node.addresses().amqp.port().to_string();
    let mut started = Vec::new();
    for name in MQTT_PUBLISHERS {
        let topic = format!("load/{name}");
        let arguments = [host.as_str(), &mqtt, name, &topic, MQTT_WINDOW];
        started.push((name, python("load_mqtt.py", &arguments)));
    }
    for name in AMQP_PUBLISHERS {
        let key = format!("load.{name}");
        let arguments = [
            host.as_str(),
            &amqp,
            name,
            "amq.topic",
            &key,
            AMQP_WINDOW,
            "guest",
            "guest",
        ];
        started.push((name, python("load_amqp.py", &arguments)));
    }
    started
}

/// A consumer that acknowledges what it gets.
fn consumer(node: &Node) -> Process {
    let address = node.addresses().amqp;
    let mut command = Command::new(repository::python());
    command
        .arg("-u")
        .arg(repository::root().join("tests/py/consume_amqp.py"));
    command.args([address.ip().to_string(), address.port().to_string()]);
    command.args(["load", "100", "guest", "guest"]);
    Process::start("consumer", &mut command)
}

/// Takes all out of the queue; name of the publisher -> its numbers in the order of arrival.
fn drain(node: &Node) -> BTreeMap<String, Vec<u64>> {
    let address = node.addresses().amqp;
    let mut command = Command::new(repository::python());
    command
        .arg("-u")
        .arg(repository::root().join("tests/py/drain_amqp.py"));
    command.args([address.ip().to_string(), address.port().to_string()]);
    command.args(["load", "guest", "guest"]);
    let mut process = Process::start("drain", &mut command);
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
fn numbered(line: &str) -> (&str, u64) {
    let body = line.strip_prefix('!').unwrap_or(line);
    let (name, number) = body.split_once(' ').expect("<name> <number>");
    (name, number.parse().expect("a number"))
}

/// Starts a node whose durable queue `load` gets all that the publishers send.
fn node_with_queue() -> Node {
    let node = Node::dev();
    let mut application = Agent::pika().connected(node.addresses().amqp, json!({}));
    application.must("queue_declare", json!({ "queue": "load", "durable": true }));
    application.must(
        "queue_bind",
        json!({ "queue": "load", "exchange": "amq.topic", "key": "load.#" }),
    );
    node
}

/// Waits until each publisher has a number of confirmations that `random` chooses, kills the node and
/// gives what each had confirmed in the end.
fn kill_under_load(node: &mut Node, random: &mut StdRng) -> BTreeMap<&'static str, Vec<u64>> {
    let running = publishers(node);
    for (name, process) in &running {
        let enough = random.random_range(1..1_500_u64);
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
    node.kill();
    let mut confirmed = BTreeMap::new();
    for (name, mut process) in running {
        let status = process
            .exit_within(LIMIT)
            .expect("a publisher notices the end");
        process.stdout.wait(0, LIMIT, |_| None::<()>);
        assert!(status.success(), "{}", process.story());
        let numbers = process.stdout.all();
        confirmed.insert(
            name,
            numbers
                .iter()
                .map(|n| n.parse().expect("a number"))
                .collect(),
        );
    }
    confirmed
}

#[test]
fn every_confirmed_message_survives_kill_9_in_order() {
    let rounds = number("ANABRANCH_KILL_ROUNDS", 10);
    let seed = number("ANABRANCH_SEED", 1);
    println!("seed {seed}, {rounds} rounds");
    let mut random = StdRng::seed_from_u64(seed);

    let mut node = node_with_queue();
    let mut total_confirmed = 0;
    for round in 1..=rounds {
        let confirmed = kill_under_load(&mut node, &mut random);
        node.restart();

        let drained = drain(&node);
        for (name, numbers) in &confirmed {
            let arrived = drained.get(*name).map_or(&[][..], Vec::as_slice);
            // Nothing was sent twice, so nothing arrives twice: strictly rising.
            if let Some(at) = arrived.windows(2).position(|pair| pair[0] >= pair[1]) {
                panic!(
                    "round {round}: {name}: {} before {}",
                    arrived[at],
                    arrived[at + 1]
                );
            }
            let lost: Vec<&u64> = numbers
                .iter()
                .filter(|n| arrived.binary_search(n).is_err())
                .collect();
            assert!(
                lost.is_empty(),
                "round {round}: {name}: confirmed and lost: {lost:?}"
            );
            total_confirmed += numbers.len();
        }
        let counts: Vec<String> = confirmed
            .iter()
            .map(|(name, numbers)| {
                let arrived = drained.get(*name).map_or(0, Vec::len);
                format!("{name} {} confirmed, {arrived} arrived", numbers.len())
            })
            .collect();
        println!("round {round}: {}", counts.join("; "));
    }
    println!("{rounds} kills, {total_confirmed} confirmed messages, 0 lost, 0 out of order");
}

/// The same with a consumer that acknowledges under load: what it had and what is left are all that was
/// confirmed, and nothing that comes for the first time comes out of order.
#[test]
fn every_confirmed_message_reaches_a_consumer_across_kills() {
    let rounds = number("ANABRANCH_KILL_ROUNDS", 10).div_ceil(3);
    let seed = number("ANABRANCH_SEED", 1) + 1_000;
    println!("seed {seed}, {rounds} rounds");
    let mut random = StdRng::seed_from_u64(seed);
    let mut node = node_with_queue();
    for round in 1..=rounds {
        let mut consumer = consumer(&node);
        let confirmed = kill_under_load(&mut node, &mut random);
        consumer
            .exit_within(LIMIT)
            .expect("the consumer notices the end");
        consumer.stdout.wait(0, LIMIT, |_| None::<()>);
        let consumed = consumer.stdout.all();
        node.restart();
        let left = drain(&node);

        for (name, numbers) in &confirmed {
            let first_times: Vec<u64> = consumed
                .iter()
                .filter(|line| !line.starts_with('!'))
                .map(|line| numbered(line))
                .filter(|(publisher, _)| publisher == name)
                .map(|(_, number)| number)
                .collect();
            assert!(
                first_times.is_sorted(),
                "round {round}: {name}: out of order"
            );
            let left = left.get(*name).map_or(&[][..], Vec::as_slice);
            assert!(left.is_sorted(), "round {round}: {name}: left out of order");
            let arrived: BTreeSet<u64> = first_times.iter().chain(left).copied().collect();
            let lost: Vec<&u64> = numbers.iter().filter(|n| !arrived.contains(n)).collect();
            assert!(
                lost.is_empty(),
                "round {round}: {name}: confirmed and lost: {lost:?}"
            );
        }
        let (confirmed, left) = (
            confirmed.values().map(Vec::len).sum::<usize>(),
            left.values().map(Vec::len).sum::<usize>(),
        );
        println!(
            "round {round}: {confirmed} confirmed, {} consumed, {left} left",
            consumed.len()
        );
    }
}

/// Publishers of QoS 2 and their subscribers, of 3.1.1 and 5.0, go on through every kill: what was sent
/// arrives once.
#[test]
fn quality_2_is_exactly_once_through_all_kills() {
    let rounds = number("ANABRANCH_KILL_ROUNDS", 10).div_ceil(2);
    let seed = number("ANABRANCH_SEED", 1) + 2_000;
    println!("seed {seed}, {rounds} rounds");
    let mut random = StdRng::seed_from_u64(seed);
    let mut node = Node::dev();
    let host = node.addresses().mqtt.ip().to_string();
    let port = node.addresses().mqtt.port().to_string();
    let python = |script: &str, arguments: &[&str]| {
        let mut command = Command::new(repository::python());
        command
            .arg("-u")
            .arg(repository::root().join("tests/py").join(script))
            .args([&host, &port])
            .args(arguments);
        Process::start(arguments[0], &mut command)
    };
    let mut subscribers: Vec<Process> = [("sub-3", "3.1.1"), ("sub-5", "5")]
        .map(|(name, version)| {
            let process = python("collect_mqtt_qos2.py", &[name, "once/#", version]);
            let ready = process
                .stdout
                .wait(0, LIMIT, |line| (line == "ready").then_some(()));
            assert!(ready.is_some(), "{}", process.story());
            process
        })
        .into();
    let mut publishers: Vec<(&str, Process)> = [("pub-3", "3.1.1"), ("pub-5", "5")]
        .map(|(name, version)| {
            let topic = format!("once/{name}");
            let arguments = [name, &topic, MQTT_WINDOW, version];
            (name, python("load_mqtt_qos2.py", &arguments))
        })
        .into();
    for round in 1..=rounds {
        for (_, process) in &publishers {
            let before = process.stdout.all().len();
            let enough = random.random_range(1..400_usize);
            let mut more = 0;
            let reached = process.stdout.wait(before, LIMIT, |_| {
                more += 1;
                (more >= enough).then_some(())
            });
            assert!(
                reached.is_some(),
                "round {round}: stops at {before} + {more}\n{}",
                process.story()
            );
        }
        node.kill();
        node.restart();
    }
    let mut sent = BTreeMap::new();
    for (name, process) in &mut publishers {
        process.close_stdin();
        let status = process
            .exit_within(LIMIT)
            .unwrap_or_else(|| panic!("{name} does not end"));
        process.stdout.wait(0, LIMIT, |_| None::<()>);
        assert!(status.success(), "{}", process.story());
        let last = process.stdout.all().pop().unwrap();
        sent.insert(*name, numbered(&last).1);
    }
    let total: u64 = sent.values().sum();
    for subscriber in &mut subscribers {
        let mut arrived = 0;
        // Each line is one message, but for the first.
        let all = subscriber.stdout.wait(1, LIMIT, |_| {
            arrived += 1;
            (arrived >= total).then_some(())
        });
        assert!(
            all.is_some(),
            "{arrived} of {total}\n{}",
            subscriber.story()
        );
        subscriber.close_stdin();
        subscriber.exit_within(LIMIT).expect("the subscriber ends");
        subscriber.stdout.wait(0, LIMIT, |_| None::<()>);
        let mut received: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for line in &subscriber.stdout.all()[1..] {
            let (name, number) = numbered(line);
            received.entry(name.to_owned()).or_default().push(number);
        }
        // In which order a client sends what was under way and what is new is its own affair.
        for (name, count) in &sent {
            let numbers = received.get_mut(*name).expect("some arrived");
            numbers.sort_unstable();
            let twice = numbers.windows(2).find(|pair| pair[0] == pair[1]);
            assert_eq!(twice, None, "{name}: arrived twice");
            assert!(
                numbers.iter().copied().eq(1..=*count),
                "{name}: {} of {count} arrived",
                numbers.len()
            );
        }
    }
    println!("{rounds} kills, {total} messages, each once");
}
