//! What no client library would send: each gets the protocol's own code or a close, and nothing else
//! changes. Every conversation ends with the question whether the node still serves.

use std::time::{Duration, Instant};

use anabranch_tests::node::Addresses;
use anabranch_tests::wire::{Wire, hex};
use anabranch_tests::{Agent, Api, Node};
use serde_json::json;

/// CONNECT of MQTT 3.1.1, client `x`, clean session, keep alive 60 s.
const CONNECT_3: &str = "10 0d 0004 4d515454 04 02 003c 0001 78";
/// CONNECT of MQTT 5.0, client `x`, clean start, keep alive 60 s.
const CONNECT_5: &str = "10 0e 0004 4d515454 05 02 003c 00 0001 78";

/// The node serves both protocols, did not end, and no thread of it panicked.
fn still_serves(node: &mut Node) {
    Agent::paho().connected(node.addresses().mqtt, json!({ "client_id": "still-there" }));
    Agent::pika().connected(node.addresses().amqp, json!({}));
    assert!(!node.has_ended());
    assert!(!node.output().contains("panicked"), "{}", node.output());
}

fn mqtt(addresses: Addresses, connect: &str) -> Wire {
    let mut wire = Wire::connect(addresses.mqtt);
    wire.send(&hex(connect));
    let header = wire.receive(2).unwrap();
    assert_eq!(header[0], 0x20, "CONNACK");
    let rest = wire.receive(usize::from(header[1])).unwrap();
    assert_eq!(rest[1], 0, "accepted: {rest:02x?}");
    wire
}

/// The reason code of a DISCONNECT before the close.
fn disconnect_reason(wire: &mut Wire) -> Result<u8, String> {
    match wire.receive_to_end()?.as_slice() {
        [] => Err("closed without a word".to_owned()),
        [0xE0, 0, ..] => Ok(0),
        [0xE0, _, reason, ..] => Ok(*reason),
        other => Err(format!("no DISCONNECT: {other:02x?}")),
    }
}

/// Fails with all complaints at once.
fn none_of(complaints: &[String]) {
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn mqtt_before_connect_nothing_is_answered() {
    let mut node = Node::dev();
    let cases = [
        ("PINGREQ [MQTT-3.1.0-1]", "c000".to_owned()),
        ("PUBLISH", "30 05 0001 61 6869".to_owned()),
        ("SUBSCRIBE", "82 06 0001 0001 61 00".to_owned()),
        ("packet type 0", "00 00".to_owned()),
        (
            "another protocol",
            "474554202f20485454502f312e310d0a0d0a".to_owned(),
        ),
        ("a length of five bytes", "10 ff ff ff ff 7f".to_owned()),
        (
            "a protocol name that is none [MQTT-3.1.2-1]",
            "10 0d 0004 4d515458 04 02 003c 0001 78".to_owned(),
        ),
        (
            "a reserved flag [MQTT-3.1.2-3]",
            "10 0d 0004 4d515454 04 03 003c 0001 78".to_owned(),
        ),
        (
            "a client identifier that is no UTF-8 [MQTT-1.5.3-1]",
            "10 0d 0004 4d515454 04 02 003c 0001 ff".to_owned(),
        ),
    ];
    let mut wrong = Vec::new();
    for (what, bytes) in cases {
        let mut wire = Wire::connect(node.addresses().mqtt);
        wire.send(&hex(&bytes));
        match wire.receive_to_end() {
            Ok(answer) => {
                // A CONNECT that cannot be read may be told so with a CONNACK that refuses.
                let refused = matches!(answer.as_slice(), [0x20, _, _, 1..=u8::MAX, ..]);
                if !answer.is_empty() && !refused {
                    wrong.push(format!("{what}: {answer:02x?}"));
                }
            }
            Err(error) => wrong.push(format!("{what}: {error}")),
        }
    }
    none_of(&wrong);
    still_serves(&mut node);
}

#[test]
fn mqtt_an_unknown_version_is_named() {
    let mut node = Node::dev();
    let mut wire = Wire::connect(node.addresses().mqtt);
    wire.send(&hex("10 0d 0004 4d515454 09 02 003c 0001 78"));
    let answer = wire.receive_to_end().unwrap();
    // 3.1.1 says 0x01, 5.0 says 0x84.
    assert!(
        matches!(answer.as_slice(), [0x20, _, _, 0x01 | 0x84, ..]),
        "{answer:02x?}"
    );
    still_serves(&mut node);
}

#[test]
fn mqtt_5_says_why_it_closes() {
    let mut node = Node::dev();
    let cases: &[(&str, &str, &[u8])] = &[
        ("a second CONNECT [MQTT-3.1.0-2]", CONNECT_5, &[0x82]),
        (
            "quality 3 [MQTT-3.3.1-4]",
            "36 07 0001 61 0001 00 62",
            &[0x81, 0x82],
        ),
        (
            "a topic that is no UTF-8 [MQTT-1.5.4-1]",
            "30 05 0001 ff 00 62",
            &[0x81, 0x82, 0x90],
        ),
        (
            "a wildcard in a topic [MQTT-3.3.2-2]",
            "30 05 0001 23 00 62",
            &[0x81, 0x82, 0x90],
        ),
        (
            "an empty topic without alias",
            "30 04 0000 00 62",
            &[0x81, 0x82, 0x90],
        ),
        (
            "packet id 0 [MQTT-2.2.1-3]",
            "32 07 0001 61 0000 00 62",
            &[0x81, 0x82],
        ),
        (
            "a length that is too long for its packet",
            "30 02 00ff",
            &[0x81],
        ),
        (
            "a subscription without filters [MQTT-3.8.3-2]",
            "82 03 0001 00",
            &[0x81, 0x82],
        ),
        (
            "reserved flags of SUBSCRIBE [MQTT-3.8.1-1]",
            "80 07 0001 00 0001 61 00",
            &[0x81],
        ),
        ("a length of five bytes", "30 ff ff ff ff 7f", &[0x81]),
        (
            "256 MiB announced, above the packet limit",
            "30 ff ff ff 7f",
            &[0x95],
        ),
        ("packet type 0", "00 00", &[0x81, 0x82]),
        (
            "an unknown property",
            "30 06 0001 61 02 7f00",
            &[0x81, 0x82],
        ),
        (
            "a subscription identifier from a client [MQTT-3.3.4-6]",
            "30 06 0001 61 02 0b01",
            &[0x81, 0x82],
        ),
        ("AUTH without authentication method", "f0 00", &[0x82, 0x8C]),
        ("a server's packet", "20 03 00 00 00", &[0x81, 0x82]),
    ];
    let mut wrong = Vec::new();
    for (what, bytes, reasons) in cases {
        let mut wire = mqtt(node.addresses(), CONNECT_5);
        wire.send(&hex(bytes));
        match disconnect_reason(&mut wire) {
            Ok(reason) if reasons.contains(&reason) => {}
            other => wrong.push(format!("{what}: {other:02x?}, not one of {reasons:02x?}")),
        }
    }
    none_of(&wrong);
    still_serves(&mut node);
}

#[test]
fn mqtt_3_1_1_closes_without_a_word() {
    let mut node = Node::dev();
    let cases = [
        ("a second CONNECT [MQTT-3.1.0-2]", CONNECT_3),
        ("quality 3 [MQTT-3.3.1-4]", "36 06 0001 61 0001 62"),
        ("a wildcard in a topic [MQTT-3.3.2-2]", "30 04 0001 23 62"),
        (
            "a topic that is no UTF-8 [MQTT-1.5.3-1]",
            "30 04 0001 ff 62",
        ),
        (
            "a subscription without filters [MQTT-3.8.3-3]",
            "82 02 0001",
        ),
        ("a length of five bytes", "30 ff ff ff ff 7f"),
        (
            "256 MiB announced, above the packet limit",
            "30 ff ff ff 7f",
        ),
    ];
    let mut wrong = Vec::new();
    for (what, bytes) in cases {
        let mut wire = mqtt(node.addresses(), CONNECT_3);
        wire.send(&hex(bytes));
        match wire.receive_to_end() {
            Ok(answer) if answer.is_empty() => {}
            other => wrong.push(format!("{what}: {other:02x?}")),
        }
    }
    none_of(&wrong);
    still_serves(&mut node);
}

/// 65,535 levels: granted, refused or closed, never a crash.
#[test]
fn mqtt_a_filter_of_nothing_but_separators_does_no_harm() {
    let mut node = Node::dev();
    let mut wire = mqtt(node.addresses(), CONNECT_5);
    let mut packet = hex("82 86 80 04 0001 00 ffff");
    packet.extend(std::iter::repeat_n(b'/', 65_535));
    packet.push(0);
    wire.send(&packet);
    // Whatever the answer is, a ping or a close must follow it.
    wire.send(&hex("c000 e000"));
    wire.receive_to_end().unwrap();
    still_serves(&mut node);
}

/// One AMQP frame.
fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(channel.to_be_bytes());
    bytes.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
    bytes.extend(payload);
    bytes.push(0xCE);
    bytes
}

/// The next AMQP frame: kind, payload.
fn next_frame(wire: &mut Wire) -> Result<(u8, Vec<u8>), String> {
    let header = wire.receive(7)?;
    let length = u32::from_be_bytes([header[3], header[4], header[5], header[6]]);
    let mut payload = wire.receive(length as usize + 1)?;
    match payload.pop() {
        Some(0xCE) => Ok((header[0], payload)),
        end => Err(format!("frame end {end:02x?}")),
    }
}

/// The next method on any channel, skipping heartbeats: class, method, arguments.
fn next_method(wire: &mut Wire) -> Result<(u16, u16, Vec<u8>), String> {
    loop {
        let (kind, payload) = next_frame(wire)?;
        match (kind, payload.as_slice()) {
            (1, [c1, c2, m1, m2, arguments @ ..]) => {
                let class = u16::from_be_bytes([*c1, *c2]);
                let method = u16::from_be_bytes([*m1, *m2]);
                return Ok((class, method, arguments.to_vec()));
            }
            (8, _) => {}
            _ => return Err(format!("frame of kind {kind}: {payload:02x?}")),
        }
    }
}

/// The reply code of the connection.close that comes next, which is then answered.
fn close_code(wire: &mut Wire) -> Result<u16, String> {
    match next_method(wire)? {
        (10, 50, arguments) => {
            wire.send(&frame(1, 0, &hex("000a 0033")));
            wire.receive_to_end()?;
            Ok(u16::from_be_bytes([arguments[0], arguments[1]]))
        }
        other => Err(format!("no connection.close: {other:02x?}")),
    }
}

/// start-ok with PLAIN, tune-ok with the server's values, open of `/`.
fn amqp(addresses: Addresses, channel: Option<u16>) -> Wire {
    let mut wire = Wire::connect(addresses.amqp);
    wire.send(b"AMQP\x00\x00\x09\x01");
    assert_eq!(next_method(&mut wire).unwrap().1, 10, "start");
    let mut start_ok = hex("000a 000b 00000000 05 504c41494e 0000000c 00 6775657374 00 6775657374");
    start_ok.extend(hex("05 656e5f5553"));
    wire.send(&frame(1, 0, &start_ok));
    let (class, method, tune) = next_method(&mut wire).unwrap();
    assert_eq!((class, method), (10, 30), "tune: {tune:02x?}");
    let mut tune_ok = hex("000a 001f");
    tune_ok.extend(&tune[..6]);
    tune_ok.extend([0, 0]);
    wire.send(&frame(1, 0, &tune_ok));
    wire.send(&frame(1, 0, &hex("000a 0028 01 2f 00 00")));
    assert_eq!(next_method(&mut wire).unwrap().1, 41, "open-ok");
    if let Some(channel) = channel {
        wire.send(&frame(1, channel, &hex("0014 000a 00")));
        assert_eq!(next_method(&mut wire).unwrap().1, 11, "channel.open-ok");
    }
    wire
}

#[test]
fn amqp_another_protocol_is_told_the_version() {
    let mut node = Node::dev();
    for header in [
        &b"AMQP\x00\x00\x09\x00"[..],
        b"AMQP\x00\x01\x00\x00",
        b"HTTP/1.1",
        b"\x10\x0d\x00\x04MQTT",
    ] {
        let mut wire = Wire::connect(node.addresses().amqp);
        wire.send(header);
        // AMQP 0-9-1 4.2.2: the header it speaks, then a close.
        assert_eq!(
            wire.receive_to_end().unwrap(),
            b"AMQP\x00\x00\x09\x01",
            "{header:02x?}"
        );
    }
    still_serves(&mut node);
}

/// What breaks the connection, with the reply codes of the specification (AMQP 0-9-1 1.1, 4.2.3).
#[test]
fn amqp_connection_errors_have_their_codes() {
    let mut node = Node::dev();
    let broken_end = {
        let mut bytes = frame(1, 1, &hex("0032 000a 0000 00 00 00000000"));
        *bytes.last_mut().unwrap() = 0;
        bytes
    };
    let oversized = {
        let mut bytes = vec![3, 0, 1];
        bytes.extend(200_000_u32.to_be_bytes());
        bytes.resize(bytes.len() + 200_000, 0);
        bytes.push(0xCE);
        bytes
    };
    let publish = frame(1, 1, &hex("003c 0028 0000 00 01 71 00"));
    let header = |class: &str, size: &str| frame(2, 1, &hex(&format!("{class} 0000 {size} 0000")));
    let cases: Vec<(&str, Vec<u8>, &[u16])> = vec![
        ("a broken frame end", broken_end, &[501]),
        ("a frame above frame_max", oversized, &[501]),
        ("an unknown frame type", frame(9, 1, &[]), &[501]),
        ("a heartbeat on a channel", frame(8, 1, &[]), &[501, 505]),
        ("a body out of nowhere", frame(3, 1, b"x"), &[505]),
        (
            "a header out of nowhere",
            header("003c", "0000000000000001"),
            &[505],
        ),
        (
            "a method where a header is due",
            [
                publish.clone(),
                frame(1, 1, &hex("0014 0028 00c8 00 0000 0000")),
            ]
            .concat(),
            &[505],
        ),
        (
            "a header of another class",
            [publish.clone(), header("0032", "0000000000000001")].concat(),
            &[505],
        ),
        (
            "a body longer than announced",
            [
                publish.clone(),
                header("003c", "0000000000000001"),
                frame(3, 1, b"xyz"),
            ]
            .concat(),
            &[501],
        ),
        (
            "an unknown class",
            frame(1, 1, &hex("00ff 0001")),
            &[503, 540],
        ),
        (
            "an unknown method",
            frame(1, 1, &hex("003c 00ff")),
            &[503, 540],
        ),
        (
            "a truncated method",
            frame(1, 1, &hex("0032 000a 00")),
            &[501, 502],
        ),
        ("an empty method frame", frame(1, 1, &[]), &[501, 502]),
        (
            "a channel that is not open",
            frame(1, 7, &hex("0032 000a 0000 00 00 00000000")),
            &[504],
        ),
        (
            "a channel opened twice",
            frame(1, 1, &hex("0014 000a 00")),
            &[504],
        ),
        (
            "a queue declared on channel 0",
            frame(1, 0, &hex("0032 000a 0000 00 00 00000000")),
            &[503, 504],
        ),
        (
            "immediate",
            [
                frame(1, 1, &hex("003c 0028 0000 00 01 71 02")),
                header("003c", "0000000000000000"),
            ]
            .concat(),
            &[540],
        ),
        (
            "a prefetch in bytes",
            frame(1, 1, &hex("003c 000a 00000001 0001 00")),
            &[540],
        ),
        (
            "a channel above channel_max",
            frame(1, 65_000, &hex("0014 000a 00")),
            &[504, 530],
        ),
    ];
    let mut wrong = Vec::new();
    for (what, bytes, codes) in cases {
        let mut wire = amqp(node.addresses(), Some(1));
        wire.send(&bytes);
        match close_code(&mut wire) {
            Ok(code) if codes.contains(&code) => {}
            other => wrong.push(format!("{what}: {other:?}, not one of {codes:?}")),
        }
    }
    none_of(&wrong);
    still_serves(&mut node);
}

#[test]
fn amqp_channel_errors_leave_the_connection_open() {
    let mut node = Node::dev();
    let mut application = Agent::pika().connected(node.addresses().amqp, json!({}));
    let cases = [
        (
            "queue_declare",
            json!({ "queue": "missing", "passive": true }),
            404,
        ),
        ("queue_declare", json!({ "queue": "amq.mine" }), 403),
        ("exchange_declare", json!({ "exchange": "amq.mine" }), 403),
        (
            "exchange_declare",
            json!({ "exchange": "amq.topic", "exchange_type": "direct" }),
            406,
        ),
        ("exchange_delete", json!({ "exchange": "amq.topic" }), 403),
        (
            "queue_bind",
            json!({ "queue": "missing", "exchange": "amq.topic" }),
            404,
        ),
        ("queue_purge", json!({ "queue": "missing" }), 404),
        ("consume", json!({ "queue": "missing" }), 404),
        ("get", json!({ "queue": "missing" }), 404),
    ];
    for (operation, arguments, code) in cases {
        let answer = application.ask(operation, arguments.clone());
        assert_eq!(
            answer["channel_closed"]["code"], code,
            "{operation} {arguments}: {answer}"
        );
    }
    // Asynchronous ones: the close comes later.
    application.ask(
        "publish",
        json!({ "exchange": "missing", "key": "x", "channel": "p" }),
    );
    let lost = application.ask("wait_lost", json!({ "channel": "p" }));
    assert_eq!(lost["channel_closed"]["code"], 404, "{lost}");
    application.ask("qos", json!({ "prefetch": 1, "channel": "a" }));
    application.ask("ack", json!({ "tag": 99, "channel": "a" }));
    let lost = application.ask("wait_lost", json!({ "channel": "a" }));
    assert_eq!(lost["channel_closed"]["code"], 406, "{lost}");
    application.must("queue_declare", json!({ "queue": "fine" }));
    let other = application.ask("queue_declare", json!({ "queue": "fine", "durable": true }));
    assert_eq!(other["channel_closed"]["code"], 406, "{other}");
    still_serves(&mut node);
}

#[test]
fn unknown_users_and_vhosts_get_the_protocols_codes() {
    let mut node = Node::dev();
    let answer = Agent::pika().connect(node.addresses().amqp, json!({ "user": "nobody" }));
    assert_eq!(answer["refused"]["code"], 403, "{answer}");
    let answer = Agent::pika().connect(node.addresses().amqp, json!({ "password": "wrong" }));
    assert_eq!(answer["refused"]["code"], 403, "{answer}");
    let answer = Agent::pika().connect(node.addresses().amqp, json!({ "vhost": "nowhere" }));
    assert_eq!(answer["refused"]["code"], 530, "{answer}");
    for (version, reason) in [("5", 0x86), ("3.1.1", 0x86)] {
        // paho shows 3.1.1's "bad user name or password" (4) as 0x86 too.
        let answer = Agent::paho().connect(
            node.addresses().mqtt,
            json!({ "client_id": "a", "user": "nobody", "password": "x", "version": version }),
        );
        assert_eq!(answer["reason"], reason, "{version}: {answer}");
    }
    still_serves(&mut node);
}

/// A subscriber that does not read is bounded; who reads is not held up by it.
#[test]
fn a_slow_reader_holds_nobody_up() {
    let mut node = Node::dev();
    let mut slow = mqtt(node.addresses(), CONNECT_5);
    slow.send(&hex("82 0a 0001 00 0004 666c6f64 00"));
    slow.receive(6).unwrap();
    let mut fast = Agent::paho().connected(node.addresses().mqtt, json!({ "client_id": "fast" }));
    fast.must("subscribe", json!({ "filters": [["flod", 1]] }));
    let mut publisher = Wire::connect(node.addresses().mqtt);
    publisher.send(&hex("10 0e 0004 4d515454 05 02 003c 00 0001 79"));
    publisher.receive(2).unwrap();
    // 200 packets of 512 KiB: more than any socket buffer holds.
    let mut packet = hex("30 87 80 20 0004 666c6f64 00");
    packet.resize(packet.len() + (512 << 10), b'x');
    let count = 200;
    for _ in 0..count {
        assert!(
            publisher.send(&packet),
            "a publisher of quality 0 is not cut off"
        );
    }
    // The end is marked by an acknowledged message, which the fast reader gets.
    let mut marker = Agent::paho().connected(node.addresses().mqtt, json!({ "client_id": "m" }));
    marker.must("subscribe", json!({ "filters": [["flod", 1]] }));
    marker.must(
        "publish",
        json!({ "topic": "flod", "body": "end", "qos": 1 }),
    );
    loop {
        if fast.take_one()["body"] == "end" {
            break;
        }
    }
    drop(slow);
    still_serves(&mut node);
}

/// What a subscriber does not read costs no more than its limits: the rest is dropped and counted.
#[test]
fn a_reader_that_does_not_read_costs_bounded_memory() {
    const SENT_MIB: u64 = 1_024;
    const PEAK_MIB_MAX: u64 = 400;
    let mut node = Node::dev();
    let mut silent = mqtt(node.addresses(), CONNECT_5);
    silent.send(&hex("82 0a 0001 00 0004 666c6f64 00"));
    silent.receive(6).unwrap();
    let mut publisher = Wire::connect(node.addresses().mqtt);
    publisher.send(&hex("10 0e 0004 4d515454 05 02 003c 00 0001 79"));
    let header = publisher.receive(2).unwrap();
    publisher.receive(usize::from(header[1])).unwrap();
    let mut packet = hex("30 87 80 20 0004 666c6f64 00");
    packet.resize(packet.len() + (512 << 10), b'x');
    for _ in 0..SENT_MIB * 2 {
        assert!(
            publisher.send(&packet),
            "a publisher of quality 0 is not cut off"
        );
    }
    // PINGRESP comes when all before it was taken in.
    publisher.send(&hex("c000"));
    assert_eq!(publisher.receive(2).unwrap(), hex("d000"));
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.id())).unwrap();
    let mut peak = status
        .lines()
        .filter_map(|line| line.strip_prefix("VmHWM:"));
    let peak_kib = peak
        .next()
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok());
    let peak_mib: u64 = peak_kib.map(|kib: u64| kib / 1_024).expect("VmHWM");
    assert!(
        peak_mib < PEAK_MIB_MAX,
        "{peak_mib} MiB for {SENT_MIB} MiB that nobody read"
    );
    let api = Api::login(node.addresses().http, "guest", "guest");
    // Counters are gathered about once a second.
    let started = Instant::now();
    let dropped = || {
        api.get("/overview").expect(200)["totals"]["dropped"]
            .as_u64()
            .unwrap_or(0)
    };
    while dropped() < 1_000 {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "{} dropped",
            dropped()
        );
    }
    drop(silent);
    still_serves(&mut node);
}
