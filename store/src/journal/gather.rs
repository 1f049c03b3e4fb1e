//! Frames on their way to the disk in one write.
//!
//! Owns: what is copied and what is written from where it is. Never verifies or orders anything.
//! Read next: [`super::writer`].

use super::frame::{ALIGN_BYTES, HEAD_BYTES};
use bytes::Bytes;
use std::io::IoSlice;

/// Payloads up to this size are copied into the gather buffer; larger ones are written from where
/// they are. Copying this much is cheaper than one more slice for the kernel.
const COPY_BYTES: usize = 1024;

/// Bytes to write in one go: copied pieces and, between them, payloads left in place.
#[derive(Default)]
pub(super) struct Gather {
    copied: Vec<u8>,
    in_place: Vec<(usize, Bytes)>,
    pub(super) len: usize,
    /// First log index after what was gathered.
    pub(super) end_index: u64,
}

impl Gather {
    pub(super) fn push(&mut self, head: &[u8; HEAD_BYTES], payload: &Bytes) {
        self.copied.extend_from_slice(head);
        if payload.len() <= COPY_BYTES {
            self.copied.extend_from_slice(payload);
        } else {
            self.in_place.push((self.copied.len(), payload.clone()));
        }
        let unpadded = HEAD_BYTES + payload.len();
        let padding = unpadded.next_multiple_of(ALIGN_BYTES) - unpadded;
        self.copied.extend_from_slice(&[0; ALIGN_BYTES][..padding]);
        self.len += unpadded + padding;
    }

    /// The pieces in order.
    pub(super) fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(2 * self.in_place.len() + 1);
        let mut from = 0;
        for (at, payload) in &self.in_place {
            slices.push(IoSlice::new(&self.copied[from..*at]));
            slices.push(IoSlice::new(payload));
            from = *at;
        }
        if from < self.copied.len() {
            slices.push(IoSlice::new(&self.copied[from..]));
        }
        slices
    }

    pub(super) fn clear(&mut self) {
        self.copied.clear();
        self.in_place.clear();
        self.len = 0;
    }
}
