//! The client's side of a script: lines of text to frames, and frames to lines of text.

use anabranch_amqp::wire::field::ShortStr;
use anabranch_amqp::wire::frame::{FrameKind, FrameReader, PROTOCOL_HEADER};
use anabranch_amqp::wire::method::{Method, describe};
use anabranch_amqp::wire::properties::{CONTENT_HEADER_BYTES, ContentHeader, Properties};
use anabranch_amqp::wire::table::{ArrayWriter, TableWriter, Value};
use bytes::{BufMut, Bytes, BytesMut};

/// Arguments of the methods clients send, in their order: `b` bit, `o` octet, `s` short, `l` long, `L`
/// long-long, `t` short string, `T` long string, `F` table.
const CLIENT_METHODS: &[(&str, (u16, u16), &str)] = &[
    (
        "connection.start-ok",
        (10, 11),
        "F:properties t:mechanism T:response t:locale",
    ),
    (
        "connection.tune-ok",
        (10, 31),
        "s:channel-max l:frame-max s:heartbeat",
    ),
    ("connection.open", (10, 40), "t:vhost t:r1 b:r2"),
    (
        "connection.close",
        (10, 50),
        "s:code t:text s:class s:method",
    ),
    ("connection.close-ok", (10, 51), ""),
    ("connection.update-secret", (10, 70), "T:secret t:reason"),
    ("channel.open", (20, 10), "t:r1"),
    ("channel.flow", (20, 20), "b:active"),
    ("channel.close", (20, 40), "s:code t:text s:class s:method"),
    ("channel.close-ok", (20, 41), ""),
    (
        "access.request",
        (30, 10),
        "t:realm b:exclusive b:passive b:active b:write b:read",
    ),
    (
        "exchange.declare",
        (40, 10),
        "s:ticket t:exchange t:type b:passive b:durable b:auto-delete b:internal b:nowait F:arguments",
    ),
    (
        "exchange.delete",
        (40, 20),
        "s:ticket t:exchange b:if-unused b:nowait",
    ),
    (
        "exchange.bind",
        (40, 30),
        "s:ticket t:destination t:source t:key b:nowait F:arguments",
    ),
    (
        "exchange.unbind",
        (40, 40),
        "s:ticket t:destination t:source t:key b:nowait F:arguments",
    ),
    (
        "queue.declare",
        (50, 10),
        "s:ticket t:queue b:passive b:durable b:exclusive b:auto-delete b:nowait F:arguments",
    ),
    (
        "queue.bind",
        (50, 20),
        "s:ticket t:queue t:exchange t:key b:nowait F:arguments",
    ),
    (
        "queue.unbind",
        (50, 50),
        "s:ticket t:queue t:exchange t:key F:arguments",
    ),
    ("queue.purge", (50, 30), "s:ticket t:queue b:nowait"),
    (
        "queue.delete",
        (50, 40),
        "s:ticket t:queue b:if-unused b:if-empty b:nowait",
    ),
    ("basic.qos", (60, 10), "l:size s:count b:global"),
    (
        "basic.consume",
        (60, 20),
        "s:ticket t:queue t:tag b:no-local b:no-ack b:exclusive b:nowait F:arguments",
    ),
    ("basic.cancel", (60, 30), "t:tag b:nowait"),
    (
        "basic.publish",
        (60, 40),
        "s:ticket t:exchange t:key b:mandatory b:immediate",
    ),
    ("basic.get", (60, 70), "s:ticket t:queue b:no-ack"),
    ("basic.ack", (60, 80), "L:tag b:multiple"),
    ("basic.reject", (60, 90), "L:tag b:requeue"),
    ("basic.recover", (60, 110), "b:requeue"),
    ("basic.nack", (60, 120), "L:tag b:multiple b:requeue"),
    ("confirm.select", (85, 10), "b:nowait"),
    ("basic.recover-async", (60, 100), "b:requeue"),
    ("tx.select", (90, 10), ""),
    ("tx.commit", (90, 20), ""),
    ("tx.rollback", (90, 30), ""),
];

/// A frame of any type.
pub fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend(channel.to_be_bytes());
    out.extend((payload.len() as u32).to_be_bytes());
    out.extend(payload);
    out.push(0xCE);
    out
}

/// Bytes of text with `\xNN` for any octet.
pub fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("\\x") {
        out.extend(&rest.as_bytes()[..at]);
        out.push(u8::from_str_radix(&rest[at + 2..at + 4], 16).expect("two hex digits"));
        rest = &rest[at + 4..];
    }
    out.extend(rest.as_bytes());
    out
}

/// The value of `name=` among the words of a line.
pub fn value<'w>(words: &[&'w str], name: &str) -> Option<&'w str> {
    words
        .iter()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn flag(words: &[&str], name: &str) -> bool {
    words.contains(&name)
}

/// A table out of `name:type:value,name:type:value`; types are wire tags, `F` a nested `{...}` without
/// further nesting, `A` texts separated by `;`.
fn table(text: &str) -> Bytes {
    let mut out = TableWriter::new();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let mut parts = pair.splitn(3, ':');
        let (name, tag, text) = (
            parts.next().expect("a name"),
            parts.next().expect("a tag"),
            parts.next().unwrap_or_default(),
        );
        let raw = unescape(text);
        let name = name.as_bytes();
        match tag {
            "t" => out.pair(name, Value::Bool(text == "1")),
            "b" => out.pair(name, Value::I8(text.parse().expect("a number"))),
            "d" => out.pair(name, Value::F64(text.parse().expect("a number"))),
            "I" => out.pair(name, Value::I32(text.parse().expect("a number"))),
            "l" => out.pair(name, Value::I64(text.parse().expect("a number"))),
            "S" => out.pair(name, Value::text(text)),
            "T" => out.pair(name, Value::Timestamp(text.parse().expect("seconds"))),
            "x" => out.pair(name, Value::Bytes(&raw)),
            "A" => {
                let mut array = ArrayWriter::new();
                for item in text.split(';') {
                    array.push(Value::text(item));
                }
                out.pair(name, Value::Array(array.array()))
            }
            "F" => {
                let mut inner = TableWriter::new();
                for flag in text.split(';').filter(|flag| !flag.is_empty()) {
                    inner
                        .pair(flag.as_bytes(), Value::Bool(true))
                        .expect("a short name");
                }
                out.pair(name, Value::Table(inner.table()))
            }
            other => panic!("no value type {other}"),
        }
        .expect("a short name");
    }
    out.finish()
}

fn method(words: &[&str]) -> Vec<u8> {
    let (_, id, fields) = CLIENT_METHODS
        .iter()
        .find(|(name, _, _)| *name == words[0])
        .unwrap_or_else(|| panic!("no method {}", words[0]));
    let mut out = BytesMut::new();
    out.put_u16(id.0);
    out.put_u16(id.1);
    let mut bits = 8;
    for field in fields.split_whitespace() {
        let (domain, name) = field.split_once(':').expect("domain:name");
        let number = || value(words, name).map_or(0, |v| v.parse::<u64>().expect("a number"));
        let text = || unescape(value(words, name).unwrap_or_default());
        if domain == "b" {
            if bits == 8 {
                out.put_u8(0);
                bits = 0;
            }
            let last = out.len() - 1;
            out[last] |= u8::from(flag(words, name)) << bits;
            bits += 1;
            continue;
        }
        bits = 8;
        match domain {
            "s" => out.put_u16(number() as u16),
            "l" => out.put_u32(number() as u32),
            "L" => out.put_u64(number()),
            "t" => {
                let text = text();
                out.put_u8(text.len() as u8);
                out.put_slice(&text);
            }
            "T" => {
                // `table:` makes a table without its length of it, as AMQPLAIN answers.
                let text = match value(words, name).and_then(|v| v.strip_prefix("table:")) {
                    Some(pairs) => table(pairs).to_vec(),
                    None => text(),
                };
                out.put_u32(text.len() as u32);
                out.put_slice(&text);
            }
            "F" => {
                let raw = table(value(words, name).unwrap_or_default());
                out.put_u32(raw.len() as u32);
                out.put_slice(&raw);
            }
            other => panic!("no domain {other}"),
        }
    }
    out.to_vec()
}

/// Properties out of `mode= expiration= ...`.
fn properties(words: &[&str]) -> Bytes {
    let short = |name: &str| value(words, name).map(|text| ShortStr::cut(text.as_bytes()));
    let number = |name: &str| value(words, name).map(|text| text.parse().expect("a number"));
    let headers = value(words, "headers").map(table);
    Properties {
        content_type: short("content-type"),
        delivery_mode: number("mode"),
        priority: number("priority"),
        correlation_id: short("correlation-id"),
        reply_to: short("reply-to"),
        expiration: short("expiration"),
        user_id: short("user-id"),
        headers: headers
            .as_deref()
            .map(|raw| anabranch_amqp::wire::table::Table::new(raw).expect("a table")),
        ..Properties::default()
    }
    .to_bytes()
}

/// A content header frame's payload.
fn header(words: &[&str]) -> Vec<u8> {
    let mut out = value(words, "class")
        .map_or(60u16, |c| c.parse().expect("a class"))
        .to_be_bytes()
        .to_vec();
    out.extend([0, 0]);
    out.extend(
        value(words, "size")
            .expect("size=")
            .parse::<u64>()
            .expect("a number")
            .to_be_bytes(),
    );
    match value(words, "raw") {
        Some(raw) => out.extend(unescape(raw)),
        None => out.extend(&properties(words)[..]),
    }
    out
}

/// What a `>` line sends.
pub fn bytes_of(line: &str) -> Vec<u8> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[0] {
        "AMQP" => return PROTOCOL_HEADER.to_vec(),
        "heartbeat" => return frame(8, 0, b""),
        "raw" => return unescape(words.get(1).copied().unwrap_or_default()),
        _ => {}
    }
    let channel = words[0].parse().expect("a channel");
    let rest = &words[1..];
    match rest[0] {
        "header" => frame(2, channel, &header(&rest[1..])),
        "body" => frame(
            3,
            channel,
            &unescape(line.split_once("body ").expect("a body").1),
        ),
        "zeros" => frame(3, channel, &vec![0; rest[1].parse().expect("a size")]),
        "heartbeat" => frame(8, channel, b""),
        "message" => {
            // A whole publish: exchange, key, then properties and a body in one line.
            let body = unescape(value(rest, "body").unwrap_or_default());
            let mut publish = vec!["basic.publish"];
            publish.extend(rest);
            let mut out = frame(1, channel, &method(&publish));
            let size = format!("size={}", body.len());
            let mut words = rest.to_vec();
            words.push(&size);
            out.extend(frame(2, channel, &header(&words)));
            if !body.is_empty() {
                out.extend(frame(3, channel, &body));
            }
            out
        }
        _ => frame(1, channel, &method(rest)),
    }
}

fn shown_method(payload: &[u8]) -> String {
    let method = Method::decode(payload).expect("the server sends methods that decode");
    let text = format!("{method:?}");
    let (_, name) = describe(method.id()).expect("a known method");
    let fields = text
        .find('{')
        .map_or("", |at| text[at..].trim_end_matches(')'));
    format!("{name} {fields}").trim_end().to_owned()
}

fn shown_properties(raw: &[u8]) -> String {
    let text = format!(
        "{:?}",
        Properties::walk(raw).expect("the server sends properties that decode")
    );
    let inner = text
        .trim_start_matches("Properties { ")
        .trim_end_matches(" }");
    // Only what is there; a nested comma belongs to a table and has no `: None` after it.
    let mut out = inner.to_owned();
    for name in [
        "content_type",
        "content_encoding",
        "headers",
        "delivery_mode",
        "priority",
        "correlation_id",
        "reply_to",
        "expiration",
        "message_id",
        "timestamp_s",
        "kind",
        "user_id",
        "app_id",
        "cluster_id",
    ] {
        out = out
            .replace(&format!("{name}: None, "), "")
            .replace(&format!("{name}: None"), "");
    }
    out.trim_end_matches(", ").to_owned()
}

/// What the server sent, one line for each frame.
pub fn shown_frames(bytes: Vec<u8>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = Bytes::from(bytes);
    if rest.starts_with(&PROTOCOL_HEADER) {
        lines.push("AMQP".to_owned());
        rest = rest.slice(8..);
    }
    let mut reader = FrameReader::new(131_072);
    reader.feed(rest);
    while let Some(frame) = reader.next_frame().expect("the server sends whole frames") {
        let channel = frame.channel;
        lines.push(match frame.kind {
            FrameKind::Method => format!("{channel} {}", shown_method(frame.payload())),
            FrameKind::Header => {
                let size = ContentHeader::decode(frame.payload())
                    .expect("a content header")
                    .body_bytes;
                let properties = shown_properties(&frame.payload()[CONTENT_HEADER_BYTES..]);
                format!("{channel} header size={size} {properties}")
                    .trim_end()
                    .to_owned()
            }
            FrameKind::Body if frame.payload().len() > 64 => {
                format!("{channel} body of {}", frame.payload().len())
            }
            FrameKind::Body => format!("{channel} body {}", frame.payload().escape_ascii()),
            FrameKind::Heartbeat => "heartbeat".to_owned(),
        });
    }
    assert_eq!(reader.pending_bytes(), 0, "the server sent half a frame");
    lines
}

/// Raw properties of a message for a delivery.
pub fn raw_properties(words: &[&str]) -> Bytes {
    properties(words)
}

/// Properties with a header of 9000 octets.
pub fn huge_properties() -> Bytes {
    let text = "y".repeat(9000);
    let mut headers = TableWriter::new();
    headers.named("x", Value::text(&text));
    Properties {
        headers: Some(headers.table()),
        ..Properties::default()
    }
    .to_bytes()
}
