//! Packing frames for the disk, and back: compressed when it pays, sealed when there are keys.
//!
//! Owns: when compression pays, and the order (compressed, then sealed). What comes out is this replica's own: the
//! logical frame, its length and its place stay the same. Never touches a file. Read next: [`super::frame`] (the
//! layout), [`crate::seal`] (the cipher).

use super::frame::{
    CLEAR_BYTES, Form, Frame, FrameFault, HEAD_BYTES, Head, Link, PACKED_HEADER_BYTES, Stored,
    encode_clear, encode_packed_head, u32_at,
};
use crate::seal::{DataKey, Sealer, Sealing};
use bytes::Bytes;
use std::fmt;
use std::io;

/// Smaller payloads are not worth compressing, in bytes.
pub const COMPRESS_FROM_BYTES: usize = 16 * 1024;
/// Compression is kept when it saves this part of a frame at least.
const WORTH_A_PART: usize = 8;
/// Level of Zstandard: the fastest of its ordinary ones.
const ZSTD_LEVEL: i32 = 1;

/// How frames are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4: little saved at little cost.
    Lz4,
    /// Zstandard at level 1.
    Zstd,
}

/// How what a group writes is packed.
#[derive(Debug, Clone, Default)]
pub struct Packing {
    /// How frames are compressed.
    pub compression: Compression,
    /// What frames and checkpoints are sealed and opened with.
    pub sealing: Sealing,
}

/// A frame as it goes to the disk.
pub(super) struct Packed {
    pub(super) head: [u8; HEAD_BYTES],
    pub(super) body: Bytes,
    /// What the next frame links to.
    pub(super) crc: u32,
}

/// Packs the frames of one journal.
pub(super) struct Packer {
    compression: Compression,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    /// Room to compress into.
    scratch: Vec<u8>,
}

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packer").finish_non_exhaustive()
    }
}

impl Packer {
    pub(super) fn new(compression: Compression) -> Self {
        Self {
            compression,
            zstd: None,
            scratch: Vec::new(),
        }
    }

    /// Whether any frame may be shorter than it was thought to be.
    pub(super) fn compresses(&self) -> bool {
        self.compression != Compression::None
    }

    /// The frame packed, or `None` when it is to be stored as it is.
    pub(super) fn pack(
        &mut self,
        frame: &Frame,
        link: Link,
        sealer: Option<&mut Sealer>,
    ) -> io::Result<Option<Packed>> {
        let compresses = self.compresses() && frame.payload.len() >= COMPRESS_FROM_BYTES;
        if !compresses && sealer.is_none() {
            return Ok(None);
        }
        let (clear, payload_crc) = encode_clear(frame);
        let mut body = Vec::with_capacity(PACKED_HEADER_BYTES + frame.payload.len() + 32);
        body.extend_from_slice(&payload_crc.to_le_bytes());
        body.extend_from_slice(&[0; PACKED_HEADER_BYTES - 4]);
        body.extend_from_slice(&frame.payload);
        let mut form = Form::NONE;
        if compresses {
            form = self.compress(&mut body)?;
        }
        match sealer {
            Some(sealer) => {
                form = form.sealed();
                sealer.seal(&bound(&clear, form), &mut body, 0)?;
            }
            None if form == Form::NONE => return Ok(None),
            None => {}
        }
        let (head, crc) = encode_packed_head(&clear, form, &body, link);
        let body = Bytes::from(body);
        Ok(Some(Packed { head, body, crc }))
    }

    /// Compresses `body` in place when that pays; says how.
    fn compress(&mut self, body: &mut Vec<u8>) -> io::Result<Form> {
        let most = body.len() - body.len() / WORTH_A_PART;
        let room = match self.compression {
            // It wants room for the worst case.
            Compression::Lz4 => lz4_flex::block::get_maximum_output_size(body.len()),
            Compression::None | Compression::Zstd => most,
        };
        self.scratch.resize(room, 0);
        let (len, form) = match self.compression {
            Compression::None => (None, Form::NONE),
            Compression::Lz4 => {
                let len = lz4_flex::block::compress_into(body, &mut self.scratch).ok();
                (len, Form::LZ4)
            }
            Compression::Zstd => {
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => none.insert(zstd::bulk::Compressor::new(ZSTD_LEVEL)?),
                };
                let len = zstd.compress_to_buffer(body, &mut self.scratch[..]).ok();
                (len, Form::ZSTD)
            }
        };
        let len = len.filter(|len| *len <= most);
        let Some(packed) = len.and_then(|len| self.scratch.get(..len)) else {
            return Ok(Form::NONE);
        };
        body.clear();
        body.extend_from_slice(packed);
        Ok(form)
    }
}

/// What a sealed body is bound to: the rest of its frame.
fn bound(clear: &[u8; CLEAR_BYTES], form: Form) -> [u8; CLEAR_BYTES + 1] {
    let mut bound = [form.to_byte(); CLEAR_BYTES + 1];
    bound[..CLEAR_BYTES].copy_from_slice(clear);
    bound
}

/// The frame of a head and what was read behind it; every byte is verified.
pub(super) fn unpack(head: &Head, body: Bytes, key: Option<&DataKey>) -> Result<Frame, FrameFault> {
    let form = match head.stored {
        Stored::Plain { payload_crc } => return head.frame(body, payload_crc),
        Stored::Packed { form, .. } => form,
    };
    head.check_stored(&body)?;
    let mut body = Vec::from(body);
    if form.is_sealed() {
        let key = key.ok_or(FrameFault::NoKey)?;
        let opened = key.open(&bound(&head.clear, form), &mut body);
        let len = opened.ok_or(FrameFault::Seal)?.len();
        body.truncate(len);
    }
    let len = PACKED_HEADER_BYTES + head.payload_len;
    let body = decompress(form.compression(), body, len).ok_or(FrameFault::Compressed)?;
    let body = Bytes::from(body);
    head.frame(body.slice(PACKED_HEADER_BYTES..), u32_at(&body, 0))
}

/// Exactly `len` bytes, or `None`.
fn decompress(form: Form, body: Vec<u8>, len: usize) -> Option<Vec<u8>> {
    if form == Form::NONE {
        return (body.len() == len).then_some(body);
    }
    let mut plain = vec![0; len];
    let got = if form == Form::LZ4 {
        lz4_flex::block::decompress_into(&body, &mut plain).ok()?
    } else {
        zstd::bulk::decompress_to_buffer(&body, &mut plain[..]).ok()?
    };
    (got == len).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::FrameKind;
    use crate::journal::frame::{ALIGN_BYTES, SEALED_MORE_BYTES, decode_head};
    use crate::seal::keys::tests::sealing;
    use anabranch_core::id::{LogIndex, Term, UnixMs};
    use proptest::prelude::*;

    fn frame(payload: Vec<u8>) -> Frame {
        Frame {
            term: Term(3),
            index: LogIndex(42),
            committed: LogIndex(41),
            clock: UnixMs(1),
            kind: FrameKind::Records,
            payload: payload.into(),
        }
    }

    const LINK: Link = Link {
        salt: 7,
        epoch: 2,
        prev_crc: 9,
        synced_end: 41,
    };

    /// Payloads of which some compress well, some badly.
    fn payloads() -> impl Strategy<Value = Vec<u8>> {
        let (small, large) = (0..100_usize, COMPRESS_FROM_BYTES..40_000);
        (prop_oneof![small, large], 1..256_u32, any::<u32>()).prop_map(|(len, range, seed)| {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 16) % range) as u8
            };
            (0..len).map(|_| next()).collect()
        })
    }

    fn bytes(packed: &Packed) -> Vec<u8> {
        let mut bytes = [&packed.head[..], &packed.body].concat();
        bytes.resize(bytes.len().next_multiple_of(ALIGN_BYTES), 0);
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_packed_is_unpacked(payload in payloads(), seals in any::<bool>(), form in 0..3_usize, bit in any::<usize>()) {
            let compression = [Compression::None, Compression::Lz4, Compression::Zstd][form];
            let keys = sealing(&["k"], 5);
            let (key, _) = keys.new_key(b"").unwrap().unwrap();
            let mut sealer = keys.sealer(key.clone()).unwrap();
            let frame = frame(payload);
            let mut packer = Packer::new(compression);
            let packed = packer.pack(&frame, LINK, seals.then_some(&mut sealer)).unwrap();
            let Some(packed) = packed else {
                prop_assert!(!seals);
                return Ok(());
            };
            let stored = bytes(&packed);
            let head = decode_head(&stored).unwrap();
            prop_assert_eq!(head.link, LINK);
            prop_assert_eq!((head.stored_len(), head.logical_len()), (stored.len() as u64, frame.logical_len()));
            // Never more than is set aside for it.
            let most = frame.logical_len() + 32 + if seals { SEALED_MORE_BYTES } else { 0 };
            prop_assert!(stored.len() as u64 <= most);
            if let Stored::Packed { form, .. } = head.stored && form.compression() == Form::NONE {
                prop_assert_eq!(stored.len() as u64, most);
            }
            let body = |stored: &[u8]| Bytes::copy_from_slice(&stored[HEAD_BYTES..HEAD_BYTES + head.body_len()]);
            head.check_stored(&body(&stored)).unwrap();
            prop_assert_eq!(unpack(&head, body(&stored), Some(&key)).unwrap(), frame);
            if seals {
                prop_assert_eq!(unpack(&head, body(&stored), None), Err(FrameFault::NoKey));
            }
            // No flipped bit passes, but in the padding.
            let mut broken = stored.clone();
            let bit = bit % ((HEAD_BYTES + head.body_len()) * 8);
            broken[bit / 8] ^= 1 << (bit % 8);
            let read = decode_head(&broken).ok().and_then(|head| unpack(&head, body(&broken), Some(&key)).ok());
            prop_assert_eq!(read, None);
        }

        #[test]
        fn nonsense_is_refused(body in proptest::collection::vec(any::<u8>(), 0..300), form in 1..3_u8, len in 0..100_000_u32) {
            let mut clear = encode_clear(&frame(Vec::new())).0;
            clear[4..8].copy_from_slice(&len.to_le_bytes());
            let form = [Form::NONE, Form::LZ4, Form::ZSTD][usize::from(form)];
            let (head, _) = encode_packed_head(&clear, form, &body, LINK);
            if let Ok(head) = decode_head(&head) {
                prop_assert!(unpack(&head, body.into(), None).is_err());
            }
        }
    }

    #[test]
    fn compression_is_kept_only_where_it_pays() {
        for compression in [Compression::Lz4, Compression::Zstd] {
            let mut packer = Packer::new(compression);
            let mut len_of = |payload: Vec<u8>| {
                let packed = packer.pack(&frame(payload), LINK, None).unwrap();
                packed.map(|packed| packed.body.len())
            };
            assert_eq!(len_of(vec![1; COMPRESS_FROM_BYTES - 1]), None);
            assert!(len_of(vec![1; COMPRESS_FROM_BYTES]).unwrap() < 1000);
            let mut random = vec![0; 64 * 1024];
            crate::seal::Random::fill(&crate::seal::SeededRandom::new(1), &mut random).unwrap();
            assert_eq!(len_of(random), None);
        }
    }
}
