//! MQTT packets a client sends, as bytes.
//!
//! Owns encoding. Never keeps state. Next: `client.rs`.

use super::codec::Version;
use crate::numbers::Numbers;

fn put_packet(out: &mut Vec<u8>, first: u8, body: &[u8]) {
    out.push(first);
    let mut length = body.len();
    loop {
        let digit = (length & 0x7F) as u8;
        length >>= 7;
        out.push(if length > 0 { digit | 0x80 } else { digit });
        if length == 0 {
            break;
        }
    }
    out.extend_from_slice(body);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// What a CONNECT says.
#[derive(Clone, Copy, Debug)]
pub struct Connect<'a> {
    /// The standard's edition.
    pub version: Version,
    /// Client identifier; texts must be shorter than 64 KiB.
    pub client_id: &'a str,
    /// User name and password.
    pub login: Option<(&'a str, &'a str)>,
    /// Whether nothing of the session is kept, from before or for later.
    pub clean: bool,
}

/// Session expiry interval (MQTT 5 section 3.1.2.11.2) of a session that stays.
const NEVER_EXPIRES: [u8; 5] = [0x11, 0xFF, 0xFF, 0xFF, 0xFF];

/// Appends a CONNECT without will and keep-alive.
pub fn connect(out: &mut Vec<u8>, connect: &Connect<'_>) {
    let v5 = connect.version == Version::V5;
    let mut body = Vec::new();
    put_text(&mut body, "MQTT");
    body.push(if v5 { 5 } else { 4 });
    let login = if connect.login.is_some() { 0xC0 } else { 0 };
    body.push(login | if connect.clean { 0x02 } else { 0 });
    body.extend_from_slice(&[0, 0]);
    if v5 {
        let properties: &[u8] = if connect.clean { &[] } else { &NEVER_EXPIRES };
        body.push(properties.len() as u8);
        body.extend_from_slice(properties);
    }
    put_text(&mut body, connect.client_id);
    if let Some((user, password)) = connect.login {
        put_text(&mut body, user);
        put_text(&mut body, password);
    }
    put_packet(out, 0x10, &body);
}

/// Appends a SUBSCRIBE for one filter.
pub fn subscribe(out: &mut Vec<u8>, version: Version, packet_id: u16, filter: &str, qos: u8) {
    let mut body = Vec::from(packet_id.to_be_bytes());
    if version == Version::V5 {
        body.push(0);
    }
    put_text(&mut body, filter);
    body.push(qos);
    put_packet(out, 0x82, &body);
}

/// The acknowledgements a client sends, by their first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// PUBACK: the end of QoS 1.
    Ack = 0x40,
    /// PUBREC: the receiver has the message.
    Rec = 0x50,
    /// PUBREL: the sender has forgotten the message. Its flags are 2 by the standard.
    Rel = 0x62,
    /// PUBCOMP: the end of QoS 2.
    Comp = 0x70,
}

/// Appends an acknowledgement (success).
#[inline]
pub fn reply(out: &mut Vec<u8>, reply: Reply, packet_id: u16) {
    let id = packet_id.to_be_bytes();
    out.extend_from_slice(&[reply as u8, 2, id[0], id[1]]);
}

/// Appends a PINGREQ.
pub fn ping(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0xC0, 0]);
}

/// Appends a DISCONNECT (normal).
pub fn disconnect(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0xE0, 0]);
}

/// A PUBLISH encoded once, of which each message needs its packet id, payload and perhaps digits
/// of its topic patched only.
pub struct PublishTemplate {
    bytes: Vec<u8>,
    packet_id_at: Option<usize>,
    payload_at: usize,
    topic_end: usize,
    numbers: Option<Numbers>,
}

impl PublishTemplate {
    /// A template for `topic` at QoS 0, 1 or 2 with `payload` as filler.
    pub fn new(version: Version, topic: &str, qos: u8, payload: &[u8]) -> Self {
        let mut body = Vec::new();
        put_text(&mut body, topic);
        let topic_end_in_body = body.len();
        if qos > 0 {
            body.extend_from_slice(&[0, 0]);
        }
        if version == Version::V5 {
            body.push(0);
        }
        body.extend_from_slice(payload);
        let mut bytes = Vec::new();
        put_packet(&mut bytes, 0x30 | qos << 1, &body);
        let topic_end = bytes.len() - body.len() + topic_end_in_body;
        let payload_at = bytes.len() - payload.len();
        Self {
            bytes,
            packet_id_at: (qos > 0).then_some(topic_end),
            payload_at,
            topic_end,
            numbers: None,
        }
    }

    /// Marks every message as the one to be retained for its topic.
    pub fn retained(mut self) -> Self {
        self.bytes[0] |= 1;
        self
    }

    /// Spreads the messages over `count` topics: the topic's last four characters are replaced.
    pub fn numbered(mut self, first: u64, count: u64) -> Self {
        self.numbers = Some(Numbers::new(self.topic_end, first, count));
        self
    }

    /// Appends message `sequence` and gives its payload to be filled in. `packet_id` is not used
    /// at QoS 0.
    #[inline]
    pub fn append<'o>(&self, out: &'o mut Vec<u8>, sequence: u64, packet_id: u16) -> &'o mut [u8] {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let message = &mut out[start..];
        if let Some(at) = self.packet_id_at {
            message[at..at + 2].copy_from_slice(&packet_id.to_be_bytes());
        }
        if let Some(numbers) = &self.numbers {
            numbers.write(message, sequence);
        }
        &mut message[self.payload_at..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::codec::{Packet, decode};
    use proptest::prelude::*;

    fn connected(
        version: Version,
        client_id: &str,
        login: Option<(&str, &str)>,
        clean: bool,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        connect(
            &mut out,
            &Connect {
                version,
                client_id,
                login,
                clean,
            },
        );
        out
    }

    #[test]
    fn connect_is_as_the_standard_lays_it_out() {
        // MQTT 3.1.1 section 3.1
        assert_eq!(
            connected(Version::V311, "ab", None, true),
            *b"\x10\x0E\x00\x04MQTT\x04\x02\x00\x00\x00\x02ab"
        );
        assert_eq!(
            connected(Version::V311, "ab", None, false),
            *b"\x10\x0E\x00\x04MQTT\x04\x00\x00\x00\x00\x02ab"
        );
        // MQTT 5 section 3.1: the same with properties, here with a login
        assert_eq!(
            connected(Version::V5, "", Some(("u", "p")), true),
            *b"\x10\x13\x00\x04MQTT\x05\xC2\x00\x00\x00\x00\x00\x00\x01u\x00\x01p"
        );
        assert_eq!(
            connected(Version::V5, "", None, false),
            *b"\x10\x12\x00\x04MQTT\x05\x00\x00\x00\x05\x11\xFF\xFF\xFF\xFF\x00\x00"
        );
    }

    #[test]
    fn subscribe_is_as_the_standard_lays_it_out() {
        // MQTT 5 section 3.8
        let mut out = Vec::new();
        subscribe(&mut out, Version::V5, 1, "a/+", 1);
        assert_eq!(out, [0x82, 9, 0, 1, 0, 0, 3, b'a', b'/', b'+', 1]);
    }

    #[test]
    fn a_retained_message_carries_its_flag_and_the_number_of_its_topic() {
        // MQTT 3.1.1 section 3.3.1: retain is bit 0
        let template = PublishTemplate::new(Version::V311, "t/0000", 1, b"x")
            .retained()
            .numbered(7, 10);
        let mut out = Vec::new();
        template.append(&mut out, 12, 5);
        assert_eq!(out, *b"\x33\x0B\x00\x06t/0009\x00\x05x");
    }

    proptest! {
        #[test]
        fn what_a_template_writes_decodes(
            v5 in any::<bool>(), qos in 0u8..3, id in 1u16.., topic in "[a-z/]{1,40}",
            payload in proptest::collection::vec(any::<u8>(), 0..400),
        ) {
            let version = if v5 { Version::V5 } else { Version::V311 };
            let template = PublishTemplate::new(version, &topic, qos, &vec![0; payload.len()]);
            let mut out = vec![1, 2, 3];
            template.append(&mut out, 0, id).copy_from_slice(&payload);
            let expected = Packet::Publish { qos, packet_id: if qos > 0 { id } else { 0 }, payload: &payload };
            prop_assert_eq!(decode(version, &out[3..]), Ok(Some((expected, out.len() - 3))));
        }
    }
}
