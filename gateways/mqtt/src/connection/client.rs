//! Who the client is and what it said of itself, for the connection and for the console.
//!
//! What a CONNECT makes of it is [`super::opening`]'s.

use std::sync::Arc;

use anabranch_core::gateway::ConnectionView;

use super::{MqttConnection, Phase, Version};
use crate::outbound::SESSION_IDS;

/// What CONNECT said that matters later.
pub(super) struct Client {
    pub(super) version: Version,
    pub(super) id: Arc<str>,
    /// Whether the identifier is of our making.
    pub(super) assigned: bool,
    pub(super) user: Arc<str>,
    pub(super) vhost: Arc<str>,
    /// Longest silence allowed, one and a half times the keep-alive; 0 is none.
    pub(super) silence_ms_max: u64,
    /// Largest packet it takes.
    pub(super) packet_bytes_max: usize,
    /// How many unfinished QoS 1 and 2 deliveries it takes.
    pub(super) receive_max: u16,
    /// How many topic aliases are used towards it.
    pub(super) topic_alias_max: u16,
    /// Whether it wants reason strings in acknowledgements [MQTT-3.1.2-29].
    pub(super) wants_reasons: bool,
    /// Whether it wants to be told where answers to it may go.
    pub(super) wants_response_information: bool,
    /// How long its session outlives this connection.
    pub(super) session_expiry_s: u32,
    /// Whether it asked for longer.
    pub(super) expiry_bounded: bool,
    pub(super) clean_start: bool,
    /// Whether the broker has its will.
    pub(super) left_will: bool,
    /// The keep-alive that the client is told to keep, if not its own.
    pub(super) server_keep_alive_s: Option<u16>,
}

impl Client {
    /// Nobody yet.
    pub(super) fn nobody(vhost: Arc<str>) -> Client {
        let nobody: Arc<str> = Arc::from("");
        Client {
            version: Version::V311,
            id: nobody.clone(),
            assigned: false,
            user: nobody,
            vhost,
            silence_ms_max: 0,
            packet_bytes_max: usize::MAX,
            receive_max: SESSION_IDS,
            topic_alias_max: 0,
            wants_reasons: true,
            wants_response_information: false,
            session_expiry_s: 0,
            expiry_bounded: false,
            clean_start: true,
            left_will: false,
            server_keep_alive_s: None,
        }
    }
}

impl MqttConnection {
    /// What the console shows of it.
    pub(super) fn describe(&self) -> ConnectionView {
        let known = !matches!(self.phase, Phase::Fresh);
        let protocol = match (known, self.client.version) {
            (false, _) => "MQTT",
            (true, Version::V31) => "MQTT 3.1",
            (true, Version::V311) => "MQTT 3.1.1",
            (true, Version::V5) => "MQTT 5.0",
        };
        let open = matches!(self.phase, Phase::Open);
        ConnectionView {
            protocol: protocol.to_owned(),
            user: self.client.user.to_string(),
            client: self.client.id.to_string(),
            vhost: if open {
                self.client.vhost.to_string()
            } else {
                String::new()
            },
            facts: vec![
                (
                    "keep-alive",
                    format!("{} s", self.client.silence_ms_max * 2 / 3000),
                ),
                (
                    "session expiry",
                    format!("{} s", self.client.session_expiry_s),
                ),
                ("clean start", self.client.clean_start.to_string()),
                ("published", self.counts.published.to_string()),
                ("delivered", self.counts.delivered.to_string()),
                ("dropped", self.counts.dropped.to_string()),
                ("unacknowledged in", self.inbound.len().to_string()),
                ("unacknowledged out", self.outbound.len().to_string()),
            ],
        }
    }
}
