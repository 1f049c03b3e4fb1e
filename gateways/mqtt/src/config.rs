//! The configuration section `[gateway.mqtt]`, parsed by this gateway alone.
//!
//! Owns the names, defaults and ranges of its keys. Listeners (addresses, TLS) are not its own.

use serde::{Deserialize, Serialize};

use crate::codec::PACKET_BYTES_MAX_DEFAULT;
use crate::outbound::SESSION_IDS;

/// What a server must take at least [MQTT-3.1.3-5].
const CLIENT_ID_BYTES_MIN: u16 = 23;

/// What an administrator may set of this gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MqttConfig {
    /// The vhost that connections enter whose user name does not say another.
    pub vhost: String,
    /// Whether a user name `vhost:user` is the user `user` in the vhost `vhost`; parted at the last
    /// colon.
    pub vhost_in_username: bool,
    /// The topic exchange that messages are published to.
    pub exchange: String,
    /// Largest packet taken, in bytes, fixed header included; also announced to 5.0 clients.
    pub packet_bytes_max: u32,
    /// How many QoS 1 and 2 publishes of a 5.0 client may wait for their PUBACK or PUBCOMP, 1 to
    /// 65,535. Lower makes trouble: common clients do not count, and an acknowledgement waits for the
    /// journal; what waits is bounded in bytes anyway.
    pub receive_max: u16,
    /// How many QoS 1 and 2 deliveries may wait for a client's PUBACK or PUBCOMP, 1 to 32,767; a
    /// client's own receive maximum applies below it.
    pub inflight_max: u16,
    /// How many topic aliases a 5.0 client may use in what it publishes; 0 is none.
    pub topic_alias_max: u16,
    /// How many topic aliases are used at most towards a client that takes them; 0 is none.
    pub topic_alias_sent_max: u16,
    /// Longest client identifier, in bytes, 23 to 65,535.
    pub client_id_bytes_max: u16,
    /// Whether retained messages and wills are taken.
    pub retained: bool,
    /// What a client is told that asks for response information; empty is nothing.
    pub response_information: String,
    /// Longest keep-alive of a 5.0 client, in seconds; 0 is none. A client that asks for more, or
    /// for none, is told this one.
    pub keep_alive_s_max: u16,
    /// How long a persistent 3.1.1 session outlives its connection, in seconds; such clients
    /// cannot say it themselves.
    pub session_expiry_s_v3: u32,
    /// Longest time a 5.0 session outlives its connection, in seconds. A client that asks for more
    /// is told this one; the greatest number, 4,294,967,295, is no limit.
    pub session_expiry_s_max: u32,
}

impl Default for MqttConfig {
    fn default() -> MqttConfig {
        MqttConfig {
            vhost: "/".to_owned(),
            vhost_in_username: true,
            exchange: "amq.topic".to_owned(),
            packet_bytes_max: PACKET_BYTES_MAX_DEFAULT as u32,
            receive_max: u16::MAX,
            inflight_max: 1024,
            topic_alias_max: 10,
            topic_alias_sent_max: 16,
            client_id_bytes_max: u16::MAX,
            retained: true,
            response_information: String::new(),
            keep_alive_s_max: 0,
            session_expiry_s_v3: 7 * 24 * 3600,
            session_expiry_s_max: u32::MAX,
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A key is out of its range.
    #[error("gateway.mqtt.{key} must be {range}")]
    Range {
        /// Which key.
        key: &'static str,
        /// What it may be.
        range: &'static str,
    },
}

impl MqttConfig {
    /// Smallest packet limit that still takes a CONNECT with a user and a password.
    const PACKET_BYTES_MIN: u32 = 1024;

    /// Checks every range.
    ///
    /// # Errors
    /// Names the first key that is out of its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let packet_bytes_largest = 5 + crate::codec::REMAINING_LENGTH_MAX as u32;
        let rules = [
            (
                "vhost",
                "a name of 1 to 255 bytes",
                (1..=255).contains(&self.vhost.len()),
            ),
            (
                "exchange",
                "a name of 1 to 255 bytes",
                (1..=255).contains(&self.exchange.len()),
            ),
            (
                "packet_bytes_max",
                "1024 to 268435460",
                (Self::PACKET_BYTES_MIN..=packet_bytes_largest).contains(&self.packet_bytes_max),
            ),
            ("receive_max", "1 to 65535", self.receive_max > 0),
            (
                "inflight_max",
                "1 to 32767",
                (1..=SESSION_IDS).contains(&self.inflight_max),
            ),
            (
                "client_id_bytes_max",
                "23 to 65535",
                self.client_id_bytes_max >= CLIENT_ID_BYTES_MIN,
            ),
            (
                "response_information",
                "text of at most 65535 bytes without NUL",
                self.response_information.len() <= usize::from(u16::MAX)
                    && !self.response_information.contains('\0'),
            ),
        ];
        match rules.into_iter().find(|(_, _, holds)| !holds) {
            Some((key, range, _)) => Err(ConfigError::Range { key, range }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_legal_and_unknown_keys_are_not() {
        assert_eq!(MqttConfig::default().check(), Ok(()));
        let set: MqttConfig = serde_json::from_str(r#"{"receive_max": 5}"#).expect("legal");
        assert_eq!((set.receive_max, set.inflight_max), (5, 1024));
        assert!(serde_json::from_str::<MqttConfig>(r#"{"recieve_max": 5}"#).is_err());
    }

    #[test]
    fn a_key_out_of_range_is_named() {
        let config = MqttConfig {
            receive_max: 0,
            ..MqttConfig::default()
        };
        let error = config.check().expect_err("out of range");
        assert_eq!(
            error.to_string(),
            "gateway.mqtt.receive_max must be 1 to 65535"
        );
    }
}
