//! The one buffer that all connections of a worker read into.
//!
//! A read's bytes are split off and handed on as [`Bytes`]; the allocation is used again as soon as
//! nobody kept a slice of it. So an idle connection has no read buffer at all.
//!
//! Where bytes are encrypted, they are read into a second buffer, which all share as well.
//!
//! Owns: the buffers.
//! Never: keeps bytes of a connection between two reads.

use bytes::{Bytes, BytesMut};
use std::borrow::Cow;
use std::io::{self, Read};

use crate::transport::Transport;
use crate::wrapped::Arrived;

/// Size of one allocation, and so the most that one read can bring.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;
/// With less room than this the next read gets a fresh chunk: many small reads share a chunk, and no
/// read is offered so little that a busy peer costs a system call per kilobyte.
const ROOM_BYTES_MIN: usize = 16 * 1024;
/// The same for what is encrypted: beside a record's beginning that came before there is room to read.
const ROOM_BYTES_MIN_WRAPPED: usize = 40 * 1024;

/// Buffer for reading, shared by the connections of a worker.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffer {
    /// Initialised room that was not handed out yet.
    room: BytesMut,
    /// Encrypted bytes; allocated when the first are read.
    wire: Vec<u8>,
}

/// What a read gave.
pub(crate) enum Got {
    /// Bytes of the protocol, or none yet; whether there may be more, which no event will say.
    Bytes { bytes: Bytes, more: bool },
    /// The peer will send no more.
    End,
    /// The peer has ended in the transport's words, and is to be answered in them.
    Goodbye,
    /// The peer broke the transport's rules, and is to be told so.
    Fault(Cow<'static, str>),
}

impl ReadBuffer {
    /// Reads once.
    pub(crate) fn read(&mut self, from: &mut Transport) -> io::Result<Got> {
        let arrived = match from {
            Transport::Plain(socket) => {
                self.make_room(ROOM_BYTES_MIN);
                let count = socket.read(&mut self.room)?;
                let more = count == self.room.len();
                match count {
                    0 => Arrived::End,
                    _ => Arrived::Bytes { count, more },
                }
            }
            Transport::Wrapped(wrapped) => {
                self.make_room(ROOM_BYTES_MIN_WRAPPED);
                self.wire.resize(CHUNK_BYTES, 0);
                wrapped.read(&mut self.room, &mut self.wire)?
            }
        };
        Ok(match arrived {
            Arrived::Bytes { count, more } => Got::Bytes {
                bytes: self.room.split_to(count).freeze(),
                more,
            },
            Arrived::End => Got::End,
            Arrived::Goodbye => Got::Goodbye,
            Arrived::Fault(why) => Got::Fault(why),
        })
    }

    fn make_room(&mut self, least: usize) {
        if self.room.len() < least {
            self.renew();
        }
    }

    fn renew(&mut self) {
        self.room.clear();
        if !self.room.try_reclaim(CHUNK_BYTES) {
            self.room = BytesMut::with_capacity(CHUNK_BYTES);
        }
        self.room.resize(CHUNK_BYTES, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_nobody_keeps_is_used_again_and_a_kept_one_is_left_alone() {
        let mut buffer = ReadBuffer::default();
        buffer.renew();
        let first = buffer.room.as_ptr();
        drop(buffer.room.split_to(CHUNK_BYTES - 10).freeze());
        buffer.renew();
        assert_eq!(buffer.room.as_ptr(), first);
        assert_eq!(buffer.room.len(), CHUNK_BYTES);

        let kept = buffer.room.split_to(5).freeze();
        buffer.renew();
        assert_ne!(buffer.room.as_ptr(), first);
        assert_eq!(kept.len(), 5);
    }
}
