//! Every confirmed publish survives `kill -9`, in order per publisher (promises 1 and 2), and QoS 2 is
//! exactly once across kills (promise 3).
//!
//! Two paho publishers with QoS 1 and two pika publishers with confirms keep windows of messages in
//! flight. The node is killed when a seeded number of confirmations was seen, so at a moment the seed
//! chooses but the machine's speed does not. After the restart the queue is drained. Publishers and
//! subscribers of QoS 2 live on through all kills instead, on sessions that last.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anabranch_tests::load::{
    LIMIT, MQTT_WINDOW, Publishers, all_came, all_there, consumer, declare_queue, drain, numbered,
};
use anabranch_tests::process::Process;
use anabranch_tests::{Node, repository};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// The rounds of one test, each with dice of its own, so that a run that was stopped goes on where it was: with
/// `ANABRANCH_KILL_PROGRESS` the rounds that are done are noted in a file of that folder.
struct Rounds {
    seed: u64,
    next: u64,
    last: u64,
    noted: Option<PathBuf>,
}

impl Rounds {
    /// So many, unless `ANABRANCH_KILL_ROUNDS` says how many.
    fn of(test: &str, usual: u64) -> Self {
        let folder = std::env::var_os("ANABRANCH_KILL_PROGRESS").map(PathBuf::from);
        let noted = folder.map(|folder| folder.join(format!("kill-{test}")));
        let done = noted
            .as_ref()
            .and_then(|file| std::fs::read_to_string(file).ok());
        let done = done.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let rounds = Self {
            seed: number("ANABRANCH_SEED", 1),
            next: done + 1,
            last: number("ANABRANCH_KILL_ROUNDS", usual),
            noted,
        };
        println!(
            "{test}: seed {}, rounds {} to {}",
            rounds.seed, rounds.next, rounds.last
        );
        rounds
    }

    /// The next round and its dice.
    fn next(&mut self) -> Option<(u64, StdRng)> {
        let round = self.next;
        (round <= self.last).then(|| (round, StdRng::seed_from_u64(self.seed * 1_000_003 + round)))
    }

    /// The round is done.
    fn done(&mut self) {
        if let Some(file) = &self.noted {
            std::fs::write(file, self.next.to_string()).unwrap();
        }
        self.next += 1;
    }
}

/// Starts a node whose durable queue `load` gets all that the publishers send.
fn node_with_queue() -> Node {
    let node = Node::dev();
    declare_queue(&node);
    node
}

/// Waits until each publisher has a number of confirmations that `random` chooses, kills the node and
/// gives what each had confirmed in the end.
fn kill_under_load(node: &mut Node, random: &mut StdRng) -> BTreeMap<&'static str, Vec<u64>> {
    let running = Publishers::start(node);
    running.reach(|| random.random_range(1..1_500_u64));
    node.kill();
    running.confirmed(false)
}

#[test]
fn every_confirmed_message_survives_kill_9_in_order() {
    let mut rounds = Rounds::of("confirmed", 10);
    let mut node = node_with_queue();
    let (mut kills, mut total_confirmed) = (0, 0);
    while let Some((round, mut random)) = rounds.next() {
        let confirmed = kill_under_load(&mut node, &mut random);
        node.restart();

        let drained = drain(&node);
        all_there(&format!("round {round}"), &confirmed, &drained);
        total_confirmed += confirmed.values().map(Vec::len).sum::<usize>();
        kills += 1;
        rounds.done();
        let counts: Vec<String> = confirmed
            .iter()
            .map(|(name, numbers)| {
                let arrived = drained.get(*name).map_or(0, Vec::len);
                format!("{name} {} confirmed, {arrived} arrived", numbers.len())
            })
            .collect();
        println!("round {round}: {}", counts.join("; "));
    }
    println!("{kills} kills, {total_confirmed} confirmed messages, 0 lost, 0 out of order");
}

/// The same with a consumer that acknowledges under load: what it had and what is left are all that was
/// confirmed, and nothing that comes for the first time comes out of order.
#[test]
fn every_confirmed_message_reaches_a_consumer_across_kills() {
    let mut rounds = Rounds::of("consumed", 4);
    let mut node = node_with_queue();
    while let Some((round, mut random)) = rounds.next() {
        let mut consumer = consumer(&node);
        let confirmed = kill_under_load(&mut node, &mut random);
        consumer
            .exit_within(LIMIT)
            .expect("the consumer notices the end");
        consumer.stdout.wait(0, LIMIT, |_| None::<()>);
        let consumed = consumer.stdout.all();
        node.restart();
        let left = drain(&node);

        all_came(&format!("round {round}"), &confirmed, &consumed, &left);
        let (confirmed, left) = (
            confirmed.values().map(Vec::len).sum::<usize>(),
            left.values().map(Vec::len).sum::<usize>(),
        );
        println!(
            "round {round}: {confirmed} confirmed, {} consumed, {left} left",
            consumed.len()
        );
        rounds.done();
    }
}

/// Publishers of QoS 2 and their subscribers, of 3.1.1 and 5.0, go on through every kill: what was sent
/// arrives once.
#[test]
fn quality_2_is_exactly_once_through_all_kills() {
    let mut rounds = Rounds::of("once", 5);
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
    let mut kills = 0;
    while let Some((round, mut random)) = rounds.next() {
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
        kills += 1;
        println!("round {round}: killed and started again");
        rounds.done();
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
    println!("{kills} kills, {total} messages, each once");
}
