//! Streams that end: gone at once for all who ask, and freed a part in each round.
//!
//! Owns: what one round does of it, a crash in between, what is read for it.
//! Next: `checkpoints.rs`, random histories.

mod node;

use anabranch_core::authority::AllowAll;
use anabranch_core::id::*;
use anabranch_core::limits::Mode;
use anabranch_core::properties::Codecs;
use anabranch_core::record::Change;
use anabranch_core::router::Fabric;
use anabranch_core::shard::{Damaged, Shard, ShardLimits, ShardSetup};
use bytes::Bytes;
use node::Journal;
use node::kept::{Kept, stats};
use node::world::{World, fresh};
use std::sync::Arc;

const QUEUE: StreamId = StreamId(0xFFFF << 48 | 7);
/// Of 255 messages.
const CHUNKS: u64 = 100;
/// Blocks that one round may give back.
const ROUND_MAX: u64 = 16;

fn body(_: u64) -> Bytes {
    Bytes::from_static(&[7; 300])
}

fn used(shard: &Shard<Position>) -> u64 {
    shard.index_use().used
}

/// One round of the host, at which nobody asks anything; whether it is to be called again at once.
fn round(shard: &mut Shard<Position>, journal: &Journal) -> bool {
    let now = Now {
        monotonic: MonotonicMs(1),
        unix: UnixMs(1_000_000),
    };
    shard.timeout(now);
    shard.dispatch(now, &mut &*journal);
    shard.poll_timeout() == MonotonicMs(0)
}

/// Everything of a stream went in the step that ended it: a block was read for each 255 messages, and whoever shares the
/// shard waited.
#[test]
fn a_long_stream_that_ends_is_freed_a_part_in_each_round_and_after_a_crash() {
    let mut world = World::default();
    let mut kept = Kept::default();
    let mut shard = fresh();
    shard.set_blocks(kept.blocks());
    world.create(&mut shard, QUEUE, Mode::default());
    for _ in 0..CHUNKS {
        world.publish(&mut shard, QUEUE, 255, body);
    }
    // It ends while it is copied: the checkpoint that is being made has it as it was.
    shard.freeze();
    assert!(shard.copy(1).is_none());
    let change = Change::DeleteStream {
        stream: QUEUE,
        only_if: None,
    };
    world.change(&mut shard, &change);
    let delta = shard.copy(usize::MAX).unwrap();
    kept.write(delta);
    shard.written();
    kept.fold();
    let mut before = fresh();
    kept.restore(&mut before);
    assert_eq!(stats(&mut before, &world.journal)[0].ready, CHUNKS * 255);

    assert!(used(&shard) >= CHUNKS - ROUND_MAX, "{}", used(&shard));
    // It is gone, and another one may come.
    world.create(&mut shard, QUEUE, Mode::default());
    world.publish(&mut shard, QUEUE, 2, body);
    kept.save(&mut shard);
    let mut restored = fresh();
    kept.restore(&mut restored);
    for shard in [&mut shard, &mut restored] {
        let (mut left, mut rounds) = (used(shard), 0);
        loop {
            let more = round(shard, &world.journal);
            assert!(rounds < 100, "an end");
            let now = used(shard);
            assert!(left - now <= ROUND_MAX, "{left} to {now}");
            (left, rounds) = (now, rounds + 1);
            if !more {
                break;
            }
        }
        assert!(rounds >= 5, "{rounds}");
        assert_eq!(left, 0, "two messages have no block");
        let [stat] = &stats(shard, &world.journal)[..] else {
            panic!("one stream");
        };
        assert_eq!((stat.stream, stat.ready), (QUEUE, 2));
        let oldest = shard.oldest_position().unwrap().0;
        assert!(oldest + (1 << 17) > world.journal.bytes.len() as u64);
    }
    kept.save(&mut shard);
    let heads = kept.pairs().keys().filter(|key| key[0] == 16);
    assert_eq!(heads.count(), 1);
    let chunks = kept.pairs().keys().filter(|key| key[0] == 17);
    assert_eq!(chunks.count(), 1);
}

/// What is told of a queue that had so many messages, perhaps in a checkpoint, and ends when all are settled.
fn told_of_an_empty_one((count, saved): (u64, bool)) -> Option<Damaged> {
    let mut world = World::default();
    let mut kept = Kept::default();
    let mut shard = Shard::new(ShardSetup {
        id: ShardId(1),
        incarnation: 9,
        workers: 1,
        // What lies in blocks is read each time.
        limits: ShardLimits {
            index_memory_bytes: 0,
            ..ShardLimits::default()
        },
        fabric: Arc::new(Fabric::default()),
        authority: Arc::new(AllowAll),
        codecs: Codecs::default(),
    });
    shard.set_blocks(kept.blocks());
    world.create(&mut shard, QUEUE, Mode::default());
    world.publish(&mut shard, QUEUE, count, body);
    if saved {
        kept.save(&mut shard);
    }
    let ranges = vec![(Offset(0), Offset(count - 1))];
    let settled = Change::Settled {
        stream: QUEUE,
        ranges,
    };
    world.change(&mut shard, &settled);
    let ended = Change::DeleteStream {
        stream: QUEUE,
        only_if: None,
    };
    world.change(&mut shard, &ended);
    shard.damaged()
}

/// The last chunk of a stream stays when nothing of it is left, for what comes next. When the stream ended, the rows that
/// this chunk does not have were looked for in a block: one that nobody ever wrote, or the one it had before. They were
/// told as damaged.
#[test]
fn of_a_stream_that_ends_empty_nothing_is_read() {
    let streams = [(1, false), (300, false), (1, true), (300, true)];
    assert_eq!(streams.map(told_of_an_empty_one), [const { None }; 4]);
}
