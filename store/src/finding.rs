//! What a look at a data folder finds: kinds, what each means, and what to do about it.
//!
//! Owns: the words. Never: looks. Read next: [`crate::inspect`], `journal/survey.rs`, `checkpoint/survey.rs`.

use std::path::PathBuf;

/// Findings of one shard that are kept one by one; more are counted.
const FINDINGS_MAX: usize = 1000;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// The system does not let a file be read.
    Unreadable,
    /// A file is sealed and its key was not given.
    Sealed,
    /// The file with the vote is missing, or neither of its copies is sound.
    Meta,
    /// One of the two copies of the vote is not sound.
    MetaCopy,
    /// The list of released segments is not sound.
    Released,
    /// One of its two copies is not sound.
    ReleasedCopy,
    /// Segments are not there though nothing says that they were released.
    SegmentMissing,
    /// The header of a segment, or its length, is not what was written.
    SegmentHeader,
    /// A frame that was synced is not what was written.
    Frame,
    /// A frame is sound and a record in it is not.
    Record,
    /// Neither a segment's side file nor the twin of it is sound and tells of this life of the segment.
    Table,
    /// One of the two is not.
    TableCopy,
    /// A full segment has no side file yet, or no twin of it.
    TableMissing,
    /// The tail of the journal was never synced as a whole.
    TornTail,
    /// What lies in the object store is not what was sent there.
    Object,
    /// The list of segments in the object store is not sound.
    Tiered,
    /// One of its two copies is not sound.
    TieredCopy,
    /// A manifest of a checkpoint is not sound.
    Manifest,
    /// A run of a checkpoint is missing or not what was written.
    Run,
    /// The index file cannot be used.
    Index,
    /// One of the two copies of its header is not sound.
    IndexCopy,
    /// Frames were given up that no checkpoint covers: manifests are missing.
    Uncovered,
    /// A block of the index file is not what was written.
    IndexBlock,
    /// A checkpoint of an earlier server is not sound.
    Whole,
    /// No checkpoint can be opened, or its pairs make no state.
    State,
    /// An entry of a stream refers to a message that cannot be read.
    Entry,
}

impl FindingKind {
    /// Whether something is wrong; else it is only worth saying.
    pub fn is_defect(self) -> bool {
        !matches!(self, FindingKind::TableMissing | FindingKind::TornTail)
    }

    /// A short name, for programs.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::Unreadable => "unreadable",
            FindingKind::Sealed => "sealed",
            FindingKind::Meta => "meta",
            FindingKind::MetaCopy => "meta-copy",
            FindingKind::Released => "released",
            FindingKind::ReleasedCopy => "released-copy",
            FindingKind::SegmentMissing => "segment-missing",
            FindingKind::SegmentHeader => "segment-header",
            FindingKind::Frame => "frame",
            FindingKind::Record => "record",
            FindingKind::Table => "side-file",
            FindingKind::TableCopy => "side-file-copy",
            FindingKind::TableMissing => "side-file-missing",
            FindingKind::TornTail => "torn-tail",
            FindingKind::Object => "object",
            FindingKind::Tiered => "tiered",
            FindingKind::TieredCopy => "tiered-copy",
            FindingKind::Manifest => "manifest",
            FindingKind::Run => "run",
            FindingKind::Index => "index",
            FindingKind::IndexCopy => "index-copy",
            FindingKind::Uncovered => "checkpoint-missing",
            FindingKind::IndexBlock => "index-block",
            FindingKind::Whole => "old-checkpoint",
            FindingKind::State => "state",
            FindingKind::Entry => "entry",
        }
    }

    /// What it means for who uses the server.
    pub fn means(self) -> &'static str {
        match self {
            FindingKind::Unreadable => "nothing is known of what lies there",
            FindingKind::Sealed => {
                "only checksums of stored bytes were verified; the server does not open the shard without the key"
            }
            FindingKind::Meta => "the server does not open the shard",
            FindingKind::MetaCopy
            | FindingKind::ReleasedCopy
            | FindingKind::TableCopy
            | FindingKind::TieredCopy
            | FindingKind::IndexCopy => "nothing is lost: the other copy serves",
            FindingKind::Released => {
                "the server does not open the shard: segments that are gone on purpose cannot be told from lost ones"
            }
            FindingKind::SegmentMissing | FindingKind::SegmentHeader => {
                "messages in it are lost, unless they are elsewhere; the server does not open the shard"
            }
            FindingKind::Frame => {
                "messages whose bytes are damaged cannot be read (all in it, where it is compressed or encrypted); when no \
                 checkpoint covers it the server does not open the shard"
            }
            FindingKind::Object => {
                "messages in it are not delivered: the server sets them aside, or waits while the object is missing"
            }
            FindingKind::Record => "its message cannot be read, or the state after it is not known",
            FindingKind::Table => {
                "nothing is lost, its frames are read instead; but a segment that gave room back, or lies in the object store, \
                 cannot be read so: the server does not open the shard"
            }
            FindingKind::TableMissing => {
                "nothing is lost: the other one serves, or a start reads the segment, unless it gave room back"
            }
            FindingKind::TornTail => {
                "it was being written when the server ended, or is being written now; what was confirmed lies before it, unless the disk \
                 lost the very last of that"
            }
            FindingKind::Manifest | FindingKind::Run | FindingKind::Whole => {
                "the checkpoint does not count; the one before does, if it is sound and does without this file"
            }
            FindingKind::Index => "checkpoints cannot be opened",
            FindingKind::Uncovered => {
                "the server does not open the shard: what streams and sessions there are stands in no other place"
            }
            FindingKind::IndexBlock => {
                "up to 255 messages of one stream are not found; the server sets them aside"
            }
            FindingKind::State | FindingKind::Tiered => "the server does not open the shard",
            FindingKind::Entry => "the message is not delivered; the server sets it aside",
        }
    }

    /// What to do about it.
    pub fn advice(self) -> &'static str {
        match self {
            FindingKind::Sealed => "look again with the keys that the server has",
            FindingKind::Unreadable => {
                "see to the disk and the rights of the file, then look again"
            }
            FindingKind::Meta | FindingKind::SegmentMissing => "put the file back from a backup",
            FindingKind::SegmentHeader => {
                "`store repair` writes the header again from frames and side files; where that cannot be, put the file back from a backup"
            }
            FindingKind::MetaCopy
            | FindingKind::ReleasedCopy
            | FindingKind::TableCopy
            | FindingKind::TieredCopy
            | FindingKind::IndexCopy => "`store repair` writes it again; watch the disk",
            FindingKind::Released => {
                "put the file back from a backup; or `store repair --lose-corrupt` takes all gaps for released"
            }
            FindingKind::Frame => {
                "nothing where a checkpoint covers it; else copy the shard from a backup, or `store repair --lose-corrupt` cuts the \
                 journal before it"
            }
            FindingKind::Object => {
                "put the object back, from an older version in the bucket or a backup, and restart the server"
            }
            FindingKind::Record => "copy the shard from a backup",
            FindingKind::Table => {
                "`store repair` makes it again from the segment; where that has holes put the file back from a backup"
            }
            FindingKind::TableMissing => "nothing: the server writes it",
            FindingKind::TornTail => "nothing: the next start cuts it, or `store repair`",
            FindingKind::Manifest | FindingKind::Run | FindingKind::Whole => {
                "`store repair` puts it aside, or writes the checkpoint again without what is damaged; try it with --dry-run first"
            }
            FindingKind::Uncovered => {
                "put the folder `checkpoint` back from a backup that is as old as the journal"
            }
            FindingKind::Tiered => "put the file back from a backup",
            FindingKind::Index | FindingKind::State => {
                "`store repair`, or copy the shard from a backup"
            }
            FindingKind::IndexBlock => {
                "`store repair` writes it again where the journal tells all of it; else purge what was set aside, or copy the shard \
                 from a backup"
            }
            FindingKind::Entry => "purge what was set aside, or copy the shard from a backup",
        }
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// The file concerned.
    pub path: PathBuf,
    /// Where in it, in bytes from its beginning; `None` when the whole file is meant.
    pub offset: Option<u64>,
    /// What was seen.
    pub what: String,
}

/// All findings of a look at one shard.
#[derive(Debug, Default, Clone)]
pub struct Findings {
    /// One by one, as far as they are kept.
    pub list: Vec<Finding>,
    /// How many defects there were, kept or not.
    pub defects: u64,
}

impl Findings {
    /// Takes one more.
    pub fn add(
        &mut self,
        kind: FindingKind,
        path: impl Into<PathBuf>,
        offset: Option<u64>,
        what: impl Into<String>,
    ) {
        self.defects += u64::from(kind.is_defect());
        if self.list.len() < FINDINGS_MAX {
            self.list.push(Finding {
                kind,
                path: path.into(),
                offset,
                what: what.into(),
            });
        }
    }

    /// Takes those of another look.
    pub fn append(&mut self, other: Findings) {
        let before = self.list.len();
        self.defects += other.defects;
        self.list.extend(other.list);
        self.list.truncate(FINDINGS_MAX.max(before));
    }

    /// Whether there is one of a kind.
    pub fn has(&self, kind: FindingKind) -> bool {
        self.first(kind).is_some()
    }

    /// The first of a kind.
    pub fn first(&self, kind: FindingKind) -> Option<&Finding> {
        self.list.iter().find(|finding| finding.kind == kind)
    }

    /// How many defects there were beside files that are sealed and whose keys were not given.
    pub fn defects_seen(&self) -> u64 {
        let sealed = self.list.iter();
        let sealed = sealed.filter(|finding| finding.kind == FindingKind::Sealed);
        self.defects.saturating_sub(sealed.count() as u64)
    }
}
