//! What fleets rely on beyond a plain publish: quality 2, wills, groups and the options of 5.0, with
//! clients nobody here wrote. Retained messages are in `retained.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anabranch_tests::mosquitto::{self, Request, Subscriber};
use anabranch_tests::{Agent, Node, node};
use rumqttc::{Client, Event, Incoming, MqttOptions, QoS};
use serde_json::{Value, json};

/// Connects `agent`, which must succeed.
fn connected(agent: Agent, node: &Node, client_id: &str, mut more: Value) -> Agent {
    more["client_id"] = json!(client_id);
    agent.connected(node.addresses().mqtt, more)
}

fn paho(node: &Node, client_id: &str, more: Value) -> Agent {
    connected(Agent::paho(), node, client_id, more)
}

/// What makes a session outlive its connection.
fn lasting(version: &str) -> Value {
    match version {
        "5" => json!({ "version": "5", "clean": false, "expiry_s": 3_600 }),
        older => json!({ "version": older, "clean": false }),
    }
}

fn bodies(messages: &[Value]) -> Vec<&str> {
    messages
        .iter()
        .map(|message| message["body"].as_str().expect("text"))
        .collect()
}

fn publish(agent: &mut Agent, topic: &str, body: &str, qos: u8) {
    agent.must(
        "publish",
        json!({ "topic": topic, "body": body, "qos": qos }),
    );
}

/// The same client again, on the session that it left.
fn comes_back(agent: &mut Agent) {
    let answer = agent.ask("reconnect", json!({}));
    assert_eq!(answer["reason"], 0, "{answer}");
    assert_eq!(answer["session_present"], true, "{answer}");
}

fn is_cut(agent: &mut Agent) {
    let answer = agent.ask("wait_closed", json!({}));
    assert!(!answer["closed"].is_null(), "still connected");
}

/// The line breaks at each packet of quality 2, on either side, with and without `kill -9` of the node.
fn exactly_once_wherever_the_line_breaks(version: &str) {
    let mut node = Node::dev();
    let mut subscriber = paho(&node, "s", lasting(version));
    subscriber.must("subscribe", json!({ "filters": [["two/#", 2]] }));
    let mut publisher = paho(&node, "p", lasting(version));
    let mut sent = Vec::new();
    for kill in [false, true] {
        for packet in ["pubrec", "send_pubrel", "pubcomp"] {
            let body = format!("publisher loses {packet}, {kill}");
            publisher.ask("lose", json!({ "packet": packet }));
            let message = json!({ "topic": "two/a", "bodies": [&body], "qos": 2 });
            let mids = publisher.ask("send", message)["mids"].take();
            is_cut(&mut publisher);
            if kill {
                node.kill();
                node.restart();
                is_cut(&mut subscriber);
                comes_back(&mut subscriber);
            }
            comes_back(&mut publisher);
            publisher.must("sent", json!({ "mids": mids }));
            sent.push(body);
        }
        for packet in ["send_pubrec", "pubrel", "send_pubcomp"] {
            let body = format!("subscriber loses {packet}, {kill}");
            subscriber.ask("lose", json!({ "packet": packet }));
            publish(&mut publisher, "two/b", &body, 2);
            is_cut(&mut subscriber);
            if kill {
                node.kill();
                node.restart();
                is_cut(&mut publisher);
                comes_back(&mut publisher);
            }
            comes_back(&mut subscriber);
            sent.push(body);
        }
    }
    // Whatever would come twice comes before what was sent last.
    publish(&mut publisher, "two/a", "last", 2);
    sent.push("last".to_owned());
    let messages = subscriber.take(sent.len());
    assert_eq!(bodies(&messages), sent);
    assert!(messages.iter().all(|message| message["qos"] == 2));
}

/// [MQTT-4.3.3-1], [MQTT-4.3.3-2], [MQTT-4.4.0-1].
#[test]
fn quality_2_of_paho_3_1_1_is_exactly_once_wherever_the_line_breaks() {
    exactly_once_wherever_the_line_breaks("3.1.1");
}

/// [MQTT-4.3.3-1] to [MQTT-4.3.3-13] of 5.0.
#[test]
fn quality_2_of_paho_5_is_exactly_once_wherever_the_line_breaks() {
    exactly_once_wherever_the_line_breaks("5");
}

/// mqtt.js on both sides, each with a window under way when the node is killed.
#[test]
fn quality_2_of_mqtt_js_is_exactly_once_across_kills() {
    let mut node = Node::dev();
    let mut subscriber = connected(Agent::mqtt_js(), &node, "s", lasting("5"));
    subscriber.must("subscribe", json!({ "filters": [["two", 2]] }));
    let mut publisher = connected(Agent::mqtt_js(), &node, "p", lasting("5"));
    let mut sent = Vec::new();
    for round in 0..4 {
        let window: Vec<String> = (0..15).map(|number| format!("{round} {number}")).collect();
        let message = json!({ "topic": "two", "bodies": window, "qos": 2 });
        publisher.ask("send", message);
        sent.extend(window);
        // Somewhere in between: when a part of them has arrived.
        let arrived = subscriber.take(round * 15 / 4 + 1);
        assert_eq!(bodies(&arrived), sent[..arrived.len()]);
        node.kill();
        node.restart();
        comes_back(&mut publisher);
        comes_back(&mut subscriber);
        publisher.must("sent", json!({}));
        let rest = subscriber.take(15 - arrived.len());
        assert_eq!(bodies(&rest), sent[arrived.len()..]);
        sent.clear();
    }
    publisher.must(
        "publish",
        json!({ "topic": "two", "body": "last", "qos": 2 }),
    );
    assert_eq!(subscriber.take_one()["body"], "last");
}

#[test]
fn rumqttc_and_mosquitto_exchange_quality_2() {
    let node = Node::dev();
    let to = node.addresses().mqtt;
    let arguments = ["-t", "from/rumqttc", "-q", "2", "-V", "mqttv5"];
    let mut mosquitto_sub = Subscriber::start(to, &arguments, "%q %p");
    let options = MqttOptions::new("r", to.ip().to_string(), to.port());
    let (client, mut connection) = Client::new(options, 10);
    client
        .subscribe("from/mosquitto", QoS::ExactlyOnce)
        .unwrap();
    let mut received = Vec::new();
    let mut completed = 0;
    for event in connection.iter() {
        match event.expect("the connection stays") {
            Event::Incoming(Incoming::SubAck(_)) => {
                for number in 0..5 {
                    let body = number.to_string();
                    client
                        .publish("from/rumqttc", QoS::ExactlyOnce, false, body)
                        .unwrap();
                }
            }
            Event::Incoming(Incoming::PubComp(_)) => {
                completed += 1;
                if completed == 5 {
                    let publish = [
                        "-t",
                        "from/mosquitto",
                        "-m",
                        "m",
                        "-q",
                        "2",
                        "--repeat",
                        "5",
                    ];
                    let (code, output) = mosquitto::publish(to, &publish);
                    assert_eq!(code, 0, "{output}");
                }
            }
            Event::Incoming(Incoming::Publish(message)) => {
                assert_eq!(message.qos, QoS::ExactlyOnce);
                received.push(message.pkid);
                if received.len() == 5 {
                    break;
                }
            }
            _ => {}
        }
    }
    let distinct: BTreeSet<u16> = received.iter().copied().collect();
    assert_eq!(distinct.len(), 5, "{received:?}");
    for number in 0..5 {
        assert_eq!(mosquitto_sub.take_one(), format!("2 {number}"));
    }
}

/// A 3.1 client (MQIsdp): quality 2, a last value and a will.
#[test]
fn clients_of_3_1_are_served() {
    let node = Node::dev();
    let to = node.addresses().mqtt;
    let old = ["-V", "mqttv31", "-q", "2", "-i"];
    let (code, output) = mosquitto::publish(
        to,
        &[&old[..], &["a", "-t", "old/kept", "-m", "kept", "-r"]].concat(),
    );
    assert_eq!(code, 0, "{output}");
    let arguments = [&old[..], &["b", "-t", "old/#"]].concat();
    let mut subscriber = Subscriber::start(to, &arguments, "%t %q %r %p");
    assert_eq!(subscriber.take_one(), "old/kept 2 1 kept");
    let will = json!({ "topic": "old/will", "body": "gone", "qos": 1 });
    let device = paho(&node, "c", json!({ "version": "3.1", "will": will }));
    device.vanish();
    assert_eq!(subscriber.take_one(), "old/will 1 0 gone");
    let mut newer = paho(&node, "d", json!({}));
    publish(&mut newer, "old/new", "new", 2);
    assert_eq!(subscriber.take_one(), "old/new 2 0 new");
}

/// [MQTT-3.1.2-8], [MQTT-3.1.2-10]: a will is published when the line is lost, not after a goodbye.
#[test]
fn a_will_is_published_when_the_line_is_lost_only() {
    let node = Node::dev();
    let mut watcher = paho(&node, "w", json!({}));
    watcher.must(
        "subscribe",
        json!({ "filters": [["will/#", 2]], "as_published": true }),
    );
    for (kind, start) in [
        ("paho-3", json!({ "version": "3.1.1" })),
        ("paho-5", json!({ "version": "5" })),
        ("mqtt-js", json!({ "version": "5" })),
    ] {
        let mut start = start;
        start["will"] = json!({
            "topic": format!("will/{kind}"),
            "body": "gone",
            "qos": 2,
            "retain": true,
        });
        let agent = || match kind {
            "mqtt-js" => Agent::mqtt_js(),
            _ => Agent::paho(),
        };
        let mut device = connected(agent(), &node, kind, start.clone());
        device.ask("disconnect", json!({}));
        let mut device = connected(agent(), &node, kind, start);
        device.must(
            "publish",
            json!({ "topic": "will/alive", "body": kind, "qos": 1 }),
        );
        device.vanish();
        let messages = watcher.take(2);
        assert_eq!(bodies(&messages), [kind, "gone"], "{kind}");
        let will = &messages[1];
        assert_eq!((&will["qos"], &will["retain"]), (&json!(2), &json!(true)));
        // A retained will is there for who comes later.
        let mut later = paho(&node, "later", json!({}));
        later.must(
            "subscribe",
            json!({ "filters": [[format!("will/{kind}"), 1]] }),
        );
        let kept = later.take_one();
        assert_eq!(
            (&kept["body"], &kept["retain"]),
            (&json!("gone"), &json!(true))
        );
    }
}

/// [MQTT-3.1.3-9]: a will waits for its delay, is dropped when the client comes back before, and comes
/// when the session ends before.
#[test]
fn a_will_waits_for_its_delay_or_the_end_of_the_session() {
    let node = Node::dev();
    let mut watcher = paho(&node, "w", json!({}));
    watcher.must("subscribe", json!({ "filters": [["will/#", 1]] }));
    let with_will = |client_id: &str, delay_s: u32, expiry_s: u32| {
        let properties = json!({ "delay_s": delay_s, "content_type": "text/plain" });
        let topic = format!("will/{client_id}");
        let will = json!({ "topic": topic, "body": client_id, "qos": 1, "properties": properties });
        let more = json!({ "clean": false, "expiry_s": expiry_s, "will": will });
        paho(&node, client_id, more)
    };
    let mut back = with_will("back", 4, 3_600);
    back.ask("cut", json!({}));
    comes_back(&mut back);
    let ends = with_will("ends", 3_600, 1);
    let late = with_will("late", 4, 3_600);
    let started = Instant::now();
    ends.vanish();
    late.vanish();
    let messages = watcher.take(2);
    assert_eq!(bodies(&messages), ["ends", "late"]);
    assert!(
        started.elapsed() >= Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(messages[1]["properties"]["content_type"], "text/plain");
    // The one that came back would have been due before.
    back.ask("disconnect", json!({}));
    publish(&mut paho(&node, "p", json!({})), "will/last", "last", 1);
    assert_eq!(watcher.take_one()["body"], "last");
}

/// A node that is killed has lost every line: the wills of sessions that stay are published after the
/// restart, except of who comes back in time.
#[test]
fn wills_of_lasting_sessions_survive_a_kill() {
    let mut node = Node::dev();
    let mut watcher = paho(&node, "w", lasting("5"));
    watcher.must("subscribe", json!({ "filters": [["will/#", 1]] }));
    let with_will = |client_id: &str, delay_s: u32| {
        let will = json!({
            "topic": format!("will/{client_id}"),
            "body": client_id,
            "qos": 1,
            "properties": { "delay_s": delay_s },
        });
        let more = json!({ "clean": false, "expiry_s": 3_600, "will": will });
        paho(&node, client_id, more)
    };
    let mut back = with_will("back", 5);
    let _lost = with_will("lost", 5);
    let _at_once = with_will("at-once", 0);
    node.kill();
    node.restart();
    is_cut(&mut back);
    comes_back(&mut back);
    is_cut(&mut watcher);
    comes_back(&mut watcher);
    let messages = watcher.take(2);
    assert_eq!(bodies(&messages), ["at-once", "lost"]);
    publish(&mut back, "will/last", "last", 1);
    assert_eq!(watcher.take_one()["body"], "last");
}

/// Two members of different makes share what is published; what a dead member held goes to the other.
#[test]
fn a_group_shares_and_a_dead_members_messages_go_to_the_other() {
    let node = Node::dev();
    let member = json!({ "filters": [["$share/crew/jobs/#", 1]] });
    let mut first = paho(&node, "first", json!({ "manual_ack": true }));
    first.must("subscribe", member.clone());
    let mut second = connected(Agent::mqtt_js(), &node, "second", json!({}));
    second.must("subscribe", member);
    let mut publisher = paho(&node, "p", json!({}));
    let sent: BTreeSet<String> = (0..20).map(|number| format!("{number:02}")).collect();
    for body in &sent {
        publish(&mut publisher, "jobs/a", body, 1);
    }
    let theirs = second.take(10);
    let held = first.take(10);
    // Nothing twice so far, and what the first held comes to the second once it is dead.
    let once: BTreeSet<&str> = bodies(&theirs).into_iter().chain(bodies(&held)).collect();
    assert_eq!(once.len(), 20, "{theirs:#?} {held:#?}");
    first.vanish();
    let again = second.take(10);
    let held: BTreeSet<&str> = bodies(&held).into_iter().collect();
    let again: BTreeSet<&str> = bodies(&again).into_iter().collect();
    assert_eq!(again, held);
}

/// A group of lasting sessions keeps what is published while its members are away, across `kill -9`.
#[test]
fn a_group_of_lasting_sessions_keeps_what_is_published() {
    let mut node = Node::dev();
    let member = json!({ "filters": [["$share/crew/jobs", 1]] });
    let mut first = paho(&node, "first", lasting("5"));
    first.must("subscribe", member.clone());
    first.ask("disconnect", json!({}));
    let mut second = paho(&node, "second", lasting("5"));
    second.must("subscribe", member);
    second.ask("disconnect", json!({}));
    let mut publisher = paho(&node, "p", json!({}));
    let sent: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    for body in &sent {
        publish(&mut publisher, "jobs", body, 1);
    }
    node.kill();
    node.restart();
    comes_back(&mut second);
    assert_eq!(bodies(&second.take(10)), sent);
    comes_back(&mut first);
    let mut publisher = paho(&node, "p", json!({}));
    publish(&mut publisher, "jobs", "new", 1);
    publish(&mut publisher, "jobs", "newer", 1);
    let mut new = [first.take_one(), second.take_one()].map(|mut message| message["body"].take());
    new.sort_by_key(Value::to_string);
    assert_eq!(new, [json!("new"), json!("newer")]);
}

/// Sets the mode of a group from the command line.
fn set_mode(node: &Node, group: &str, mode: &str) {
    let url = format!("http://{}", node.addresses().http);
    let data = node.data().to_str().unwrap();
    let pattern = format!("^{group}$");
    let mut arguments = vec!["policy", "set", group, "--pattern", &pattern];
    arguments.extend(["--applies-to", "groups", "--mode", mode]);
    arguments.extend(["--url", &url, "--data", data]);
    let finished = node::run(&arguments, &[]);
    assert_eq!(finished.code, Some(0), "{}", finished.output());
}

/// One member serves a failover group, in order; the next goes on where it ended.
#[test]
fn a_group_in_failover_mode_is_served_by_one_member() {
    let node = Node::dev();
    set_mode(&node, "standby", "failover");
    let member = json!({ "filters": [["$share/standby/jobs", 1]] });
    let mut first = paho(&node, "first", json!({ "manual_ack": true }));
    first.must("subscribe", member.clone());
    let mut second = paho(&node, "second", json!({}));
    second.must("subscribe", member);
    let mut publisher = paho(&node, "p", json!({}));
    let sent: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    for body in &sent {
        publish(&mut publisher, "jobs", body, 1);
    }
    let held = first.take(10);
    assert_eq!(bodies(&held), sent);
    for message in &held[..4] {
        first.ask("ack", json!({ "mid": message["mid"] }));
    }
    // Acknowledgements and what follows travel in order on one connection.
    first.ask("disconnect", json!({}));
    assert_eq!(bodies(&second.take(6)), sent[4..]);
}

/// In a key-shared group all messages of a key go to one member, in order.
#[test]
fn a_group_in_key_shared_mode_keeps_keys_together() {
    let node = Node::dev();
    set_mode(&node, "keyed", "key_shared");
    let member = json!({ "filters": [["$share/keyed/jobs", 1]] });
    let mut members: Vec<Agent> = ["first", "second"]
        .map(|name| paho(&node, name, json!({})))
        .into();
    for agent in &mut members {
        agent.must("subscribe", member.clone());
    }
    let mut publisher = paho(&node, "p", json!({}));
    for number in 0..60 {
        let key = format!("key-{}", number % 12);
        publisher.must(
            "publish",
            json!({
                "topic": "jobs",
                "body": format!("{key} {number:02}"),
                "qos": 1,
                "properties": { "user": [["x-key", key]] },
            }),
        );
    }
    let mut owners: BTreeMap<String, usize> = BTreeMap::new();
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    let mut total = 0;
    for (owner, agent) in members.iter_mut().enumerate() {
        // The keys of one member are five messages each.
        let mut mine = 0;
        while total < 60 {
            let taken = agent.ask("take", json!({ "count": 5, "within_ms": 1_000 }));
            let taken = taken["messages"].as_array().unwrap().clone();
            if taken.is_empty() {
                break;
            }
            for body in bodies(&taken) {
                let (key, number) = body.split_once(' ').unwrap();
                assert_eq!(
                    *owners.entry(key.to_owned()).or_insert(owner),
                    owner,
                    "{body}"
                );
                let before = last.insert(key.to_owned(), number.to_owned());
                assert!(before.is_none_or(|before| *before < *number), "{body}");
            }
            mine += taken.len();
            total += taken.len();
        }
        assert!(mine > 0, "member {owner} serves some of twelve keys");
    }
    assert_eq!(total, 60);
}

/// [MQTT-3.3.4-3], [MQTT-3.3.4-4], [MQTT-3.3.4-5]: a message says which subscriptions it comes for.
#[test]
fn subscription_identifiers_name_every_subscription() {
    let node = Node::dev();
    for agent in [Agent::paho(), Agent::mqtt_js()] {
        let mut subscriber = connected(agent, &node, "s", json!({}));
        for (filter, identifier) in [("a/#", 1), ("a/+", 268_435_455)] {
            let filters = json!({ "filters": [[filter, 1]], "identifier": identifier });
            subscriber.must("subscribe", filters);
        }
        subscriber.must("subscribe", json!({ "filters": [["b", 1]] }));
        let mut publisher = paho(&node, "p", json!({}));
        let wanted = [
            ("a/b/c", BTreeSet::from([1])),
            ("a/b", BTreeSet::from([1, 268_435_455])),
            ("b", BTreeSet::new()),
        ];
        for (topic, _) in &wanted {
            publish(&mut publisher, topic, "m", 1);
        }
        // Overlapping subscriptions bring one message or one for each; together they name all.
        let mut named: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        while !named.contains_key("b") {
            let message = subscriber.take_one();
            let topic = message["topic"].as_str().unwrap().to_owned();
            let names = message["properties"]["subscriptions"].as_array();
            let names = names.into_iter().flatten().map(|one| one.as_u64().unwrap());
            named.entry(topic).or_default().extend(names);
        }
        for (topic, identifiers) in wanted {
            assert_eq!(named[topic], identifiers, "{topic}");
        }
    }
}

/// [MQTT-3.3.2-8] and what follows: aliases stand for topics in both directions.
#[test]
fn topic_aliases_stand_for_topics() {
    let node = Node::dev();
    let aliases = json!({ "aliases": 10 });
    let mut subscriber = connected(Agent::mqtt_js(), &node, "s", aliases.clone());
    subscriber.must("subscribe", json!({ "filters": [["alias/#", 1]] }));
    let mut publisher = paho(&node, "p", json!({}));
    let mut other = connected(Agent::mqtt_js(), &node, "o", aliases);
    for (topic, alias) in [
        ("alias/a", 1),
        ("", 1),
        ("alias/b", 1),
        ("", 1),
        ("alias/a", 2),
    ] {
        let properties = json!({ "alias": alias });
        publisher.must(
            "publish",
            json!({ "topic": topic, "body": "m", "qos": 1, "properties": properties }),
        );
    }
    for topic in ["alias/c", "alias/c", "alias/d", "alias/c"] {
        other.must("publish", json!({ "topic": topic, "body": "m", "qos": 1 }));
    }
    let topics: Vec<Value> = subscriber
        .take(9)
        .iter_mut()
        .map(|message| message["topic"].take())
        .collect();
    let wanted = ["a", "a", "b", "b", "a", "c", "c", "d", "c"];
    assert_eq!(topics, wanted.map(|name| json!(format!("alias/{name}"))));
}

#[test]
fn mosquitto_rr_gets_its_answer() {
    let node = Node::dev();
    let mut responder = paho(&node, "r", json!({}));
    responder.must("subscribe", json!({ "filters": [["ask", 1]] }));
    let arguments = ["-t", "ask", "-e", "answers/1", "-m", "question", "-q", "1"];
    let correlation = ["-D", "publish", "correlation-data", "c-1"];
    let asking = Request::start(
        node.addresses().mqtt,
        &[&arguments[..], &correlation].concat(),
    );
    let question = responder.take_one();
    assert_eq!(question["body"], "question");
    assert_eq!(question["properties"]["response_topic"], "answers/1");
    assert_eq!(question["properties"]["correlation"], "c-1");
    publish(&mut responder, "answers/1", "answer", 1);
    assert_eq!(asking.answer(), "answer");
}

/// [MQTT-3.3.4-9]: no more unacknowledged messages than the client said it takes.
#[test]
fn the_clients_receive_maximum_holds() {
    let node = Node::dev();
    let more = json!({ "receive_maximum": 2, "manual_ack": true });
    let mut subscriber = paho(&node, "s", more);
    subscriber.must("subscribe", json!({ "filters": [["a", 1]] }));
    let mut publisher = paho(&node, "p", json!({}));
    for body in ["1", "2", "3", "4", "5"] {
        publish(&mut publisher, "a", body, 1);
    }
    let mut held = subscriber.take(2);
    for next in ["3", "4", "5"] {
        // An answer to a later packet of the client: nothing was sent ahead of it.
        subscriber.must("subscribe", json!({ "filters": [["b", 0]] }));
        let more = subscriber.ask("take", json!({ "count": 1, "within_ms": 0 }));
        assert_eq!(more["messages"], json!([]), "held: {held:#?}");
        let oldest = held.remove(0);
        subscriber.ask("ack", json!({ "mid": oldest["mid"] }));
        held.extend(subscriber.take(1));
        assert_eq!(held[1]["body"], next);
    }
}

/// [MQTT-3.1.2-24], [MQTT-3.1.2-25]: what is too large for a client is not sent to it, and is no
/// obstacle for what follows.
#[test]
fn the_clients_maximum_packet_size_holds() {
    let node = Node::dev();
    let mut small = paho(&node, "small", json!({ "packet_max": 200 }));
    small.must("subscribe", json!({ "filters": [["a", 1]] }));
    let mut large = paho(&node, "large", json!({}));
    large.must("subscribe", json!({ "filters": [["a", 1]] }));
    let mut publisher = paho(&node, "p", json!({}));
    let bodies_sent = ["x".repeat(50), "y".repeat(500), "z".repeat(50)];
    for body in &bodies_sent {
        publish(&mut publisher, "a", body, 1);
    }
    assert_eq!(bodies(&large.take(3)), bodies_sent);
    assert_eq!(bodies(&small.take(2)), [&bodies_sent[0], &bodies_sent[2]]);
}
