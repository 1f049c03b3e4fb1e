//! The one buffer that all connections of a worker read into.
//!
//! A read's bytes are split off and handed on as [`Bytes`]; the allocation is used again as soon as
//! nobody kept a slice of it. So an idle connection has no read buffer at all.
//!
//! Owns: the buffer.
//! Never: keeps bytes of a connection between two reads.

use crate::transport::Transport;
use bytes::{Bytes, BytesMut};
use std::io;

/// Size of one allocation, and so the most that one read can bring.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;
/// With less room than this the next read gets a fresh chunk: many small reads share a chunk, and no
/// read is offered so little that a busy peer costs a system call per kilobyte.
const ROOM_BYTES_MIN: usize = 16 * 1024;

/// Buffer for reading, shared by the connections of a worker.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffer {
    /// Initialised room that was not handed out yet.
    room: BytesMut,
}

/// What a read brought.
pub(crate) struct Read {
    /// The bytes, empty at the end.
    pub(crate) bytes: Bytes,
    /// Whether they filled the room: there may be more.
    pub(crate) full: bool,
}

impl ReadBuffer {
    /// Reads once.
    pub(crate) fn read(&mut self, from: &mut Transport) -> io::Result<Read> {
        if self.room.len() < ROOM_BYTES_MIN {
            self.renew();
        }
        let count = from.read(&mut self.room)?;
        let full = count == self.room.len();
        Ok(Read {
            bytes: self.room.split_to(count).freeze(),
            full,
        })
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
