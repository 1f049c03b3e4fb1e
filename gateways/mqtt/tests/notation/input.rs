//! Reads what a script feeds: client packets, answers, deliveries.

use std::sync::Arc;

use anabranch_core::address::Address;
use anabranch_core::authority::Principal;
use anabranch_core::death::{Death, DeathReason, Deaths};
use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::{Answer, Delivery, PublishOutcome, Reply};
use anabranch_core::id::{ConsumerTag, Now, Offset, Token, UnixMs};
use anabranch_core::message::{Message, OriginTag, Quality};
use anabranch_core::properties::{Properties as Neutral, ReplyTo, Value};
use anabranch_mqtt::codec::{
    Ack, Auth, Connect, Disconnect, Packet, Properties, PropertiesBuilder, PropertyId, Publish,
    PublishNotes, QoS, ReasonCode, RetainHandling, Subscribe, SubscribeFilter, Unsubscribe,
    Version, Will,
};
use anabranch_mqtt::map::ORIGIN;
use bytes::Bytes;

use super::Words;

fn owned(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn qos(number: u8) -> QoS {
    QoS::from_number(number).expect("a QoS")
}

/// Properties given by name in the line, with `prefix` in front of each name.
fn properties_of(words: &Words<'_>, prefix: &str) -> Properties {
    const INTS: [(&str, PropertyId); 11] = [
        ("expiry", PropertyId::SESSION_EXPIRY),
        ("receive_max", PropertyId::RECEIVE_MAXIMUM),
        ("packet_max", PropertyId::MAXIMUM_PACKET_SIZE),
        ("problem_info", PropertyId::REQUEST_PROBLEM_INFO),
        ("message_expiry", PropertyId::MESSAGE_EXPIRY),
        ("alias", PropertyId::TOPIC_ALIAS),
        ("subscription_id", PropertyId::SUBSCRIPTION_ID),
        ("payload_format", PropertyId::PAYLOAD_FORMAT),
        ("alias_max", PropertyId::TOPIC_ALIAS_MAXIMUM),
        ("response_info", PropertyId::REQUEST_RESPONSE_INFO),
        ("delay", PropertyId::WILL_DELAY),
    ];
    const TEXTS: [(&str, PropertyId); 3] = [
        ("auth_method", PropertyId::AUTH_METHOD),
        ("content_type", PropertyId::CONTENT_TYPE),
        ("response_topic", PropertyId::RESPONSE_TOPIC),
    ];
    let mut builder = PropertiesBuilder::new();
    for (key, id) in INTS {
        if let Some(value) = words.number(&format!("{prefix}{key}")) {
            builder = builder.int(id, value);
        }
    }
    for (key, id) in TEXTS {
        if let Some(text) = words.text(&format!("{prefix}{key}")) {
            builder = builder.text(id, text);
        }
    }
    if let Some(text) = words.text(&format!("{prefix}correlation")) {
        builder = builder.binary(PropertyId::CORRELATION_DATA, text.as_bytes());
    }
    for pair in words.all(&format!("{prefix}property")) {
        let (name, value) = pair.split_once(':').expect("property=name:value");
        builder = builder.pair(name, value);
    }
    builder.build()
}

fn properties(words: &Words<'_>) -> Properties {
    properties_of(words, "")
}

fn notes(properties: &Properties) -> PublishNotes {
    let int = |id| properties.int(id);
    PublishNotes {
        message_expiry_s: int(PropertyId::MESSAGE_EXPIRY),
        topic_alias: int(PropertyId::TOPIC_ALIAS).map(|alias| alias as u16),
        payload_is_text: int(PropertyId::PAYLOAD_FORMAT).map(|flag| flag == 1),
        has_subscription_id: int(PropertyId::SUBSCRIPTION_ID).is_some(),
        has_response_topic: properties.text(PropertyId::RESPONSE_TOPIC).is_some(),
    }
}

fn connect(words: &Words<'_>) -> Connect {
    let will = words.text("will").map(|topic| Will {
        topic: owned(topic),
        payload: owned(words.text("will_body").unwrap_or("gone")),
        qos: qos(words.number("will_q").unwrap_or(0)),
        retain: words.has("will_retain"),
        properties: properties_of(words, "will_"),
    });
    Connect {
        version: match (words.has("v5"), words.has("v31")) {
            (true, _) => Version::V5,
            (_, true) => Version::V31,
            _ => Version::V311,
        },
        clean_start: words.has("clean"),
        keep_alive_s: words.number("keep_alive").unwrap_or(0),
        client_id: words.text("id").unwrap_or("").to_owned(),
        will,
        username: words.text("user").map(str::to_owned),
        password: words.text("password").map(owned),
        properties: properties(words),
    }
}

fn publish(words: &Words<'_>) -> Publish {
    let properties = properties(words);
    Publish {
        dup: words.has("dup"),
        qos: qos(words.number("q").unwrap_or(0)),
        retain: words.has("retain"),
        topic: owned(words.text("topic").unwrap_or("")),
        packet_id: words.number("id").unwrap_or(0),
        notes: notes(&properties),
        properties,
        payload: match words.number("bytes") {
            Some(count) => Bytes::from(vec![b'x'; count]),
            None => owned(words.text("body").unwrap_or("")),
        },
    }
}

fn ack(words: &Words<'_>) -> Ack {
    Ack::new(
        words.number("id").expect("an id"),
        ReasonCode(words.number("code").unwrap_or(0)),
    )
}

/// Words without `=` behind the packet's name: `filter,qos[,nl][,rap][,new][,never]`, or a filter
/// alone.
fn filters<'a>(words: &'a Words<'_>) -> impl Iterator<Item = &'a str> {
    words
        .from(1)
        .iter()
        .copied()
        .filter(|word| !word.contains('='))
}

fn subscribe_filter(word: &str) -> SubscribeFilter {
    let mut parts = word.split(',');
    let filter = parts.next().unwrap_or("").to_owned();
    let number = parts.next().expect("filter,qos").parse().expect("a QoS");
    let options: Vec<&str> = parts.collect();
    SubscribeFilter {
        filter,
        qos: qos(number),
        no_local: options.contains(&"nl"),
        retain_as_published: options.contains(&"rap"),
        retain_handling: match (options.contains(&"new"), options.contains(&"never")) {
            (true, _) => RetainHandling::SendIfNew,
            (_, true) => RetainHandling::DoNotSend,
            _ => RetainHandling::Send,
        },
    }
}

/// A packet of the client.
pub fn packet(line: &str) -> Packet {
    let words = Words::new(line);
    match words.at(0) {
        "connect" | "open" => Packet::Connect(Box::new(connect(&words))),
        "publish" => Packet::Publish(publish(&words)),
        "puback" => Packet::PubAck(ack(&words)),
        "pubrec" => Packet::PubRec(ack(&words)),
        "pubrel" => Packet::PubRel(ack(&words)),
        "pubcomp" => Packet::PubComp(ack(&words)),
        "subscribe" => Packet::Subscribe(Subscribe {
            packet_id: words.number("id").expect("an id"),
            properties: properties(&words),
            filters: filters(&words).map(subscribe_filter).collect(),
        }),
        "unsubscribe" => Packet::Unsubscribe(Unsubscribe {
            packet_id: words.number("id").expect("an id"),
            properties: Properties::EMPTY,
            filters: filters(&words).map(str::to_owned).collect(),
        }),
        "pingreq" => Packet::PingReq,
        "pingresp" => Packet::PingResp,
        "disconnect" => Packet::Disconnect(Disconnect {
            reason: ReasonCode(words.number("code").unwrap_or(0)),
            properties: properties(&words),
        }),
        "auth" => Packet::Auth(Auth {
            reason: ReasonCode(0x18),
            properties: properties(&words),
        }),
        other => panic!("no such packet: {other}"),
    }
}

fn kind(name: &str) -> ErrorKind {
    serde_json::from_value(serde_json::Value::String(name.to_owned()))
        .unwrap_or_else(|_| panic!("no such error kind: {name}"))
}

fn refusal(name: &str) -> Refusal {
    Refusal::new(kind(name), format!("because of {name}"))
}

fn outcome(word: &str) -> PublishOutcome {
    match word {
        "routed" => PublishOutcome::Routed,
        "unroutable" => PublishOutcome::Unroutable,
        other => PublishOutcome::Refused(kind(other)),
    }
}

/// An answer; `asked` is the oldest question that was not answered.
pub fn answer(line: &str, asked: &mut Vec<Token>) -> Answer {
    let words = Words::new(line);
    let rest = || words.from(1).iter();
    let result = match words.at(0) {
        "published" => {
            let (first, last) = words
                .at(1)
                .split_once("..")
                .unwrap_or((words.at(1), words.at(1)));
            let token = |text: &str| Token(text.parse().expect("a token"));
            return Answer::Published {
                first: token(first),
                last: token(last),
                outcome: outcome(words.at(2)),
            };
        }
        "ended" => {
            return Answer::Ended {
                consumer: ConsumerTag(words.number("tag").unwrap_or(0)),
                why: refusal(words.at(1)),
            };
        }
        "blocked" => return Answer::Blocked(Some("memory")),
        "done" => Ok(Reply::Done),
        "replaying" => Ok(Reply::Replaying),
        "principal" => Ok(Reply::Principal(Arc::new(Principal {
            user: Arc::from(words.at(1)),
            ..Principal::default()
        }))),
        "session" => Ok(Reply::Session {
            present: words.at(1) == "present",
        }),
        "granted" => Ok(Reply::Subscribed(
            rest()
                .map(|word| match word.parse() {
                    Ok(number) => Ok(Quality::from_number(number).expect("a quality")),
                    Err(_) => Err(refusal(word)),
                })
                .collect(),
        )),
        "existed" => Ok(Reply::Unsubscribed(
            rest().map(|word| *word == "yes").collect(),
        )),
        "refused" => Err(refusal(words.at(1))),
        other => panic!("no such answer: {other}"),
    };
    assert!(!asked.is_empty(), "nothing was asked: {line}");
    Answer::Done {
        token: asked.remove(0),
        result,
    }
}

/// The neutral properties of a message of another origin.
fn neutral(words: &Words<'_>) -> Neutral {
    Neutral {
        content_type: words.text("content_type").map(owned),
        correlation: words.text("correlation").map(owned),
        reply_to: words
            .text("reply_stream")
            .map(|name| ReplyTo::Stream(owned(name))),
        priority: words.number("priority"),
        headers: words
            .all("header")
            .map(|pair| {
                let (name, value) = pair.split_once(':').expect("header=name:value");
                let value = match value.parse() {
                    Ok(number) => Value::Int(number, 32),
                    Err(_) => Value::Text(owned(value)),
                };
                (owned(name), value)
            })
            .collect(),
        ..Neutral::default()
    }
}

/// `stream:count`, rejected each time.
fn deaths(text: &str) -> Arc<Deaths> {
    let (stream, count) = text.split_once(':').expect("died=stream:count");
    let death = Death {
        stream: Arc::from(stream),
        reason: DeathReason::Rejected,
        count: count.parse().expect("a count"),
        first: UnixMs(1),
        exchange: Bytes::new(),
        address: Bytes::new(),
        origin_key: Bytes::new(),
        time_to_live_ms: None,
    };
    Arc::new(Deaths::with(None, death))
}

/// A delivery; times are milliseconds from now.
pub fn delivery(line: &str, now: Now) -> Delivery {
    let words = Words::new(line);
    let foreign = words.has("foreign");
    let quality = Quality::from_number(words.number("q").unwrap_or(0)).expect("a quality");
    let body = match words.number("bytes") {
        Some(count) => Bytes::from(vec![b'x'; count]),
        None => owned(words.text("body").unwrap_or("")),
    };
    let message = Message {
        address: Address(owned(words.text("topic").unwrap_or(""))),
        origin: if foreign { OriginTag::BROKER } else { ORIGIN },
        properties: if foreign {
            neutral(&words).encode()
        } else {
            properties(&words).block().clone()
        },
        body,
        quality,
        expires: words
            .number("expires")
            .map(|ms: u64| UnixMs(now.unix.0 + ms)),
        deaths: words.text("died").map(deaths),
        ..Message::default()
    };
    let mut identifiers = words.numbers("ids");
    Delivery {
        consumer: ConsumerTag(words.number("tag").unwrap_or(0)),
        offset: Offset(words.number("offset").expect("an offset")),
        attempt: words.number("attempt").unwrap_or(1),
        quality,
        retain: words.has("retain"),
        identifier: if identifiers.is_empty() {
            0
        } else {
            identifiers.remove(0)
        },
        more_identifiers: (!identifiers.is_empty()).then(|| Arc::new(identifiers)),
        received: words.has("received"),
        message: Arc::new(message),
    }
}
