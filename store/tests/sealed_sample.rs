//! A sealed folder of an earlier server opens: segments, index and runs of version 2, a frame behind the checkpoint.
//!
//! The sample has 300 messages of 40 bytes, five of them behind the checkpoint, sealed with the key `k1`. Zeros at the end
//! of a file are left out of it.

mod worker;

use anabranch_store::disk::sim::SimDisk;
use anabranch_store::disk::{Disk, write_all_at};
use anabranch_store::inspect::{ShardFolder, ShardKind, Source, check};
use anabranch_store::seal::{KeyRing, Sealing, SeededRandom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use worker::{STREAM, Worker};

const MESSAGES: u32 = 300;
const SEGMENT_BYTES: u64 = 16 * 1024;

fn body(number: u32) -> Vec<u8> {
    format!("{number:40}").into_bytes()
}

fn sealing(life: u64) -> Sealing {
    let ring = format!("k1:{}A=\n", "B".repeat(42));
    let ring = KeyRing::parse(&ring).unwrap();
    Sealing::new(ring, Arc::new(SeededRandom::new(life)))
}

fn put(disk: &SimDisk, from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let path = to.join(entry.file_name());
        if entry.path().is_dir() {
            disk.create_dir(&path).unwrap();
            put(disk, &entry.path(), &path);
            continue;
        }
        let bytes = std::fs::read(entry.path()).unwrap();
        let is_segment = path.extension().is_some_and(|ends| ends == "seg");
        let len = if is_segment { SEGMENT_BYTES } else { 0 };
        let file = disk.create_zeroed(&path, len.max(bytes.len() as u64));
        let file = file.unwrap();
        write_all_at(&*file, &bytes, 0).unwrap();
        file.sync().unwrap();
    }
    disk.sync_dir(to).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sealed_folder_of_an_earlier_server_opens() {
    let disk = SimDisk::new(41);
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/sealed");
    put(&disk, &sample, Path::new("shard"));
    let run = format!("checkpoint/run-{:020}", 1);
    for name in [&format!("{:020}.seg", 0), "checkpoint/index", &run] {
        let bytes = disk.contents(&Path::new("shard").join(name)).unwrap();
        assert_eq!(bytes[4], 2, "the version of {name}");
    }
    let source = Source {
        disk: Arc::new(disk.clone()),
        sealing: sealing(1),
        tier: None,
    };
    let folder = ShardFolder {
        name: "shard-1".to_owned(),
        dir: PathBuf::from("shard"),
        kind: ShardKind::Data,
    };
    let found = check(&source, &folder, &mut |_| {}).unwrap();
    assert_eq!(found.findings.defects, 0, "{:#?}", found.findings);
    assert_eq!(found.entries, u64::from(MESSAGES));
    assert!(found.checkpoint.is_some() && found.checkpoint < found.last);
    for life in 3..=4 {
        let mut worker = Worker::start_with(&disk, life, |setup| {
            setup.options.packing.sealing = sealing(life);
        })
        .await;
        worker.attach_to(STREAM, 1).await;
        let all = worker.deliveries(MESSAGES as usize).await;
        for (number, delivery) in (0..).zip(&all) {
            assert_eq!(delivery.message.body, body(number), "life {life}");
        }
        worker.shard.shutdown_local().await;
    }
}
