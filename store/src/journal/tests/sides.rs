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

/// Three frames in one segment that is not full, and where the head and the payload of each lie.
async fn covered_part(disk: &SimDisk) -> (Vec<Frame>, PathBuf, Vec<u64>) {
    let journal = open(disk).unwrap();
    let all: Vec<Frame> = (0..3).map(|index| frame(index, 1, 300)).collect();
    for frame in &all {
        append(&journal, vec![frame.clone()]).await.unwrap();
    }
    journal.cover(LogIndex(1));
    let heads: Vec<_> = (0..3).map(|index| head_of(&journal, index)).collect();
    close(&journal).await;
    let path = heads[0].0.clone();
    (all, path, heads.into_iter().map(|(_, at)| at).collect())
}

/// A node did not start when a frame of the newest segment was damaged that the checkpoint covers, and nothing mended it.
#[test]
fn what_is_damaged_below_the_checkpoint_in_the_newest_segment_is_met_when_it_is_read() {
    run(async {
        let disk = SimDisk::new(23);
        let (all, path, heads) = covered_part(&disk).await;
        assert_eq!(table_files(&disk).len(), 2);
        for byte in heads[0]..heads[2] {
            let disk = disk.copy();
            disk.flip_bit(&path, byte, 3);
            let journal = open_covered(&disk, 1).unwrap();
            let hit = u64::from(byte >= heads[1]);
            for index in 0..3 {
                let read = journal.frame(LogIndex(index));
                match index == hit && read.is_err() {
                    true => assert!(matches!(read, Err(ReadError::Corrupt(_))), "byte {byte}"),
                    false => assert_eq!(read.unwrap(), all[index as usize], "byte {byte}"),
                }
            }
            // It goes on, and is opened again.
            append(&journal, vec![frame(3, 1, 10)]).await.unwrap();
            journal.cover(LogIndex(3));
            close(&journal).await;
            let again = open_covered(&disk, 3).unwrap();
            assert_eq!(again.frame(LogIndex(3)).unwrap(), frame(3, 1, 10));
        }
        // Not one that no checkpoint covers.
        disk.flip_bit(&path, heads[2] + 20, 3);
        let refused = open_covered(&disk, 1);
        assert!(matches!(refused, Err(OpenError::Corrupt { .. })));
    });
}

#[test]
fn the_side_file_of_the_newest_segment_is_of_use_for_what_is_covered_only() {
    run(async {
        let disk = SimDisk::new(24);
        let (all, path, heads) = covered_part(&disk).await;
        let damaged = |at: u64| {
            let disk = disk.copy();
            disk.flip_bit(&path, at + 20, 3);
            disk
        };
        // The checkpoint that it was written for is not there any more.
        assert!(matches!(
            open_covered(&damaged(heads[1]), 0),
            Err(OpenError::Corrupt { .. })
        ));
        assert_eq!(frames(&open_covered(&disk.copy(), 0).unwrap()), all);
        // Its twin serves as well; without both all is read.
        let tables = table_files(&disk);
        let without = |gone: &[PathBuf]| {
            let disk = damaged(heads[0]);
            gone.iter().for_each(|path| disk.remove(path).unwrap());
            open_covered(&disk, 1).map(drop)
        };
        without(&tables[..1]).unwrap();
        without(&tables[1..]).unwrap();
        assert!(matches!(without(&tables), Err(OpenError::Corrupt { .. })));
        // What was cut and written again is not what it tells of.
        let journal = open_covered(&disk, 1).unwrap();
        wait(|done| journal.truncate_after(Some(LogIndex(1)), done))
            .await
            .unwrap();
        append(&journal, vec![frame(2, 4, 50)]).await.unwrap();
        let expected = [&all[..2], &[frame(2, 4, 50)]].concat();
        assert_eq!(frames(&open_covered(&disk, 1).unwrap()), expected);
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
