//! What becomes of messages that are too old, too many or rejected, and what else an application sets
//! by arguments, exchanges and transactions. Every test holds on another AMQP broker too, except where
//! its title says what is ours.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anabranch_tests::{Agent, Node};
use serde_json::{Value, json};

fn pika(node: &Node) -> Agent {
    Agent::pika().connected(node.addresses().amqp, json!({}))
}

/// pika in confirm mode.
fn confirming(node: &Node) -> Agent {
    let mut agent = pika(node);
    agent.must("confirm", json!({}));
    agent
}

fn amqplib(node: &Node) -> Agent {
    Agent::amqplib().connected(node.addresses().amqp, json!({}))
}

fn queue(agent: &mut Agent, name: &str, arguments: Value) {
    agent.must(
        "queue_declare",
        json!({ "queue": name, "durable": true, "arguments": arguments }),
    );
}

fn publish(agent: &mut Agent, key: &str, body: &str) {
    let properties = json!({ "delivery_mode": 2 });
    agent.must(
        "publish",
        json!({ "key": key, "body": body, "properties": properties }),
    );
}

fn ready(agent: &mut Agent, name: &str) -> Value {
    agent.must("queue_declare", json!({ "queue": name, "passive": true }))["messages"].take()
}

fn bodies(messages: &[Value]) -> Vec<&str> {
    messages
        .iter()
        .map(|message| message["body"].as_str().expect("text"))
        .collect()
}

/// All that is ready in a queue.
fn contents(agent: &mut Agent, name: &str) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let one = agent.must("get", json!({ "queue": name, "no_ack": true }));
        if one["empty"] == true {
            return all;
        }
        all.push(one);
    }
}

/// The first entry of `x-death`.
fn death(message: &Value) -> &Value {
    &message["properties"]["headers"]["x-death"][0]
}

/// A queue's time-to-live, and that of a single message: the shorter counts. What ends goes to the dead
/// letter exchange with the story of its death.
#[test]
fn messages_end_after_their_time() {
    let node = Node::dev();
    let mut agent = confirming(&node);
    queue(&mut agent, "dead", json!({}));
    let to_dead = json!({
        "x-message-ttl": 600,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    });
    queue(&mut agent, "short", to_dead);
    let long = json!({ "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead" });
    queue(&mut agent, "long", long);
    agent.must("consume", json!({ "queue": "dead", "no_ack": true }));
    let started = Instant::now();
    publish(&mut agent, "short", "of the queue");
    let own = json!({ "expiration": "1200", "headers": { "mine": "kept" } });
    agent.must(
        "publish",
        json!({ "key": "long", "body": "of its own", "properties": own }),
    );
    let first = agent.take_one();
    assert!(started.elapsed() >= Duration::from_millis(600));
    assert_eq!(
        (&first["body"], &first["key"]),
        (&json!("of the queue"), &json!("dead"))
    );
    let story = death(&first);
    assert_eq!(
        (&story["queue"], &story["reason"]),
        (&json!("short"), &json!("expired"))
    );
    assert_eq!(
        (&story["count"], &story["exchange"]),
        (&json!(1), &json!(""))
    );
    assert_eq!(story["routing-keys"], json!(["short"]));
    assert!(story["time"].is_i64(), "{story}");
    assert!(story.get("original-expiration").is_none(), "{story}");
    let headers = &first["properties"]["headers"];
    assert_eq!(headers["x-first-death-queue"], "short");
    assert_eq!(headers["x-first-death-reason"], "expired");
    assert_eq!(headers["x-first-death-exchange"], "");
    let second = agent.take_one();
    assert!(started.elapsed() >= Duration::from_millis(1_200));
    assert_eq!(second["body"], "of its own");
    assert_eq!(death(&second)["original-expiration"], "1200");
    assert!(
        second["properties"].get("expiration").is_none(),
        "{second:#}"
    );
    assert_eq!(second["properties"]["headers"]["mine"], "kept");
}

/// `x-max-length` and `x-max-length-bytes` drop the oldest, reject the newest, or do so and dead-letter.
#[test]
fn queues_keep_to_their_length() {
    let node = Node::dev();
    let mut agent = confirming(&node);
    queue(&mut agent, "dead", json!({}));
    let arguments = |more: Value| {
        let mut all = json!({ "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead" });
        let more = more.as_object().unwrap().clone();
        all.as_object_mut().unwrap().extend(more);
        all
    };
    queue(
        &mut agent,
        "newest",
        arguments(json!({ "x-max-length": 2 })),
    );
    queue(
        &mut agent,
        "bytes",
        arguments(json!({ "x-max-length-bytes": 10 })),
    );
    for body in ["one1", "two2", "three"] {
        publish(&mut agent, "newest", body);
        publish(&mut agent, "bytes", body);
    }
    assert_eq!(bodies(&contents(&mut agent, "newest")), ["two2", "three"]);
    assert_eq!(bodies(&contents(&mut agent, "bytes")), ["two2", "three"]);
    agent.must("consume", json!({ "queue": "dead", "no_ack": true }));
    let mut dead = agent.take(2);
    dead.sort_by_key(|message| death(message)["queue"].to_string());
    for (message, name) in dead.iter().zip(["bytes", "newest"]) {
        assert_eq!(message["body"], "one1");
        let story = death(message);
        assert_eq!(
            (&story["queue"], &story["reason"]),
            (&json!(name), &json!("maxlen"))
        );
    }

    let reject = json!({ "x-max-length": 1, "x-overflow": "reject-publish" });
    queue(&mut agent, "oldest", arguments(reject));
    let tell = json!({ "x-max-length": 1, "x-overflow": "reject-publish-dlx" });
    queue(&mut agent, "told", arguments(tell));
    let mut publishers = [confirming(&node), amqplib(&node)];
    for publisher in &mut publishers {
        for name in ["oldest", "told"] {
            publisher.must("publish", json!({ "key": name, "body": "in" }));
            let refused = publisher.ask("publish", json!({ "key": name, "body": "out" }));
            assert_eq!(refused["nacked"], true, "{name}: {refused}");
        }
        let rejected = agent.take_one();
        assert_eq!(rejected["body"], "out");
        let story = death(&rejected);
        assert_eq!(
            (&story["queue"], &story["reason"]),
            (&json!("told"), &json!("maxlen"))
        );
        // Room again: taken again.
        for name in ["oldest", "told"] {
            agent.must("queue_purge", json!({ "queue": name }));
        }
    }
}

/// Rejected messages are dead-lettered; a cycle of automatic deaths ends, one with a rejection goes on.
#[test]
fn rejected_messages_go_round_and_expired_ones_do_not() {
    let mut node = Node::dev();
    let mut agent = confirming(&node);
    agent.must(
        "exchange_declare",
        json!({ "exchange": "dlx", "exchange_type": "topic", "durable": true }),
    );
    queue(
        &mut agent,
        "work",
        json!({ "x-dead-letter-exchange": "dlx" }),
    );
    let wait = json!({
        "x-message-ttl": 100,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "work",
    });
    queue(&mut agent, "wait", wait);
    agent.must(
        "queue_bind",
        json!({ "queue": "wait", "exchange": "dlx", "key": "work" }),
    );
    publish(&mut agent, "work", "job");
    agent.must("consume", json!({ "queue": "work" }));
    for round in 0..3 {
        let message = agent.take_one();
        assert_eq!(
            (&message["body"], &message["redelivered"]),
            (&json!("job"), &json!(false))
        );
        let deaths = message["properties"]["headers"]["x-death"].as_array();
        let counts: BTreeMap<(&str, &str), i64> = deaths
            .into_iter()
            .flatten()
            .map(|story| {
                let text = |name: &str| story[name].as_str().unwrap();
                (
                    (text("queue"), text("reason")),
                    story["count"].as_i64().unwrap(),
                )
            })
            .collect();
        let wanted = match round {
            0 => BTreeMap::new(),
            _ => BTreeMap::from([(("work", "rejected"), round), (("wait", "expired"), round)]),
        };
        assert_eq!(counts, wanted, "round {round}");
        if round == 1 {
            // Given back by a stop instead, it is the same message with the same past.
            node.stop();
            node.restart();
            agent = confirming(&node);
            agent.must("consume", json!({ "queue": "work" }));
            let again = agent.take_one();
            assert_eq!(again["redelivered"], true);
            assert_eq!(death(&again)["count"], 1);
            agent.must("reject", json!({ "tag": again["tag"], "requeue": false }));
            continue;
        }
        agent.must("reject", json!({ "tag": message["tag"], "requeue": false }));
    }

    // Two queues whose messages expire into each other: the second death in the first one is the end.
    for (name, other) in [("ping", "pong"), ("pong", "ping")] {
        let arguments = json!({
            "x-message-ttl": 50,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": other,
        });
        queue(&mut agent, name, arguments);
    }
    publish(&mut agent, "ping", "ball");
    until("the loop ends", || {
        let counts = [ready(&mut agent, "ping"), ready(&mut agent, "pong")];
        counts == [json!(0), json!(0)]
    });
}

/// Waits until something holds that nobody tells of.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
    }
}

/// A message that comes back too often is dead-lettered, and each delivery says how often it came.
#[test]
fn a_delivery_limit_ends_what_nobody_can_do() {
    let node = Node::dev();
    let mut agent = confirming(&node);
    queue(&mut agent, "dead", json!({}));
    let arguments = json!({
        "x-queue-type": "quorum",
        "x-delivery-limit": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    });
    queue(&mut agent, "work", arguments);
    publish(&mut agent, "work", "poison");
    agent.must("consume", json!({ "queue": "work" }));
    for attempt in 0..3 {
        let message = agent.take_one();
        assert_eq!(message["redelivered"], attempt > 0, "{message:#}");
        let count = &message["properties"]["headers"]["x-delivery-count"];
        let wanted = if attempt == 0 {
            json!(null)
        } else {
            json!(attempt)
        };
        assert_eq!(*count, wanted, "{message:#}");
        agent.must("nack", json!({ "tag": message["tag"], "requeue": true }));
    }
    agent.must(
        "consume",
        json!({ "queue": "dead", "no_ack": true, "channel": "2" }),
    );
    let dead = agent.take_one();
    let story = death(&dead);
    assert_eq!(
        (&story["queue"], &story["reason"]),
        (&json!("work"), &json!("delivery_limit"))
    );
    assert_eq!(ready(&mut agent, "work"), 0);
}

/// [RabbitMQ, Quorum Queues, At-Least-Once Dead Lettering]: what a full target refuses stays until there is room, and so
/// does what has no target.
#[test]
fn a_dead_letter_that_must_arrive_does() {
    let node = Node::dev();
    let mut agent = confirming(&node);
    let full = json!({ "x-max-length": 1, "x-overflow": "reject-publish" });
    queue(&mut agent, "dead", full);
    let arguments = json!({
        "x-queue-type": "quorum",
        "x-overflow": "reject-publish",
        "x-dead-letter-strategy": "at-least-once",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    });
    queue(&mut agent, "work", arguments.clone());
    for body in ["one", "two", "three"] {
        publish(&mut agent, "work", body);
    }
    agent.must("consume", json!({ "queue": "work" }));
    for _ in 0..3 {
        let message = agent.take_one();
        agent.must("nack", json!({ "tag": message["tag"], "requeue": false }));
    }
    let api = node.api();
    until("two letters wait", || {
        api.stream("work")["dead_letters_waiting"] == 2
            && api.get("/overview").expect(200)["gauges"]["dead_letters_waiting"] == 2
    });
    let mut reader = amqplib(&node);
    reader.must("qos", json!({ "prefetch": 1 }));
    reader.must("consume", json!({ "queue": "dead" }));
    for body in ["one", "two", "three"] {
        let message = reader.take_one();
        assert_eq!(message["body"], body);
        assert_eq!(death(&message)["reason"], "rejected", "{message:#}");
        reader.must("ack", json!({ "tag": message["tag"] }));
    }
    until("none waits", || {
        api.stream("work")["dead_letters_waiting"] == 0
    });

    let mut late = arguments;
    late["x-dead-letter-routing-key"] = "late".into();
    queue(&mut agent, "second", late);
    publish(&mut agent, "second", "four");
    agent.must("consume", json!({ "queue": "second", "channel": "2" }));
    let message = agent.take_one();
    let nack = json!({ "tag": message["tag"], "requeue": false, "channel": "2" });
    agent.must("nack", nack);
    until("it waits", || {
        api.stream("second")["dead_letters_waiting"] == 1
    });
    queue(&mut agent, "late", json!({}));
    agent.must(
        "consume",
        json!({ "queue": "late", "channel": "3", "no_ack": true }),
    );
    assert_eq!(agent.take_one()["body"], "four");
}

/// `x-expires`: a queue that nobody uses goes; a consumer is use.
#[test]
fn unused_queues_go() {
    let node = Node::dev();
    let mut agent = pika(&node);
    let mut other = pika(&node);
    let gone = |agent: &mut Agent, name: &str| {
        // A binding is no use of a queue, and is refused where there is none.
        let bind = json!({ "queue": name, "exchange": "amq.fanout" });
        agent.ask("queue_bind", bind)["channel_closed"]["code"] == 404
    };
    queue(&mut agent, "used", json!({ "x-expires": 2_000 }));
    let consumer = agent.must("consume", json!({ "queue": "used" }))["consumer"].take();
    let started = Instant::now();
    queue(&mut agent, "unused", json!({ "x-expires": 700 }));
    until("an unused queue goes", || gone(&mut other, "unused"));
    assert!(started.elapsed() >= Duration::from_millis(700));
    queue(&mut agent, "longer", json!({ "x-expires": 2_500 }));
    until("another goes", || gone(&mut other, "longer"));
    assert!(!gone(&mut other, "used"));
    agent.must("cancel", json!({ "consumer": consumer }));
    until("a queue goes that is used no longer", || {
        gone(&mut other, "used")
    });
}

/// What an exchange has no place for goes to its alternate exchange; exchanges feed each other.
#[test]
fn exchanges_feed_each_other() {
    let node = Node::dev();
    let mut agent = confirming(&node);
    let mut other = amqplib(&node);
    let declare = |agent: &mut Agent, exchange: &str, kind: &str, more: Value| {
        let declare = json!({
            "exchange": exchange,
            "exchange_type": kind,
            "durable": true,
            "arguments": more,
        });
        agent.must("exchange_declare", declare);
    };
    declare(&mut agent, "lost", "fanout", json!({}));
    declare(
        &mut agent,
        "first",
        "direct",
        json!({ "alternate-exchange": "lost" }),
    );
    declare(&mut agent, "second", "topic", json!({}));
    declare(&mut agent, "third", "fanout", json!({}));
    for name in ["bound", "unrouted", "all"] {
        queue(&mut agent, name, json!({}));
    }
    let bind = |queue: &str, exchange: &str, key: &str| json!({ "queue": queue, "exchange": exchange, "key": key });
    agent.must("queue_bind", bind("bound", "first", "here"));
    agent.must("queue_bind", bind("unrouted", "lost", ""));
    agent.must("queue_bind", bind("all", "third", ""));
    let link = |destination: &str, source: &str, key: &str| json!({ "destination": destination, "source": source, "key": key });
    other.must("exchange_bind", link("second", "first", "here"));
    agent.must("exchange_bind", link("third", "second", "#"));
    // Round and round is no danger.
    agent.must("exchange_bind", link("second", "third", ""));
    for agent in [&mut agent, &mut other] {
        for key in ["here", "elsewhere"] {
            agent.must(
                "publish",
                json!({ "exchange": "first", "key": key, "body": key, "mandatory": true }),
            );
        }
    }
    assert_eq!(bodies(&contents(&mut agent, "bound")), ["here", "here"]);
    assert_eq!(bodies(&contents(&mut agent, "all")), ["here", "here"]);
    assert_eq!(
        bodies(&contents(&mut agent, "unrouted")),
        ["elsewhere", "elsewhere"]
    );
    agent.must("exchange_unbind", link("second", "first", "here"));
    publish_to(&mut agent, "first", "here");
    assert_eq!(ready(&mut agent, "all"), 0);
    // Declared again otherwise, by either client: what is there stays.
    let changed = json!({ "exchange": "first", "exchange_type": "fanout", "durable": true });
    for agent in [&mut agent, &mut other] {
        let refused = agent.ask("exchange_declare", changed.clone());
        assert_eq!(refused["channel_closed"]["code"], 406, "{refused}");
        let refused = agent.ask(
            "exchange_declare",
            json!({ "exchange": "no", "passive": true }),
        );
        assert_eq!(refused["channel_closed"]["code"], 404, "{refused}");
        let refused = agent.ask("queue_declare", json!({ "queue": "no", "passive": true }));
        assert_eq!(refused["channel_closed"]["code"], 404, "{refused}");
    }
}

fn publish_to(agent: &mut Agent, exchange: &str, key: &str) {
    agent.must(
        "publish",
        json!({ "exchange": exchange, "key": key, "body": key }),
    );
}

/// Headers exchanges: all, any, and whether headers named `x-...` count.
#[test]
fn headers_exchanges_match_as_they_are_told() {
    let node = Node::dev();
    let mut agent = confirming(&node);
    let bindings = [
        ("all", json!({ "x-match": "all", "a": 1, "b": "two" })),
        ("default", json!({ "a": 1, "b": "two" })),
        ("any", json!({ "x-match": "any", "a": 1, "b": "two" })),
        (
            "all-x",
            json!({ "x-match": "all-with-x", "a": 1, "x-b": "two" }),
        ),
        (
            "any-x",
            json!({ "x-match": "any-with-x", "c": 1, "x-b": "two" }),
        ),
        ("nothing", json!({ "x-match": "all" })),
        ("present", json!({ "x-match": "all", "c": null })),
    ];
    for (name, arguments) in &bindings {
        queue(&mut agent, name, json!({}));
        let bind = json!({ "queue": name, "exchange": "amq.headers", "arguments": arguments });
        agent.must("queue_bind", bind);
    }
    let cases = [
        (
            json!({ "a": 1, "b": "two" }),
            vec!["all", "any", "default", "nothing"],
        ),
        (json!({ "a": 1 }), vec!["any", "nothing"]),
        (
            json!({ "a": "1", "b": "two", "c": 5 }),
            vec!["any", "nothing", "present"],
        ),
        (
            json!({ "a": 1, "x-b": "two" }),
            vec!["all-x", "any", "any-x", "nothing"],
        ),
        (json!({ "a": 2, "b": "three" }), vec!["nothing"]),
        (json!({}), vec!["nothing"]),
    ];
    for (headers, wanted) in cases {
        let properties = json!({ "headers": headers });
        agent.must(
            "publish",
            json!({ "exchange": "amq.headers", "key": "ignored", "body": "m", "properties": properties }),
        );
        let mut matched: Vec<&str> = Vec::new();
        for (name, _) in &bindings {
            matched.extend(contents(&mut agent, name).iter().map(|_| *name));
        }
        matched.sort_unstable();
        assert_eq!(matched, wanted, "{headers}");
    }
}
