//! The wire codec against `amq-protocol`, a codec nobody here wrote, and on its fuzz corpus.
//!
//! What either side encodes, the other must decode to the same and encode to the same octets.

use amq_protocol::frame::{AMQPFrame, gen_frame, parse_frame};
use amq_protocol::protocol::{
    AMQPClass, access, basic, channel, confirm, connection, exchange, queue, tx,
};
use amq_protocol::types::{
    AMQPValue, DecimalValue, FieldArray, FieldTable, LongString, ShortString,
};
use anabranch_amqp::wire::batch::Batch;
use anabranch_amqp::wire::frame::{FrameKind, FrameReader};
use anabranch_amqp::wire::method::{ALL, Method};
use anabranch_amqp::wire::properties::{CONTENT_HEADER_BYTES, ContentHeader, Properties};
use anabranch_core::gateway::SendBuffer;
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

fn theirs(frame: &AMQPFrame) -> Vec<u8> {
    gen_frame(frame)(Vec::new().into())
        .expect("their encoder writes to memory")
        .write
}

/// Decodes one method frame with our codec, encodes it again and gives back the whole frame.
fn through_ours(frame: &[u8]) -> Vec<u8> {
    let mut reader = FrameReader::new(131_072);
    reader.feed(Bytes::copy_from_slice(frame));
    let taken = reader
        .next_frame()
        .expect("a frame")
        .expect("a whole frame");
    assert_eq!(taken.kind, FrameKind::Method);
    let method = Method::decode(taken.payload()).expect("a method");
    let mut payload = BytesMut::new();
    method.write(&mut payload);
    let mut out = frame[..3].to_vec();
    out.extend((payload.len() as u32).to_be_bytes());
    out.extend(&payload);
    out.push(0xCE);
    out
}

fn short() -> impl Strategy<Value = ShortString> {
    "[a-zA-Z0-9.é#*]{0,20}".prop_map(ShortString::from)
}

fn long() -> impl Strategy<Value = LongString> {
    prop::collection::vec(any::<u8>(), 0..30).prop_map(LongString::from)
}

fn value() -> impl Strategy<Value = AMQPValue> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(AMQPValue::Boolean),
        any::<i8>().prop_map(AMQPValue::ShortShortInt),
        any::<u8>().prop_map(AMQPValue::ShortShortUInt),
        any::<i16>().prop_map(AMQPValue::ShortInt),
        any::<u16>().prop_map(AMQPValue::ShortUInt),
        any::<i32>().prop_map(AMQPValue::LongInt),
        any::<u32>().prop_map(AMQPValue::LongUInt),
        any::<i64>().prop_map(AMQPValue::LongLongInt),
        any::<f32>().prop_map(AMQPValue::Float),
        any::<f64>().prop_map(AMQPValue::Double),
        (any::<u8>(), any::<u32>())
            .prop_map(|(scale, value)| AMQPValue::DecimalValue(DecimalValue { scale, value })),
        long().prop_map(AMQPValue::LongString),
        any::<u64>().prop_map(AMQPValue::Timestamp),
        prop::collection::vec(any::<u8>(), 0..9)
            .prop_map(|bytes| AMQPValue::ByteArray(bytes.into())),
        Just(AMQPValue::Void),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(|v| AMQPValue::FieldArray(FieldArray::from(v))),
            prop::collection::btree_map("[a-z]{1,4}", inner, 0..4)
                .prop_map(|m| AMQPValue::FieldTable(table_of(m))),
        ]
    })
}

fn table_of(pairs: std::collections::BTreeMap<String, AMQPValue>) -> FieldTable {
    FieldTable::from(
        pairs
            .into_iter()
            .map(|(k, v)| (k.into(), v))
            .collect::<std::collections::BTreeMap<_, _>>(),
    )
}

fn table() -> impl Strategy<Value = FieldTable> {
    prop::collection::btree_map("[a-z]{1,6}", value(), 0..5).prop_map(table_of)
}

/// A method of every kind there is, with the arguments given.
fn every_method(
    s: &ShortString,
    l: &LongString,
    t: &FieldTable,
    n: u64,
    b: bool,
) -> Vec<AMQPClass> {
    use connection::AMQPMethod as Connection;
    let (s, l, t) = (|| s.clone(), || l.clone(), || t.clone());
    let (n16, n32) = (n as u16, n as u32);
    let mut all = vec![
        Connection::Start(connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties: t(),
            mechanisms: l(),
            locales: l(),
        }),
        Connection::StartOk(connection::StartOk {
            client_properties: t(),
            mechanism: s(),
            response: l(),
            locale: s(),
        }),
        Connection::Secure(connection::Secure { challenge: l() }),
        Connection::SecureOk(connection::SecureOk { response: l() }),
        Connection::Tune(connection::Tune {
            channel_max: n16,
            frame_max: n32,
            heartbeat: n16,
        }),
        Connection::TuneOk(connection::TuneOk {
            channel_max: n16,
            frame_max: n32,
            heartbeat: n16,
        }),
        Connection::Open(connection::Open { virtual_host: s() }),
        Connection::OpenOk(connection::OpenOk {}),
        Connection::Close(connection::Close {
            reply_code: n16,
            reply_text: s(),
            class_id: n16,
            method_id: n16,
        }),
        Connection::CloseOk(connection::CloseOk {}),
        Connection::Blocked(connection::Blocked { reason: s() }),
        Connection::Unblocked(connection::Unblocked {}),
        Connection::UpdateSecret(connection::UpdateSecret {
            new_secret: l(),
            reason: s(),
        }),
        Connection::UpdateSecretOk(connection::UpdateSecretOk {}),
    ]
    .into_iter()
    .map(AMQPClass::Connection)
    .collect::<Vec<_>>();
    use channel::AMQPMethod as Channel;
    all.extend(
        [
            Channel::Open(channel::Open {}),
            Channel::OpenOk(channel::OpenOk {}),
            Channel::Flow(channel::Flow { active: b }),
            Channel::FlowOk(channel::FlowOk { active: b }),
            Channel::Close(channel::Close {
                reply_code: n16,
                reply_text: s(),
                class_id: n16,
                method_id: n16,
            }),
            Channel::CloseOk(channel::CloseOk {}),
        ]
        .map(AMQPClass::Channel),
    );
    use access::AMQPMethod as Access;
    all.extend(
        [
            Access::Request(access::Request {
                realm: s(),
                exclusive: b,
                passive: !b,
                active: b,
                write: !b,
                read: b,
            }),
            Access::RequestOk(access::RequestOk {}),
        ]
        .map(AMQPClass::Access),
    );
    use exchange::AMQPMethod as Exchange;
    all.extend(
        [
            Exchange::Declare(exchange::Declare {
                exchange: s(),
                kind: s(),
                passive: b,
                durable: !b,
                auto_delete: b,
                internal: b,
                nowait: !b,
                arguments: t(),
            }),
            Exchange::DeclareOk(exchange::DeclareOk {}),
            Exchange::Delete(exchange::Delete {
                exchange: s(),
                if_unused: b,
                nowait: !b,
            }),
            Exchange::DeleteOk(exchange::DeleteOk {}),
            Exchange::Bind(exchange::Bind {
                destination: s(),
                source: s(),
                routing_key: s(),
                nowait: b,
                arguments: t(),
            }),
            Exchange::BindOk(exchange::BindOk {}),
            Exchange::Unbind(exchange::Unbind {
                destination: s(),
                source: s(),
                routing_key: s(),
                nowait: b,
                arguments: t(),
            }),
            Exchange::UnbindOk(exchange::UnbindOk {}),
        ]
        .map(AMQPClass::Exchange),
    );
    use queue::AMQPMethod as Queue;
    all.extend(
        [
            Queue::Declare(queue::Declare {
                queue: s(),
                passive: b,
                durable: !b,
                exclusive: b,
                auto_delete: !b,
                nowait: b,
                arguments: t(),
            }),
            Queue::DeclareOk(queue::DeclareOk {
                queue: s(),
                message_count: n32,
                consumer_count: n32,
            }),
            Queue::Bind(queue::Bind {
                queue: s(),
                exchange: s(),
                routing_key: s(),
                nowait: b,
                arguments: t(),
            }),
            Queue::BindOk(queue::BindOk {}),
            Queue::Purge(queue::Purge {
                queue: s(),
                nowait: b,
            }),
            Queue::PurgeOk(queue::PurgeOk { message_count: n32 }),
            Queue::Delete(queue::Delete {
                queue: s(),
                if_unused: b,
                if_empty: !b,
                nowait: b,
            }),
            Queue::DeleteOk(queue::DeleteOk { message_count: n32 }),
            Queue::Unbind(queue::Unbind {
                queue: s(),
                exchange: s(),
                routing_key: s(),
                arguments: t(),
            }),
            Queue::UnbindOk(queue::UnbindOk {}),
        ]
        .map(AMQPClass::Queue),
    );
    use basic::AMQPMethod as Basic;
    all.extend(
        [
            Basic::Qos(basic::Qos {
                prefetch_count: n16,
                global: b,
            }),
            Basic::QosOk(basic::QosOk {}),
            Basic::Consume(basic::Consume {
                queue: s(),
                consumer_tag: s(),
                no_local: b,
                no_ack: !b,
                exclusive: b,
                nowait: !b,
                arguments: t(),
            }),
            Basic::ConsumeOk(basic::ConsumeOk { consumer_tag: s() }),
            Basic::Cancel(basic::Cancel {
                consumer_tag: s(),
                nowait: b,
            }),
            Basic::CancelOk(basic::CancelOk { consumer_tag: s() }),
            Basic::Publish(basic::Publish {
                exchange: s(),
                routing_key: s(),
                mandatory: b,
                immediate: !b,
            }),
            Basic::Return(basic::Return {
                reply_code: n16,
                reply_text: s(),
                exchange: s(),
                routing_key: s(),
            }),
            Basic::Deliver(basic::Deliver {
                consumer_tag: s(),
                delivery_tag: n,
                redelivered: b,
                exchange: s(),
                routing_key: s(),
            }),
            Basic::Get(basic::Get {
                queue: s(),
                no_ack: b,
            }),
            Basic::GetOk(basic::GetOk {
                delivery_tag: n,
                redelivered: b,
                exchange: s(),
                routing_key: s(),
                message_count: n32,
            }),
            Basic::GetEmpty(basic::GetEmpty {}),
            Basic::Ack(basic::Ack {
                delivery_tag: n,
                multiple: b,
            }),
            Basic::Reject(basic::Reject {
                delivery_tag: n,
                requeue: b,
            }),
            Basic::RecoverAsync(basic::RecoverAsync { requeue: b }),
            Basic::Recover(basic::Recover { requeue: b }),
            Basic::RecoverOk(basic::RecoverOk {}),
            Basic::Nack(basic::Nack {
                delivery_tag: n,
                multiple: b,
                requeue: !b,
            }),
        ]
        .map(AMQPClass::Basic),
    );
    all.push(AMQPClass::Confirm(confirm::AMQPMethod::Select(
        confirm::Select { nowait: b },
    )));
    all.push(AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(
        confirm::SelectOk {},
    )));
    use tx::AMQPMethod as Tx;
    all.extend(
        [
            Tx::Select(tx::Select {}),
            Tx::SelectOk(tx::SelectOk {}),
            Tx::Commit(tx::Commit {}),
            Tx::CommitOk(tx::CommitOk {}),
            Tx::Rollback(tx::Rollback {}),
            Tx::RollbackOk(tx::RollbackOk {}),
        ]
        .map(AMQPClass::Tx),
    );
    all
}

fn text(bytes: Option<anabranch_amqp::wire::field::ShortStr<'_>>) -> Option<ShortString> {
    bytes.map(|s| ShortString::from(s.as_str().expect("they write UTF-8")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_method_is_octet_for_octet_what_amq_protocol_writes(
        s in short(), l in long(), t in table(), n in any::<u64>(), b in any::<bool>(), channel in any::<u16>(),
    ) {
        let mut seen = Vec::new();
        for class in every_method(&s, &l, &t, n, b) {
            let frame = theirs(&AMQPFrame::Method(channel, class));
            seen.push((u16::from_be_bytes([frame[7], frame[8]]), u16::from_be_bytes([frame[9], frame[10]])));
            prop_assert_eq!(&through_ours(&frame), &frame);
        }
        seen.sort_unstable();
        let mut all = ALL.to_vec();
        all.sort_unstable();
        prop_assert_eq!(seen, all);
    }

    #[test]
    fn properties_are_what_amq_protocol_wrote(
        content_type in prop::option::of(short()), headers in prop::option::of(table()),
        delivery_mode in prop::option::of(any::<u8>()), expiration in prop::option::of(short()),
        timestamp in prop::option::of(any::<u64>()), app_id in prop::option::of(short()), size in any::<u64>(),
    ) {
        let mut theirs_properties = basic::AMQPProperties::default();
        if let Some(v) = content_type.clone() { theirs_properties = theirs_properties.with_content_type(v); }
        if let Some(v) = headers.clone() { theirs_properties = theirs_properties.with_headers(v); }
        if let Some(v) = delivery_mode { theirs_properties = theirs_properties.with_delivery_mode(v); }
        if let Some(v) = expiration.clone() { theirs_properties = theirs_properties.with_expiration(v); }
        if let Some(v) = timestamp { theirs_properties = theirs_properties.with_timestamp(v); }
        if let Some(v) = app_id.clone() { theirs_properties = theirs_properties.with_app_id(v); }
        let header = amq_protocol::frame::AMQPContentHeader { class_id: 60, body_size: size, properties: theirs_properties };
        let frame = theirs(&AMQPFrame::Header(3, header));

        let mut reader = FrameReader::new(131_072);
        reader.feed(frame.clone().into());
        let taken = reader.next_frame().unwrap().unwrap();
        prop_assert_eq!(ContentHeader::decode(taken.payload()).unwrap().body_bytes, size);
        let raw = taken.keep(CONTENT_HEADER_BYTES);
        let ours = Properties::walk(&raw).unwrap();
        prop_assert_eq!(text(ours.content_type), content_type);
        prop_assert_eq!(ours.delivery_mode, delivery_mode);
        prop_assert_eq!(text(ours.expiration), expiration);
        prop_assert_eq!(ours.timestamp_s, timestamp);
        prop_assert_eq!(text(ours.app_id), app_id);
        prop_assert_eq!(ours.headers.map(|h| h.iter().count()), headers.map(|h| h.inner().len()));
        prop_assert_eq!(ours.to_bytes(), raw);
    }

    #[test]
    fn content_we_send_is_read_by_amq_protocol(len in 0usize..3000, tag in any::<u64>(), redelivered in any::<bool>()) {
        use anabranch_amqp::wire::{field::ShortStr, method::BasicDeliver, properties::EMPTY};
        let body = Bytes::from(vec![5u8; len]);
        let deliver = BasicDeliver {
            consumer_tag: ShortStr::cut(b"tag"),
            delivery_tag: tag,
            redelivered,
            exchange: ShortStr::cut(b"x"),
            routing_key: ShortStr::cut(b"a.b"),
        };
        let mut out = SendBuffer::default();
        out.method(9, &deliver);
        out.content(9, EMPTY, &body, 8192);
        out.ack(9, tag, redelivered);
        out.heartbeat();
        let stream = out.take_all();
        let (rest, method) = parse_frame(&stream[..]).unwrap();
        prop_assert_eq!(method, AMQPFrame::Method(9, AMQPClass::Basic(basic::AMQPMethod::Deliver(basic::Deliver {
            consumer_tag: "tag".into(), delivery_tag: tag, redelivered, exchange: "x".into(), routing_key: "a.b".into(),
        }))));
        let (mut rest, header) = parse_frame(rest).unwrap();
        let AMQPFrame::Header(9, header) = header else { panic!("{header:?}") };
        prop_assert_eq!((header.class_id, header.body_size), (60, len as u64));
        if len > 0 {
            let (after, part) = parse_frame(rest).unwrap();
            prop_assert_eq!(part, AMQPFrame::Body(9, body.to_vec()));
            rest = after;
        }
        let (rest, ack) = parse_frame(rest).unwrap();
        prop_assert_eq!(ack, AMQPFrame::Method(9, AMQPClass::Basic(basic::AMQPMethod::Ack(basic::Ack { delivery_tag: tag, multiple: redelivered }))));
        let (rest, beat) = parse_frame(rest).unwrap();
        prop_assert_eq!(beat, AMQPFrame::Heartbeat);
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn random_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..300)) {
        anabranch_amqp::fuzz_decode(&data);
    }

    #[test]
    fn one_octet_changed_never_panics(
        s in short(), l in long(), t in table(), n in any::<u64>(), at in any::<prop::sample::Index>(), octet in any::<u8>(),
    ) {
        for class in every_method(&s, &l, &t, n, true) {
            let mut frame = theirs(&AMQPFrame::Method(1, class));
            let at = at.index(frame.len());
            frame[at] = octet;
            anabranch_amqp::fuzz_decode(&frame);
            anabranch_amqp::fuzz_decode(&frame[7..]);
        }
    }
}

#[test]
fn the_fuzz_corpus_decodes_without_panic() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/decode");
    let mut replayed = 0;
    for entry in std::fs::read_dir(corpus).expect("the corpus is part of the repository") {
        let data = std::fs::read(entry.expect("an entry").path()).expect("a file");
        anabranch_amqp::fuzz_decode(&data);
        replayed += 1;
    }
    assert!(replayed >= 10, "only {replayed} files in the corpus");
}
