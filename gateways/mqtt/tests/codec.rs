//! Properties of the codec over generated packets of both versions.

use anabranch_mqtt::codec::{
    Ack, Auth, ConnAck, Connect, Decoder, Disconnect, PACKET_BYTES_MAX_DEFAULT, Packet, PacketType,
    Properties, PropertiesBuilder, PropertyId, Publish, PublishNotes, QoS, ReasonCode,
    RetainHandling, SubAck, Subscribe, SubscribeFilter, UnsubAck, Unsubscribe, Version, Will,
    encode, fuzz_decode,
};
use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// What a property may be, with a value for it.
#[derive(Clone, Debug)]
enum Entry {
    Int(PropertyId, u32),
    Text(PropertyId, String),
    Binary(PropertyId, Vec<u8>),
    Pair(String, String),
}

fn block(entries: Vec<Entry>) -> Properties {
    let mut seen = Vec::new();
    let mut builder = PropertiesBuilder::new();
    for entry in entries {
        builder = match entry {
            Entry::Int(id, _) | Entry::Text(id, _) | Entry::Binary(id, _) if seen.contains(&id) => {
                builder
            }
            Entry::Int(id, value) => {
                seen.push(id);
                builder.int(id, value)
            }
            Entry::Text(id, text) => {
                seen.push(id);
                builder.text(id, &text)
            }
            Entry::Binary(id, bytes) => {
                seen.push(id);
                builder.binary(id, &bytes)
            }
            Entry::Pair(name, value) => builder.pair(&name, &value),
        };
    }
    builder.build()
}

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9 äß€/.%]{0,12}"
}

fn topic() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9ä€/.%$]{1,20}"
}

fn filter() -> impl Strategy<Value = String> {
    "[a-z/+#$]{1,12}".prop_filter("no local needs a plain filter", |filter| {
        !filter.starts_with("$share/")
    })
}

fn bytes(longest: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..longest).prop_map(Bytes::from)
}

fn pair() -> impl Strategy<Value = Entry> {
    (text(), text()).prop_map(|(name, value)| Entry::Pair(name, value))
}

/// Properties of a packet, and none before 5.0.
fn properties(version: Version, ids: &'static [PropertyId]) -> BoxedStrategy<Properties> {
    if !version.is_v5() {
        return Just(Properties::EMPTY).boxed();
    }
    let one = proptest::sample::select(ids.to_vec()).prop_flat_map(|id| {
        let numeric = (1u32..=0xFFFF).prop_map(move |value| Entry::Int(id, value));
        match id {
            PropertyId::CONTENT_TYPE
            | PropertyId::REASON_STRING
            | PropertyId::ASSIGNED_CLIENT_ID
            | PropertyId::AUTH_METHOD => text().prop_map(move |text| Entry::Text(id, text)).boxed(),
            PropertyId::RESPONSE_TOPIC => {
                topic().prop_map(move |text| Entry::Text(id, text)).boxed()
            }
            PropertyId::CORRELATION_DATA => vec(any::<u8>(), 0..20)
                .prop_map(move |bytes| Entry::Binary(id, bytes))
                .boxed(),
            PropertyId::USER_PROPERTY => pair().boxed(),
            _ => numeric.boxed(),
        }
    });
    vec(one, 0..6).prop_map(block).boxed()
}

const IN_REASONS: &[PropertyId] = &[PropertyId::REASON_STRING, PropertyId::USER_PROPERTY];
const IN_PUBLISH: &[PropertyId] = &[
    PropertyId::PAYLOAD_FORMAT,
    PropertyId::MESSAGE_EXPIRY,
    PropertyId::CONTENT_TYPE,
    PropertyId::RESPONSE_TOPIC,
    PropertyId::CORRELATION_DATA,
    PropertyId::SUBSCRIPTION_ID,
    PropertyId::TOPIC_ALIAS,
    PropertyId::USER_PROPERTY,
];
const IN_WILL: &[PropertyId] = &[
    PropertyId::PAYLOAD_FORMAT,
    PropertyId::MESSAGE_EXPIRY,
    PropertyId::WILL_DELAY,
    PropertyId::CONTENT_TYPE,
    PropertyId::USER_PROPERTY,
];
const IN_CONNECT: &[PropertyId] = &[
    PropertyId::SESSION_EXPIRY,
    PropertyId::RECEIVE_MAXIMUM,
    PropertyId::MAXIMUM_PACKET_SIZE,
    PropertyId::TOPIC_ALIAS_MAXIMUM,
    PropertyId::REQUEST_PROBLEM_INFO,
    PropertyId::AUTH_METHOD,
    PropertyId::USER_PROPERTY,
];
const IN_CONNACK: &[PropertyId] = &[
    PropertyId::SESSION_EXPIRY,
    PropertyId::ASSIGNED_CLIENT_ID,
    PropertyId::MAXIMUM_QOS,
    PropertyId::SERVER_KEEP_ALIVE,
    PropertyId::REASON_STRING,
    PropertyId::USER_PROPERTY,
];
const IN_SUBSCRIBE: &[PropertyId] = &[PropertyId::SUBSCRIPTION_ID, PropertyId::USER_PROPERTY];
const IN_DISCONNECT: &[PropertyId] = &[
    PropertyId::SESSION_EXPIRY,
    PropertyId::REASON_STRING,
    PropertyId::USER_PROPERTY,
];

fn qos() -> impl Strategy<Value = QoS> {
    proptest::sample::select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
}

/// Reason codes that a packet may carry; before 5.0 only success.
fn reason(version: Version, packet: PacketType) -> BoxedStrategy<ReasonCode> {
    if !version.is_v5() {
        return Just(ReasonCode::SUCCESS).boxed();
    }
    let codes: Vec<ReasonCode> = (0..=255)
        .map(ReasonCode)
        .filter(|code| code.allowed_in(packet))
        .collect();
    proptest::sample::select(codes).boxed()
}

fn connect(version: Version) -> impl Strategy<Value = Packet> {
    let will = (
        topic(),
        bytes(40),
        qos(),
        any::<bool>(),
        properties(version, IN_WILL),
    )
        .prop_map(|(topic, payload, qos, retain, properties)| Will {
            topic: Bytes::from(topic),
            payload,
            qos,
            retain,
            properties,
        });
    (
        any::<bool>(),
        any::<u16>(),
        text(),
        option::of(will),
        option::of(text()),
        option::of(bytes(20)),
        properties(version, IN_CONNECT),
    )
        .prop_map(
            move |(clean_start, keep_alive_s, client_id, will, username, password, properties)| {
                // The older versions know no password without a user name.
                let password = password.filter(|_| version == Version::V5 || username.is_some());
                Packet::Connect(Box::new(Connect {
                    version,
                    clean_start,
                    keep_alive_s,
                    client_id,
                    will,
                    username,
                    password,
                    properties,
                }))
            },
        )
}

fn connack(version: Version) -> impl Strategy<Value = Packet> {
    let reason = match version {
        Version::V5 => reason(version, PacketType::ConnAck),
        Version::V31 | Version::V311 => (0u8..=5)
            .prop_map(|code| ReasonCode::from_connect_return_code(code).expect("defined"))
            .boxed(),
    };
    (any::<bool>(), reason, properties(version, IN_CONNACK)).prop_map(
        |(present, reason, properties)| {
            let session_present = present && !reason.is_failure();
            Packet::ConnAck(ConnAck {
                session_present,
                reason,
                properties,
            })
        },
    )
}

fn publish(version: Version) -> impl Strategy<Value = Packet> {
    (
        qos(),
        any::<(bool, bool)>(),
        topic(),
        1..=u16::MAX,
        properties(version, IN_PUBLISH),
        bytes(700),
    )
        .prop_map(
            |(qos, (dup, retain), topic, packet_id, properties, payload)| {
                let with_id = qos != QoS::AtMostOnce;
                let int = |id| properties.int(id);
                let notes = PublishNotes {
                    message_expiry_s: int(PropertyId::MESSAGE_EXPIRY),
                    topic_alias: int(PropertyId::TOPIC_ALIAS).map(|alias| alias as u16),
                    payload_is_text: int(PropertyId::PAYLOAD_FORMAT).map(|flag| flag == 1),
                    has_subscription_id: int(PropertyId::SUBSCRIPTION_ID).is_some(),
                    has_response_topic: properties.text(PropertyId::RESPONSE_TOPIC).is_some(),
                };
                Packet::Publish(Publish {
                    dup: dup && with_id,
                    qos,
                    retain,
                    topic: Bytes::from(topic),
                    packet_id: if with_id { packet_id } else { 0 },
                    properties,
                    notes,
                    payload,
                })
            },
        )
}

fn ack(version: Version, packet: PacketType) -> impl Strategy<Value = Ack> {
    (
        1..=u16::MAX,
        reason(version, packet),
        properties(version, IN_REASONS),
    )
        .prop_map(|(packet_id, reason, properties)| Ack {
            packet_id,
            reason,
            properties,
        })
}

fn subscribe(version: Version) -> impl Strategy<Value = Packet> {
    let handling = proptest::sample::select(vec![
        RetainHandling::Send,
        RetainHandling::SendIfNew,
        RetainHandling::DoNotSend,
    ]);
    let one = (filter(), qos(), any::<(bool, bool)>(), handling).prop_map(
        move |(filter, qos, (no_local, retain_as_published), retain_handling)| match version {
            Version::V5 => SubscribeFilter {
                filter,
                qos,
                no_local,
                retain_as_published,
                retain_handling,
            },
            Version::V31 | Version::V311 => SubscribeFilter {
                filter,
                qos,
                no_local: false,
                retain_as_published: false,
                retain_handling: RetainHandling::Send,
            },
        },
    );
    (
        1..=u16::MAX,
        properties(version, IN_SUBSCRIBE),
        vec(one, 1..4),
    )
        .prop_map(|(packet_id, properties, filters)| {
            Packet::Subscribe(Subscribe {
                packet_id,
                properties,
                filters,
            })
        })
}

fn suback(version: Version) -> impl Strategy<Value = Packet> {
    let reason = match version {
        Version::V5 => reason(version, PacketType::SubAck),
        Version::V31 | Version::V311 => proptest::sample::select(vec![0, 1, 2, 0x80])
            .prop_map(ReasonCode)
            .boxed(),
    };
    (
        1..=u16::MAX,
        properties(version, IN_REASONS),
        vec(reason, 1..4),
    )
        .prop_map(|(packet_id, properties, reasons)| {
            Packet::SubAck(SubAck {
                packet_id,
                properties,
                reasons,
            })
        })
}

fn unsuback(version: Version) -> impl Strategy<Value = Packet> {
    let count = if version == Version::V5 { 1..4 } else { 0..1 };
    let reasons = vec(reason(version, PacketType::UnsubAck), count);
    (1..=u16::MAX, properties(version, IN_REASONS), reasons).prop_map(
        |(packet_id, properties, reasons)| {
            Packet::UnsubAck(UnsubAck {
                packet_id,
                properties,
                reasons,
            })
        },
    )
}

fn unsubscribe(version: Version) -> impl Strategy<Value = Packet> {
    (
        1..=u16::MAX,
        properties(version, &[PropertyId::USER_PROPERTY]),
        vec(filter(), 1..4),
    )
        .prop_map(|(packet_id, properties, filters)| {
            Packet::Unsubscribe(Unsubscribe {
                packet_id,
                properties,
                filters,
            })
        })
}

/// Any packet but CONNECT.
fn packet(version: Version) -> BoxedStrategy<Packet> {
    let disconnect = (
        reason(version, PacketType::Disconnect),
        properties(version, IN_DISCONNECT),
    )
        .prop_map(|(reason, properties)| Packet::Disconnect(Disconnect { reason, properties }));
    let both = prop_oneof![
        1 => connack(version),
        4 => publish(version),
        1 => ack(version, PacketType::PubAck).prop_map(Packet::PubAck),
        1 => ack(version, PacketType::PubRec).prop_map(Packet::PubRec),
        1 => ack(version, PacketType::PubRel).prop_map(Packet::PubRel),
        1 => ack(version, PacketType::PubComp).prop_map(Packet::PubComp),
        1 => subscribe(version),
        1 => suback(version),
        1 => unsubscribe(version),
        1 => unsuback(version),
        1 => Just(Packet::PingReq),
        1 => Just(Packet::PingResp),
        1 => disconnect,
    ];
    match version {
        Version::V31 | Version::V311 => both.boxed(),
        Version::V5 => {
            let auth = (
                reason(version, PacketType::Auth),
                properties(
                    version,
                    &[PropertyId::AUTH_METHOD, PropertyId::USER_PROPERTY],
                ),
            )
                .prop_map(|(reason, properties)| Packet::Auth(Auth { reason, properties }));
            prop_oneof![8 => both, 1 => auth].boxed()
        }
    }
}

/// A connection's packets: CONNECT, then anything.
fn conversation() -> impl Strategy<Value = (Version, Vec<Packet>)> {
    let versions = vec![Version::V31, Version::V311, Version::V5];
    proptest::sample::select(versions).prop_flat_map(|version| {
        (connect(version), vec(packet(version), 0..8)).prop_map(move |(connect, mut packets)| {
            packets.insert(0, connect);
            (version, packets)
        })
    })
}

fn written(version: Version, packets: &[Packet]) -> Bytes {
    let mut out = BytesMut::new();
    for packet in packets {
        encode(packet, version, &mut out).expect("generated packets have a form");
    }
    out.freeze()
}

fn read(bytes: &Bytes, cuts: &[usize]) -> Vec<Packet> {
    let mut decoder = Decoder::new(PACKET_BYTES_MAX_DEFAULT);
    let mut packets = Vec::new();
    let mut left = bytes.clone();
    for index in 0.. {
        if left.is_empty() {
            break;
        }
        let cut = cuts
            .get(index % cuts.len().max(1))
            .copied()
            .unwrap_or(left.len());
        decoder.feed(left.split_to(cut.min(left.len())));
        while let Some(packet) = decoder.next_packet().expect("generated packets are legal") {
            packets.push(packet);
        }
    }
    assert_eq!(decoder.held_bytes(), 0, "no byte is left over");
    packets
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_reads_back_and_writes_the_same((version, packets) in conversation()) {
        let bytes = written(version, &packets);
        let again = read(&bytes, &[]);
        prop_assert_eq!(&again, &packets);
        prop_assert_eq!(written(version, &again), bytes);
    }

    #[test]
    fn fragmentation_changes_nothing(
        (version, packets) in conversation(),
        cuts in vec(1usize..40, 1..8),
    ) {
        let bytes = written(version, &packets);
        prop_assert_eq!(read(&bytes, &cuts), packets);
    }

    #[test]
    fn random_bytes_never_panic(data in vec(any::<u8>(), 0..300)) {
        fuzz_decode(&data);
    }

    #[test]
    fn damaged_packets_never_panic(
        (version, packets) in conversation(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = written(version, &packets).to_vec();
        let index = at.index(bytes.len());
        bytes[index] = byte;
        fuzz_decode(&bytes);
    }
}
