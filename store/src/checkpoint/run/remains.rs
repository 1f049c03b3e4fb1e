//! The pairs of a run that is damaged, as far as its sections are sound.
//!
//! Owns: finding the next sound section behind one that is not, or that the disk does not give back. Never believes a section that does not match its
//! checksum. Read next: [`super`] (the layout).

use super::{
    BOUND_BYTES, Change, FOOTER_BYTES, GONE, HEADER_BYTES, PAIR_HEADER_BYTES, RunError, RunReader,
    RunRef, SEALED_VERSION, SECTION_HEADER_BYTES, run_path,
};
use crate::checkpoint::index::Identity;
use crate::disk::{BLOCK_BYTES, Disk, DiskFile};
use crate::journal::frame::{crc32c, u32_at};
use crate::seal::{DataKey, Sealing, WRAPPED_BYTES, WrappedKey};
use anabranch_core::shard::Gap;
use bytes::Bytes;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// See the module's text.
#[derive(Debug, Default)]
pub(in crate::checkpoint) struct RunRemains {
    /// Pairs that can be read, in the order of their keys.
    pub(in crate::checkpoint) pairs: Vec<Change>,
    /// Where others were; none when all can be read.
    pub(in crate::checkpoint) gaps: Vec<Gap>,
}

impl RunRemains {
    /// Reads the run that `named` describes. What is damaged or cannot be read is no error; that it is sealed and its key is
    /// not there is one, and so is a file that does not open.
    pub(in crate::checkpoint) fn read(
        disk: &dyn Disk,
        dir: &Path,
        identity: Identity,
        named: &RunRef,
        sealing: &Sealing,
    ) -> Result<RunRemains, RunError> {
        let mut remains = RunRemains::default();
        let whole = RunReader::open(disk, dir, identity, named, sealing).and_then(|mut reader| {
            while let Some(pair) = reader.next()? {
                remains.pairs.push(pair);
            }
            Ok(())
        });
        match whole {
            Err(RunError::Damaged { .. } | RunError::Io { .. }) => {}
            other => return other.map(|()| remains),
        }
        let path = run_path(dir, named.sequence);
        let failed = |source| RunError::Io {
            path: path.clone(),
            source,
        };
        let bytes = match disk.open(&path) {
            Ok(file) => readable(&*file).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Bytes::new(),
            Err(error) => return Err(failed(error)),
        };
        let mut search = Search {
            remains: RunRemains::default(),
            at: HEADER_BYTES,
            number: 0,
            in_gap: false,
            key: None,
            bytes,
        };
        if search.opens(sealing) {
            while search.next() {}
        }
        let mut remains = search.remains;
        if remains.pairs.len() as u64 >= named.pairs {
            // What is damaged holds no pair.
            remains.gaps.clear();
        } else if search.in_gap || remains.gaps.is_empty() {
            let after = remains.pairs.last().map(|(key, _)| key.clone());
            let before = None;
            remains.gaps.push(Gap { after, before });
        }
        Ok(remains)
    }
}

/// A file with zeros where it cannot be read: the checksums find them.
fn readable(file: &dyn DiskFile) -> io::Result<Bytes> {
    let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    if file.read_at(&mut bytes, 0).is_ok() {
        return Ok(bytes.into());
    }
    for (at, block) in (0..).zip(bytes.chunks_mut(BLOCK_BYTES as usize)) {
        if file.read_at(block, at * BLOCK_BYTES).is_err() {
            block.fill(0);
        }
    }
    Ok(bytes.into())
}

/// A search for sound sections.
struct Search {
    bytes: Bytes,
    at: usize,
    /// Of the next section.
    number: u32,
    /// Something was passed over since the last sound section.
    in_gap: bool,
    key: Option<Arc<DataKey>>,
    remains: RunRemains,
}

impl Search {
    /// Whether its sections can be read, once they are found. Of a sealed run whose header or key is damaged none can.
    fn opens(&mut self, sealing: &Sealing) -> bool {
        let end = HEADER_BYTES + WRAPPED_BYTES;
        let Some(header) = self.bytes.get(..end) else {
            return !self.bytes.is_empty();
        };
        let mut wrapped = WrappedKey([0; WRAPPED_BYTES]);
        wrapped.0.copy_from_slice(&header[HEADER_BYTES..]);
        if header[..4] == [0; 4] && sealing.has_keys() {
            // It may be sealed, with a key that cannot be read.
            return false;
        }
        let is_sealed =
            u32_at(header, 4) == SEALED_VERSION || u32_at(header, 40) == crc32c(&[&wrapped.0]);
        if is_sealed {
            self.key = sealing.unwrap(&wrapped, &header[..BOUND_BYTES]).ok();
            self.at = end;
        }
        !is_sealed || self.key.is_some()
    }

    /// Takes the next section, or passes over a byte. `false` at the end.
    fn next(&mut self) -> bool {
        let Some((body, end)) = self.section() else {
            self.in_gap = true;
            self.at += 1;
            return self.at + SECTION_HEADER_BYTES + FOOTER_BYTES <= self.bytes.len();
        };
        self.number = u32_at(&self.bytes, self.at + 8).saturating_add(1);
        self.at = end;
        self.take(body);
        true
    }

    /// The section that begins here, if one does that is sound, and where it ends.
    fn section(&self) -> Option<(Bytes, usize)> {
        let header = self.bytes.get(self.at..self.at + SECTION_HEADER_BYTES)?;
        let number = u32_at(header, 8);
        let len = u32_at(header, 0) as usize;
        let begin = self.at + SECTION_HEADER_BYTES;
        let end = begin.checked_add(len)?;
        let last = self.bytes.len().checked_sub(FOOTER_BYTES)?;
        // A run has not more sections than that: whatever states more is none.
        let most = self.bytes.len() / SECTION_HEADER_BYTES;
        if number < self.number || number as usize > most || end > last {
            return None;
        }
        let body = self.bytes.slice(begin..end);
        if u32_at(header, 12) != crc32c(&[&header[..12], &body]) {
            return None;
        }
        let Some(key) = &self.key else {
            return Some((body, end));
        };
        let mut piece = body.to_vec();
        let len = key.open(&header[..12], &mut piece)?.len();
        piece.truncate(len);
        Some((piece.into(), end))
    }

    /// Takes the pairs of a section that is sound.
    fn take(&mut self, mut body: Bytes) {
        let mut first = true;
        while body.len() >= PAIR_HEADER_BYTES {
            let head = body.split_to(PAIR_HEADER_BYTES);
            let (key_len, value_len) = (u32_at(&head, 0) as usize, u32_at(&head, 4));
            let stored = if value_len == GONE {
                0
            } else {
                value_len as usize
            };
            if body.len() < key_len.saturating_add(stored) {
                self.in_gap = true;
                return;
            }
            let key = body.split_to(key_len);
            let value = body.split_to(stored);
            if std::mem::take(&mut first) && std::mem::take(&mut self.in_gap) {
                let after = self.remains.pairs.last().map(|(key, _)| key.clone());
                let before = Some(key.clone());
                self.remains.gaps.push(Gap { after, before });
            }
            let value = (value_len != GONE).then_some(value);
            self.remains.pairs.push((key, value));
        }
    }
}
