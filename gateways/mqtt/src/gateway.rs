//! What `server/` registers: the gateway itself.

use std::sync::Arc;

use anabranch_core::gateway::{Connection, Gateway, Seat};
use anabranch_core::message::OriginTag;
use anabranch_core::properties::{Codecs, PropertyCodec};
use bytes::Bytes;

use crate::config::{ConfigError, MqttConfig};
use crate::connection::{MqttConnection, Shared};
use crate::map::{MqttProperties, ORIGIN};

/// Short name: configuration section, `protocol` in rules, metrics label.
pub const NAME: &str = "mqtt";

/// The gateway for MQTT 3.1, 3.1.1 and 5.0, one for a whole node.
pub struct MqttGateway {
    shared: Arc<Shared>,
}

impl MqttGateway {
    /// A gateway with this configuration. `codecs` are those of all gateways, for messages that
    /// came in by another one.
    ///
    /// # Errors
    /// When a key of the configuration is out of its range.
    pub fn new(config: MqttConfig, codecs: Codecs) -> Result<MqttGateway, ConfigError> {
        config.check()?;
        // Made once for the life of the node, and never freed: every message names it, and a
        // counted reference would be a cache line that all workers write.
        let exchange = Bytes::from_static(config.exchange.clone().leak().as_bytes());
        let shared = Shared {
            exchange,
            vhost: Arc::from(config.vhost.as_str()),
            config,
            codecs,
        };
        Ok(MqttGateway {
            shared: Arc::new(shared),
        })
    }
}

impl Gateway for MqttGateway {
    fn name(&self) -> &'static str {
        NAME
    }

    fn tag(&self) -> OriginTag {
        ORIGIN
    }

    fn codec(&self) -> Arc<dyn PropertyCodec> {
        Arc::new(MqttProperties)
    }

    fn accept(&self, seat: Seat) -> Box<dyn Connection> {
        Box::new(MqttConnection::new(self.shared.clone(), seat))
    }
}
