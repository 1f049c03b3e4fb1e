//! MQTT 3.1.1 and 5.0 as a pure state machine.
//!
//! [`codec`] turns bytes into packets and back. Nothing here touches a socket, a clock or a
//! source of randomness: time and seeds come in as arguments.

pub mod codec;
