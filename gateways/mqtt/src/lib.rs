//! MQTT 3.1.1 and 5.0 as a pure state machine.
