//! AMQP 0-9-1 as a pure state machine.
