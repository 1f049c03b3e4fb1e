//! Objects and lists of them that are not what was written: what is lost is named and set aside, the rest is read, and what
//! can be written again is.

mod s3;
mod tiered;
mod worker;

use anabranch_core::dispatch::travel_units;
use anabranch_core::gateway::Delivery;
use anabranch_core::id::ConsumerTag;
use anabranch_core::port::{ConsumerKey, ShardEvent, ShardRequest};
use anabranch_store::disk::sim::SimDisk;
use anabranch_store::finding::FindingKind;
use anabranch_store::inspect::{Checked, Consent, ShardFolder, ShardKind, Source, check, repair};
use anabranch_store::seal::Sealing;
use anabranch_store::tier::{Tier, TierOptions};
use s3::{S3, bucket};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tiered::{attach, body, counts, expect, files, fill, folder, moved, start, until};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, span};
use worker::{STREAM, Worker};

const MESSAGES: u32 = 200;

fn shard_folder() -> ShardFolder {
    ShardFolder {
        name: "data".to_owned(),
        dir: PathBuf::from("shard"),
        kind: ShardKind::Data,
    }
}

fn source(disk: &SimDisk) -> Source {
    Source {
        disk: Arc::new(disk.clone()),
        sealing: Sealing::default(),
        tier: None,
    }
}

fn checked(disk: &SimDisk) -> Checked {
    check(&source(disk), &shard_folder(), &mut |_| {}).unwrap()
}

/// A life after which most messages lie in the object store.
async fn moved_out(disk: &SimDisk, options: &TierOptions) {
    let tier = Tier::start(options).unwrap();
    let mut worker = start(disk, 1, &tier).await;
    worker.create().await;
    fill(&mut worker, STREAM, 0..MESSAGES).await;
    moved(&worker, 10).await;
    worker.shard.shutdown_local().await;
}

/// What is logged on this thread, a line for each event: its level and its fields.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// The errors.
    fn errors(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        let errors = lines.iter().filter(|line| line.starts_with("ERROR"));
        errors.cloned().collect()
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                self.0.push_str(&format!(" {}={value:?}", field.name()));
            }
        }
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Reads up to the last message; gives those that did not come.
async fn missing(worker: &mut Worker) -> Vec<u32> {
    let mut there = BTreeSet::new();
    attach(worker, STREAM, 1, false).await;
    while !there.contains(&(MESSAGES - 1)) {
        let ShardEvent::Deliver {
            connection,
            deliveries,
            ..
        } = worker.event().await
        else {
            panic!("unexpected event")
        };
        for Delivery { message, .. } in &deliveries {
            let number = u32::from_le_bytes(message.body[..4].try_into().unwrap());
            assert_eq!(message.body, body(number));
            assert!(there.last().is_none_or(|last| *last < number), "in order");
            there.insert(number);
        }
        let units = deliveries.iter();
        let units = units.map(|one| travel_units(one.message.cost_bytes()));
        worker.send(ShardRequest::Drained {
            consumer: ConsumerKey {
                connection,
                tag: ConsumerTag(1),
            },
            stream: STREAM,
            count: units.sum(),
        });
    }
    (0..MESSAGES)
        .filter(|number| !there.contains(number))
        .collect()
}

/// Opens the shard, reads what there is; one segment's messages are lost, and the object is named once.
async fn rest_is_read(disk: &SimDisk, options: &TierOptions, object: &str) -> Vec<u32> {
    let log = Log::default();
    let _logged = tracing::subscriber::set_default(log.clone());
    let tier = Tier::start(options).unwrap();
    let mut worker = start(disk, 2, &tier).await;
    let lost = missing(&mut worker).await;
    assert_eq!(worker.shard.stats().journal.unreadable, lost.len() as u64);
    let errors = log.errors();
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert!(errors[0].contains(object), "{object}: {}", errors[0]);
    assert_eq!(
        tier.stats().error,
        None,
        "the object store does as it should"
    );
    worker.shard.shutdown_local().await;
    lost
}

/// A message that lies in these bytes, and where.
fn one_of(bytes: &[u8]) -> (u32, usize) {
    let found = (0..MESSAGES).find_map(|number| {
        let body = body(number);
        let at = bytes.windows(body.len()).position(|found| found == body);
        Some((number, at?))
    });
    found.expect("a message")
}

#[tokio::test]
async fn of_an_object_that_was_cut_short_the_rest_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SimDisk::new(31);
    moved_out(&disk, &folder(dir.path())).await;
    let path = &files(dir.path())[3];
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let lost = rest_is_read(&disk, &folder(dir.path()), name).await;
    assert!((2..12).contains(&lost.len()), "{lost:?}");
    let last = lost[lost.len() - 1];
    assert_eq!(last - lost[0] + 1, lost.len() as u32, "they lie together");
}

#[tokio::test]
async fn of_an_object_in_s3_that_was_cut_short_the_rest_is_read() {
    let s3 = S3::start().await;
    let disk = SimDisk::new(32);
    moved_out(&disk, &bucket(&s3)).await;
    for left in [5000, 0] {
        let key = s3.keys()[3].clone();
        let name = key.rsplit('/').next().unwrap().to_owned();
        let cut = {
            let mut objects = s3.shared.objects.lock().unwrap();
            let object = objects.get_mut(&key).unwrap();
            let cut = object.split_off(left);
            cut.len()
        };
        assert!(cut > 0);
        let lost = rest_is_read(&disk, &bucket(&s3), &name).await;
        assert!((2..18).contains(&lost.len()), "{lost:?}");
    }
}

#[tokio::test]
async fn a_bit_that_flipped_in_an_object_costs_one_message() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SimDisk::new(33);
    moved_out(&disk, &folder(dir.path())).await;
    let path = &files(dir.path())[3];
    let mut bytes = std::fs::read(path).unwrap();
    let (number, at) = one_of(&bytes);
    bytes[at + 500] ^= 4;
    std::fs::write(path, bytes).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let lost = rest_is_read(&disk, &folder(dir.path()), name).await;
    assert_eq!(lost, [number]);
}

#[tokio::test]
async fn nothing_moves_to_where_nothing_of_it_is_until_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let (there, away) = (dir.path().join("there"), dir.path().join("away"));
    std::fs::create_dir(&there).unwrap();
    let disk = SimDisk::new(34);
    moved_out(&disk, &folder(&there)).await;
    // As if the disk were not mounted: the folder is there, and empty.
    std::fs::rename(&there, &away).unwrap();
    std::fs::create_dir(&there).unwrap();
    let tier = Tier::start(&folder(&there)).unwrap();
    let mut worker = start(&disk, 2, &tier).await;
    until("it is told at once", || tier.stats().error.is_some()).await;
    let told = tier.stats().error.unwrap();
    assert!(told.contains(there.to_str().unwrap()), "{told}");
    fill(&mut worker, STREAM, MESSAGES..MESSAGES + 60).await;
    until("more segments wait", || counts(&worker).waiting > 1).await;
    assert_eq!(files(&there), Vec::<PathBuf>::new());
    std::fs::remove_dir(&there).unwrap();
    std::fs::rename(&away, &there).unwrap();
    attach(&mut worker, STREAM, 1, false).await;
    expect(&mut worker, STREAM, 0..MESSAGES + 60).await;
    until("all is well", || {
        tier.stats().error.is_none() && counts(&worker).waiting == 0
    })
    .await;
    worker.shard.shutdown_local().await;
}

#[tokio::test]
async fn one_rotten_copy_of_the_list_is_named_and_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let whole = SimDisk::new(35);
    moved_out(&whole, &folder(dir.path())).await;
    let list = Path::new("shard/tiered");
    let len = whole.contents(list).unwrap().len() as u64;
    for at in [30, len / 2 + 30] {
        let disk = whole.copy();
        assert_eq!(checked(&disk).findings.list, []);
        disk.flip_bit(list, at, 3);
        let found = checked(&disk).findings.list;
        assert_eq!(found.len(), 1, "{found:#?}");
        let one = &found[0];
        assert_eq!((one.kind, &*one.path), (FindingKind::TieredCopy, list));
        assert_eq!(one.offset, Some(at));
        let mended = repair(&source(&disk), &shard_folder(), Consent::default()).unwrap();
        assert_eq!((mended.steps.len(), mended.after.findings.defects), (1, 0));
        assert_eq!(disk.contents(list), whole.contents(list));
    }
}

/// The same with the object store.
fn checked_with(disk: &SimDisk, tier: &Tier) -> Checked {
    let source = Source {
        tier: Some(tier.clone()),
        ..source(disk)
    };
    check(&source, &shard_folder(), &mut |_| {}).unwrap()
}

#[tokio::test]
async fn a_check_says_what_lies_in_the_object_store_and_reads_it_when_it_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SimDisk::new(36);
    moved_out(&disk, &folder(dir.path())).await;
    let objects = files(dir.path());
    let without = checked(&disk);
    let away = without.away;
    assert_eq!((away.segments, away.read), (objects.len() as u64, false));
    let tier = Tier::start(&folder(dir.path())).unwrap();
    let with = checked_with(&disk, &tier);
    assert_eq!(with.findings.defects, 0, "{:#?}", with.findings);
    assert!(with.away.read && with.records > without.records + 100);

    let path = &objects[3];
    let sound = std::fs::read(path).unwrap();
    let (_, at) = one_of(&sound);
    let mut flipped = sound.clone();
    flipped[at + 500] ^= 4;
    // Behind the header, where no frame is read that lives: the whole tells.
    let mut header = sound.clone();
    header[300] ^= 1;
    let cut = sound[..sound.len() / 2].to_vec();
    for (what, bytes) in [("flipped", flipped), ("header", header), ("cut", cut)] {
        std::fs::write(path, bytes).unwrap();
        assert_eq!(checked(&disk).findings.defects, 0, "it is not read");
        let found = checked_with(&disk, &tier).findings;
        let one = found.first(FindingKind::Object);
        let one = one.unwrap_or_else(|| panic!("{what}: {found:#?}"));
        let name = path.file_name().unwrap();
        assert_eq!(one.path.file_name(), Some(name), "{what}");
        assert!(found.list.iter().all(|one| one.kind == FindingKind::Object));
    }
    std::fs::remove_file(path).unwrap();
    let found = checked_with(&disk, &tier).findings;
    assert_eq!(found.defects, 1, "{found:#?}");
    assert!(found.list[0].what.contains("missing"), "{found:#?}");

    // The whole folder: nobody knows.
    std::fs::rename(dir.path(), dir.path().with_extension("away")).unwrap();
    let source = Source {
        tier: Some(tier.clone()),
        ..source(&disk)
    };
    let told = check(&source, &shard_folder(), &mut |_| {}).unwrap_err();
    assert!(told.to_string().contains("is not there"), "{told}");
    std::fs::rename(dir.path().with_extension("away"), dir.path()).unwrap();
}
