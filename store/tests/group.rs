//! A group of one on a simulated and on a real disk: confirms, restarts, failures.

use anabranch_core::id::{LogIndex, Position, UnixMs};
use anabranch_core::index::{Blocks, Delta};
use anabranch_store::checkpoint::whole_delta;
use anabranch_store::clock::{ManualClock, SystemClock};
use anabranch_store::disk::Disk;
use anabranch_store::disk::real::RealDisk;
use anabranch_store::disk::sim::{Faults, SimDisk};
use anabranch_store::group::{Group, GroupOpenError, GroupOptions, ProposeError, ReleaseError};
use anabranch_store::journal::{OpenError, ReadError, WriterMode};
use anabranch_store::raft::{Applied, StateMachine};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Remembers what was applied, and where.
#[derive(Default)]
struct Notes {
    applied: Vec<(LogIndex, UnixMs, Position, Bytes)>,
    restored: usize,
    frozen: Vec<u8>,
}

impl StateMachine for Notes {
    fn apply(
        &mut self,
        index: LogIndex,
        clock: UnixMs,
        position: Position,
        payload: &Bytes,
    ) -> Result<Applied, String> {
        self.applied.push((index, clock, position, payload.clone()));
        Ok(Applied {
            reply: Bytes::from(self.count().to_string()),
        })
    }

    fn freeze(&mut self) {
        self.frozen = (self.count() as u64).to_le_bytes().to_vec();
    }

    fn copy(&mut self, _: usize) -> Option<Delta> {
        Some(whole_delta(std::mem::take(&mut self.frozen)))
    }

    fn written(&mut self) {}

    fn restore(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
        _: Arc<dyn Blocks>,
    ) -> Result<(), String> {
        for (_, bytes) in pairs {
            let bytes: [u8; 8] = bytes[..].try_into().map_err(|_| "not 8 bytes".to_owned())?;
            self.restored = u64::from_le_bytes(bytes) as usize;
        }
        Ok(())
    }
}

impl Notes {
    fn count(&self) -> usize {
        self.restored + self.applied.len()
    }
}

fn sim_options() -> GroupOptions {
    GroupOptions {
        segment_bytes: 4096,
        tail_bytes: 512,
        writer: WriterMode::Local {
            latency: Duration::from_micros(100),
        },
        ..GroupOptions::new("test")
    }
}

async fn open(disk: &SimDisk, clock: &ManualClock) -> Result<Group<Notes>, GroupOpenError> {
    let (disk, clock) = (Arc::new(disk.clone()), Arc::new(clock.clone()));
    Group::open(Path::new("g"), disk, clock, sim_options(), Notes::default()).await
}

#[tokio::test(start_paused = true)]
async fn what_was_confirmed_is_applied_again_after_a_restart() {
    let (disk, clock) = (SimDisk::new(1), ManualClock::new(5_000));
    let group = open(&disk, &clock).await.unwrap();
    for number in 0..100u32 {
        clock.set_ms(if number == 50 {
            1
        } else {
            5_000 + u64::from(number)
        });
        let committed = group
            .propose_and_wait(Bytes::from(format!("record {number}")))
            .await
            .unwrap();
        assert_eq!(committed.applied.reply, (number + 1).to_string());
    }
    group.shutdown().await;

    let group = open(&disk, &clock).await.unwrap();
    let applied = group
        .with_state(|notes| std::mem::take(&mut notes.applied))
        .await
        .unwrap();
    assert_eq!(applied.len(), 100);
    assert!(applied.is_sorted_by_key(|(index, ..)| *index));
    assert!(
        applied.is_sorted_by_key(|(_, clock, ..)| *clock),
        "the clock of apply never goes back"
    );
    for (number, (_, _, position, payload)) in applied.iter().enumerate() {
        assert_eq!(*payload, format!("record {number}"));
        assert_eq!(
            group.read(*position, payload.len()).unwrap(),
            payload,
            "by position"
        );
    }
    assert!(group.read(Position(u64::MAX), 1).is_err());
    assert!(group.stats().tail_bytes < 4096);
    group.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_replays_only_what_follows_the_checkpoint() {
    let (disk, clock) = (SimDisk::new(2), ManualClock::new(1));
    let group = open(&disk, &clock).await.unwrap();
    for number in 0..40u32 {
        group
            .propose_and_wait(Bytes::from(vec![number as u8; 200]))
            .await
            .unwrap();
    }
    let at = group.checkpoint_now().await.unwrap().unwrap();
    for number in 0..7u32 {
        group
            .propose_and_wait(Bytes::from(vec![number as u8; 20]))
            .await
            .unwrap();
    }
    group.shutdown().await;
    disk.crash();

    let group = open(&disk, &clock).await.unwrap();
    let (restored, applied, first) = group
        .with_state(|notes| (notes.restored, notes.applied.len(), notes.applied[0].0))
        .await
        .unwrap();
    assert_eq!((restored, applied), (40, 7));
    assert!(first > at);
    group.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_sync_poisons_and_nothing_is_confirmed_after_it() {
    let (disk, clock) = (SimDisk::new(3), ManualClock::new(1));
    let group = open(&disk, &clock).await.unwrap();
    group
        .propose_and_wait(Bytes::from_static(b"kept"))
        .await
        .unwrap();
    disk.set_faults(Faults {
        fail_sync_after: Some(0),
        ..Faults::default()
    });
    let failed = group
        .propose_and_wait(Bytes::from_static(b"lost"))
        .await
        .unwrap_err();
    assert!(matches!(failed, ProposeError::Poisoned(_)), "{failed:?}");
    disk.set_faults(Faults::default());
    let refused = group
        .propose_and_wait(Bytes::from_static(b"later"))
        .await
        .unwrap_err();
    assert!(matches!(refused, ProposeError::Poisoned(_)), "{refused:?}");
    assert!(group.poisoned().unwrap().contains("injected"));
    group.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_committed_frame_refuses_to_open() {
    let (disk, clock) = (SimDisk::new(4), ManualClock::new(1));
    let group = open(&disk, &clock).await.unwrap();
    for number in 0..10u32 {
        group
            .propose_and_wait(Bytes::from(format!("record {number}")))
            .await
            .unwrap();
    }
    group.shutdown().await;
    let path = Path::new("g/00000000000000000000.seg");
    let bytes = disk.contents(path).unwrap();
    let at = bytes
        .windows(8)
        .position(|window| window == b"record 9")
        .unwrap();
    disk.flip_bit(path, at as u64, 0);
    let before = disk.fingerprint();
    let refused = open(&disk, &clock).await.unwrap_err();
    assert!(
        matches!(refused, GroupOpenError::Journal(OpenError::Corrupt { .. })),
        "{refused}"
    );
    assert!(
        refused.to_string().contains("nothing was changed"),
        "{refused}"
    );
    assert_eq!(
        disk.fingerprint(),
        before,
        "a corrupt journal is left as it is"
    );
}

/// Any byte of the journal, whatever terms the log has: what the checkpoint covers is not needed to start, and what comes
/// after it is applied and confirmed as ever.
#[tokio::test(start_paused = true)]
async fn a_frame_that_the_checkpoint_covers_may_rot() {
    let (whole, clock) = (SimDisk::new(4), ManualClock::new(1));
    // Each start is a term of its own.
    for life in 0..3u8 {
        let group = open(&whole, &clock).await.unwrap();
        for number in 0..5 {
            let payload = Bytes::from(vec![life * 10 + number; 200]);
            group.propose_and_wait(payload).await.unwrap();
        }
        group.checkpoint_now().await.unwrap().unwrap();
        group.shutdown().await;
    }
    let names = whole.list(Path::new("g")).unwrap();
    let segments = names.iter().filter(|name| name.ends_with(".seg"));
    let mut hit = 0;
    for path in segments.map(|name| Path::new("g").join(name)) {
        let bytes = whole.contents(&path).unwrap();
        // Behind the header, which nothing else tells.
        for byte in (512..bytes.len()).step_by(29).filter(|at| bytes[*at] != 0) {
            let disk = whole.copy();
            disk.flip_bit(&path, byte as u64, 2);
            for applied in [1, 2] {
                let group = open(&disk, &clock).await;
                let group = group.unwrap_or_else(|error| panic!("byte {byte}: {error}"));
                let payload = Bytes::from_static(b"after it");
                let committed = group.propose_and_wait(payload).await.unwrap();
                assert_eq!(committed.applied.reply, (15 + applied).to_string());
                group.shutdown().await;
            }
            hit += 1;
        }
    }
    assert!(hit > 100, "{hit}");
}

#[tokio::test(start_paused = true)]
async fn a_second_opening_of_the_same_folder_is_refused() {
    let (disk, clock) = (SimDisk::new(5), ManualClock::new(1));
    let group = open(&disk, &clock).await.unwrap();
    let refused = open(&disk, &clock).await.unwrap_err();
    assert!(
        matches!(refused, GroupOpenError::Journal(OpenError::Locked { .. })),
        "{refused}"
    );
    group.shutdown().await;
    open(&disk, &clock).await.unwrap().shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_checkpoint_covers_and_nobody_needs_is_released() {
    let (disk, clock) = (SimDisk::new(6), ManualClock::new(1));
    let group = open(&disk, &clock).await.unwrap();
    for number in 0..60u32 {
        group
            .propose_and_wait(Bytes::from(vec![number as u8; 500]))
            .await
            .unwrap();
    }
    let files = || disk.list(Path::new("g")).unwrap().len();
    let place = group.with_state(|notes| notes.applied[40].2).await.unwrap();
    let dead = [(Position(0), place)];
    let uncovered = group.give_back(&dead, LogIndex(30)).await.unwrap_err();
    assert!(
        matches!(uncovered, ReleaseError::NotCovered(_)),
        "{uncovered}"
    );
    let through = group.checkpoint_now().await.unwrap().unwrap();
    let before = files();
    let given = group.give_back(&dead, through).await.unwrap();
    assert!(given.segments > 3 && given.bytes > 0, "{given:?}");
    assert!(files() < before);
    let gone = group.read(Position(48), 10).unwrap_err();
    assert!(matches!(gone, ReadError::GivenBack(_)), "{gone}");
    assert_eq!(group.read(place, 10).unwrap(), vec![40; 10]);
    let again = group.give_back(&dead, through).await.unwrap();
    assert!(again.is_nothing(), "nothing is left to give");
    for number in 0..60u32 {
        group
            .propose_and_wait(Bytes::from(vec![number as u8; 500]))
            .await
            .unwrap();
    }
    disk.crash();
    // It has noticed, and writes no more.
    let after = group.propose_and_wait(Bytes::from_static(b"late")).await;
    after.unwrap_err();
    drop(group);
    let group = open(&disk, &clock).await.unwrap();
    let notes = group
        .with_state(|notes| (notes.restored, notes.applied.len()))
        .await
        .unwrap();
    assert_eq!(notes, (60, 60));
    assert_eq!(group.read(place, 10).unwrap(), vec![40; 10]);
    group.shutdown().await;
}

#[tokio::test]
async fn checkpoints_are_written_and_folded_beside_the_shard_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let options = GroupOptions {
            segment_bytes: 256 * 1024,
            ..GroupOptions::new("real")
        };
        Group::open(
            dir.path(),
            disk,
            Arc::new(SystemClock),
            options,
            Notes::default(),
        )
    };
    let group = open().await.unwrap();
    let mut proposed = 0;
    while group.stats().checkpoint.folds < 2 {
        let frame = Bytes::from(vec![1; 100]);
        group.propose_and_wait(frame).await.unwrap();
        proposed += 1;
        group.checkpoint_now().await.unwrap().unwrap();
        let stats = group.stats().checkpoint;
        assert_eq!((stats.written, stats.failed), (proposed, 0));
        assert!(proposed < 1_000, "never folded: {stats:?}");
    }
    group.shutdown().await;
    let names = RealDisk.list(&dir.path().join("checkpoint")).unwrap();
    let count = |of: &str| names.iter().filter(|name| name.starts_with(of)).count();
    assert_eq!((count("index"), count("manifest-")), (1, 2), "{names:?}");
    let group = open().await.unwrap();
    let restored = group.with_state(|notes| notes.count()).await.unwrap();
    assert_eq!(restored as u64, proposed);
    assert!(group.stats().checkpoint.runs >= 1);
    group.shutdown().await;
}

#[tokio::test]
async fn many_proposals_under_way_share_syncs_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let options = GroupOptions {
        segment_bytes: 256 * 1024,
        outstanding_bytes: 64 * 1024,
        ..GroupOptions::new("real")
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let group = Group::open(
        dir.path(),
        disk.clone(),
        Arc::new(SystemClock),
        options.clone(),
        Notes::default(),
    );
    let group = group.await.unwrap();
    let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..2_000u32 {
        let send = send.clone();
        let payload = Bytes::from(number.to_le_bytes().repeat(100));
        group
            .propose(payload, move |result| {
                drop(send.send((number, result.map(|done| done.index))))
            })
            .await;
    }
    let mut last = LogIndex(0);
    for expected in 0..2_000 {
        let (number, index) = receive.recv().await.unwrap();
        let index = index.unwrap();
        assert_eq!(number, expected);
        assert!(index > last);
        last = index;
    }
    let stats = group.stats();
    assert!(stats.journal.syncs < 1_500, "{stats:?}");
    assert_eq!(stats.outstanding_bytes, 0);
    group.shutdown().await;

    let group = Group::open(
        dir.path(),
        disk,
        Arc::new(SystemClock),
        options,
        Notes::default(),
    )
    .await
    .unwrap();
    let applied = group
        .with_state(|notes| std::mem::take(&mut notes.applied))
        .await
        .unwrap();
    assert_eq!(applied.len(), 2_000);
    for (number, (.., payload)) in applied.iter().enumerate() {
        assert_eq!(*payload, (number as u32).to_le_bytes().repeat(100));
    }
    group.shutdown().await;
}
