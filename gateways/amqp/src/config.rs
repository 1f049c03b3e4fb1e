//! The configuration section `[gateway.amqp]`, parsed by this gateway alone.
//!
//! Owns the names, defaults and ranges of its keys. Listeners (addresses, TLS) are not its own.

use serde::{Deserialize, Serialize};

use crate::wire::frame::FRAME_MAX_LOWEST_BYTES;

/// What an administrator may set of this gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AmqpConfig {
    /// Most channels of a connection, 1 to 2047.
    pub channel_max: u16,
    /// Largest frame, in bytes, overhead included, 8192 to 16777216.
    pub frame_bytes_max: u32,
    /// Heartbeat proposed to clients, in seconds; 0 is none. The client decides.
    pub heartbeat_s: u16,
    /// Largest body of a message, in bytes, 1 to 536870912.
    pub body_bytes_max: u64,
    /// Bodies that are not whole yet, of all connections together, in bytes, at least `body_bytes_max`; one
    /// connection may hold `body_bytes_max` of it.
    pub unfinished_bytes_max: u64,
}

impl Default for AmqpConfig {
    fn default() -> AmqpConfig {
        AmqpConfig {
            channel_max: AmqpConfig::CHANNELS_LARGEST,
            frame_bytes_max: 131_072,
            heartbeat_s: 60,
            body_bytes_max: 128 << 20,
            unfinished_bytes_max: 256 << 20,
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A key is out of its range.
    #[error("gateway.amqp.{key} must be {range}")]
    Range {
        /// Which key.
        key: &'static str,
        /// What it may be.
        range: &'static str,
    },
}

impl AmqpConfig {
    /// Channels that fit into a publish token.
    pub const CHANNELS_LARGEST: u16 = 2047;

    /// Checks every range.
    ///
    /// # Errors
    /// Names the first key that is out of its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let frames = FRAME_MAX_LOWEST_BYTES..=16 << 20;
        let rules = [
            (
                "channel_max",
                "1 to 2047",
                (1..=Self::CHANNELS_LARGEST).contains(&self.channel_max),
            ),
            (
                "frame_bytes_max",
                "8192 to 16777216",
                frames.contains(&self.frame_bytes_max),
            ),
            (
                "body_bytes_max",
                "1 to 536870912",
                (1..=512 << 20).contains(&self.body_bytes_max),
            ),
            (
                "unfinished_bytes_max",
                "at least body_bytes_max",
                self.unfinished_bytes_max >= self.body_bytes_max,
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
    fn the_first_key_out_of_range_is_named() {
        assert_eq!(AmqpConfig::default().check(), Ok(()));
        let config = AmqpConfig {
            frame_bytes_max: 4096,
            ..AmqpConfig::default()
        };
        assert_eq!(
            config.check().unwrap_err().to_string(),
            "gateway.amqp.frame_bytes_max must be 8192 to 16777216"
        );
    }
}
