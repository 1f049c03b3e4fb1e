//! The broker's side of a script: commands to lines of text, and lines of text to answers.

use std::collections::HashMap;
use std::sync::Arc;

use anabranch_amqp::map;
use anabranch_amqp::wire::properties::Properties as List;
use anabranch_core::address::Address;
use anabranch_core::authority::Principal;
use anabranch_core::death::{Death, DeathReason, Deaths};
use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::{
    Answer, BindTo, BindingSpec, Command, Delivery, PublishOutcome, Replay, Reply, StopReason,
};
use anabranch_core::id::{ConsumerTag, Offset, Token, UnixMs};
use anabranch_core::limits::StreamLimits;
use anabranch_core::message::{Message, OriginTag, Quality};
use anabranch_core::properties::{Properties, PropertyCodec, Value};
use bytes::Bytes;

use super::peer;

/// A gateway nobody has, whose messages say a few things about themselves.
pub struct OtherOrigin;

impl OtherOrigin {
    /// The origin of its messages.
    pub const TAG: OriginTag = OriginTag(9);
}

impl PropertyCodec for OtherOrigin {
    fn to_neutral(&self, message: &Message) -> Properties {
        Properties {
            content_type: Some(Bytes::from_static(b"text/plain")),
            quality: Some(message.quality),
            headers: vec![(
                Bytes::from_static(b"unit"),
                Value::Text(Bytes::from_static(b"celsius")),
            )],
            ..Properties::default()
        }
    }
}

/// Names for tokens, so that scripts need not know their layout.
#[derive(Default)]
pub struct Tokens(HashMap<String, Token>);

impl Tokens {
    /// The name of a token: `a3` for the third question, `p2.1` for the first publish of channel 2.
    fn name(&mut self, token: Token) -> String {
        let name = if token == Token::NONE {
            "-".to_owned()
        } else if token.0 >> 63 == 1 {
            format!("a{}", token.0 & !(1 << 63))
        } else {
            format!("p{}.{}", token.0 >> 52, token.0 & ((1 << 40) - 1))
        };
        // A name used before, in an earlier life of the channel number, is kept as `old-...`.
        if let Some(old) = self.0.insert(name.clone(), token)
            && old != token
        {
            self.0.insert(format!("old-{name}"), old);
        }
        name
    }

    fn token(&self, name: &str) -> Token {
        *self
            .0
            .get(name)
            .unwrap_or_else(|| panic!("no command had token {name}"))
    }
}

fn flags(pairs: &[(&str, bool)]) -> String {
    pairs
        .iter()
        .filter(|(_, on)| *on)
        .map(|(name, _)| format!(" {name}"))
        .collect()
}

fn arguments(arguments: &[(Bytes, Value)]) -> String {
    arguments
        .iter()
        .map(|(name, value)| format!(" {}={value:?}", name.escape_ascii()))
        .collect()
}

/// A command as a line of text.
pub fn shown_command(command: &Command, tokens: &mut Tokens) -> String {
    match command {
        Command::Login {
            token,
            user,
            secret,
            ..
        } => {
            let secret = secret.as_deref().unwrap_or_default().escape_ascii();
            format!(
                "{} login {} {secret}",
                tokens.name(*token),
                user.as_deref().unwrap_or("(anonymous)")
            )
        }
        Command::Enter { token, vhost } => format!("{} enter {vhost}", tokens.name(*token)),
        Command::Publish {
            token,
            mandatory,
            message,
            ..
        } => {
            let mut text = format!(
                "{} publish '{}' {} {:?}{}",
                tokens.name(*token),
                message.exchange.escape_ascii(),
                message.address,
                message.quality,
                flags(&[("mandatory", *mandatory), ("retain", message.retain)])
            );
            if !message.origin_key.is_empty() {
                text += &format!(" origin-key={}", message.origin_key.escape_ascii());
            }
            if message.priority > 0 {
                text += &format!(" priority={}", message.priority);
            }
            if let Some(to) = List::walk(&message.properties)
                .ok()
                .and_then(|properties| properties.reply_to)
            {
                text += &format!(" reply-to={to:?}");
            }
            if let Some(expires) = message.expires {
                text += &format!(" ttl={}", expires.0 - message.published.0);
            }
            match message.body.len() {
                0..=64 => text + &format!(" body={}", message.body.escape_ascii()),
                len => text + &format!(" body of {len}"),
            }
        }
        Command::DeclareExchange { token, declare: d } => format!(
            "{} declare-exchange {} {:?}{}{}",
            tokens.name(*token),
            d.name,
            d.kind,
            flags(&[
                ("passive", d.passive),
                ("durable", d.durable),
                ("auto-delete", d.auto_delete),
                ("internal", d.internal),
                ("delays", d.delays)
            ]),
            match &d.alternate {
                Some(name) => format!(" alternate={name}{}", arguments(&d.arguments)),
                None => arguments(&d.arguments),
            }
        ),
        Command::DeleteExchange {
            token,
            name,
            if_unused,
        } => {
            format!(
                "{} delete-exchange {name}{}",
                tokens.name(*token),
                flags(&[("if-unused", *if_unused)])
            )
        }
        Command::DeclareStream { token, declare: d } => format!(
            "{} declare-queue {} key={}{}{}{}",
            tokens.name(*token),
            d.name,
            d.key,
            flags(&[
                ("passive", d.passive),
                ("durable", d.durable),
                ("exclusive", d.exclusive),
                ("auto-delete", d.auto_delete),
                ("private", d.private)
            ]),
            limits(&d.limits),
            arguments(&d.arguments)
        ),
        Command::DeleteStream {
            token,
            name,
            if_unused,
            if_empty,
        } => format!(
            "{} delete-queue {name}{}",
            tokens.name(*token),
            flags(&[("if-unused", *if_unused), ("if-empty", *if_empty)])
        ),
        Command::Purge { token, stream } => format!("{} purge {stream}", tokens.name(*token)),
        Command::Bind { token, binding: b } => format!(
            "{} bind {} to {}{}",
            tokens.name(*token),
            bound_to(&b.to),
            b.exchange,
            key_of(b)
        ),
        Command::Unbind { token, binding: b } => format!(
            "{} unbind {} from {}{}",
            tokens.name(*token),
            bound_to(&b.to),
            b.exchange,
            key_of(b)
        ),
        Command::Consume { token, consume: c } => {
            format!(
                "{} consume {} as c{} credit={}{}{}",
                tokens.name(*token),
                c.stream,
                c.consumer,
                if c.credit == u32::MAX {
                    "all".to_owned()
                } else {
                    c.credit.to_string()
                },
                if c.priority == 0 {
                    String::new()
                } else {
                    format!(" priority={}", c.priority)
                },
                flags(&[
                    ("exclusive", c.exclusive),
                    ("presettled", c.presettled),
                    ("no-local", c.no_local),
                    ("private", c.private)
                ])
            ) + &c.replay.as_deref().map_or(String::new(), replayed)
        }
        Command::Cancel { token, consumer } => {
            format!("{} cancel c{consumer}", tokens.name(*token))
        }
        Command::GiveBack {
            token,
            consumer,
            except,
        } => format!(
            "{} give-back c{consumer}{}",
            tokens.name(*token),
            match except.is_empty() {
                true => String::new(),
                false => format!(" but {except:?}"),
            }
        ),
        Command::SetCredit { consumer, credit } => format!("credit c{consumer} {credit}"),
        Command::Get {
            token,
            stream,
            consumer,
            presettled,
        } => {
            format!(
                "{} get {stream} as c{consumer}{}",
                tokens.name(*token),
                flags(&[("presettled", *presettled)])
            )
        }
        Command::Settle {
            consumer,
            first,
            last,
            outcome,
        } => format!("settle c{consumer} {first}..{last} {outcome:?}"),
        Command::Atomic { commands } => {
            let parts: Vec<String> = commands
                .iter()
                .map(|command| shown_command(command, tokens))
                .collect();
            format!("atomic [{}]", parts.join(" | "))
        }
        other => panic!("an AMQP connection never asks {other:?}"),
    }
}

/// Joins runs of settlements that only how the bytes were cut kept apart.
pub fn joined(commands: Vec<Command>) -> Vec<Command> {
    let mut out: Vec<Command> = Vec::new();
    for command in commands {
        if let (
            Some(Command::Settle {
                consumer,
                last,
                outcome,
                ..
            }),
            Command::Settle {
                consumer: c,
                first: f,
                last: l,
                outcome: o,
            },
        ) = (out.last_mut(), &command)
            && (*consumer, *outcome, last.0 + 1) == (*c, *o, f.0)
        {
            *last = *l;
            continue;
        }
        out.push(command);
    }
    out
}

fn kind(name: &str) -> ErrorKind {
    serde_json::from_value(serde_json::Value::from(name))
        .unwrap_or_else(|_| panic!("no kind {name}"))
}

/// A message out of `exchange= address= body= other ...`.
fn message(words: &[&str]) -> Arc<Message> {
    let text = |name: &str| {
        Bytes::copy_from_slice(peer::value(words, name).unwrap_or_default().as_bytes())
    };
    let other = words.contains(&"other");
    let body = match peer::value(words, "zeros") {
        Some(len) => Bytes::from(vec![0; len.parse().expect("a size")]),
        None => text("body"),
    };
    Arc::new(Message {
        exchange: text("exchange"),
        address: Address::new(text("address")).expect("an address"),
        origin_key: text("origin-key"),
        origin: if other { OtherOrigin::TAG } else { map::ORIGIN },
        properties: match words {
            _ if other => Bytes::new(),
            _ if words.contains(&"huge") => peer::huge_properties(),
            _ => peer::raw_properties(words),
        },
        body,
        quality: if words.contains(&"sure") {
            Quality::AtLeastOnce
        } else {
            Quality::AtMostOnce
        },
        deaths: peer::value(words, "deaths").map(|text| Arc::new(deaths(text))),
        expires: peer::value(words, "expires").map(|at| UnixMs(at.parse().expect("a time"))),
        ..Message::default()
    })
}

/// Key, flags and arguments of a binding; the address is shown where it is not the filter.
fn key_of(binding: &BindingSpec) -> String {
    let mut text = format!(" by {}", binding.filter);
    if binding.key.0 != binding.filter.0 {
        text += &format!(" key={}", binding.key);
    }
    text + &flags(&[("retained", binding.retained)]) + &arguments(&binding.arguments)
}

/// What limits say other than the default.
fn limits(limits: &StreamLimits) -> String {
    let plain = serde_json::to_value(StreamLimits::default()).expect("limits are JSON");
    let asked = serde_json::to_value(limits).expect("limits are JSON");
    let fields = asked.as_object().expect("an object");
    fields
        .iter()
        // Shown as a flag of the declaration already.
        .filter(|(name, value)| *name != "auto_delete" && plain[*name] != **value)
        .map(|(name, value)| format!(" {name}={value}"))
        .collect()
}

/// Deaths out of `queue:reason:count[:ttl];...`, newest first.
fn deaths(text: &str) -> Deaths {
    let deaths = text.split(';').map(|death| {
        let parts: Vec<&str> = death.split(':').collect();
        Death {
            stream: parts[0].into(),
            reason: match parts[1] {
                "rejected" => DeathReason::Rejected,
                "expired" => DeathReason::Expired,
                "overflow" => DeathReason::Overflow,
                "limit" => DeathReason::DeliveryLimit,
                other => panic!("no reason {other}"),
            },
            count: parts[2].parse().expect("a count"),
            first: UnixMs(1_700_000_000_000),
            exchange: Bytes::from_static(b"work"),
            address: Bytes::from_static(b"jobs/fast"),
            origin_key: Bytes::new(),
            time_to_live_ms: parts.get(3).map(|ms| ms.parse().expect("a time")),
        }
    });
    let list: Vec<Death> = deaths.collect();
    let first = list.last().expect("a death");
    let first = (first.stream.clone(), first.reason, first.exchange.clone());
    Deaths { list, first }
}

fn bound_to(to: &BindTo) -> String {
    match to {
        BindTo::Stream(name) => name.to_string(),
        BindTo::Exchange(name) => format!("exchange:{name}"),
    }
}

/// A delivery out of `c1 OFFSET attempt= ...`.
pub fn delivery(words: &[&str]) -> Delivery {
    Delivery {
        consumer: ConsumerTag(
            words[0]
                .trim_start_matches('c')
                .parse()
                .expect("a consumer"),
        ),
        offset: Offset(words[1].parse().expect("an offset")),
        attempt: peer::value(words, "attempt").map_or(1, |n| n.parse().expect("a number")),
        quality: Quality::AtLeastOnce,
        retain: false,
        identifier: 0,
        more_identifiers: None,
        received: false,
        message: message(words),
    }
}

/// An answer out of a `!` line.
pub fn answer(words: &[&str], tokens: &Tokens) -> Answer {
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    let done = |reply| Answer::Done {
        token: tokens.token(words[1]),
        result: Ok(reply),
    };
    match words[0] {
        "done" => done(Reply::Done),
        "replaying" => done(Reply::Replaying),
        "principal" => done(Reply::Principal(Arc::new(Principal::default()))),
        "queue" => done(Reply::Stream {
            ready: number(2),
            consumers: number(3) as u32,
        }),
        "count" => done(Reply::Count(number(2))),
        "empty" => done(Reply::Got {
            delivery: None,
            ready: 0,
        }),
        "got" => done(Reply::Got {
            ready: number(2),
            delivery: Some(delivery(&words[3..])),
        }),
        "refused" => Answer::Done {
            token: tokens.token(words[1]),
            result: Err(Refusal::new(kind(words[2]), words[3..].join(" "))),
        },
        "published" => Answer::Published {
            first: tokens.token(words[1]),
            last: tokens.token(words[2]),
            outcome: match words[3] {
                "routed" => PublishOutcome::Routed,
                "unroutable" => PublishOutcome::Unroutable,
                other => PublishOutcome::Refused(kind(other)),
            },
        },
        "returned" => Answer::Returned {
            token: tokens.token(words[1]),
            message: message(&words[2..]),
        },
        "ended" => Answer::Ended {
            consumer: ConsumerTag(
                words[1]
                    .trim_start_matches('c')
                    .parse()
                    .expect("a consumer"),
            ),
            why: Refusal::new(ErrorKind::NotFound, "the queue is gone"),
        },
        "overdue" => Answer::Overdue {
            consumer: ConsumerTag(
                words[1]
                    .trim_start_matches('c')
                    .parse()
                    .expect("a consumer"),
            ),
            after_ms: 1_800_000,
        },
        "blocked" => Answer::Blocked(Some("low on disk")),
        "unblocked" => Answer::Blocked(None),
        other => panic!("no answer {other}"),
    }
}

/// How a stream is asked for.
fn replayed(replay: &Replay) -> String {
    let from = format!(" from={:?}", replay.from);
    let only = replay.only.as_ref().map_or(String::new(), |only| {
        format!(
            " only={:?}{}",
            only.values,
            flags(&[("unfiltered", only.unfiltered)])
        )
    });
    from + &only
}

/// A reason out of a `! stop` line.
pub fn stop_reason(name: &str) -> StopReason {
    match name {
        "shutdown" => StopReason::Shutdown,
        "kicked" => StopReason::Kicked,
        "unauthorised" => StopReason::Unauthorised,
        "slow" => StopReason::SlowReader,
        "login" => StopReason::LoginTimeout,
        other => panic!("no reason {other}"),
    }
}
