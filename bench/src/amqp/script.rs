//! Methods a client sends one after the other, each with the reply it waits for.
//!
//! Owns their arguments. Never sends. Next: `client.rs`.

use super::codec::{MethodId, method, put_long_string, put_method, put_short_string};
use crate::row::Queue;

/// One method and the reply that ends the wait for it.
pub struct Step {
    /// The whole frame.
    pub bytes: Vec<u8>,
    /// Class and number of the reply.
    pub reply: MethodId,
}

fn step(id: MethodId, reply: MethodId, fill: impl FnOnce(&mut Vec<u8>)) -> Step {
    on_channel(1, id, reply, fill)
}

fn on_channel(
    channel: u16,
    id: MethodId,
    reply: MethodId,
    fill: impl FnOnce(&mut Vec<u8>),
) -> Step {
    let mut bytes = Vec::new();
    put_method(&mut bytes, channel, id, |out| fill(out));
    Step { bytes, reply }
}

/// An empty argument table.
fn no_arguments(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 4]);
}

/// Opens a channel.
pub fn open_channel(channel: u16) -> Step {
    on_channel(
        channel,
        method::CHANNEL_OPEN,
        method::CHANNEL_OPEN_OK,
        |out| out.push(0),
    )
}

/// Declares a queue.
pub fn declare_queue(queue: &str, kind: Queue) -> Step {
    step(method::QUEUE_DECLARE, method::QUEUE_DECLARE_OK, |out| {
        out.extend_from_slice(&[0, 0]);
        put_short_string(out, queue);
        // Bits: passive 1, durable 2, exclusive 4, auto-delete 8, no-wait 16.
        out.push(if kind.is_durable() { 2 } else { 4 });
        match kind {
            Queue::Transient | Queue::Durable => no_arguments(out),
            Queue::Quorum => {
                let mut table = Vec::new();
                put_short_string(&mut table, "x-queue-type");
                table.push(b'S');
                put_long_string(&mut table, b"quorum");
                put_long_string(out, &table);
            }
        }
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
            &declare_queue("q", Queue::Durable),
            b"\x00\x32\x00\x0A\x00\x00\x01q\x02\x00\x00\x00\x00",
        );
        check(
            &declare_queue("q", Queue::Transient),
            b"\x00\x32\x00\x0A\x00\x00\x01q\x04\x00\x00\x00\x00",
        );
        check(
            &declare_queue("q", Queue::Quorum),
            b"\x00\x32\x00\x0A\x00\x00\x01q\x02\x00\x00\x00\x18\x0Cx-queue-typeS\x00\x00\x00\x06quorum",
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
