//! What goes to the other protocol and back is what it was: packets in, packets out, through a whole
//! node as values. An application relays what a device published, and a device what an application
//! published, each exactly as it got it; whoever listens to both sees the same message twice.
//!
//! The conversions alone, over their neutral form, are tested in `mapping.rs`.

#[allow(dead_code, reason = "other tests share it, none needs all of it")]
mod simulated;

use anabranch_amqp::wire::field::ShortStr;
use anabranch_amqp::wire::properties::Properties;
use anabranch_amqp::wire::table::{ArrayWriter, TableWriter, Value};
use anabranch_mqtt::codec::{Packet, PropertiesBuilder, PropertyId, Publish, QoS};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::select;
use simulated::application::Acknowledge;
use simulated::device::{publish_with, subscribe};
use simulated::node::{Carriage, Node};
use simulated::{Story, hello};

/// Pieces in which separators, escapes and what looks like one meet, without wildcards of the side
/// that writes them.
fn pieces(wildcards_of_others: &'static [&'static str]) -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "/", ".", "%", "25", "2E", "2A", "23", "2F", "2B", "00", "2f", "2e", "a", "é", "🌡", " ",
        "$", "%2E", "%252F", "%23",
    ];
    let piece = prop_oneof![8 => select(PIECES), 1 => select(wildcards_of_others)];
    prop::collection::vec(piece, 1..14)
        .prop_map(|parts| parts.concat())
        // `$`-topics are no matter of leading wildcards [MQTT-4.7.2-1].
        .prop_filter("no `$` in front", |text| !text.starts_with('$'))
}

/// Topics, some of them longer than a routing key can be.
fn topics() -> impl Strategy<Value = String> {
    let long = ("[a-zé.]{20,30}", 10..30_usize, any::<bool>());
    let long = long.prop_map(|(level, levels, ends)| {
        let levels = vec![level; levels].join("/");
        levels + if ends { "/" } else { "" }
    });
    prop_oneof![4 => pieces(&["*"]), 1 => long]
}

/// Text of up to `most` characters that both protocols can write.
fn text(most: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(
        select(vec!['a', 'Z', '5', ' ', ';', '-', 'é', '🌡']),
        0..=most,
    )
    .prop_map(String::from_iter)
}

/// Names of headers and user properties that mean nothing to either side.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[abc]{1,2}".prop_map(|name| name),
        "[a-z]{1,5};json".prop_map(|name| name),
        text(40).prop_filter("a name", |name| !name.is_empty()),
    ]
}

/// A story of one of each kind, both listening to everything.
fn listeners() -> (Story, usize, usize) {
    let node = Node::new(Carriage::Process);
    let mut story = Story { node };
    let application = story.application(0, 1);
    story.talk(application, 1, |talk| {
        talk.queue("all", true)
            .bind("all", "amq.topic", "#")
            .acknowledge(Acknowledge::Each)
            .consume("all", "all")
    });
    let device = story.device(1, hello("listener"));
    story.send(device, &[subscribe(1, "#", QoS::AtLeastOnce)]);
    story.run();
    (story, application, device)
}

/// A device's message; a repeat of it needs another packet identifier.
#[derive(Clone, Debug)]
struct DeviceSays {
    topic: String,
    at_least_once: bool,
    is_text: Option<bool>,
    content_type: Option<String>,
    response_topic: Option<String>,
    correlation: Option<Vec<u8>>,
    expiry_s: Option<u32>,
    user_properties: Vec<(String, String)>,
}

prop_compose! {
    fn device_says()(
        topic in topics(),
        at_least_once in any::<bool>(),
        is_text in prop::option::of(any::<bool>()),
        content_type in prop::option::of(text(300)),
        response_topic in prop::option::of(pieces(&["*"])),
        correlation in prop::option::of(prop_oneof![
            text(20).prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..300),
        ]),
        expiry_s in prop::option::of(1..=4_000_000_u32),
        user_properties in prop::collection::vec((name(), text(20)), 0..6),
    ) -> DeviceSays {
        DeviceSays {
            topic, at_least_once, is_text, content_type, response_topic, correlation, expiry_s,
            user_properties,
        }
    }
}

impl DeviceSays {
    fn packet(&self) -> Packet {
        let mut properties = PropertiesBuilder::new();
        if let Some(is_text) = self.is_text {
            properties = properties.int(PropertyId::PAYLOAD_FORMAT, is_text.into());
        }
        if let Some(content_type) = &self.content_type {
            properties = properties.text(PropertyId::CONTENT_TYPE, content_type);
        }
        if let Some(topic) = &self.response_topic {
            properties = properties.text(PropertyId::RESPONSE_TOPIC, topic);
        }
        if let Some(correlation) = &self.correlation {
            properties = properties.binary(PropertyId::CORRELATION_DATA, correlation);
        }
        if let Some(expiry_s) = self.expiry_s {
            properties = properties.int(PropertyId::MESSAGE_EXPIRY, expiry_s);
        }
        for (name, value) in &self.user_properties {
            properties = properties.pair(name, value);
        }
        let packet_id = u16::from(self.at_least_once);
        publish_with(&self.topic, "body", packet_id, properties.build())
    }
}

/// What of a PUBLISH is the message's: everything but the hop's identifier and the order in which
/// properties of different kinds stand.
fn said(publish: &Publish) -> String {
    let mut single = Vec::new();
    let mut pairs = Vec::new();
    for property in publish.properties.iter() {
        let line = format!("{:?}", property.value);
        match property.id {
            PropertyId::USER_PROPERTY => pairs.push(line),
            id => single.push((id.0, line)),
        }
    }
    single.sort();
    format!(
        "{:?} {:?} retain {} {:?}\n{single:?}\n{pairs:?}",
        publish.topic, publish.qos, publish.retain, publish.payload
    )
}

/// An application's message.
#[derive(Clone, Debug)]
struct ApplicationSays {
    key: String,
    texts: [Option<String>; 7],
    delivery_mode: u8,
    priority: Option<u8>,
    expiration_s: Option<u32>,
    timestamp_s: Option<u64>,
    headers: Vec<(String, Header)>,
}

#[derive(Clone, Debug)]
enum Header {
    Void,
    Flag(bool),
    Small(i8),
    Byte(u8),
    Short(i16),
    ShortUnsigned(u16),
    Whole(i32),
    WholeUnsigned(u32),
    Long(i64),
    Float(f32),
    Double(f64),
    Decimal(u8, i32),
    Text(String),
    Raw(Vec<u8>),
    Time(u64),
    List(Vec<i32>),
    Table(Vec<(String, bool)>),
    Tables(Vec<Vec<(String, bool)>>),
}

/// A table of flags.
fn flags(pairs: &[(String, bool)]) -> TableWriter {
    let mut table = TableWriter::new();
    for (name, flag) in pairs {
        let short = table.pair(name.as_bytes(), Value::Bool(*flag));
        short.expect("a short name");
    }
    table
}

fn header() -> impl Strategy<Value = Header> {
    prop_oneof![
        Just(Header::Void),
        any::<bool>().prop_map(Header::Flag),
        any::<i8>().prop_map(Header::Small),
        any::<u8>().prop_map(Header::Byte),
        any::<i16>().prop_map(Header::Short),
        any::<u16>().prop_map(Header::ShortUnsigned),
        any::<i32>().prop_map(Header::Whole),
        any::<u32>().prop_map(Header::WholeUnsigned),
        any::<i64>().prop_map(Header::Long),
        (-1e9_f32..1e9).prop_map(Header::Float),
        any::<(u8, i32)>().prop_map(|(scale, digits)| Header::Decimal(scale, digits)),
        (-1e9_f64..1e9).prop_map(Header::Double),
        text(20).prop_map(Header::Text),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Header::Raw),
        any::<u32>().prop_map(|seconds| Header::Time(seconds.into())),
        prop::collection::vec(any::<i32>(), 0..3).prop_map(Header::List),
        prop::collection::vec(("[a-z]{0,3}", any::<bool>()), 0..3).prop_map(Header::Table),
        prop::collection::vec(
            prop::collection::vec(("[a-z]{0,3}", any::<bool>()), 0..3),
            0..3
        )
        .prop_map(Header::Tables),
    ]
}

prop_compose! {
    fn application_says()(
        key in pieces(&["+"]),
        texts in prop::array::uniform7(prop::option::of(text(40))),
        delivery_mode in 1..=2_u8,
        priority in prop::option::of(any::<u8>()),
        // Whole seconds: the other side counts no less.
        expiration_s in prop::option::of(1..=4_000_000_u32),
        timestamp_s in prop::option::of(any::<u32>().prop_map(u64::from)),
        headers in prop::collection::btree_map(name(), header(), 0..6),
    ) -> ApplicationSays {
        let headers = headers.into_iter().collect();
        ApplicationSays { key, texts, delivery_mode, priority, expiration_s, timestamp_s, headers }
    }
}

impl ApplicationSays {
    fn properties(&self) -> Bytes {
        let mut table = TableWriter::new();
        for (name, header) in &self.headers {
            let mut list = ArrayWriter::new();
            let inner;
            let value = match header {
                Header::Void => Value::Void,
                Header::Flag(flag) => Value::Bool(*flag),
                Header::Small(number) => Value::I8(*number),
                Header::Byte(number) => Value::U8(*number),
                Header::Short(number) => Value::I16(*number),
                Header::ShortUnsigned(number) => Value::U16(*number),
                Header::Whole(number) => Value::I32(*number),
                Header::WholeUnsigned(number) => Value::U32(*number),
                Header::Long(number) => Value::I64(*number),
                Header::Float(number) => Value::F32(*number),
                Header::Double(number) => Value::F64(*number),
                Header::Decimal(scale, digits) => Value::Decimal(*scale, *digits),
                Header::Text(text) => Value::text(text),
                Header::Raw(bytes) => Value::Bytes(bytes),
                Header::Time(seconds) => Value::Timestamp(*seconds),
                Header::List(numbers) => {
                    for number in numbers {
                        list.push(Value::I32(*number));
                    }
                    Value::Array(list.array())
                }
                Header::Table(pairs) => {
                    inner = flags(pairs);
                    Value::Table(inner.table())
                }
                Header::Tables(tables) => {
                    for pairs in tables {
                        list.push(Value::Table(flags(pairs).table()));
                    }
                    Value::Array(list.array())
                }
            };
            table.pair(name.as_bytes(), value).expect("a short name");
        }
        let short = |at: usize| {
            let text = self.texts[at].as_ref()?;
            ShortStr::new(text.as_bytes())
        };
        let expiration = self.expiration_s.map(|seconds| format!("{seconds}000"));
        let properties = Properties {
            content_type: short(0),
            content_encoding: short(1),
            headers: (!table.is_empty()).then(|| table.table()),
            delivery_mode: Some(self.delivery_mode),
            priority: self.priority,
            correlation_id: short(2),
            // A reply to no queue is no reply.
            reply_to: short(3).filter(|queue| !queue.is_empty()),
            expiration: expiration
                .as_ref()
                .and_then(|text| ShortStr::new(text.as_bytes())),
            message_id: short(4),
            timestamp_s: self.timestamp_s,
            kind: short(5),
            user_id: None,
            app_id: short(6),
            cluster_id: None,
        };
        properties.to_bytes()
    }
}

/// A property list without the headers that the mapping documents for what has no place of its own.
fn without_marks(raw: &[u8]) -> String {
    let properties = Properties::walk(raw).expect("a legal list");
    let headers = properties
        .headers
        .into_iter()
        .flat_map(|table| table.iter());
    let kept: Vec<String> = headers
        .filter(|(name, _)| !name.as_bytes().starts_with(b"x-mqtt-"))
        .map(|(name, value)| format!("{name:?} {value:?}"))
        .collect();
    let rest = Properties {
        headers: None,
        ..properties
    };
    format!("{rest:?}\n{kept:?}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_devices_message_comes_back_from_an_application(sent in device_says()) {
        let (mut story, application, listener) = listeners();
        let device = story.device(0, hello("device"));
        story.send(device, &[sent.packet()]);
        story.run();
        let got = &story.of_application(application).received(1)[0];
        let (key, body, properties) = (got.key.clone(), got.body.clone(), got.properties.clone());
        story.talk(application, 1, |talk| {
            talk.publish_as("amq.topic", &key, &body, false, &properties)
        });
        story.run();
        let heard: Vec<String> = story.of_device(listener).received.iter().map(said).collect();
        let Packet::Publish(sent) = sent.packet() else { unreachable!("a PUBLISH") };
        let sent = said(&sent);
        prop_assert_eq!(heard.len(), 2);
        prop_assert_eq!(&heard[0], &sent, "as published");
        prop_assert_eq!(&heard[1], &sent, "by way of {} {:?}", key, Properties::walk(&properties));
    }

    #[test]
    fn an_applications_message_comes_back_from_a_device(sent in application_says()) {
        let (mut story, application, listener) = listeners();
        let properties = sent.properties();
        story.talk(application, 1, |talk| {
            talk.publish_as("amq.topic", &sent.key, "body", false, &properties)
        });
        story.run();
        let got = story.of_device(listener).received[0].clone();
        let device = story.device(0, hello("device"));
        let repeat = Publish { dup: false, packet_id: u16::from(got.qos != QoS::AtMostOnce), ..got };
        story.send(device, &[Packet::Publish(repeat.clone())]);
        story.run();
        let received = story.of_application(application).received(1);
        prop_assert_eq!(received.len(), 2);
        prop_assert_eq!(&received[0].properties, &properties, "as published, byte for byte");
        prop_assert_eq!(&received[0].key, &sent.key);
        prop_assert_eq!(&received[1].key, &sent.key, "by way of {:?}", repeat);
        let (back, before) = (&received[1].properties, &received[0].properties);
        prop_assert_eq!(without_marks(back), without_marks(before), "by way of {:?}", repeat);
    }
}

/// Half a second is a whole one where seconds are counted, never none (section 8 of the design).
#[test]
fn a_living_message_never_says_that_it_has_no_time_left() {
    let (mut story, application, listener) = listeners();
    for (expiration, seconds) in [("1", 1), ("1000", 1), ("1001", 2)] {
        let properties = Properties {
            expiration: ShortStr::new(expiration.as_bytes()),
            ..Properties::default()
        };
        story.talk(application, 1, |talk| {
            talk.publish_as("amq.topic", "a", "body", false, &properties.to_bytes())
        });
        story.run();
        let last = story.of_device(listener).received.last().unwrap().clone();
        assert_eq!(
            last.properties.int(PropertyId::MESSAGE_EXPIRY),
            Some(seconds),
            "{expiration} ms"
        );
    }
}
