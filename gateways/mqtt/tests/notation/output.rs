//! Writes what a connection puts out: packets and commands, one line each.

use std::fmt::Write;

use anabranch_core::gateway::{Command, SendRetained, SessionFilter};
use anabranch_core::id::ConsumerTag;
use anabranch_core::message::Message;
use anabranch_mqtt::codec::{Packet, Properties, PropertyIter, Value, Version};
use bytes::Bytes;

/// Longer bodies are written as their length.
const BODY_SHOWN_MAX: usize = 64;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn body(bytes: &Bytes) -> String {
    if bytes.len() > BODY_SHOWN_MAX {
        format!("({} bytes)", bytes.len())
    } else {
        format!("{:?}", text(bytes))
    }
}

fn block(bytes: &Bytes) -> String {
    if bytes.is_empty() {
        return String::new();
    }
    let one = |property: anabranch_mqtt::codec::Property<'_>| {
        let value = match property.value {
            Value::Int(number) => number.to_string(),
            Value::Text(text) => format!("{text:?}"),
            Value::Binary(bytes) => format!("{:?}", text(bytes)),
            Value::Pair(name, value) => format!("{name:?} {value:?}"),
        };
        format!("{}: {value}", property.id.name())
    };
    format!(
        " [{}]",
        PropertyIter::over(bytes)
            .map(one)
            .collect::<Vec<_>>()
            .join(", ")
    )
}

fn props(properties: &Properties) -> String {
    block(properties.block())
}

/// A packet of the server.
pub fn packet_line(packet: &Packet, version: Version) -> String {
    let ack = |name: &str, ack: &anabranch_mqtt::codec::Ack| {
        format!(
            "{name} id={} {:02X}{}",
            ack.packet_id,
            ack.reason.0,
            props(&ack.properties)
        )
    };
    let reasons = |reasons: &[anabranch_mqtt::codec::ReasonCode]| {
        reasons
            .iter()
            .map(|reason| format!("{:02X}", reason.0))
            .collect::<Vec<_>>()
            .join(" ")
    };
    match packet {
        Packet::ConnAck(packet) if !version.is_v5() => format!(
            "connack {} present={}",
            packet.reason.to_connect_return_code(),
            u8::from(packet.session_present)
        ),
        Packet::ConnAck(packet) => format!(
            "connack {:02X} present={}{}",
            packet.reason.0,
            u8::from(packet.session_present),
            props(&packet.properties)
        ),
        Packet::Publish(packet) => {
            let mut line = format!(
                "publish q={} topic={}",
                packet.qos as u8,
                text(&packet.topic)
            );
            if packet.packet_id != 0 {
                let _ = write!(line, " id={}", packet.packet_id);
            }
            for (set, word) in [(packet.dup, " dup"), (packet.retain, " retain")] {
                line.push_str(if set { word } else { "" });
            }
            format!(
                "{line}{} {}",
                props(&packet.properties),
                body(&packet.payload)
            )
        }
        Packet::PubAck(packet) => ack("puback", packet),
        Packet::PubRec(packet) => ack("pubrec", packet),
        Packet::PubRel(packet) => ack("pubrel", packet),
        Packet::PubComp(packet) => ack("pubcomp", packet),
        Packet::SubAck(packet) => format!(
            "suback id={} {}{}",
            packet.packet_id,
            reasons(&packet.reasons),
            props(&packet.properties)
        ),
        Packet::UnsubAck(packet) => format!(
            "unsuback id={} {}{}",
            packet.packet_id,
            reasons(&packet.reasons),
            props(&packet.properties)
        ),
        Packet::PingResp => "pingresp".to_owned(),
        Packet::Disconnect(packet) => {
            format!(
                "disconnect {:02X}{}",
                packet.reason.0,
                props(&packet.properties)
            )
        }
        other => panic!("a server never sends {other:?}"),
    }
}

fn message(message: &Message) -> String {
    let mut line = format!(
        "exchange={} topic={} q={}",
        text(&message.exchange),
        message.address,
        message.quality as u8
    );
    line.push_str(if message.retain { " retain" } else { "" });
    if let Some(expires) = message.expires {
        let _ = write!(line, " lives={}", expires.0 - message.published.0);
    }
    format!(
        "{line}{} {}",
        block(&message.properties),
        body(&message.body)
    )
}

/// The tag of a consumer other than the session's own.
fn tag(consumer: ConsumerTag) -> String {
    match consumer.0 {
        0 => String::new(),
        tag => format!(" tag={tag}"),
    }
}

fn group(name: Option<&str>) -> String {
    name.map_or(String::new(), |name| format!("({name})"))
}

fn filter(asked: &SessionFilter) -> String {
    let spec = &asked.spec;
    let mut line = format!(
        " {}{},{}",
        group(asked.group.as_deref()),
        spec.filter,
        spec.quality as u8
    );
    for (set, word) in [
        (spec.no_local, ",nl"),
        (spec.retain_as_published, ",rap"),
        (asked.retained == SendRetained::IfNew, ",new"),
        (asked.retained == SendRetained::Never, ",never"),
    ] {
        line.push_str(if set { word } else { "" });
    }
    if spec.identifier != 0 {
        let _ = write!(line, ",id={}", spec.identifier);
    }
    line
}

/// A command, as one line; settlements as one line per offset, however they were coalesced.
pub fn command_lines(command: &Command) -> Vec<String> {
    let line = match command {
        Command::Login {
            user,
            secret,
            client_id,
            ..
        } => format!(
            "login user={} secret={} client={client_id}",
            user.as_deref().unwrap_or("-"),
            secret
                .as_ref()
                .map_or("-".to_owned(), |secret| text(secret)),
        ),
        Command::Enter { vhost, .. } => format!("enter {vhost}"),
        Command::OpenSession { session, .. } => {
            let line = format!(
                "session {}{} expiry={} credit={}",
                session.client_id,
                if session.clean_start { " clean" } else { "" },
                session.expiry_s,
                session.credit
            );
            match &session.will {
                Some(will) => {
                    let (delay_s, will) = (will.delay_s, message(&will.message));
                    format!("{line} will delay={delay_s} {will}")
                }
                None => line,
            }
        }
        Command::DropWill => "drop-will".to_owned(),
        Command::Forget { token, once } => {
            let silent = if token.0 == 0 { " -" } else { "" };
            format!("forget{silent} {}", once.0)
        }
        Command::Receive {
            consumer, offset, ..
        } => format!("receive {offset}{}", tag(*consumer)),
        Command::Publish {
            token,
            message: published,
            once,
            later,
            ..
        } => {
            let token = match token.0 {
                0 => "-".to_owned(),
                token => token.to_string(),
            };
            let once = once.map_or(String::new(), |once| format!(" once={}", once.0));
            let later = later.map_or(String::new(), |due| {
                let wait_ms = i128::from(due.0) - i128::from(published.published.0);
                format!(" later={wait_ms}")
            });
            format!("publish {token}{once}{later} {}", message(published))
        }
        Command::Settle {
            consumer,
            first,
            last,
            outcome,
        } => {
            let tag = tag(*consumer);
            let outcome = format!("{outcome:?}").to_lowercase();
            return (first.0..=last.0)
                .map(|offset| format!("settle {offset} {outcome}{tag}"))
                .collect();
        }
        Command::SetSessionExpiry { expiry_s } => format!("expiry {expiry_s}"),
        Command::Subscribe { filters, .. } => {
            let all = filters.iter().map(filter);
            format!("subscribe{}", all.collect::<String>())
        }
        Command::Unsubscribe { filters, .. } => {
            format!(
                "unsubscribe{}",
                filters
                    .iter()
                    .map(|one| format!(" {}{}", group(one.group.as_deref()), one.filter))
                    .collect::<String>()
            )
        }
        Command::Consume { consume, .. } => {
            let replay = consume
                .replay
                .as_deref()
                .expect("this gateway consumes streams only");
            let mut line = format!(
                "consume {} from={:?} credit={}{}",
                consume.stream,
                replay.from,
                consume.credit,
                tag(consume.consumer)
            );
            if let Some(only) = &replay.only {
                let _ = write!(
                    line,
                    " only={:?} unfiltered={}",
                    only.values, only.unfiltered
                );
            }
            line.push_str(if consume.no_local { " nl" } else { "" });
            line
        }
        Command::Cancel { consumer, .. } => format!("cancel{}", tag(*consumer)),
        other => panic!("this gateway never asks {other:?}"),
    };
    vec![line]
}
