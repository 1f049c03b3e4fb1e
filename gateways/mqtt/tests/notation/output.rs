//! Writes what a connection puts out: packets and commands, one line each.

use std::fmt::Write;

use anabranch_core::gateway::Command;
use anabranch_core::message::{Message, Quality};
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
        Packet::ConnAck(packet) if version == Version::V311 => format!(
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
    if let Some(expires) = message.expires {
        let _ = write!(line, " lives={}", expires.0 - message.published.0);
    }
    format!(
        "{line}{} {}",
        block(&message.properties),
        body(&message.body)
    )
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
        Command::OpenSession { session, .. } => format!(
            "session {}{} expiry={} credit={}",
            session.client_id,
            if session.clean_start { " clean" } else { "" },
            session.expiry_s,
            session.credit
        ),
        Command::Publish {
            token,
            message: published,
            ..
        } => {
            let token = match token.0 {
                0 => "-".to_owned(),
                token => token.to_string(),
            };
            format!("publish {token} {}", message(published))
        }
        Command::Settle {
            first,
            last,
            outcome,
            ..
        } => {
            let outcome = format!("{outcome:?}").to_lowercase();
            return (first.0..=last.0)
                .map(|offset| format!("settle {offset} {outcome}"))
                .collect();
        }
        Command::SetSessionExpiry { expiry_s } => format!("expiry {expiry_s}"),
        Command::Subscribe { filters, .. } => {
            let one = |asked: &anabranch_core::gateway::SessionFilter| {
                let spec = &asked.spec;
                let at_least = spec.quality != Quality::AtMostOnce;
                format!(
                    " {},{}{}{}",
                    spec.filter,
                    u8::from(at_least),
                    if spec.no_local { ",nl" } else { "" },
                    if spec.retain_as_published { ",rap" } else { "" }
                )
            };
            format!("subscribe{}", filters.iter().map(one).collect::<String>())
        }
        Command::Unsubscribe { filters, .. } => {
            format!(
                "unsubscribe{}",
                filters
                    .iter()
                    .map(|one| format!(" {}", one.filter))
                    .collect::<String>()
            )
        }
        other => panic!("this gateway never asks {other:?}"),
    };
    vec![line]
}
