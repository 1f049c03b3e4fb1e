//! One MQTT conversation: connect, perhaps subscribe, then messages and acknowledgements.
//!
//! Owns the order of packets. Never opens a socket or reads a clock: bytes come in, bytes and
//! events go out. Next: `../engine.rs`.

use super::codec::{self, Packet, Version};
use super::encode::{self, Connect, Reply};
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
    Pinging,
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
    /// Whether the broker must have kept the session that is to go on.
    resumes: bool,
    receive_max: u16,
}

impl Client {
    /// A client that has just written its CONNECT to `out`. One that is neither clean nor
    /// subscribes goes on with a session that must be there.
    pub fn connect(
        connect: &Connect<'_>,
        subscription: Option<Subscription>,
        out: &mut Vec<u8>,
    ) -> Self {
        encode::connect(out, connect);
        Self {
            version: connect.version,
            stage: Stage::Connecting,
            resumes: !connect.clean && subscription.is_none(),
            subscription,
            receive_max: u16::MAX,
        }
    }

    /// Asks for an answer that a broker gives after it has read all that was sent before; the
    /// client is ready again when that is there.
    pub fn ping(&mut self, out: &mut Vec<u8>) {
        encode::ping(out);
        self.stage = Stage::Pinging;
    }

    /// Whether CONNACK, and SUBACK and PINGRESP where one is due, have arrived.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// How many QoS 1 and 2 messages the broker lets this client leave unacknowledged.
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
                    match qos {
                        0 => {}
                        1 => encode::reply(out, Reply::Ack, packet_id),
                        _ => encode::reply(out, Reply::Rec, packet_id),
                    }
                }
                Packet::PubAck { packet_id, code } => {
                    accepted("PUBLISH", code)?;
                    sink.confirmed(place_of(packet_id));
                }
                Packet::PubRec { packet_id, code } => {
                    accepted("PUBLISH", code)?;
                    encode::reply(out, Reply::Rel, packet_id);
                }
                Packet::PubRel { packet_id } => encode::reply(out, Reply::Comp, packet_id),
                Packet::PubComp { packet_id } => sink.confirmed(place_of(packet_id)),
                Packet::ConnAck {
                    code,
                    session_present,
                    receive_max,
                } => {
                    if code != 0 {
                        return Err(refused("CONNECT", code));
                    }
                    if self.resumes && !session_present {
                        return Err(LinkError::NoSession);
                    }
                    self.connected(receive_max, out);
                }
                Packet::SubAck { code } => self.subscribed(code)?,
                Packet::PingResp if self.stage == Stage::Pinging => self.stage = Stage::Ready,
                Packet::Disconnect { code } => return Err(refused("DISCONNECT", code)),
                Packet::PingResp | Packet::Other(_) => {}
            }
        }
        Ok(used)
    }

    fn connected(&mut self, receive_max: Option<u16>, out: &mut Vec<u8>) {
        self.receive_max = receive_max.unwrap_or(u16::MAX);
        self.stage = match &self.subscription {
            Some(Subscription { filter, qos }) => {
                encode::subscribe(out, self.version, SUBSCRIBE_ID, filter, *qos);
                Stage::Subscribing
            }
            None => Stage::Ready,
        };
    }

    /// A broker may grant less than was asked for; what the row measures would be something else.
    fn subscribed(&mut self, code: u8) -> Result<(), LinkError> {
        accepted("SUBSCRIBE", code)?;
        let asked = self.subscription.as_ref().map_or(0, |wish| wish.qos);
        if code < asked {
            return Err(LinkError::Granted {
                asked,
                granted: code,
            });
        }
        self.stage = Stage::Ready;
        Ok(())
    }
}

/// The message that an acknowledgement names.
#[inline]
fn place_of(packet_id: u16) -> Confirmed {
    Confirmed::One(u64::from(packet_id).wrapping_sub(1))
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

    fn client(version: Version, clean: bool, subscribe_qos: Option<u8>) -> (Client, Vec<u8>) {
        let mut out = Vec::new();
        let subscription = subscribe_qos.map(|qos| Subscription {
            filter: "a".into(),
            qos,
        });
        let connect = Connect {
            version,
            client_id: "c",
            login: None,
            clean,
        };
        let client = Client::connect(&connect, subscription, &mut out);
        out.clear();
        (client, out)
    }

    #[test]
    fn subscribes_after_connack_and_acknowledges_each_message() {
        let (mut client, mut out) = client(Version::V311, true, Some(1));
        let mut heard = Heard::default();
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
        let mut heard = Heard::default();
        let (mut client, mut out) = client(Version::V5, true, None);
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
    fn qos_2_takes_two_steps_both_ways() {
        // MQTT 3.1.1 section 4.3.3
        let mut heard = Heard::default();
        let (mut client, mut out) = client(Version::V311, true, Some(2));
        let connected = [0x20, 2, 0, 0, 0x90, 3, 0xFF, 0xFF, 2];
        client.feed(&connected, &mut out, &mut heard).unwrap();
        let mut answer = |bytes: &[u8]| {
            out.clear();
            client.feed(bytes, &mut out, &mut heard).unwrap();
            (out.clone(), heard.payloads.len(), heard.confirmed.clone())
        };
        assert_eq!(answer(&[0x50, 2, 0, 7]), (vec![0x62, 2, 0, 7], 0, vec![]));
        assert_eq!(
            answer(&[0x70, 2, 0, 7]),
            (vec![], 0, vec![Confirmed::One(6)])
        );
        let received = answer(&[0x34, 6, 0, 1, b'a', 0, 9, b'x']);
        assert_eq!((received.0, received.1), (vec![0x50, 2, 0, 9], 1));
        let released = answer(&[0x62, 2, 0, 9]);
        assert_eq!((released.0, released.1), (vec![0x70, 2, 0, 9], 1));
    }

    #[test]
    fn a_session_that_is_to_go_on_must_be_there() {
        let (mut absent, mut out) = client(Version::V311, false, None);
        let mut heard = Heard::default();
        let error = absent.feed(&[0x20, 2, 0, 0], &mut out, &mut heard);
        assert!(matches!(error, Err(LinkError::NoSession)));
        let (mut present, mut out) = client(Version::V311, false, None);
        present
            .feed(&[0x20, 2, 1, 0], &mut out, &mut heard)
            .unwrap();
        assert!(present.is_ready());
        // A subscriber makes its session itself.
        let (mut new, mut out) = client(Version::V311, false, Some(1));
        new.feed(&[0x20, 2, 0, 0], &mut out, &mut heard).unwrap();
    }

    #[test]
    fn a_ping_is_awaited() {
        let mut heard = Heard::default();
        let (mut client, mut out) = client(Version::V311, true, None);
        client.feed(&[0x20, 2, 0, 0], &mut out, &mut heard).unwrap();
        client.ping(&mut out);
        assert_eq!(out, [0xC0, 0]);
        assert!(!client.is_ready());
        client.feed(&[0xD0, 0], &mut out, &mut heard).unwrap();
        assert!(client.is_ready());
    }

    #[test]
    fn refusals_are_errors_with_their_code() {
        let check = |bytes: &[u8], expected: &str| {
            let (mut client, mut out) = client(Version::V311, true, Some(1));
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
        check(&[0x20, 2, 0, 0, 0x90, 3, 0xFF, 0xFF, 0], "grants QoS 0");
        check(&[0xE0, 1, 0x8B], "DISCONNECT with 139");
    }
}
