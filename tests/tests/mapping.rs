//! The two gateways' conversions against each other: addresses are a bijection, and properties that
//! go to the other protocol and back are what they were. Pure functions; no server runs.
//!
//! That each side converts rightly alone is tested in its own crate.

use anabranch_core::address::Address;
use anabranch_core::id::UnixMs;
use anabranch_core::message::{Message, Quality};
use anabranch_core::properties::{Properties, PropertyCodec, ReplyTo, Value};
use anabranch_mqtt::map::MqttProperties;
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

const VHOST: &str = "/";

/// Pieces in which escapes, look-alikes, separators and wildcards of both sides meet.
fn pieces(legal: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(legal), 1..14).prop_map(|parts| parts.concat())
}

/// Legal MQTT topic names [MQTT-4.7.3-1]: not empty, no NUL, no wildcard characters.
fn topic() -> impl Strategy<Value = String> {
    pieces(&[
        "/", ".", "%", "25", "2E", "2A", "23", "2F", "2B", "00", "2f", "2e", "*", "a", "é", "🌡",
        " ", "$", "%2E", "%252F",
    ])
}

/// AMQP routing keys without a raw `*` or `#`, which have no address of their own.
fn key() -> impl Strategy<Value = String> {
    pieces(&[
        "/", ".", "%", "25", "2E", "2A", "23", "2F", "2B", "00", "2f", "2e", "+", "a", "é", "🌡",
        " ", "$", "%2E", "%252F",
    ])
}

fn topic_to_key(topic: &str) -> String {
    let address = anabranch_mqtt::address::to_address(Bytes::copy_from_slice(topic.as_bytes()));
    assert!(
        Address::new(address.0.clone()).is_ok(),
        "{topic}: a canonical address"
    );
    let mut key = Vec::new();
    anabranch_amqp::address::address_to_key(&address.0, &mut key);
    String::from_utf8(key).expect("UTF-8")
}

fn key_to_topic(key: &str) -> String {
    let converted =
        anabranch_amqp::address::key_to_address(&Bytes::copy_from_slice(key.as_bytes()))
            .expect("few levels");
    assert!(
        converted.origin_key.is_empty(),
        "{key}: comes back from its address"
    );
    let topic = anabranch_mqtt::address::to_topic(&converted.address);
    String::from_utf8(topic.to_vec()).expect("UTF-8")
}

#[test]
fn examples_of_the_address_codec() {
    for (topic, key) in [
        ("plant/7/temp", "plant.7.temp"),
        ("a.b/c", "a%2Eb.c"),
        ("a//b", "a..b"),
        ("a/", "a."),
        ("/a", ".a"),
        ("50%/x", "50%.x"),
        ("50%2E", "50%252E"),
        ("a/*", "a.%2A"),
        ("a%2Fb/c", "a/b.c"),
        ("a%2Bb", "a+b"),
    ] {
        assert_eq!(topic_to_key(topic), key);
        assert_eq!(key_to_topic(key), topic);
    }
}

/// The address of no level has no topic of its own; the empty key and the topic `/` are neighbours.
#[test]
fn the_empty_key_is_written_as_a_topic() {
    assert_eq!(key_to_topic(""), "%");
}

/// A topic longer than a routing key can be: the key is cut, and relayed with the header that tells the whole
/// address it is made whole again.
#[test]
fn a_topic_longer_than_a_key_comes_back_from_its_key() {
    let topic = "plant/é.7/".repeat(40);
    let address = Address(Bytes::from(topic.clone()));
    let mut key = Vec::new();
    anabranch_amqp::address::address_to_key(&address.0, &mut key);
    assert!(anabranch_amqp::address::cut_key(&mut key));
    let message = Message {
        address: address.clone(),
        ..from_device(&Properties::default())
    };
    let list = anabranch_amqp::map::from_neutral(&Properties::default(), &message, UnixMs(0));
    let cut = anabranch_amqp::address::key_to_address(&Bytes::from(key)).expect("a key");
    let whole = anabranch_amqp::published::whole_address(&list, &cut.address).expect("made whole");
    let back = anabranch_mqtt::address::to_topic(&whole);
    assert_eq!(&back[..], topic.as_bytes());
}

/// What is not UTF-8 has no topic of its own and is written `%XX`; by way of its own protocol it stays.
#[test]
fn a_key_that_is_no_text_is_percent_escaped_as_a_topic() {
    let key = Bytes::from_static(b"a.\xff\xfe");
    let converted = anabranch_amqp::address::key_to_address(&key).expect("few levels");
    assert_eq!(converted.origin_key, key);
    let topic = anabranch_mqtt::address::to_topic(&converted.address);
    assert_eq!(&topic[..], b"a/%FF%FE");
    assert_eq!(topic_to_key("a/%FF%FE"), "a.%FF%FE");
}

fn text(most: usize) -> impl Strategy<Value = Bytes> {
    prop_oneof![
        ".{0,20}".prop_map(Bytes::from),
        prop::collection::vec(any::<u8>(), 0..most).prop_map(Bytes::from),
    ]
}

/// Names of headers and user properties, but those that the mapping itself gives a meaning
/// (`x-mqtt-...` in AMQP, `amqp-...` in MQTT).
fn header_name() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        "[a-c]{1,2}".prop_map(Bytes::from),
        "[ -~äß]{1,12}".prop_map(Bytes::from),
        Just(Bytes::from_static(b"x;json")),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Void),
        any::<bool>().prop_map(Value::Bool),
        any::<i8>().prop_map(|n| Value::Int(n.into(), 8)),
        any::<i16>().prop_map(|n| Value::Int(n.into(), 16)),
        any::<i32>().prop_map(|n| Value::Int(n.into(), 32)),
        any::<i64>().prop_map(|n| Value::Int(n, 64)),
        any::<u8>().prop_map(|n| Value::UInt(n.into(), 8)),
        any::<u16>().prop_map(|n| Value::UInt(n.into(), 16)),
        any::<u32>().prop_map(|n| Value::UInt(n.into(), 32)),
        (-1e9_f64..1e9).prop_map(Value::Double),
        (-1e9_f32..1e9).prop_map(Value::Float),
        (any::<u8>(), any::<u32>())
            .prop_map(|(scale, unscaled)| Value::Decimal { scale, unscaled }),
        text(60).prop_map(Value::Text),
        text(60).prop_map(Value::Binary),
        any::<u32>().prop_map(|seconds| Value::Timestamp(seconds.into())),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
            prop::collection::vec(("[a-z]{0,4}".prop_map(Bytes::from), inner), 0..4)
                .prop_map(Value::Table),
        ]
    })
}

prop_compose! {
    /// What a message may say about itself, in either protocol.
    fn properties()(
        content_type in prop::option::of(text(200)),
        content_encoding in prop::option::of(text(40)),
        correlation in prop::option::of(text(300)),
        reply_to in prop::option::of(prop_oneof![
            topic().prop_map(|topic| ReplyTo::Topic(Bytes::from(topic))),
            "[a-z./+%]{1,20}".prop_map(|name| ReplyTo::Stream(Bytes::from(name))),
        ]),
        message_id in prop::option::of(text(40)),
        timestamp in prop::option::of(any::<u64>()),
        kind in prop::option::of(text(40)),
        app_id in prop::option::of(text(40)),
        user_id in prop::option::of(text(40)),
        priority in prop::option::of(any::<u8>()),
        headers in prop::collection::vec((header_name(), value()), 0..6),
    ) -> Properties {
        Properties {
            content_type,
            content_encoding,
            correlation,
            reply_to,
            message_id,
            timestamp,
            kind,
            app_id,
            user_id,
            priority,
            headers,
            ..Properties::default()
        }
    }
}

/// A message as a device publishes it: these properties as an MQTT block.
fn from_device(neutral: &Properties) -> Message {
    let mut block = BytesMut::new();
    anabranch_mqtt::map::write_block(neutral, VHOST, &mut block);
    Message {
        address: Address(Bytes::from_static(b"plant/7/temp")),
        origin: anabranch_mqtt::map::ORIGIN,
        properties: block.freeze(),
        quality: neutral.quality.unwrap_or_default(),
        retain: neutral.retain,
        ..Message::default()
    }
}

/// The same message as an AMQP consumer gets it, and publishes it again unchanged.
fn through_amqp(message: &Message, neutral: &Properties) -> Message {
    let list = anabranch_amqp::map::from_neutral(neutral, message, UnixMs(0));
    Message {
        address: message.address.clone(),
        origin: anabranch_amqp::map::ORIGIN,
        properties: list,
        ..Message::default()
    }
}

/// What only one side has: the device's text flag, and a reply to a topic that AMQP could not name.
fn says_text(neutral: Properties, is_text: Option<bool>) -> Properties {
    Properties { is_text, ..neutral }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn every_topic_comes_back_from_its_key(topic in topic()) {
        prop_assert_eq!(key_to_topic(&topic_to_key(&topic)), topic);
    }

    #[test]
    fn every_key_comes_back_from_its_topic(key in key()) {
        prop_assert_eq!(topic_to_key(&key_to_topic(&key)), key);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// MQTT -> AMQP -> MQTT: the same block, byte for byte.
    #[test]
    fn a_devices_properties_come_back_from_amqp(
        neutral in properties(),
        is_text in prop::option::of(any::<bool>()),
        quality in 0_u8..3,
        retain in any::<bool>(),
    ) {
        let quality = Quality::from_number(quality);
        let neutral = says_text(Properties { quality, retain, ..neutral }, is_text);
        let sent = from_device(&neutral);
        let relayed = through_amqp(&sent, &MqttProperties.to_neutral(&sent));
        let back = anabranch_amqp::map::to_neutral(&relayed.properties);
        prop_assert_eq!(back.quality, quality);
        prop_assert_eq!(back.retain, retain);
        let mut block = BytesMut::new();
        anabranch_mqtt::map::write_block(&back, VHOST, &mut block);
        prop_assert_eq!(block.freeze(), sent.properties);
    }

    /// AMQP -> MQTT -> AMQP: the same meaning; delivery mode and quality are compared above.
    #[test]
    fn an_applications_properties_come_back_from_mqtt(neutral in properties()) {
        let broker = Message::default();
        let sent = through_amqp(&broker, &neutral);
        let sent = anabranch_amqp::map::to_neutral(&sent.properties);
        let relayed = from_device(&sent);
        let back = MqttProperties.to_neutral(&relayed);
        prop_assert_eq!(Properties { quality: sent.quality, ..back }, sent);
    }
}
