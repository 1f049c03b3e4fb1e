//! What a connection reports to its owner, for either protocol, and why it can fail.
//!
//! Owns the contract between the protocol clients and the engine. Never holds state. Next:
//! `mqtt/client.rs`, `amqp/client.rs`, then `engine.rs`.

use crate::{amqp, mqtt};

/// Which of a publisher's messages a broker has confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// The message in this place; places count messages from 0, modulo the publisher's number
    /// of places.
    One(u64),
    /// This message, by its count from 0, and all before it.
    Through(u64),
}

/// Receives what a client finds in the bytes of a connection.
pub trait Sink {
    /// A message arrived.
    fn delivered(&mut self, payload: &[u8]);
    /// Messages were confirmed.
    fn confirmed(&mut self, what: Confirmed);
}

/// Why a connection ended, or could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The system refused an operation on the socket.
    #[error("socket: {0}")]
    Io(#[from] rustix::io::Errno),
    /// The broker closed the connection without a word.
    #[error("the broker closed the connection")]
    Closed,
    /// The broker refused something, by a code of its protocol.
    #[error("the broker answered {what} with {code} {text}")]
    Refused {
        /// What was refused.
        what: &'static str,
        /// The protocol's code.
        code: u16,
        /// The broker's words, where the protocol has room for them.
        text: String,
    },
    /// The broker grants a lower QoS than the row is about.
    #[error("the broker grants QoS {granted} where {asked} was asked for")]
    Granted {
        /// What was asked for.
        asked: u8,
        /// What is granted.
        granted: u8,
    },
    /// The broker has not kept a session that should have stayed.
    #[error("the broker has not kept the session")]
    NoSession,
    /// The broker sent bytes that are not MQTT.
    #[error("the broker's MQTT is malformed: {0}")]
    Mqtt(#[from] mqtt::codec::DecodeError),
    /// The broker sent bytes that are not AMQP.
    #[error("the broker's AMQP is malformed: {0}")]
    Amqp(#[from] amqp::codec::DecodeError),
}

/// A sink that remembers, for the clients' tests.
#[cfg(test)]
pub mod testing {
    use super::{Confirmed, Sink};

    /// What was heard, in order.
    #[derive(Default)]
    pub struct Heard {
        /// Payloads of the messages that arrived.
        pub payloads: Vec<Vec<u8>>,
        /// Confirmations.
        pub confirmed: Vec<Confirmed>,
    }

    impl Sink for Heard {
        fn delivered(&mut self, payload: &[u8]) {
            self.payloads.push(payload.to_vec());
        }

        fn confirmed(&mut self, what: Confirmed) {
            self.confirmed.push(what);
        }
    }
}
