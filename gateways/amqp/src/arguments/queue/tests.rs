//! What each argument of a queue is read as, and what is refused with its name.
//!
//! Owns the tests of reading; never a connection. Read next: [`super`].

use super::*;
use crate::error::Scope;
use crate::wire::table::{TableWriter, Value};
use anabranch_core::limits::{DeadLetterStrategy, Mode, Overflow};

const DURABLE: Flags = Flags {
    durable: true,
    exclusive: false,
    auto_delete: false,
};

fn read(pairs: &[(&'static str, Value<'_>)]) -> Result<QueueArguments, AmqpError> {
    let mut table = TableWriter::new();
    for (name, value) in pairs {
        table.named(name, *value);
    }
    queue(Table::new(&table.finish()).unwrap(), DURABLE)
}

fn limits(pairs: &[(&'static str, Value<'_>)]) -> StreamLimits {
    read(pairs).unwrap().limits
}

#[test]
fn every_limit_is_read_in_any_width() {
    let asked = limits(&[
        ("x-expires", Value::I64(60_000)),
        ("x-message-ttl", Value::U8(0)),
        ("x-max-length", Value::I16(10)),
        ("x-max-length-bytes", Value::U32(4096)),
        ("x-overflow", Value::text("reject-publish-dlx")),
        ("x-delivery-limit", Value::I8(3)),
        ("x-dead-letter-exchange", Value::text("")),
        ("x-dead-letter-routing-key", Value::text("a.*.b")),
        ("x-single-active-consumer", Value::Bool(true)),
    ]);
    let key = asked.dead_letter.clone().unwrap().key.unwrap();
    assert_eq!(
        (key.address.as_str(), &key.origin_key[..]),
        ("a/*/b", &b"a.*.b"[..])
    );
    assert_eq!(
        StreamLimits {
            dead_letter: None,
            ..asked
        },
        StreamLimits {
            auto_delete: false,
            mode: Mode::Failover,
            expires_ms: Some(60_000),
            message_ttl_ms: Some(0),
            messages_max: Some(10),
            bytes_max: Some(4096),
            overflow: Overflow::RejectAndDeadLetter,
            delivery_limit: Some(3),
            age_max_ms: None,
            priority_max: None,
            dead_letter: None,
            dead_letter_strategy: DeadLetterStrategy::AtMostOnce,
            retry: None,
            ack_timeout_ms: None,
        }
    );
}

#[test]
fn what_came_by_another_way_is_read_as_from_the_wire() {
    let given = |name: &'static str, value| (Bytes::from_static(name.as_bytes()), value);
    let asked = queue_of(
        &[
            given("x-message-ttl", NeutralValue::Int(60_000, 64)),
            given("x-overflow", NeutralValue::Text("reject-publish".into())),
        ],
        DURABLE,
    )
    .unwrap();
    let over_the_wire = read(&[
        ("x-message-ttl", Value::I64(60_000)),
        ("x-overflow", Value::text("reject-publish")),
    ]);
    assert_eq!(over_the_wire.unwrap(), asked);
    for wrong in [
        (Bytes::from(vec![b'x'; 256]), NeutralValue::Void),
        given("x-message-ttl", NeutralValue::Text("1".into())),
    ] {
        let error = queue_of(&[wrong], DURABLE).unwrap_err();
        assert_eq!(error.code, ReplyCode::PRECONDITION_FAILED);
    }
}

#[test]
fn bad_types_and_values_are_406_and_named_c33_c34() {
    for (name, value) in [
        ("x-expires", Value::I32(0)),
        ("x-expires", Value::text("1")),
        ("x-message-ttl", Value::I32(-1)),
        ("x-max-length", Value::Bool(true)),
        ("x-max-length-bytes", Value::F64(1.0)),
        ("x-overflow", Value::text("drop-tail")),
        ("x-dead-letter-exchange", Value::I32(1)),
        (
            "x-dead-letter-exchange",
            Value::LongStr(crate::wire::field::LongStr(b"\xff")),
        ),
        ("x-dead-letter-routing-key", Value::text("without-exchange")),
        ("x-delivery-limit", Value::I32(-2)),
        ("x-single-active-consumer", Value::text("true")),
        ("x-subscription-mode", Value::text("any")),
        ("x-queue-type", Value::I32(1)),
        ("x-queue-type", Value::text("other")),
        ("x-queue-mode", Value::text("eager")),
        ("x-queue-version", Value::I32(3)),
        ("x-queue-leader-locator", Value::text("moon")),
        ("x-dead-letter-strategy", Value::text("never")),
        ("x-max-in-memory-length", Value::I32(-1)),
        ("x-quorum-initial-group-size", Value::I32(3)),
        ("x-max-age", Value::text("1D")),
    ] {
        let error = read(&[(name, value)]).unwrap_err();
        assert_eq!(
            (error.code, error.scope),
            (ReplyCode::PRECONDITION_FAILED, Scope::Channel),
            "{name} {value:?}"
        );
        assert!(error.text.contains(name), "{}", error.text);
    }
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    let name = "x-message-deduplication";
    let error = read(&[(name, Value::Bool(true))]).unwrap_err();
    assert_eq!(
        (error.code, error.scope),
        (ReplyCode::NOT_IMPLEMENTED, Scope::Connection)
    );
    assert!(error.text.contains(name));
}

#[test]
fn priorities_are_1_to_255_of_classic_queues_and_not_by_key() {
    let most = |number| limits(&[("x-max-priority", Value::I32(number))]).priority_max;
    assert_eq!(
        [0, 1, 10, 255].map(most),
        [None, Some(1), Some(10), Some(255)]
    );
    let priority = ("x-max-priority", Value::I32(10));
    for wrong in [
        &[("x-max-priority", Value::I32(256))][..],
        &[("x-max-priority", Value::I32(-1))],
        &[("x-max-priority", Value::text("10"))],
        &[priority, ("x-queue-type", Value::text("quorum"))],
        &[priority, ("x-subscription-mode", Value::text("key_shared"))],
    ] {
        let error = read(wrong).unwrap_err();
        assert_eq!(
            (error.code, error.scope),
            (ReplyCode::PRECONDITION_FAILED, Scope::Channel)
        );
        assert!(error.text.contains("x-max-priority"), "{}", error.text);
    }
    let single = limits(&[priority, ("x-single-active-consumer", Value::Bool(true))]);
    assert_eq!(
        (single.mode, single.priority_max),
        (Mode::Failover, Some(10))
    );
}

#[test]
fn modes_have_names_and_single_active_is_failover() {
    for (name, mode) in [
        ("shared", Mode::Shared),
        ("exclusive", Mode::Exclusive),
        ("failover", Mode::Failover),
        ("key_shared", Mode::KeyShared),
    ] {
        assert_eq!(
            limits(&[("x-subscription-mode", Value::text(name))]).mode,
            mode
        );
        let both = read(&[
            ("x-subscription-mode", Value::text(name)),
            ("x-single-active-consumer", Value::Bool(true)),
        ]);
        assert_eq!(both.is_ok(), mode == Mode::Failover);
    }
    assert_eq!(limits(&[]).mode, Mode::Shared);
}

#[test]
fn a_stream_is_durable_and_shared_and_keeps_by_age_and_size() {
    let stream = ("x-queue-type", Value::text("stream"));
    let asked = read(&[
        stream,
        ("x-max-age", Value::text("7D")),
        ("x-max-length-bytes", Value::I64(5_000_000_000)),
        ("x-stream-max-segment-size-bytes", Value::I32(500_000_000)),
        ("x-initial-cluster-size", Value::I32(3)),
        ("x-filter-size-bytes", Value::U8(32)),
        ("x-queue-leader-locator", Value::text("client-local")),
    ]);
    let asked = asked.unwrap();
    assert_eq!((asked.kind, asked.arguments.len()), (QueueKind::Stream, 7));
    assert_eq!(
        asked.limits,
        StreamLimits {
            mode: Mode::Replay,
            age_max_ms: Some(604_800_000),
            bytes_max: Some(5_000_000_000),
            ..StreamLimits::default()
        }
    );
    for (name, value) in [
        ("x-max-age", Value::text("7d")),
        ("x-max-age", Value::I32(7)),
        ("x-stream-max-segment-size-bytes", Value::I64(3_000_000_001)),
        ("x-filter-size-bytes", Value::I32(15)),
        ("x-initial-cluster-size", Value::I32(0)),
        ("x-expires", Value::I32(1000)),
        ("x-max-length", Value::I32(1000)),
        ("x-max-priority", Value::I32(1)),
        ("x-single-active-consumer", Value::Bool(true)),
        ("x-subscription-mode", Value::text("failover")),
    ] {
        let error = read(&[stream, (name, value)]).unwrap_err();
        assert_eq!(
            (error.code, error.scope),
            (ReplyCode::PRECONDITION_FAILED, Scope::Channel)
        );
        assert!(error.text.contains(name), "{}", error.text);
    }
    let mut table = TableWriter::new();
    table.named(stream.0, stream.1);
    let raw = table.finish();
    for (flags, named) in [
        (
            Flags {
                durable: false,
                ..DURABLE
            },
            "non-durable",
        ),
        (
            Flags {
                exclusive: true,
                ..DURABLE
            },
            "exclusive",
        ),
        (
            Flags {
                auto_delete: true,
                ..DURABLE
            },
            "auto-delete",
        ),
    ] {
        let error = queue(Table::new(&raw).unwrap(), flags).unwrap_err();
        assert_eq!(error.code, ReplyCode::PRECONDITION_FAILED);
        assert!(error.text.contains(named), "{}", error.text);
    }
}

#[test]
fn unknown_arguments_are_kept_and_classic_equals_absent_c35() {
    let asked = read(&[
        ("x-my-own", Value::I32(7)),
        ("x-queue-type", Value::text("classic")),
    ])
    .unwrap();
    assert_eq!(
        asked.arguments,
        [(
            Bytes::from_static(b"x-my-own"),
            anabranch_core::properties::Value::Int(7, 32)
        )]
    );
    assert_eq!(asked.limits, StreamLimits::default());
}

#[test]
fn a_quorum_queue_is_durable_and_shared_and_has_a_delivery_limit_d17() {
    let quorum = ("x-queue-type", Value::text("quorum"));
    let asked = read(&[quorum, ("x-quorum-initial-group-size", Value::I32(3))]).unwrap();
    assert_eq!(asked.kind, QueueKind::Quorum);
    assert_eq!(asked.limits.delivery_limit, Some(20));
    assert_eq!(asked.arguments.len(), 2, "kept, so that classic differs");
    let none = limits(&[quorum, ("x-delivery-limit", Value::I32(-1))]);
    assert_eq!(none.delivery_limit, None);
    assert!(read(&[quorum, ("x-queue-mode", Value::text("lazy"))]).is_err());
    assert!(read(&[quorum, ("x-overflow", Value::text("reject-publish-dlx"))]).is_err());
    let mut table = TableWriter::new();
    table.named(quorum.0, quorum.1);
    let raw = table.finish();
    for flags in [
        Flags {
            durable: false,
            ..DURABLE
        },
        Flags {
            exclusive: true,
            ..DURABLE
        },
        Flags {
            auto_delete: true,
            ..DURABLE
        },
    ] {
        let error = queue(Table::new(&raw).unwrap(), flags).unwrap_err();
        assert_eq!(error.code, ReplyCode::PRECONDITION_FAILED);
    }
}
