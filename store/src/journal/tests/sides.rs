//! Side files: what opening takes from them, and when it does not believe them.
//!
//! Owns the tests of a sealed segment that is not read. Read next: `journal/table.rs`.

use super::*;

fn open_covered(disk: &SimDisk, covered: u64) -> Result<Journal, OpenError> {
    let options = JournalOptions {
        checkpoint: Some(LogIndex(covered)),
        ..options()
    };
    Journal::open(Arc::new(disk.clone()), Path::new(DIR), options)
}

/// Where the frame's head lies in its segment's file.
fn head_of(journal: &Journal, index: u64) -> (PathBuf, u64) {
    let shared = journal.lock();
    let segment = shared.segment_of(LogIndex(index)).unwrap();
    let (_, offset) = segment.frame_at(LogIndex(index)).unwrap();
    (segment::segment_path(Path::new(DIR), segment.base), offset)
}

#[test]
fn a_sealed_segment_below_the_checkpoint_is_not_read() {
    run(async {
        let disk = SimDisk::new(20);
        let all = sample(&disk).await;
        assert_eq!(table_files(&disk).len(), 6, "two for each sealed segment");
        let journal = open_covered(&disk, 8).unwrap();
        assert_eq!(frames(&journal), all);
        let broken: Vec<(PathBuf, u64)> = [1, 10].map(|at| head_of(&journal, at)).into();
        drop(journal);
        // A broken head below the checkpoint is not looked at, one above it is.
        let (path, offset) = &broken[0];
        disk.flip_bit(path, *offset + 20, 0);
        let journal = open_covered(&disk, 8).unwrap();
        assert_eq!(journal.frame(LogIndex(7)).unwrap(), all[7]);
        let told = journal.frame(LogIndex(1));
        assert!(matches!(told, Err(ReadError::Corrupt(_))), "{told:?}");
        assert!(
            matches!(open(&disk), Err(OpenError::Corrupt { .. })),
            "no checkpoint: all is read"
        );
        let without = disk.copy();
        without.remove(&table_files(&disk)[0]).unwrap();
        drop(open_covered(&without.copy(), 8).unwrap());
        without.remove(&table_files(&disk)[1]).unwrap();
        assert!(matches!(
            open_covered(&without, 8),
            Err(OpenError::Corrupt { .. })
        ));
        let (path, offset) = &broken[1];
        disk.flip_bit(path, *offset + 20, 0);
        assert!(matches!(
            open_covered(&disk, 11),
            Err(OpenError::Corrupt { .. })
        ));
    });
}

#[test]
fn a_side_file_that_is_missing_or_rotten_is_made_again() {
    run(async {
        let disk = SimDisk::new(21);
        let all = sample(&disk).await;
        let tables = table_files(&disk);
        let sound: Vec<_> = tables.iter().map(|path| disk.contents(path)).collect();
        tables[..2]
            .iter()
            .for_each(|path| disk.remove(path).unwrap());
        tables[2..4]
            .iter()
            .for_each(|path| disk.flip_bit(path, 130, 2));
        disk.flip_bit(&tables[4], 130, 2);
        let journal = open_covered(&disk, 11).unwrap();
        assert_eq!(frames(&journal), all);
        append(&journal, vec![frame(12, 9, 10)]).await.unwrap();
        for (path, before) in tables.iter().zip(sound) {
            let [after, before] = [disk.contents(path), before]
                .map(|bytes| table::SideTable::decode(&bytes.unwrap()).unwrap());
            assert_eq!((after.frames, after.chain), (before.frames, before.chain));
        }
    });
}

#[test]
fn a_side_file_of_a_life_before_a_cut_is_not_believed() {
    run(async {
        for forget in [false, true] {
            let disk = SimDisk::new(22);
            let all = sample(&disk).await;
            let tables = table_files(&disk);
            let stale: Vec<_> = tables
                .iter()
                .map(|path| disk.contents(path).unwrap())
                .collect();
            let journal = open(&disk).unwrap();
            wait(|done| journal.truncate_after(Some(LogIndex(1)), done))
                .await
                .unwrap();
            append(&journal, vec![frame(2, 9, 10)]).await.unwrap();
            assert!(
                table_files(&disk).is_empty(),
                "gone with the life they told of"
            );
            let next: Vec<Frame> = (3..14).map(|index| frame(index, 9, 301)).collect();
            append(&journal, next.clone()).await.unwrap();
            drop(journal);
            for (path, bytes) in tables.iter().zip(&stale) {
                disk.remove(path).ok();
                if forget {
                    continue;
                }
                let file = disk.create_zeroed(path, bytes.len() as u64).unwrap();
                crate::disk::write_all_at(&*file, bytes, 0).unwrap();
            }
            let journal = open_covered(&disk, 13).unwrap();
            assert_eq!(
                frames(&journal),
                [&all[..2], &[frame(2, 9, 10)], &next[..]].concat()
            );
        }
    });
}
