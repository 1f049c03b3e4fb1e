//! What each fuzz target does with its bytes; `store/tests/corpus.rs` runs the same on the corpus.

use anabranch_core::id::LogIndex;
use anabranch_store::checkpoint::{Manifest, run, whole};
use anabranch_store::disk::sim::SimDisk;
use anabranch_store::disk::{Disk, write_all_at};
use anabranch_store::journal::{Journal, JournalOptions, WriterMode, frame};
use anabranch_store::seal::Sealing;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// One frame from bytes that nobody vouches for.
pub fn frame(bytes: &[u8]) {
    if let Some(frame) = frame::decode_untrusted(bytes) {
        assert!(frame.payload.len() + frame::HEAD_BYTES <= bytes.len());
    }
}

/// The checkpoint file of an earlier server.
pub fn checkpoint(bytes: &[u8]) {
    if let Some((standing, state)) = whole::decode(&Bytes::copy_from_slice(bytes)) {
        assert!(standing.members.len() + state.len() <= bytes.len());
    }
}

/// One manifest.
pub fn manifest(bytes: &[u8]) {
    if let Some(manifest) = Manifest::decode(bytes) {
        assert_eq!(manifest.encode(), bytes);
    }
}

/// One run.
pub fn run(bytes: &[u8]) {
    if let Ok(pairs) = run::decode_untrusted(bytes, &Sealing::default()) {
        assert!(pairs.is_sorted_by(|(one, _), (next, _)| one < next));
    }
}

/// A journal whose only segment file holds these bytes.
pub fn recovery(bytes: &[u8]) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
    else {
        return;
    };
    runtime.block_on(async {
        let disk = SimDisk::new(1);
        let dir = Path::new("j");
        let options = JournalOptions {
            segment_bytes: 4096,
            writer: WriterMode::Local {
                latency: Duration::ZERO,
            },
            ..JournalOptions::default()
        };
        if Journal::open(Arc::new(disk.clone()), dir, options.clone()).is_err() {
            panic!("an empty folder is a new journal");
        }
        let path = dir.join("00000000000000000000.seg");
        let Ok(file) = disk.open(&path) else {
            panic!("a new journal has a segment")
        };
        let bytes = &bytes[..bytes.len().min(4096)];
        let _ = write_all_at(&*file, bytes, 0);
        if let Ok(journal) = Journal::open(Arc::new(disk.clone()), dir, options) {
            let last = journal.last();
            let mut index = 0;
            while last.is_some_and(|last| index <= last.index.0) {
                assert!(
                    journal.frame(LogIndex(index)).is_ok(),
                    "believed, so readable"
                );
                index += 1;
            }
        }
    });
}
