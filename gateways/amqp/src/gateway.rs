//! AMQP 0-9-1 as a gateway of the broker.
//!
//! Owns its registration: name, persisted tag, conversion, and the making of connections. What a
//! connection does is in `connection`.

use std::sync::Arc;

use anabranch_core::gateway::{Connection, Gateway, Seat};
use anabranch_core::message::OriginTag;
use anabranch_core::properties::{Codecs, PropertyCodec};

use crate::config::{AmqpConfig, ConfigError};
use crate::connection::AmqpConnection;
use crate::map::{AmqpProperties, ORIGIN};
use crate::unfinished::Unfinished;

/// The gateway.
pub struct AmqpGateway {
    config: Arc<AmqpConfig>,
    codecs: Codecs,
    unfinished: Arc<Unfinished>,
}

impl AmqpGateway {
    /// A gateway that converts messages of other origins by `codecs`.
    ///
    /// # Errors
    /// When the configuration has a key out of its range.
    pub fn new(config: AmqpConfig, codecs: Codecs) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            unfinished: Unfinished::new(config.unfinished_bytes_max, None),
            config: Arc::new(config),
            codecs,
        })
    }

    /// The conversion of messages that came in by AMQP, to be registered under `map::ORIGIN`.
    pub fn properties() -> Arc<dyn PropertyCodec> {
        Arc::new(AmqpProperties)
    }
}

impl Gateway for AmqpGateway {
    fn name(&self) -> &'static str {
        "amqp"
    }

    fn tag(&self) -> OriginTag {
        ORIGIN
    }

    fn codec(&self) -> Arc<dyn PropertyCodec> {
        Self::properties()
    }

    fn accept(&self, seat: Seat) -> Box<dyn Connection> {
        Box::new(AmqpConnection::new(
            seat,
            self.config.clone(),
            self.codecs.clone(),
            Unfinished::new(self.config.body_bytes_max, Some(self.unfinished.clone())),
        ))
    }
}
