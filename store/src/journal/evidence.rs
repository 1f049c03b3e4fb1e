//! Torn or corrupt: what lies behind the last frame that was believed, and what it proves.
//!
//! Owns: the search for later frames of the file's present life and the judgement. Never changes a
//! file. Read next: [`super::recovery`], whose rule this serves.

use super::frame::{ALIGN_BYTES, HEAD_BYTES, Head, decode_head, has_magic, u32_at};
use super::meta::Meta;
use super::recovery::{Expect, Scanned, Told};
use super::window::{WINDOW_BYTES, Window};
use std::io;

/// What lies behind the last frame that was believed.
#[derive(Default)]
pub(super) struct Remains {
    /// Whole or broken frames of the file's present life are there.
    pub(super) live_frames: bool,
    /// The highest log index below which a whole frame there, not cut, says all was synced.
    pub(super) synced_end: u64,
}

/// Looks for frames of the file's present life behind those that were believed.
pub(super) fn search(segments: &[Scanned], expect: &Expect, meta: &Meta) -> io::Result<Remains> {
    let mut tail = Remains::default();
    for one in segments {
        let mut window = Window::new(&*one.file, one.header.capacity_bytes);
        let mut offset = one.segment.end_offset();
        while let Some(bytes) = window.get_at_most(offset, WINDOW_BYTES)? {
            if bytes.len() < HEAD_BYTES {
                break;
            }
            let mut at = 0;
            while at + HEAD_BYTES <= bytes.len() {
                if has_magic(&bytes[at..]) && u32_at(bytes, at + 4) == one.header.salt {
                    tail.live_frames = true;
                    if let Ok(head) = decode_head(&bytes[at..])
                        && !is_cut(&head, meta)
                        && head.index.0 >= expect.index
                    {
                        tail.synced_end = tail.synced_end.max(head.link.synced_end);
                    }
                }
                at += ALIGN_BYTES;
            }
            offset += at as u64;
        }
    }
    Ok(tail)
}

/// What proves that the next frame was once synced, in words; `None` when nothing does.
pub(super) fn proof_of_sync(
    tail: &Remains,
    expect: &Expect,
    meta: &Meta,
    told: &Told,
) -> Option<String> {
    let index = expect.index;
    if tail.synced_end > index {
        return Some(format!(
            "a later whole frame says that all below {} was synced",
            tail.synced_end
        ));
    }
    if meta.synced_end > index {
        return Some(format!(
            "the meta file says that all below {} was synced",
            meta.synced_end
        ));
    }
    if told.must_reach > index {
        return Some(format!(
            "the checkpoint says that all below {} was synced",
            told.must_reach
        ));
    }
    None
}

/// Whether the frame lies in a tail that was cut.
pub(super) fn is_cut(head: &Head, meta: &Meta) -> bool {
    head.link.epoch < meta.epoch && head.index.0 >= meta.cut_from
}
