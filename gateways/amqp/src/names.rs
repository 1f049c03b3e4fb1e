//! Names: those the broker makes up, those it reserves, those it predeclares.
//!
//! Owns the rules about names (AMQP 0-9-1 section 3.1.3 and the XML grammar's rules on `amq.`).
//! Never: whether something of that name exists.

use std::sync::Arc;

use anabranch_core::gateway::ExchangeKind;

use crate::error::{AmqpError, ReplyCode};
use crate::wire::field::ShortStr;

/// Exchanges every vhost has, beside the default one.
pub const PREDECLARED: [(&str, ExchangeKind); 5] = [
    ("amq.direct", ExchangeKind::Direct),
    ("amq.fanout", ExchangeKind::Fanout),
    ("amq.headers", ExchangeKind::Headers),
    ("amq.match", ExchangeKind::Headers),
    (TOPIC_EXCHANGE, ExchangeKind::Topic),
];

/// The exchange that topics are published to.
pub const TOPIC_EXCHANGE: &str = "amq.topic";

/// The pseudo-queue of answers: who consumes from it gets a queue of the channel's own.
pub const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";
/// In front of the names of such queues.
pub const REPLY_QUEUE_PREFIX: &str = "amq.rabbitmq.reply-to.";

/// The kind a client asks for, or `None` when there is no such kind.
pub fn exchange_kind(kind: &[u8]) -> Option<ExchangeKind> {
    match kind {
        b"direct" => Some(ExchangeKind::Direct),
        b"fanout" => Some(ExchangeKind::Fanout),
        b"topic" => Some(ExchangeKind::Topic),
        b"headers" => Some(ExchangeKind::Headers),
        _ => None,
    }
}

/// Whether clients may not create something of this name.
pub fn is_reserved(name: &str) -> bool {
    name.starts_with("amq.")
}

/// Whether a queue's name is the pseudo-queue of answers or that of a channel's own.
pub fn is_reply_to(name: &str) -> bool {
    name == DIRECT_REPLY_TO || name.starts_with(REPLY_QUEUE_PREFIX)
}

/// A name as text.
///
/// # Errors
/// 406 on the channel when it is not UTF-8 or holds a control character.
pub fn text<'a>(name: ShortStr<'a>, of: &'static str) -> Result<&'a str, AmqpError> {
    name.as_str()
        .filter(|name| !name.contains('\0'))
        .ok_or_else(|| {
            AmqpError::channel(
                ReplyCode::PRECONDITION_FAILED,
                format!("{of} name {name:?} is not UTF-8 text"),
            )
        })
}

/// Makes up names that no other connection makes up: from the connection's seed and a counter.
#[derive(Debug)]
pub struct NameMaker {
    seed: u64,
    made: u64,
}

impl NameMaker {
    /// A maker for a connection.
    pub fn new(seed: u64) -> Self {
        Self { seed, made: 0 }
    }

    /// A name like `amq.gen-` and 22 letters and digits.
    pub fn make(&mut self, prefix: &str) -> Arc<str> {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        self.made += 1;
        let mut name = String::from(prefix);
        // Two words of 64 bits, 6 bits a letter, 11 letters each; the counter goes into both.
        for half in 0..2u64 {
            let mut bits = mix(self.seed ^ mix(self.made.wrapping_mul(2).wrapping_add(half)));
            for _ in 0..11 {
                name.push(char::from(ALPHABET[(bits & 63) as usize]));
                bits >>= 6;
            }
        }
        name.into()
    }
}

/// Spreads a number over 64 bits, one to one (the finaliser of splitmix64).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn made_up_names_differ() {
        let mut names = HashSet::new();
        for seed in 0..50 {
            let mut maker = NameMaker::new(seed);
            for _ in 0..50 {
                let name = maker.make("amq.gen-");
                assert!(name.len() == 30 && is_reserved(&name));
                assert!(names.insert(name));
            }
        }
    }
}
