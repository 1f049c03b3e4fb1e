//! The same conversations with every shard in the process and behind a simulated network: each client
//! gets the same packets, coalesced acknowledgements expanded.
//!
//! Real connections of both gateways, workers and data shards as values (`simulated/`); no server runs,
//! nothing sleeps. A failure names its conversation and seed; `ANABRANCH_SEED` runs that seed alone.

#[allow(dead_code, reason = "other tests share it, none needs all of it")]
mod simulated;

use anabranch_amqp::wire::properties::Properties;
use anabranch_amqp::wire::table::{TableWriter, Value};
use anabranch_mqtt::codec::{PropertiesBuilder, PropertyId, QoS, Version};

use anabranch_amqp::wire::field::ShortStr;
use simulated::application::Acknowledge;
use simulated::device::{Hello, disconnect, puback, publish, publish_with, subscribe, unsubscribe};
use simulated::node::Carriage;
use simulated::{Story, hello};

const SEEDS: u64 = 50;

/// `m0`, `m1`, ...: what numbered publishes carry.
fn numbered(count: u16) -> Vec<String> {
    (0..count).map(|number| format!("m{number}")).collect()
}

/// Tells a story in the process, then over a network with every seed.
fn same_over_a_network(name: &str, conversation: fn(&mut Story)) {
    let direct = Story::tell(Carriage::Process, conversation);
    let (mut breaks, mut repeats) = (0, 0);
    let seeds = match std::env::var("ANABRANCH_SEED") {
        Ok(seed) => vec![seed.parse().expect("ANABRANCH_SEED is a number")],
        Err(_) => (1..=SEEDS).collect::<Vec<_>>(),
    };
    let all = seeds.len() as u64 == SEEDS;
    for seed in seeds {
        let told = std::panic::catch_unwind(|| Story::tell(Carriage::Network(seed), conversation));
        let Ok(told) = told else {
            panic!("{name}, seed {seed}: it went wrong over the network only, see above");
        };
        for (client, (direct, over)) in direct.transcripts.iter().zip(&told.transcripts).enumerate()
        {
            assert_eq!(
                over, direct,
                "{name}, seed {seed}: client {client} is told other things over the network (left)"
            );
        }
        breaks += told.breaks;
        repeats += told.repeats;
    }
    if all {
        assert!(
            breaks > 0 && repeats > 0,
            "{name}: the network lost nothing ({breaks} breaks, {repeats} repeats)"
        );
    }
}

#[test]
fn devices_among_themselves() {
    same_over_a_network("devices_among_themselves", |story| {
        let old = Hello {
            version: Version::V311,
            ..hello("old")
        };
        let (publisher, near, far) = (
            story.device(0, hello("publisher")),
            story.device(0, hello("near")),
            story.device(1, old),
        );
        story.send(
            near,
            &[
                subscribe(1, "plant/+/temp", QoS::AtLeastOnce),
                subscribe(2, "plant/#", QoS::AtMostOnce),
                subscribe(3, "bad/#/filter", QoS::AtMostOnce),
            ],
        );
        story.send(far, &[subscribe(7, "#", QoS::AtLeastOnce)]);
        story.run();
        for number in 0..20_u16 {
            let topic = format!("plant/{}/temp", number % 3);
            // Every third with QoS 0.
            let id = if number % 3 == 0 { 0 } else { number + 1 };
            story.send(publisher, &[publish(&topic, &format!("m{number}"), id)]);
        }
        story.run();
        assert_eq!(story.of_device(far).payloads(), numbered(20));
        story.send(near, &[unsubscribe(4, "plant/#"), unsubscribe(5, "none")]);
        story.run();
        story.send(publisher, &[publish("plant/7/hum", "unwanted", 100)]);
        story.send(publisher, &[publish("plant/7/temp", "wanted", 101)]);
        story.run();
        let payloads = story.of_device(near).payloads();
        assert_eq!(payloads.last().map(String::as_str), Some("wanted"));
        assert!(!payloads.contains(&"unwanted".to_owned()));
        story.send(far, &[disconnect()]);
        story.run();
    });
}

/// A session that is kept for an hour.
fn kept(client_id: &str) -> Hello {
    Hello {
        clean_start: false,
        expiry_s: 3600,
        ..hello(client_id)
    }
}

#[test]
fn a_session_is_resumed() {
    same_over_a_network("a_session_is_resumed", |story| {
        let silent = Hello {
            acknowledges: false,
            ..kept("sensor")
        };
        let publisher = story.device(0, hello("publisher"));
        let first = story.device(1, silent.clone());
        story.send(first, &[subscribe(1, "work/#", QoS::AtLeastOnce)]);
        story.run();
        for number in 0..4 {
            story.send(
                publisher,
                &[publish("work/a", &format!("m{number}"), number + 1)],
            );
        }
        story.run();
        let third = *story.of_device(first).unacknowledged.iter().nth(2).unwrap();
        story.send(first, &[puback(third)]);
        story.run();
        story.vanish(first);
        for number in 4..8 {
            story.send(
                publisher,
                &[publish("work/b", &format!("m{number}"), number + 1)],
            );
        }
        story.run();
        // What was not acknowledged comes again under its old identifier, then what was missed.
        let second = story.device(0, silent);
        let payloads = story.of_device(second).payloads();
        assert_eq!(payloads, ["m0", "m1", "m3", "m4", "m5", "m6", "m7"]);
        story.node.restart();
        let third = story.device(1, kept("sensor"));
        assert_eq!(story.of_device(third).payloads(), payloads);
        story.send(third, &[disconnect()]);
        story.run();
        let fourth = story.device(0, kept("sensor"));
        assert!(story.of_device(fourth).payloads().is_empty());
    });
}

#[test]
fn a_client_takes_its_session_over() {
    same_over_a_network("a_client_takes_its_session_over", |story| {
        let publisher = story.device(0, hello("publisher"));
        let lazy = Hello {
            acknowledges: false,
            ..kept("gate")
        };
        let old = story.device(0, lazy);
        story.send(old, &[subscribe(1, "gate", QoS::AtLeastOnce)]);
        story.run();
        story.send(publisher, &[publish("gate", "open", 1)]);
        story.run();
        let new = story.device(1, kept("gate"));
        assert!(!story.node.is_open(old), "it was stopped");
        assert_eq!(story.of_device(new).payloads(), ["open"]);
        story.send(publisher, &[publish("gate", "close", 2)]);
        story.run();
        assert_eq!(story.of_device(new).payloads(), ["open", "close"]);
        // A clean start forgets it.
        let clean = story.device(0, hello("gate"));
        story.send(publisher, &[publish("gate", "lost", 3)]);
        story.run();
        assert!(story.of_device(clean).payloads().is_empty());
    });
}

#[test]
fn a_device_keeps_its_receive_maximum() {
    same_over_a_network("a_device_keeps_its_receive_maximum", |story| {
        let narrow = Hello {
            receive_max: Some(3),
            acknowledges: false,
            ..hello("narrow")
        };
        let (publisher, narrow) = (story.device(0, hello("publisher")), story.device(1, narrow));
        story.send(narrow, &[subscribe(1, "m", QoS::AtLeastOnce)]);
        story.run();
        for number in 0..30 {
            story.send(
                publisher,
                &[publish("m", &format!("m{number}"), number + 1)],
            );
            // The publisher's own window is 20.
            if number % 10 == 9 {
                story.run();
            }
        }
        assert_eq!(story.of_device(narrow).payloads(), numbered(3));
        let held: Vec<u16> = story
            .of_device(narrow)
            .unacknowledged
            .iter()
            .copied()
            .collect();
        story.send(narrow, &[puback(held[2]), puback(held[0])]);
        story.run();
        assert_eq!(story.of_device(narrow).payloads(), numbered(5));
        story.of_device(narrow).acknowledges = true;
        let held: Vec<u16> = story
            .of_device(narrow)
            .unacknowledged
            .iter()
            .copied()
            .collect();
        for id in held {
            story.send(narrow, &[puback(id)]);
        }
        story.run();
        assert_eq!(story.of_device(narrow).payloads(), numbered(30));
    });
}

#[test]
fn confirms_of_many_queues() {
    same_over_a_network("confirms_of_many_queues", |story| {
        let (publisher, reader) = (story.application(0, 2), story.application(1, 1));
        let queues: Vec<String> = (0..8).map(|number| format!("queue{number}")).collect();
        for (number, queue) in queues.iter().enumerate() {
            // Half of them in memory.
            story.talk(publisher, 1, |talk| {
                talk.queue(queue, number % 2 == 0)
                    .bind(queue, "amq.direct", queue)
                    .bind(queue, "amq.fanout", "")
                    .bind(queue, "amq.topic", &format!("{number}.#"))
            });
        }
        story.run();
        story.talk(publisher, 1, |talk| talk.confirms());
        story.talk(publisher, 2, |talk| talk.confirms());
        for number in 0..60 {
            let body = format!("m{number}");
            let queue = &queues[number % 8];
            story.talk(publisher, 1, |talk| match number % 4 {
                0 => talk.publish("", queue, &body),
                1 => talk.publish("amq.direct", queue, &body),
                2 => talk.publish("amq.fanout", "", &body),
                _ => talk.publish("amq.topic", &format!("{}.x", number % 8), &body),
            });
        }
        story.run();
        assert_eq!(story.of_application(publisher).unconfirmed(1), 0);
        for queue in &queues {
            story.talk(reader, 1, |talk| {
                talk.prefetch(2)
                    .acknowledge(Acknowledge::Each)
                    .consume(queue, &format!("reader of {queue}"))
            });
        }
        story.run();
        // 15 to all of 8 queues, 45 to one of them each.
        assert_eq!(story.of_application(reader).bodies(1).len(), 15 * 8 + 45);
        // And live, over a second channel, with prefetch windows moving.
        for number in 0..40 {
            let body = format!("live{number}");
            story.talk(publisher, 2, |talk| talk.publish("amq.fanout", "", &body));
        }
        story.run();
        assert_eq!(story.of_application(publisher).unconfirmed(2), 0);
        assert_eq!(
            story.of_application(reader).bodies(1).len(),
            15 * 8 + 45 + 40 * 8
        );
    });
}

#[test]
fn acknowledging_refusing_and_giving_back() {
    same_over_a_network("acknowledging_refusing_and_giving_back", |story| {
        let (writer, first, second) = (
            story.application(0, 1),
            story.application(1, 2),
            story.application(0, 1),
        );
        for durable in [true, false] {
            let queue = if durable { "kept" } else { "held" };
            let channel = if durable { 1 } else { 2 };
            story.talk(writer, 1, |talk| talk.queue(queue, durable));
            story.run();
            for body in numbered(10) {
                story.talk(writer, 1, |talk| talk.publish("", queue, &body));
            }
            story.run();
            story.talk(first, channel, |talk| {
                talk.prefetch(6).consume(queue, "by hand")
            });
            story.run();
            assert_eq!(story.of_application(first).bodies(channel), numbered(6));
            // m0 and m1 are done, m2 is not wanted; then m3 goes back and comes again first.
            story.talk(first, channel, |talk| talk.ack(2, true).reject(3, false));
            story.run();
            story.talk(first, channel, |talk| talk.nack(4, false, true));
            story.run();
            let bodies = story.of_application(first).bodies(channel).join(" ");
            assert_eq!(bodies, "m0 m1 m2 m3 m4 m5 m6 m7 m8 m3");
            // All of it goes back.
            story.talk(first, channel, |talk| talk.close());
            story.run();
            story.talk(second, 1, |talk| {
                talk.prefetch(0)
                    .acknowledge(Acknowledge::Every(3))
                    .consume(queue, &format!("reader of {queue}"))
            });
            story.run();
        }
        let rest = "m3 m4 m5 m6 m7 m8 m9";
        assert_eq!(
            story.of_application(second).bodies(1).join(" "),
            format!("{rest} {rest}")
        );
        // What a channel holds comes again at its wish.
        story.talk(second, 1, |talk| {
            talk.acknowledge(Acknowledge::ByHand)
                .publish("", "kept", "m10")
        });
        story.run();
        story.talk(second, 1, |talk| talk.recover());
        story.run();
        let bodies = story.of_application(second).bodies(1);
        assert!(bodies.ends_with(&["m10", "m8", "m9", "m10"]), "{bodies:?}");
        // An acknowledgement of a tag that is not there ends the channel.
        story.talk(second, 1, |talk| talk.ack(99, false));
        story.run();
    });
}

#[test]
fn getting_purging_and_deleting() {
    same_over_a_network("getting_purging_and_deleting", |story| {
        let application = story.application(0, 1);
        for (queue, durable) in [("kept", true), ("held", false)] {
            story.talk(application, 1, |talk| talk.queue(queue, durable));
            story.run();
            for body in numbered(6) {
                story.talk(application, 1, |talk| talk.publish("", queue, &body));
            }
            story.run();
            story.talk(application, 1, |talk| {
                talk.look(queue)
                    .get(queue, true)
                    .get(queue, false)
                    .get(queue, false)
                    .look(queue)
            });
            story.run();
            let application_of = story.of_application(application);
            assert_eq!(application_of.bodies(1).len() % 3, 0);
            let tag = application_of.tag(1, "m1");
            story.talk(application, 1, |talk| talk.nack(tag, false, true));
            story.run();
            // One is held, three and the one given back are purged.
            story.talk(application, 1, |talk| talk.purge(queue).get(queue, true));
            story.run();
            let tag = story.of_application(application).tag(1, "m2");
            story.talk(application, 1, |talk| talk.nack(tag, false, true));
            story.run();
            story.talk(application, 1, |talk| talk.delete(queue, false, false));
            story.run();
            story.talk(application, 1, |talk| talk.delete(queue, false, false));
            story.run();
        }
        assert_eq!(story.of_application(application).bodies(1).len(), 6);
    });
}

/// "Commands of one connection take effect in the order they were put into `Outputs`, for everything
/// that concerns one stream" (`core/src/gateway.rs`).
#[test]
fn everything_at_once_on_one_channel() {
    same_over_a_network("everything_at_once_on_one_channel", |story| {
        let application = story.application(0, 1);
        for (queue, durable) in [("kept", true), ("held", false)] {
            story.talk(application, 1, |talk| {
                talk.queue(queue, durable)
                    .bind(queue, "amq.topic", "k.#")
                    .publish("", queue, "m0")
                    .publish("amq.topic", "k.1", "m1")
                    .publish("", queue, "m2")
                    .look(queue)
                    .get(queue, true)
                    .purge(queue)
                    .publish("", queue, "m3")
                    .get(queue, true)
                    .publish("", queue, "m4")
                    .delete(queue, false, false)
            });
            story.run();
        }
        let bodies = story.of_application(application).bodies(1).join(" ");
        assert_eq!(bodies, "m0 m3 m0 m3");
    });
}

/// A publish that follows a declaration or a binding in one piece finds it done.
#[test]
fn publishing_behind_what_was_just_asked() {
    same_over_a_network("publishing_behind_what_was_just_asked", |story| {
        let application = story.application(0, 1);
        story.talk(application, 1, |talk| talk.confirms());
        for (queue, durable) in [("kept", true), ("held", false)] {
            story.talk(application, 1, |talk| {
                talk.queue(queue, durable).mandatory("", queue, "declared")
            });
            story.run();
            story.talk(application, 1, |talk| {
                talk.bind(queue, "amq.topic", queue)
                    .mandatory("amq.topic", queue, "bound")
            });
            story.run();
            story.talk(application, 1, |talk| {
                talk.unbind(queue, "amq.topic", queue)
                    .publish("amq.topic", queue, "unbound")
            });
            story.run();
            story.talk(application, 1, |talk| {
                talk.acknowledge(Acknowledge::Each).consume(queue, queue)
            });
            story.run();
        }
        let bodies = story.of_application(application).bodies(1).join(" ");
        assert_eq!(bodies, "declared bound declared bound");
    });
}

/// A device that publishes behind its SUBSCRIBE, without a wait, hears itself.
#[test]
fn a_device_hears_itself() {
    same_over_a_network("a_device_hears_itself", |story| {
        for who in [hello("live"), kept("kept")] {
            let device = story.device(1, who);
            story.send(
                device,
                &[
                    subscribe(1, "own/#", QoS::AtLeastOnce),
                    publish("own/a", "m0", 2),
                    publish("own/b", "m1", 0),
                    unsubscribe(3, "own/#"),
                    publish("own/a", "m2", 4),
                    subscribe(5, "own/+", QoS::AtMostOnce),
                    publish("own/c", "m3", 6),
                ],
            );
            story.run();
            assert_eq!(story.of_device(device).payloads(), ["m0", "m1", "m3"]);
        }
    });
}

#[test]
fn what_nobody_takes_is_returned() {
    same_over_a_network("what_nobody_takes_is_returned", |story| {
        let (writer, device) = (story.application(0, 1), story.device(1, kept("listener")));
        story.send(device, &[subscribe(1, "wanted/#", QoS::AtLeastOnce)]);
        story.talk(writer, 1, |talk| {
            talk.queue("kept", true)
                .queue("held", false)
                .bind("kept", "amq.topic", "durable.*")
                .bind("held", "amq.topic", "*.memory")
                .confirms()
        });
        story.run();
        for number in 0..24 {
            let body = format!("m{number}");
            story.talk(writer, 1, |talk| match number % 6 {
                0 => talk.mandatory("amq.topic", "durable.memory", &body),
                1 => talk.mandatory("amq.topic", "nobody.here", &body),
                2 => talk.mandatory("amq.topic", "wanted.by.a.device", &body),
                3 => talk.mandatory("", "no such queue", &body),
                4 => talk.publish("amq.topic", "nobody.here", &body),
                _ => talk.mandatory("amq.topic", "x.memory", &body),
            });
        }
        story.run();
        assert_eq!(story.of_application(writer).unconfirmed(1), 0);
        assert_eq!(
            story.of_device(device).payloads(),
            ["m2", "m8", "m14", "m20"]
        );
        // A session that is away still wants it.
        story.vanish(device);
        story.talk(writer, 1, |talk| {
            talk.mandatory("amq.topic", "wanted.later", "m24")
        });
        story.run();
        let device = story.device(0, kept("listener"));
        assert_eq!(story.of_device(device).payloads(), ["m24"]);
    });
}

#[test]
fn devices_to_queues() {
    same_over_a_network("devices_to_queues", |story| {
        let (device, other) = (
            story.device(0, hello("device")),
            story.device(1, hello("other")),
        );
        let application = story.application(1, 1);
        for (queue, durable) in [("archive", true), ("board", false), ("alarms", true)] {
            let key = if queue == "alarms" {
                "*.*.alarm"
            } else {
                "plant.#"
            };
            story.talk(application, 1, |talk| {
                talk.queue(queue, durable)
                    .bind(queue, "amq.topic", key)
                    .prefetch(4)
                    .acknowledge(Acknowledge::Each)
                    .consume(queue, queue)
            });
        }
        story.send(other, &[subscribe(1, "plant/#", QoS::AtMostOnce)]);
        story.run();
        for number in 0..18_u16 {
            let properties = PropertiesBuilder::new()
                .text(PropertyId::CONTENT_TYPE, "text/plain")
                .binary(PropertyId::CORRELATION_DATA, &[0, 255, number as u8])
                .text(PropertyId::RESPONSE_TOPIC, "answers/é")
                .pair("k", "first")
                .pair("k", "second")
                .build();
            let topic = match number % 3 {
                0 => "plant/7.5/alarm",
                1 => "plant//temp",
                _ => "plant/50%/temp",
            };
            let id = if number % 5 == 0 { 0 } else { number + 1 };
            let payload = format!("m{number}");
            story.send(device, &[publish_with(topic, &payload, id, properties)]);
        }
        story.run();
        assert_eq!(
            story.of_application(application).bodies(1).len(),
            18 + 18 + 6
        );
        assert_eq!(story.of_device(other).payloads(), numbered(18));
    });
}

#[test]
fn applications_to_devices() {
    same_over_a_network("applications_to_devices", |story| {
        let application = story.application(0, 1);
        let (live, away) = (
            story.device(1, hello("live")),
            story.device(0, kept("away")),
        );
        story.send(live, &[subscribe(1, "command/#", QoS::AtLeastOnce)]);
        story.send(away, &[subscribe(1, "command/+/run", QoS::AtLeastOnce)]);
        story.talk(application, 1, |talk| talk.confirms());
        story.run();
        story.vanish(away);
        // Times are told apart by the second only: the network may take part of one.
        story.node.wait_until(10_000);
        let mut headers = TableWriter::new();
        headers
            .named("number", Value::I32(-7))
            .named("text", Value::text("ä"))
            .named("flag", Value::Bool(true));
        let properties = Properties {
            content_type: ShortStr::new(b"application/json"),
            headers: Some(headers.table()),
            delivery_mode: Some(2),
            correlation_id: ShortStr::new(b"c-1"),
            reply_to: ShortStr::new(b"replies"),
            message_id: ShortStr::new(b"id"),
            expiration: ShortStr::new(b"60000"),
            ..Properties::default()
        };
        let properties = properties.to_bytes();
        for number in 0..10 {
            let body = format!("m{number}");
            story.talk(application, 1, |talk| match number % 2 {
                0 => talk.publish_as("amq.topic", "command.a%2Eb.run", &body, false, &properties),
                _ => talk.publish("amq.topic", "command.x/y.run", &body),
            });
        }
        story.run();
        assert_eq!(story.of_application(application).unconfirmed(1), 0);
        assert_eq!(story.of_device(live).payloads(), numbered(10));
        story.node.wait_until(30_000);
        let back = story.device(1, kept("away"));
        assert_eq!(story.of_device(back).payloads(), numbered(10));
        story.vanish(back);
        story.talk(application, 1, |talk| {
            talk.publish_as("amq.topic", "command.b.run", "late", false, &properties)
                .publish("amq.topic", "command.b.run", "in time")
        });
        story.node.wait_until(100_000);
        let back = story.device(1, kept("away"));
        assert_eq!(story.of_device(back).payloads(), ["in time"]);
    });
}

#[test]
fn what_is_refused_ends_the_channel() {
    same_over_a_network("what_is_refused_ends_the_channel", |story| {
        let (one, two) = (story.application(0, 6), story.application(1, 6));
        story.talk(one, 1, |talk| {
            talk.queue("shared", true)
                .exclusive_queue("mine")
                .exchange("orders", "direct")
                .bind("shared", "orders", "k")
        });
        story.run();
        story.talk(two, 1, |talk| talk.queue("shared", false));
        story.talk(two, 2, |talk| talk.consume("mine", "c"));
        story.talk(two, 3, |talk| talk.consume("none", "c"));
        story.talk(two, 4, |talk| talk.bind("shared", "none", "k"));
        story.talk(two, 5, |talk| talk.publish("none", "k", "m"));
        story.run();
        story.talk(one, 2, |talk| {
            talk.consume_as("shared", "alone", false, true)
        });
        story.run();
        story.talk(two, 6, |talk| talk.consume("shared", "second"));
        story.talk(one, 3, |talk| talk.delete("shared", true, false));
        story.run();
        // Whoever still reads a deleted queue is told so.
        story.talk(one, 1, |talk| {
            talk.unbind("shared", "orders", "k")
                .delete_exchange("orders")
                .delete("shared", false, false)
        });
        story.run();
        story.vanish(one);
        story.talk(two, 1, |talk| talk.open().look("mine"));
        story.run();
    });
}

#[test]
fn consumers_come_and_go() {
    same_over_a_network("consumers_come_and_go", |story| {
        let (writer, reader) = (story.application(0, 1), story.application(1, 1));
        let queues = ["a", "b", "c", "d"];
        for (number, queue) in queues.iter().enumerate() {
            story.talk(writer, 1, |talk| talk.queue(queue, number % 2 == 0));
        }
        story.run();
        for (number, queue) in queues.iter().enumerate() {
            story.talk(reader, 1, |talk| {
                talk.prefetch(3).acknowledge(Acknowledge::Each).consume_as(
                    queue,
                    queue,
                    number >= 2,
                    false,
                )
            });
        }
        story.run();
        for body in numbered(30) {
            for queue in queues {
                story.talk(writer, 1, |talk| talk.publish("", queue, &body));
            }
        }
        story.run();
        assert_eq!(story.of_application(reader).bodies(1).len(), 120);
        for queue in queues {
            story.talk(reader, 1, |talk| talk.cancel(queue));
        }
        story.run();
        for queue in queues {
            story.talk(writer, 1, |talk| talk.publish("", queue, "after"));
        }
        story.run();
        for queue in queues {
            story.talk(reader, 1, |talk| {
                talk.get(queue, true).delete(queue, true, true)
            });
        }
        story.run();
        assert_eq!(story.of_application(reader).bodies(1).len(), 124);
    });
}
