//! A run: what one checkpoint changed, or several together, as sorted pairs in one file.
//!
//! Owns: the layout of the file, writing it in pieces and reading it front to back; every byte is
//! checked before it is believed. Never knows what a pair means, and never which runs count (that is
//! the manifest's). Read next: [`super::merge`], [`super::manifest`],
//! `run/remains.rs` (what is left of a damaged one).
//!
//! Little-endian, persisted. Header, 64 bytes:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABP1` |
//! | 4 | 4 | version, 1; 2 when its sections are sealed |
//! | 8 | 8 | identity of the checkpoint folder |
//! | 16 | 8 | sequence of the run, as in its name |
//! | 24 | 8 | term of the last frame that it holds changes of |
//! | 32 | 8 | log index of that frame |
//! | 40 | 4 | version 2: CRC-32C of the wrapped key |
//! | 44 | 16 | 0 |
//! | 60 | 4 | CRC-32C of bytes 0..60 |
//! | 64 | 96 | version 2: the wrapped key of the sections, bound to bytes 0..40 |
//!
//! Then sections, each of about 64 KiB or of one larger pair. In version 2 the pairs are a sealed piece, bound to bytes
//! 0..12, and their bytes are those of the piece:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | bytes of its pairs |
//! | 4 | 4 | number of its pairs |
//! | 8 | 4 | number of the section, from 0 |
//! | 12 | 4 | CRC-32C of bytes 0..12 and of the pairs |
//! | 16 | n | pairs |
//!
//! Each pair; keys ascend through the whole file:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | length of the key |
//! | 4 | 4 | length of the value; `FFFFFFFF` for a key that went |
//! | 8 | n | key, then value |
//!
//! At the end a footer, 32 bytes:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `ABPE` |
//! | 4 | 4 | number of sections |
//! | 8 | 8 | number of pairs, gone keys included |
//! | 16 | 8 | number of gone keys |
//! | 24 | 4 | CRC-32C of the header (and wrapped key) and of the first 16 bytes of each section: of the whole file, since those state the checksums of the rest |
//! | 28 | 4 | CRC-32C of bytes 0..28 |

mod remains;

pub(super) use remains::RunRemains;

use super::index::Identity;
use crate::disk::{Disk, DiskFile};
use crate::journal::FrameId;
use crate::journal::frame::{crc32c, u32_at, u64_at};
use crate::seal::{DataKey, KeyError, Sealer, Sealing, TRAILER_BYTES, WRAPPED_BYTES, WrappedKey};
use bytes::{Bytes, BytesMut};
use crc_fast::{CrcAlgorithm, Digest};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: [u8; 4] = *b"ABP1";
const END_MAGIC: [u8; 4] = *b"ABPE";
const VERSION: u32 = 1;
const SEALED_VERSION: u32 = 2;
/// Bytes of the header that the key is bound to.
const BOUND_BYTES: usize = 40;
const HEADER_BYTES: usize = 64;
const SECTION_HEADER_BYTES: usize = 16;
const PAIR_HEADER_BYTES: usize = 8;
const FOOTER_BYTES: usize = 32;
/// Length of a value that stands for a key that went.
const GONE: u32 = u32::MAX;
/// Bytes of pairs after which a section ends.
const SECTION_BYTES: usize = 64 * 1024;
/// Bytes read at a time.
const READ_BYTES: usize = 1024 * 1024;
/// Bytes written between two syncs: one large flush would be in the way of the journal's small ones.
const SYNC_BYTES: u64 = 2 * 1024 * 1024;
const PREFIX: &str = "run-";

/// A key, and its value unless it went.
pub type Change = (Bytes, Option<Bytes>);

/// A run as a manifest names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunRef {
    /// Number in its name.
    pub sequence: u64,
    /// Length of the file.
    pub bytes: u64,
    /// Its pairs, gone keys included.
    pub pairs: u64,
    /// Checksum of its footer, which vouches for the whole file.
    pub crc: u32,
}

/// The path of a run.
pub(super) fn run_path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{sequence:020}"))
}

/// The sequence that a file name states, when it is a run's.
pub(super) fn parse_run_name(name: &str) -> Option<u64> {
    super::parse_numbered(name, PREFIX)
}

/// Why a run cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The disk failed.
    #[error("reading {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// It is encrypted, and the key is not there.
    #[error("{path}: {source}")]
    Key {
        /// The file.
        path: PathBuf,
        /// Why it does not open.
        source: KeyError,
    },
    /// Its bytes are not what was written.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: &'static str,
    },
}

/// Writes one run; it counts for nothing until a manifest names it.
pub(super) struct RunWriter {
    file: Arc<dyn DiskFile>,
    sequence: u64,
    /// Where the section under construction will lie.
    offset: u64,
    unsynced: u64,
    section: Vec<u8>,
    section_pairs: u32,
    sections: u32,
    pairs: u64,
    gone: u64,
    chain: Digest,
    /// Seals the sections, if they are to be.
    sealer: Option<Sealer>,
}

impl RunWriter {
    /// Makes the file; its name must be new.
    pub(super) fn create(
        disk: &dyn Disk,
        dir: &Path,
        identity: Identity,
        sequence: u64,
        through: FrameId,
        sealing: &Sealing,
    ) -> io::Result<RunWriter> {
        let file = disk.create_zeroed(&run_path(dir, sequence), 0)?;
        let mut header = [0; HEADER_BYTES];
        header[0..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&VERSION.to_le_bytes());
        header[8..16].copy_from_slice(&identity.0.to_le_bytes());
        header[16..24].copy_from_slice(&sequence.to_le_bytes());
        header[24..32].copy_from_slice(&through.term.0.to_le_bytes());
        header[32..40].copy_from_slice(&through.index.0.to_le_bytes());
        if sealing.current().is_some() {
            header[4..8].copy_from_slice(&SEALED_VERSION.to_le_bytes());
        }
        let made = sealing.new_key(&header[..BOUND_BYTES])?;
        let wrapped = made.as_ref().map(|(_, wrapped)| wrapped.0);
        let wrapped = wrapped.as_ref().map_or(&[][..], |wrapped| wrapped);
        let sealer = made.as_ref().map(|(key, _)| sealing.sealer(key.clone()));
        if made.is_some() {
            header[40..44].copy_from_slice(&crc32c(&[wrapped]).to_le_bytes());
        }
        let crc = crc32c(&[&header[..60]]);
        header[60..].copy_from_slice(&crc.to_le_bytes());
        file.write_at(&mut [IoSlice::new(&header), IoSlice::new(wrapped)], 0)?;
        let mut chain = Digest::new(CrcAlgorithm::Crc32Iscsi);
        chain.update(&header);
        chain.update(wrapped);
        let written = (HEADER_BYTES + wrapped.len()) as u64;
        Ok(RunWriter {
            file,
            sequence,
            offset: written,
            unsynced: written,
            sealer: sealer.transpose()?,
            section: Vec::with_capacity(SECTION_BYTES + 4096),
            section_pairs: 0,
            sections: 0,
            pairs: 0,
            gone: 0,
            chain,
        })
    }

    /// Adds a pair; keys must come in ascending order.
    pub(super) fn push(&mut self, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "a pair is too long");
        let body = value.unwrap_or_default();
        let key_len = u32::try_from(key.len()).map_err(too_long)?;
        let value_len = u32::try_from(body.len()).map_err(too_long)?;
        let whole = PAIR_HEADER_BYTES as u64 + u64::from(key_len) + u64::from(value_len);
        if whole > u64::from(u32::MAX - 1) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a pair is too long",
            ));
        }
        let mut head = [0; PAIR_HEADER_BYTES];
        head[..4].copy_from_slice(&key_len.to_le_bytes());
        let stated = value.map_or(GONE, |_| value_len);
        head[4..].copy_from_slice(&stated.to_le_bytes());
        self.pairs += 1;
        self.gone += u64::from(value.is_none());
        if whole >= SECTION_BYTES as u64 {
            self.end_section()?;
            return self.write_section(1, &[&head, key, body]);
        }
        self.section.extend_from_slice(&head);
        self.section.extend_from_slice(key);
        self.section.extend_from_slice(body);
        self.section_pairs += 1;
        if self.section.len() >= SECTION_BYTES {
            self.end_section()?;
        }
        Ok(())
    }

    fn end_section(&mut self) -> io::Result<()> {
        if self.section_pairs == 0 {
            return Ok(());
        }
        let section = std::mem::take(&mut self.section);
        let written = self.write_section(self.section_pairs, &[&section]);
        self.section = section;
        self.section.clear();
        self.section_pairs = 0;
        written
    }

    fn write_section(&mut self, pairs: u32, pieces: &[&[u8]]) -> io::Result<()> {
        let mut len: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.sealer.is_some() {
            len += TRAILER_BYTES;
        }
        let mut header = [0; SECTION_HEADER_BYTES];
        header[0..4].copy_from_slice(&(len as u32).to_le_bytes());
        header[4..8].copy_from_slice(&pairs.to_le_bytes());
        header[8..12].copy_from_slice(&self.sections.to_le_bytes());
        let sealed = match &mut self.sealer {
            Some(sealer) => {
                let mut piece = pieces.concat();
                sealer.seal(&header[..12], &mut piece, 0)?;
                Some([piece])
            }
            None => None,
        };
        let sealed = sealed.as_ref().map(|piece| [&piece[0][..]]);
        let pieces = sealed.as_ref().map_or(pieces, |piece| &piece[..]);
        let mut crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
        crc.update(&header[..12]);
        for piece in pieces {
            crc.update(piece);
        }
        header[12..].copy_from_slice(&(crc.finalize() as u32).to_le_bytes());
        self.chain.update(&header);
        let mut slices = vec![IoSlice::new(&header)];
        slices.extend(pieces.iter().map(|piece| IoSlice::new(piece)));
        self.file.write_at(&mut slices, self.offset)?;
        let written = (SECTION_HEADER_BYTES + len) as u64;
        self.offset += written;
        self.unsynced += written;
        self.sections += 1;
        if self.unsynced >= SYNC_BYTES {
            self.file.sync()?;
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Ends the file; its bytes are durable on return, its name is not.
    pub(super) fn finish(mut self) -> io::Result<RunRef> {
        self.end_section()?;
        let mut footer = [0; FOOTER_BYTES];
        footer[0..4].copy_from_slice(&END_MAGIC);
        footer[4..8].copy_from_slice(&self.sections.to_le_bytes());
        footer[8..16].copy_from_slice(&self.pairs.to_le_bytes());
        footer[16..24].copy_from_slice(&self.gone.to_le_bytes());
        footer[24..28].copy_from_slice(&(self.chain.finalize() as u32).to_le_bytes());
        let crc = crc32c(&[&footer[..28]]);
        footer[28..].copy_from_slice(&crc.to_le_bytes());
        self.file
            .write_at(&mut [IoSlice::new(&footer)], self.offset)?;
        self.file.sync()?;
        Ok(RunRef {
            sequence: self.sequence,
            bytes: self.offset + FOOTER_BYTES as u64,
            pairs: self.pairs,
            crc,
        })
    }
}

/// Reads a run front to back.
pub(super) struct RunReader {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    /// Where the next section begins.
    offset: u64,
    /// Where the footer begins.
    end: u64,
    /// What is left of the section.
    section: Bytes,
    section_pairs: u32,
    sections: u32,
    pairs: u64,
    gone: u64,
    chain: Digest,
    footer: [u8; FOOTER_BYTES],
    last_key: Option<Bytes>,
    /// Bytes of the file from `ahead_at` on.
    ahead: Bytes,
    ahead_at: u64,
    /// Opens the sections, if they are sealed.
    key: Option<Arc<DataKey>>,
}

impl RunReader {
    /// Opens the run that `named` describes.
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &Path,
        identity: Identity,
        named: &RunRef,
        sealing: &Sealing,
    ) -> Result<RunReader, RunError> {
        let path = run_path(dir, named.sequence);
        match disk.open(&path) {
            Ok(file) => RunReader::begin(file, path, identity, named, sealing),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(RunError::Damaged {
                path,
                what: "it is missing",
            }),
            Err(source) => Err(RunError::Io { path, source }),
        }
    }

    fn begin(
        file: Arc<dyn DiskFile>,
        path: PathBuf,
        identity: Identity,
        named: &RunRef,
        sealing: &Sealing,
    ) -> Result<RunReader, RunError> {
        let io = |source| RunError::Io {
            path: path.clone(),
            source,
        };
        let damaged = |what| RunError::Damaged {
            path: path.clone(),
            what,
        };
        let least = (HEADER_BYTES + FOOTER_BYTES) as u64;
        if file.len().map_err(io)? != named.bytes || named.bytes < least {
            return Err(damaged("its length is wrong"));
        }
        let end = named.bytes - FOOTER_BYTES as u64;
        let mut header = [0; HEADER_BYTES];
        file.read_at(&mut header, 0).map_err(io)?;
        let mut footer = [0; FOOTER_BYTES];
        file.read_at(&mut footer, end).map_err(io)?;
        if header[..4] != MAGIC || u32_at(&header, 60) != crc32c(&[&header[..60]]) {
            return Err(damaged("its header does not match its checksum"));
        }
        let sealed = u32_at(&header, 4) == SEALED_VERSION;
        if !sealed && u32_at(&header, 4) != VERSION {
            return Err(damaged("its version is not known to this server"));
        }
        if u64_at(&header, 8) != identity.0 || u64_at(&header, 16) != named.sequence {
            return Err(damaged("it is another run"));
        }
        if footer[..4] != END_MAGIC
            || u32_at(&footer, 28) != crc32c(&[&footer[..28]])
            || u32_at(&footer, 28) != named.crc
        {
            return Err(damaged("its footer does not match its checksum"));
        }
        let mut chain = Digest::new(CrcAlgorithm::Crc32Iscsi);
        chain.update(&header);
        let mut offset = HEADER_BYTES as u64;
        let mut key = None;
        if sealed {
            let mut wrapped = [0; WRAPPED_BYTES];
            file.read_at(&mut wrapped, offset).map_err(io)?;
            if u32_at(&header, 40) != crc32c(&[&wrapped]) {
                return Err(damaged("its key does not match its checksum"));
            }
            chain.update(&wrapped);
            offset += WRAPPED_BYTES as u64;
            let opened = sealing.unwrap(&WrappedKey(wrapped), &header[..BOUND_BYTES]);
            key = Some(opened.map_err(|source| RunError::Key {
                path: path.clone(),
                source,
            })?);
        }
        Ok(RunReader {
            file,
            key,
            offset,
            end,
            section: Bytes::new(),
            section_pairs: 0,
            sections: 0,
            pairs: 0,
            gone: 0,
            chain,
            footer,
            last_key: None,
            ahead: Bytes::new(),
            ahead_at: 0,
            path,
        })
    }

    /// Bytes of the file read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.offset
    }

    /// The next pair; `None` at the end, where all that was read is known to be whole.
    pub(super) fn next(&mut self) -> Result<Option<Change>, RunError> {
        while self.section_pairs == 0 {
            if !self.section.is_empty() {
                return Err(self.damaged("a section is longer than its pairs"));
            }
            if self.offset == self.end {
                return self.check_end().map(|()| None);
            }
            self.next_section()?;
        }
        self.section_pairs -= 1;
        self.pairs += 1;
        let cut_short = "a pair is cut short";
        if self.section.len() < PAIR_HEADER_BYTES {
            return Err(self.damaged(cut_short));
        }
        let head = self.section.split_to(PAIR_HEADER_BYTES);
        let key_len = u32_at(&head, 0) as usize;
        if self.section.len() < key_len {
            return Err(self.damaged(cut_short));
        }
        let key = self.section.split_to(key_len);
        let value = match u32_at(&head, 4) {
            GONE => {
                self.gone += 1;
                None
            }
            len if self.section.len() < len as usize => return Err(self.damaged(cut_short)),
            len => Some(self.section.split_to(len as usize)),
        };
        if self.last_key.as_ref().is_some_and(|last| *last >= key) {
            return Err(self.damaged("its keys are not in order"));
        }
        self.last_key = Some(key.clone());
        Ok(Some((key, value)))
    }

    fn next_section(&mut self) -> Result<(), RunError> {
        let header = self.read(SECTION_HEADER_BYTES)?;
        let len = u32_at(&header, 0) as usize;
        let body = self.read(len)?;
        if u32_at(&header, 12) != crc32c(&[&header[..12], &body])
            || u32_at(&header, 8) != self.sections
        {
            return Err(self.damaged("a section does not match its checksum"));
        }
        self.chain.update(&header);
        self.sections += 1;
        self.section_pairs = u32_at(&header, 4);
        self.section = match &self.key {
            None => body,
            Some(key) => {
                let mut piece = body.to_vec();
                let opened = key.open(&header[..12], &mut piece).map(|open| open.len());
                let len = opened.ok_or_else(|| self.damaged("a sealed section does not open"))?;
                piece.truncate(len);
                piece.into()
            }
        };
        Ok(())
    }

    fn check_end(&self) -> Result<(), RunError> {
        let whole = u32_at(&self.footer, 4) == self.sections
            && u64_at(&self.footer, 8) == self.pairs
            && u64_at(&self.footer, 16) == self.gone
            && u32_at(&self.footer, 24) == self.chain.finalize() as u32;
        whole
            .then_some(())
            .ok_or_else(|| self.damaged("its sections are not those that its footer counts"))
    }

    /// The next `len` bytes.
    fn read(&mut self, len: usize) -> Result<Bytes, RunError> {
        let left = self.end - self.offset;
        if len as u64 > left {
            return Err(self.damaged("a section is longer than the file"));
        }
        let mut inside = (self.offset - self.ahead_at) as usize;
        if inside + len > self.ahead.len() {
            let want = (len.max(READ_BYTES) as u64).min(left) as usize;
            let mut bytes = BytesMut::zeroed(want);
            self.file
                .read_at(&mut bytes, self.offset)
                .map_err(|source| RunError::Io {
                    path: self.path.clone(),
                    source,
                })?;
            self.ahead = bytes.freeze();
            self.ahead_at = self.offset;
            inside = 0;
        }
        self.offset += len as u64;
        Ok(self.ahead.slice(inside..inside + len))
    }

    fn damaged(&self, what: &'static str) -> RunError {
        RunError::Damaged {
            path: self.path.clone(),
            what,
        }
    }
}

/// Decodes a run from bytes that nobody vouches for; for fuzzing and for tools.
///
/// # Errors
/// The bytes are not a whole run, or the key of a sealed one is not among those given.
pub fn decode_untrusted(bytes: &[u8], sealing: &Sealing) -> Result<Vec<Change>, RunError> {
    let named = RunRef {
        sequence: u64_at(bytes, 16),
        bytes: bytes.len() as u64,
        pairs: 0,
        crc: u32_at(bytes, bytes.len().saturating_sub(4)),
    };
    let file = Arc::new(InMemory(Bytes::copy_from_slice(bytes)));
    let identity = Identity(u64_at(bytes, 8));
    let mut reader = RunReader::begin(file, PathBuf::from("run"), identity, &named, sealing)?;
    std::iter::from_fn(|| reader.next().transpose()).collect()
}

/// Bytes as a file that cannot be written.
#[derive(Debug)]
struct InMemory(Bytes);

impl DiskFile for InMemory {
    fn write_at(&self, _: &mut [IoSlice<'_>], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let bytes = self.0.get(start..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
}
