//! The wire: MQTT 3.1, 3.1.1 and 5.0 packets to and from bytes.
//!
//! One set of packet structs serves all versions; what only 5.0 has (properties, reason codes)
//! is empty in the older ones. Decoding is zero-copy: a topic, a payload and a property block are slices
//! of the read's buffer. Everything a packet says about itself is checked here; what depends on
//! what went before (session, receive maximum, permissions) is the connection's.
//!
//! This module never keeps connection state beyond a partial packet. Read `framing` first (how
//! a read becomes packets), then `packet`, then `property`.
//!
//! Clauses are cited by the numbers of the MQTT 5.0 standard unless a comment says 3.1.1.

mod decode;
mod decode_connect;
mod encode;
mod error;
mod framing;
mod packet;
mod property;
mod property_write;
mod publish;
mod read;
mod reason_code;
pub mod topic;

pub use decode::FILTERS_PER_PACKET_MAX;
pub use encode::{EncodeError, encode, encode_ack};
pub use error::DecodeError;
pub use framing::{Decoder, PACKET_BYTES_MAX_DEFAULT, REMAINING_LENGTH_MAX};
pub use packet::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, PacketType, Publish, QoS, RetainHandling,
    SubAck, Subscribe, SubscribeFilter, UnsubAck, Unsubscribe, Version, Will,
};
pub use property::{Place, Properties, Property, PropertyId, PropertyIter, Value};
pub use property_write::PropertiesBuilder;
pub(crate) use property_write::{put_binary, put_int, put_pair, put_text};
pub use publish::{PublishHead, PublishNotes};
pub use reason_code::ReasonCode;

/// Decodes arbitrary bytes as a peer would send them, in every version and both whole and split;
/// for the fuzz target and the replay of its corpus. Returns how many packets came out, so that
/// the work cannot be optimised away.
pub fn fuzz_decode(data: &[u8]) -> usize {
    let mut packets = 0;
    for version in [
        None,
        Some(Version::V31),
        Some(Version::V311),
        Some(Version::V5),
    ] {
        let whole = drain(data, data.len().max(1), version);
        let split = drain(data, 1, version);
        assert_eq!(
            whole, split,
            "fragmentation must not change what is decoded"
        );
        for packet in &whole {
            let Some(version) = version.or(match packet {
                Packet::Connect(connect) => Some(connect.version),
                _ => None,
            }) else {
                continue;
            };
            let mut bytes = bytes::BytesMut::new();
            if encode(packet, version, &mut bytes).is_ok() {
                let again = drain(&bytes, bytes.len(), Some(version));
                assert_eq!(
                    again.first(),
                    Some(packet),
                    "what was decoded must encode to something that decodes to the same"
                );
            }
        }
        packets += whole.len();
    }
    packets
}

/// Feeds `data` in pieces of `step` bytes and collects the packets up to the first error.
fn drain(data: &[u8], step: usize, version: Option<Version>) -> Vec<Packet> {
    let mut decoder = Decoder::new(PACKET_BYTES_MAX_DEFAULT);
    if let Some(version) = version {
        decoder.set_version(version);
    }
    let mut packets = Vec::new();
    for piece in data.chunks(step) {
        decoder.feed(bytes::Bytes::copy_from_slice(piece));
        loop {
            match decoder.next_packet() {
                Ok(Some(packet)) => packets.push(packet),
                Ok(None) => break,
                Err(_) => return packets,
            }
        }
    }
    packets
}
