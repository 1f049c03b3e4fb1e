//! MQTT 3.1, 3.1.1 and 5.0 as a pure state machine.
//!
//! [`MqttGateway`] makes a connection for every socket; the connection turns bytes into packets
//! ([`codec`]), packets into the core's commands, and answers and deliveries back into bytes.
//! Nothing here touches a socket, a clock or a source of randomness: time and seeds come in as
//! arguments. Nothing here decides where a message goes or who may do what.
//!
//! Read next: `README.md` (what is built), `connection/mod.rs`, one script of `tests/scripts/`.

pub mod address;
mod alias;
pub mod codec;
mod config;
mod connection;
pub mod delayed;
mod gateway;
mod inbound;
mod json_value;
pub mod map;
mod outbound;
pub mod reason;

pub use config::{ConfigError, MqttConfig};
pub use gateway::{MqttGateway, NAME};
