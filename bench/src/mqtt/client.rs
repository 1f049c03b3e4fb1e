//! One MQTT conversation: connect, perhaps subscribe, then messages and acknowledgements.
//!
//! Owns the order of packets. Never opens a socket or reads a clock: bytes come in, bytes and
//! events go out. Next: `../engine.rs`.

use super::codec::{self, Packet, Version};
use crate::link::{Confirmed, LinkError, Sink};

/// Places for unacknowledged messages of one publisher; message `n` has packet id
/// `n % PLACES + 1`.
pub const PLACES: u64 = 4096;

const SUBSCRIBE_ID: u16 = u16::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Connecting,
    Subscribing,
    Ready,
}

/// What a connection wants to hear.
pub struct Subscription {
    /// The topic filter.
    pub filter: String,
    /// The highest QoS asked for.
    pub qos: u8,
}

/// The state of one connection.
pub struct Client {
    version: Version,
    stage: Stage,
    subscription: Option<Subscription>,
    receive_max: u16,
}

impl Client {
    /// A client that has just written its CONNECT to `out`.
    pub fn connect(
        version: Version,
        client_id: &str,
        login: Option<(&str, &str)>,
        subscription: Option<Subscription>,
        out: &mut Vec<u8>,
    ) -> Self {
        codec::connect(out, version, client_id, login);
        Self {
            version,
            stage: Stage::Connecting,
            subscription,
            receive_max: u16::MAX,
        }
    }

    /// Whether CONNACK, and SUBACK where one is due, have arrived.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// How many QoS 1 messages the broker lets this client leave unacknowledged.
    pub fn receive_max(&self) -> u16 {
        self.receive_max
    }

    /// Handles all whole packets at the head of `bytes`, writes replies to `out`, and gives the
    /// number of bytes used.
    ///
    /// # Errors
    /// See [`LinkError`]; the connection is of no more use.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) -> Result<usize, LinkError> {
        let mut used = 0;
        while let Some((packet, size)) = codec::decode(self.version, &bytes[used..])? {
            used += size;
            match packet {
                Packet::Publish {
                    qos,
                    packet_id,
                    payload,
                } => {
                    sink.delivered(payload);
                    if qos > 0 {
                        codec::puback(out, packet_id);
                    }
                }
                Packet::PubAck { packet_id, code } => {
                    accepted("PUBLISH", code)?;
                    sink.confirmed(Confirmed::One(u64::from(packet_id).wrapping_sub(1)));
                }
                Packet::ConnAck { code, receive_max } => self.connected(code, receive_max, out)?,
                Packet::SubAck { code } => {
                    accepted("SUBSCRIBE", code)?;
                    self.stage = Stage::Ready;
                }
                Packet::Disconnect { code } => return Err(refused("DISCONNECT", code)),
                Packet::Other(_) => {}
            }
        }
        Ok(used)
    }

    fn connected(
        &mut self,
        code: u8,
        receive_max: Option<u16>,
        out: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        if code != 0 {
            return Err(refused("CONNECT", code));
        }
        self.receive_max = receive_max.unwrap_or(u16::MAX);
        self.stage = match &self.subscription {
            Some(Subscription { filter, qos }) => {
                codec::subscribe(out, self.version, SUBSCRIBE_ID, filter, *qos);
                Stage::Subscribing
            }
            None => Stage::Ready,
        };
        Ok(())
    }
}

/// 0x80 and above refuses, in both editions.
fn accepted(what: &'static str, code: u8) -> Result<(), LinkError> {
    if code < 0x80 {
        Ok(())
    } else {
        Err(refused(what, code))
    }
}

fn refused(what: &'static str, code: u8) -> LinkError {
    LinkError::Refused {
        what,
        code: u16::from(code),
        text: format!("(0x{code:02X})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::testing::Heard;

    fn subscriber() -> (Client, Vec<u8>) {
        let mut out = Vec::new();
        let subscription = Subscription {
            filter: "a".into(),
            qos: 1,
        };
        let client = Client::connect(Version::V311, "c", None, Some(subscription), &mut out);
        (client, out)
    }

    #[test]
    fn subscribes_after_connack_and_acknowledges_each_message() {
        let (mut client, mut out) = subscriber();
        let mut heard = Heard::default();
        out.clear();
        assert_eq!(
            client.feed(&[0x20, 2, 0, 0], &mut out, &mut heard).unwrap(),
            4
        );
        assert_eq!(out[0], 0x82);
        assert!(!client.is_ready());
        out.clear();
        // SUBACK, a PUBLISH with packet id 5, and the first byte of what follows.
        let bytes = [
            0x90, 3, 0xFF, 0xFF, 1, 0x32, 6, 0, 1, b'a', 0, 5, b'x', 0x32,
        ];
        assert_eq!(client.feed(&bytes, &mut out, &mut heard).unwrap(), 13);
        assert!(client.is_ready());
        assert_eq!(heard.payloads, [b"x"]);
        assert_eq!(out, [0x40, 2, 0, 5]);
    }

    #[test]
    fn a_puback_names_the_place_of_its_message() {
        let mut out = Vec::new();
        let mut heard = Heard::default();
        let mut client = Client::connect(Version::V5, "c", None, None, &mut out);
        client
            .feed(
                &[0x20, 6, 0, 0, 3, 0x21, 0, 20, 0x40, 2, 0, 1],
                &mut out,
                &mut heard,
            )
            .unwrap();
        assert!(client.is_ready());
        assert_eq!(client.receive_max(), 20);
        assert_eq!(heard.confirmed, [Confirmed::One(0)]);
    }

    #[test]
    fn refusals_are_errors_with_their_code() {
        let check = |bytes: &[u8], expected: &str| {
            let (mut client, mut out) = subscriber();
            let error = client
                .feed(bytes, &mut out, &mut Heard::default())
                .unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        check(&[0x20, 2, 0, 5], "CONNECT with 5");
        check(
            &[0x20, 2, 0, 0, 0x90, 3, 0xFF, 0xFF, 0x80],
            "SUBSCRIBE with 128",
        );
        check(&[0xE0, 1, 0x8B], "DISCONNECT with 139");
    }
}
