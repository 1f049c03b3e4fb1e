//! Methods a client sends one after the other, each with the reply it waits for.
//!
//! Owns their arguments. Never sends. Next: `client.rs`.

use super::codec::{MethodId, method, put_method, put_short_string};

/// One method on channel 1 and the reply that ends the wait for it.
pub struct Step {
    /// The whole frame.
    pub bytes: Vec<u8>,
    /// Class and number of the reply.
    pub reply: MethodId,
}

fn step(id: MethodId, reply: MethodId, fill: impl FnOnce(&mut Vec<u8>)) -> Step {
    let mut bytes = Vec::new();
    put_method(&mut bytes, 1, id, |out| fill(out));
    Step { bytes, reply }
}

/// An empty argument table.
fn no_arguments(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 4]);
}

/// Declares a queue: durable and shared, or transient and exclusive to this connection.
pub fn declare_queue(queue: &str, durable: bool) -> Step {
    step(method::QUEUE_DECLARE, method::QUEUE_DECLARE_OK, |out| {
        out.extend_from_slice(&[0, 0]);
        put_short_string(out, queue);
        // Bits: passive 1, durable 2, exclusive 4, auto-delete 8, no-wait 16.
        out.push(if durable { 2 } else { 4 });
        no_arguments(out);
    })
}

/// Binds a queue to an exchange.
pub fn bind_queue(queue: &str, exchange: &str, routing_key: &str) -> Step {
    step(method::QUEUE_BIND, method::QUEUE_BIND_OK, |out| {
        out.extend_from_slice(&[0, 0]);
        put_short_string(out, queue);
        put_short_string(out, exchange);
        put_short_string(out, routing_key);
        out.push(0);
        no_arguments(out);
    })
}

/// Deletes a queue, used or not.
pub fn delete_queue(queue: &str) -> Step {
    step(method::QUEUE_DELETE, method::QUEUE_DELETE_OK, |out| {
        out.extend_from_slice(&[0, 0]);
        put_short_string(out, queue);
        out.push(0);
    })
}

/// Limits unacknowledged deliveries of each consumer to come.
pub fn prefetch(count: u16) -> Step {
    step(method::BASIC_QOS, method::BASIC_QOS_OK, |out| {
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&count.to_be_bytes());
        out.push(0);
    })
}

/// Consumes from a queue, acknowledging each message or none.
pub fn consume(queue: &str, acknowledge: bool) -> Step {
    step(method::BASIC_CONSUME, method::BASIC_CONSUME_OK, |out| {
        out.extend_from_slice(&[0, 0]);
        put_short_string(out, queue);
        put_short_string(out, "");
        // Bits: no-local 1, no-ack 2, exclusive 4, no-wait 8.
        out.push(if acknowledge { 0 } else { 2 });
        no_arguments(out);
    })
}

/// Asks for publisher confirms.
pub fn select_confirms() -> Step {
    step(method::CONFIRM_SELECT, method::CONFIRM_SELECT_OK, |out| {
        out.push(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp::codec::{decode, frame_type};

    fn check(step: &Step, expected: &[u8]) {
        let (frame, size) = decode(&step.bytes).unwrap().unwrap();
        assert_eq!(size, step.bytes.len());
        assert_eq!(frame.kind, frame_type::METHOD);
        assert_eq!(frame.payload, expected);
    }

    #[test]
    fn arguments_stand_in_the_standard_order() {
        check(
            &declare_queue("q", true),
            b"\x00\x32\x00\x0A\x00\x00\x01q\x02\x00\x00\x00\x00",
        );
        check(
            &declare_queue("q", false),
            b"\x00\x32\x00\x0A\x00\x00\x01q\x04\x00\x00\x00\x00",
        );
        check(
            &bind_queue("q", "e", "k"),
            b"\x00\x32\x00\x14\x00\x00\x01q\x01e\x01k\x00\x00\x00\x00\x00",
        );
        check(&delete_queue("q"), b"\x00\x32\x00\x28\x00\x00\x01q\x00");
        check(
            &prefetch(200),
            b"\x00\x3C\x00\x0A\x00\x00\x00\x00\x00\xC8\x00",
        );
        check(
            &consume("q", false),
            b"\x00\x3C\x00\x14\x00\x00\x01q\x00\x02\x00\x00\x00\x00",
        );
        check(&select_confirms(), b"\x00\x55\x00\x0A\x00");
    }
}
