//! A device: MQTT packets out of what it wants, lines out of what it is told.

use std::collections::BTreeSet;

use anabranch_mqtt::codec::{
    Ack, Connect, Decoder, Disconnect, Packet, Properties, PropertiesBuilder, PropertyId, Publish,
    PublishNotes, QoS, ReasonCode, RetainHandling, Subscribe, SubscribeFilter, Unsubscribe,
    Version, encode,
};
use bytes::{Bytes, BytesMut};

use super::Transcript;

/// Largest packet a device takes, in bytes.
const PACKET_BYTES_MAX: usize = 1 << 20;

/// How a device introduces itself.
#[derive(Clone)]
pub struct Hello {
    /// Client identifier.
    pub client_id: String,
    /// 3.1.1 or 5.0.
    pub version: Version,
    /// Forget an earlier session.
    pub clean_start: bool,
    /// How long the session outlives the connection, 5.0 only.
    pub expiry_s: u32,
    /// Receive maximum, 5.0 only.
    pub receive_max: Option<u16>,
    /// Sends PUBACK for whatever comes with QoS 1.
    pub acknowledges: bool,
}

/// See the module's text.
pub struct Device {
    /// What it was told.
    pub heard: Transcript,
    /// Whether it sends PUBACK by itself.
    pub acknowledges: bool,
    /// Packet identifiers of deliveries it has not acknowledged.
    pub unacknowledged: BTreeSet<u16>,
    /// All deliveries, in order.
    pub received: Vec<Publish>,
    decoder: Decoder,
    version: Version,
    receive_max: usize,
}

impl Device {
    /// A device and its CONNECT.
    pub fn new(hello: Hello) -> (Device, Vec<u8>) {
        let mut decoder = Decoder::new(PACKET_BYTES_MAX);
        decoder.set_version(hello.version);
        let mut device = Device {
            heard: Transcript::default(),
            acknowledges: hello.acknowledges,
            unacknowledged: BTreeSet::new(),
            received: Vec::new(),
            decoder,
            version: hello.version,
            receive_max: usize::from(hello.receive_max.unwrap_or(u16::MAX)),
        };
        let mut properties = PropertiesBuilder::new();
        if hello.version == Version::V5 {
            properties = properties.int(PropertyId::SESSION_EXPIRY, hello.expiry_s);
            if let Some(receive_max) = hello.receive_max {
                properties = properties.int(PropertyId::RECEIVE_MAXIMUM, receive_max.into());
            }
        }
        let connect = Connect {
            version: hello.version,
            clean_start: hello.clean_start,
            keep_alive_s: 0,
            client_id: hello.client_id,
            will: None,
            username: Some("device".to_owned()),
            password: None,
            properties: properties.build(),
        };
        let bytes = device.say(&[Packet::Connect(Box::new(connect))]);
        (device, bytes)
    }

    /// Packets as bytes.
    pub fn say(&mut self, packets: &[Packet]) -> Vec<u8> {
        let mut bytes = BytesMut::new();
        for packet in packets {
            if let Packet::PubAck(ack) = packet {
                let held = self.unacknowledged.remove(&ack.packet_id);
                assert!(held, "a device acknowledges what it holds");
            }
            encode(packet, self.version, &mut bytes).expect("a legal packet");
        }
        bytes.to_vec()
    }

    /// Notes what it is told; answers with acknowledgements.
    pub fn hear(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        self.decoder.feed(Bytes::from(bytes));
        let mut answers = Vec::new();
        while let Some(packet) = self.decoder.next_packet().expect("legal packets") {
            match packet {
                Packet::Publish(publish) => {
                    self.delivered(&publish);
                    if self.acknowledges && publish.qos == QoS::AtLeastOnce {
                        answers.push(puback(publish.packet_id));
                    }
                }
                Packet::PubAck(ack) => {
                    let line = format!("{} {:?}", ack.packet_id, ack.reason);
                    self.heard.note_any_time("acknowledgements", line);
                }
                other => self.heard.note("answers", format!("{other:?}")),
            }
        }
        self.say(&answers)
    }

    fn delivered(&mut self, publish: &Publish) {
        if publish.qos != QoS::AtMostOnce {
            let new = self.unacknowledged.insert(publish.packet_id);
            assert!(new, "an identifier is in use once [MQTT-2.2.1-4]");
            assert!(
                self.unacknowledged.len() <= self.receive_max,
                "the receive maximum is kept [MQTT-3.3.4-9]"
            );
        }
        let line = format!(
            "{:?} {:?} {:?} id {} dup {} retain {} {:?}",
            publish.topic,
            publish.payload,
            publish.qos,
            publish.packet_id,
            publish.dup,
            publish.retain,
            publish.properties
        );
        self.heard.note("deliveries", line);
        self.received.push(publish.clone());
    }

    /// Payloads of all deliveries, in order.
    pub fn payloads(&self) -> Vec<String> {
        let payloads = self.received.iter().map(|publish| &publish.payload);
        payloads
            .map(|payload| String::from_utf8_lossy(payload).into_owned())
            .collect()
    }
}

/// PUBACK.
pub fn puback(packet_id: u16) -> Packet {
    Packet::PubAck(Ack::new(packet_id, ReasonCode::SUCCESS))
}

/// PUBLISH; QoS 0 when `packet_id` is 0, else QoS 1.
pub fn publish(topic: &str, payload: &str, packet_id: u16) -> Packet {
    publish_with(topic, payload, packet_id, Properties::EMPTY)
}

/// PUBLISH with properties.
pub fn publish_with(topic: &str, payload: &str, packet_id: u16, properties: Properties) -> Packet {
    Packet::Publish(Publish {
        dup: false,
        qos: if packet_id == 0 {
            QoS::AtMostOnce
        } else {
            QoS::AtLeastOnce
        },
        retain: false,
        topic: Bytes::copy_from_slice(topic.as_bytes()),
        packet_id,
        properties,
        notes: PublishNotes::default(),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
    })
}

/// SUBSCRIBE to one filter with this QoS.
pub fn subscribe(packet_id: u16, filter: &str, qos: QoS) -> Packet {
    Packet::Subscribe(Subscribe {
        packet_id,
        properties: Properties::EMPTY,
        filters: vec![SubscribeFilter {
            filter: filter.to_owned(),
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        }],
    })
}

/// UNSUBSCRIBE from one filter.
pub fn unsubscribe(packet_id: u16, filter: &str) -> Packet {
    Packet::Unsubscribe(Unsubscribe {
        packet_id,
        properties: Properties::EMPTY,
        filters: vec![filter.to_owned()],
    })
}

/// DISCONNECT.
pub fn disconnect() -> Packet {
    Packet::Disconnect(Disconnect {
        reason: ReasonCode::SUCCESS,
        properties: Properties::EMPTY,
    })
}
