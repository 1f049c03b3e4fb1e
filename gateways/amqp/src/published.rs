//! What a published property list says that routing and storing need.
//!
//! Owns the reading of it, once, at the content header, and the two places where what is stored is not what
//! came in: the pseudo-queue of answers and the key that was cut. Never: what other gateways make of the
//! list (`map`).

use anabranch_core::address::Address;
use anabranch_core::message::Quality;
use bytes::Bytes;

use crate::address;
use crate::error::{AmqpError, ReplyCode};
use crate::map::{H_QOS, H_RETAIN, H_TOPIC};
use crate::names::DIRECT_REPLY_TO;
use crate::wire::field::ShortStr;
use crate::wire::properties::{Properties, malformed};
use crate::wire::table::Value;

/// What routing and storing need of a published property list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// From `delivery_mode`, or exactly from header `x-mqtt-qos`.
    pub quality: Quality,
    /// From header `x-mqtt-retain`.
    pub retain: bool,
    /// From `priority`.
    pub priority: u8,
    /// From `expiration`, in milliseconds.
    pub time_to_live_ms: Option<u64>,
    /// `reply_to` is the pseudo-queue of answers.
    pub direct_reply: bool,
}

/// Reads what a publish needs, checking the whole list on the way.
///
/// # Errors
/// 502 for a malformed list, 406 for an expiration that is no number or a user id other than `user`,
/// 540 for sender-selected distribution (`CC`, `BCC`), which is not built.
pub fn publish_facts(raw: &[u8], user: &str) -> Result<Facts, AmqpError> {
    let properties = Properties::walk(raw).map_err(malformed)?;
    let mut facts = Facts {
        quality: if properties.delivery_mode == Some(2) {
            Quality::AtLeastOnce
        } else {
            Quality::AtMostOnce
        },
        retain: false,
        priority: properties.priority.unwrap_or(0),
        time_to_live_ms: properties.expiration_ms()?,
        direct_reply: properties
            .reply_to
            .is_some_and(|to| to.as_bytes() == DIRECT_REPLY_TO.as_bytes()),
    };
    if let Some(id) = properties.user_id
        && id.as_bytes() != user.as_bytes()
    {
        return Err(AmqpError::channel(
            ReplyCode::PRECONDITION_FAILED,
            format!("user_id property set to {id:?} but authenticated user was '{user}'"),
        ));
    }
    if let Some(headers) = properties.headers {
        for (name, value) in headers.iter() {
            match name.as_bytes() {
                b"CC" => return Err(sender_selected(&properties, "CC")),
                b"BCC" => return Err(sender_selected(&properties, "BCC")),
                name if name == H_QOS.as_bytes() => {
                    let number = value.as_i64().and_then(|n| u8::try_from(n).ok());
                    facts.quality = number
                        .and_then(Quality::from_number)
                        .unwrap_or(facts.quality);
                }
                name if name == H_RETAIN.as_bytes() => facts.retain = value == Value::Bool(true),
                _ => {}
            }
        }
    }
    Ok(facts)
}

/// The error for a header that selects further destinations: for what it says, or because it is not built.
#[cold]
fn sender_selected(properties: &Properties<'_>, name: &'static str) -> AmqpError {
    match properties.extra_keys(name) {
        Err(error) => error,
        Ok(_) => AmqpError::connection(
            ReplyCode::NOT_IMPLEMENTED,
            format!("header {name} is not supported"),
        ),
    }
}

/// The whole address of a message that is relayed under a key that was cut, when the header that tells it
/// gives that very key.
pub fn whole_address(raw: &[u8], cut: &Address) -> Option<Address> {
    let headers = Properties::walk(raw).ok()?.headers?;
    let whole = headers.first(H_TOPIC)?.as_long_str()?;
    let whole = Address::new(Bytes::copy_from_slice(whole)).ok()?;
    address::is_cut_of(cut, &whole).then_some(whole)
}

/// The same properties with another `reply_to`.
pub fn with_reply_to(raw: &[u8], queue: &str) -> Bytes {
    match Properties::walk(raw) {
        Ok(properties) => Properties {
            reply_to: Some(ShortStr::cut(queue.as_bytes())),
            ..properties
        }
        .to_bytes(),
        Err(_) => Bytes::copy_from_slice(raw),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::field::LongStr;
    use crate::wire::table::{ArrayWriter, TableWriter};
    use proptest::prelude::*;

    fn raw(properties: Properties<'_>) -> Bytes {
        properties.to_bytes()
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(raw in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = publish_facts(&raw, "guest");
            let _ = whole_address(&raw, &Address::default());
            prop_assert!(with_reply_to(&raw, "q").len() <= raw.len() + 2);
        }
    }

    #[test]
    fn facts_of_a_publish() {
        let facts = publish_facts(&[0, 0], "guest").unwrap();
        assert_eq!(facts.quality, Quality::AtMostOnce);
        assert_eq!(
            (facts.retain, facts.priority, facts.time_to_live_ms),
            (false, 0, None)
        );

        let mut headers = TableWriter::new();
        headers
            .named(H_QOS, Value::I32(2))
            .named(H_RETAIN, Value::Bool(true));
        let list = raw(Properties {
            headers: Some(headers.table()),
            delivery_mode: Some(2),
            priority: Some(4),
            expiration: ShortStr::new(b"1500"),
            user_id: ShortStr::new(b"guest"),
            ..Properties::default()
        });
        let facts = publish_facts(&list, "guest").unwrap();
        assert_eq!(facts.quality, Quality::ExactlyOnce);
        assert_eq!(
            (facts.retain, facts.priority, facts.time_to_live_ms),
            (true, 4, Some(1500))
        );
        assert_eq!(
            publish_facts(&list, "other").unwrap_err().code,
            ReplyCode::PRECONDITION_FAILED
        );
    }

    #[test]
    fn sender_selected_distribution_is_refused_by_name() {
        let mut keys = ArrayWriter::new();
        keys.push(Value::text("a"));
        let mut headers = TableWriter::new();
        headers.named("BCC", Value::Array(keys.array()));
        let list = raw(Properties {
            headers: Some(headers.table()),
            ..Properties::default()
        });
        let error = publish_facts(&list, "guest").unwrap_err();
        assert_eq!(error.code, ReplyCode::NOT_IMPLEMENTED);
        assert!(error.text.contains("BCC"));
        let mut headers = TableWriter::new();
        headers.named("CC", Value::text("a"));
        let list = raw(Properties {
            headers: Some(headers.table()),
            ..Properties::default()
        });
        assert_eq!(
            publish_facts(&list, "guest").unwrap_err().code,
            ReplyCode::PRECONDITION_FAILED,
            "no array [c94, c95]"
        );
        assert_eq!(
            publish_facts(&[0, 1], "guest").unwrap_err().code,
            ReplyCode::SYNTAX_ERROR
        );
    }

    #[test]
    fn a_cut_key_is_made_whole_by_the_header_that_belongs_to_it() {
        let whole = Address(Bytes::from("plant/é.1/".repeat(40)));
        let mut key = Vec::new();
        address::address_to_key(&whole.0, &mut key);
        assert!(address::cut_key(&mut key));
        let cut = address::key_to_address(&Bytes::from(key)).unwrap().address;
        assert!(address::looks_cut(&cut));
        let headers = |topic: &[u8]| {
            let mut headers = TableWriter::new();
            headers.named(H_TOPIC, Value::LongStr(LongStr(topic)));
            raw(Properties {
                headers: Some(headers.table()),
                ..Properties::default()
            })
        };
        assert_eq!(whole_address(&headers(&whole.0), &cut), Some(whole.clone()));
        let other = "plant/é.2/".repeat(40);
        assert_eq!(whole_address(&headers(other.as_bytes()), &cut), None);
        assert_eq!(whole_address(&headers(b"short"), &cut), None);
        assert_eq!(whole_address(&[0, 0], &cut), None);
    }

    #[test]
    fn a_direct_reply_is_known_and_gets_its_queue() {
        let list = raw(Properties {
            reply_to: ShortStr::new(DIRECT_REPLY_TO.as_bytes()),
            message_id: ShortStr::new(b"m"),
            ..Properties::default()
        });
        assert!(publish_facts(&list, "guest").unwrap().direct_reply);
        let list = with_reply_to(&list, "amq.rabbitmq.reply-to.x");
        assert!(!publish_facts(&list, "guest").unwrap().direct_reply);
        let properties = Properties::walk(&list).unwrap();
        assert_eq!(
            properties.reply_to,
            ShortStr::new(b"amq.rabbitmq.reply-to.x")
        );
        assert_eq!(properties.message_id, ShortStr::new(b"m"));
    }
}
