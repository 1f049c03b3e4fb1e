//! Checkpoints of which some pairs cannot be read, or only older ones: what is made of the others.
//!
//! Owns: that what is left is safe to go on with. Next: the store's `mending.rs`, whole folders.

mod node;

use anabranch_core::gateway::{Replay, SeekTo};
use anabranch_core::id::*;
use anabranch_core::limits::Mode;
use anabranch_core::message::Message;
use anabranch_core::port::{Attach, ConsumerKey, Question, ShardEvent, ShardRequest};
use anabranch_core::record::Change;
use anabranch_core::shard::{Gap, Remains, Salvaged, Shard};
use bytes::Bytes;
use node::kept::{Kept, Pairs, peek, stats};
use node::world::{World, fresh};
use std::collections::BTreeSet;
use std::sync::Arc;

const OLD: StreamId = StreamId(0xFFFF << 48 | 7);
const NEW: StreamId = StreamId(0xFFFF << 48 | 8);
/// First bytes of the keys of heads, of chunks, and of messages that stay until their letters have arrived.
const HEAD: u8 = 16;
const CHUNK: u8 = 17;
const PINNED: u8 = 6;

/// The number of its record.
fn body(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

impl World {
    fn settle(&mut self, shard: &mut Shard<Position>, stream: StreamId, first: u64, last: u64) {
        let ranges = vec![(Offset(first), Offset(last))];
        self.change(shard, &Change::Settled { stream, ranges });
    }

    /// How many messages one who attaches to the old stream is handed.
    fn handed_out(&self, shard: &mut Shard<Position>, mode: Mode) -> usize {
        let replay = (mode == Mode::Replay).then(|| {
            Box::new(Replay {
                from: SeekTo::Start,
                only: None,
                subscribes: None,
            })
        });
        let attach = Attach {
            replay,
            consumer: ConsumerKey {
                connection: ConnectionId::new(WorkerId(0x7FFE), 1),
                tag: ConsumerTag(1),
            },
            principal: Arc::default(),
            vhost: Arc::from("/"),
            stream: OLD,
            exclusive: false,
            presettled: false,
            credit: 5000,
            priority: 0,
            no_local: false,
        };
        let now = Now {
            monotonic: MonotonicMs(1),
            unix: UnixMs(1_000_000),
        };
        let question = Question::Attach(attach);
        let mut asked = vec![ShardRequest::Ask {
            ticket: 1,
            question: Box::new(question),
        }];
        shard.handle(now, WorkerId(0x7FFE), &mut asked, &mut &self.journal);
        let mut count = 0;
        for _ in 0..50 {
            shard.dispatch(now, &mut &self.journal);
            for event in shard.events().flat_map(|(_, events)| events) {
                if let ShardEvent::Deliver { deliveries, .. } = event {
                    count += deliveries.len();
                }
            }
        }
        count
    }

    /// Numbers of the messages that wait in a stream.
    fn waiting(&self, shard: &mut Shard<Position>, stream: StreamId) -> Vec<u64> {
        let messages = peek(shard, &self.journal, stream, 5000).into_iter();
        let number = |message: &Message| u64::from_be_bytes(message.body[..].try_into().unwrap());
        messages.map(|(_, _, message)| number(&message)).collect()
    }
}

/// What is made of pairs of which some may be old; and what it gives when it is opened.
fn salvaged(kept: &Kept, pairs: Pairs, old: &[Bytes]) -> (Salvaged, Kept, Shard<Position>) {
    let remains = Remains {
        pairs: pairs.into_iter().collect(),
        unsure: old.iter().cloned().collect(),
        gaps: old
            .iter()
            .map(|key| Gap {
                after: Some(key.slice(..key.len() - 1)),
                before: Some([&key[..], &[0]].concat().into()),
            })
            .collect(),
    };
    let done = fresh().salvage_pairs(remains, kept.blocks()).unwrap();
    let blocks = kept.all_blocks();
    let next = Kept::of(done.pairs.iter().cloned().collect(), blocks);
    let mut shard = fresh();
    next.restore(&mut shard);
    (done, next, shard)
}

fn of_kind(pairs: &Pairs, kind: u8) -> Vec<(Bytes, Bytes)> {
    let pairs = pairs.iter().filter(|(key, _)| key.first() == Some(&kind));
    pairs
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// An old chunk was taken whose block another stream had since: with two owners, blocks that were in use counted as free.
#[test]
fn an_old_chunk_whose_block_others_have_by_now_is_not_taken() {
    let (mut world, mut kept) = (World::default(), Kept::default());
    let mut shard = fresh();
    shard.set_blocks(kept.blocks());
    world.create(&mut shard, OLD, Mode::default());
    world.create(&mut shard, NEW, Mode::default());
    world.publish(&mut shard, OLD, 255, body);
    kept.save(&mut shard);
    let [(key, value)] = &of_kind(kept.pairs(), CHUNK)[..] else {
        panic!("one chunk");
    };
    world.settle(&mut shard, OLD, 0, 254);
    for _ in 0..3 {
        kept.save(&mut shard);
    }
    world.publish(&mut shard, NEW, 1000, body);
    kept.save(&mut shard);
    let mut pairs = kept.pairs().clone();
    pairs.insert(key.clone(), value.clone());

    let (done, mut next, mut shard) = salvaged(&kept, pairs, std::slice::from_ref(key));
    assert!(done.pairs.iter().all(|(there, _)| there != key));
    assert!(!done.lost.is_empty());
    // It goes on, and writes blocks.
    for _ in 0..4 {
        world.publish(&mut shard, OLD, 600, body);
        next.save(&mut shard);
    }
    let mut shard = fresh();
    next.restore(&mut shard);
    assert_eq!(
        world.waiting(&mut shard, NEW),
        (256..=1255).collect::<Vec<_>>()
    );
    assert_eq!(world.waiting(&mut shard, OLD).len(), 2400);
    assert_eq!(shard.damaged(), None);
}

/// The head of a stream was taken as it had been; what came behind it in the journal was given offsets over again, and
/// messages that nobody had taken were settled.
#[test]
fn a_stream_of_which_an_old_head_is_left_gives_no_offset_twice() {
    for (mode, chunks_are_old) in [
        (Mode::default(), false),
        (Mode::default(), true),
        (Mode::Replay, false),
        (Mode::Replay, true),
    ] {
        let (mut world, mut kept) = (World::default(), Kept::default());
        let mut shard = fresh();
        shard.set_blocks(kept.blocks());
        world.create(&mut shard, OLD, mode);
        world.publish(&mut shard, OLD, 100, body);
        kept.save(&mut shard);
        let before = kept.pairs().clone();
        world.publish(&mut shard, OLD, 300, body);
        kept.save(&mut shard);
        let mut pairs = kept.pairs().clone();
        let kinds: &[u8] = if chunks_are_old {
            &[HEAD, CHUNK]
        } else {
            &[HEAD]
        };
        let mut old = Vec::new();
        for (key, value) in kinds.iter().flat_map(|kind| of_kind(&before, *kind)) {
            pairs.insert(key.clone(), value);
            old.push(key);
        }
        if chunks_are_old {
            pairs.retain(|key, _| key[0] != CHUNK || before.contains_key(key));
        }
        let (done, mut next, mut shard) = salvaged(&kept, pairs, &old);
        assert!(
            done.lost.iter().any(|what| what.contains("'q7'")),
            "{:?}",
            done.lost
        );
        // Of these offsets are 350 to 359 of what was there, and 400 to 409 of what comes now.
        let left: u64 = if chunks_are_old { 100 } else { 400 };
        world.publish(&mut shard, OLD, 20, body);
        match mode {
            Mode::Replay => world.change(
                &mut shard,
                &Change::Trim {
                    stream: OLD,
                    first: Offset(50),
                },
            ),
            _ => world.settle(&mut shard, OLD, 0, 49),
        }
        world.settle(&mut shard, OLD, 400, 409);
        let all: Vec<u64> = (51..=left).chain(401..=420).collect();
        assert_eq!(world.waiting(&mut shard, OLD), all, "{mode:?}");
        let stat = stats(&mut shard, &world.journal).remove(0);
        assert_eq!(stat.ready, all.len() as u64);
        assert_eq!(world.handed_out(&mut shard, mode), all.len());
        // And over one more checkpoint.
        next.save(&mut shard);
        let mut shard = fresh();
        next.restore(&mut shard);
        assert_eq!(world.waiting(&mut shard, OLD), all, "{mode:?}");
    }
}

#[test]
fn every_kind_of_pair_that_may_be_gone_is_named() {
    let mut kept = Kept::default();
    let mut shard = fresh();
    shard.set_blocks(kept.blocks());
    kept.save(&mut shard);
    let gap = Gap {
        after: Some(vec![PINNED, 0].into()),
        before: Some(vec![PINNED, 9].into()),
    };
    let remains = Remains {
        pairs: kept.pairs().clone().into_iter().collect(),
        unsure: BTreeSet::new(),
        gaps: vec![gap],
    };
    let done = fresh().salvage_pairs(remains, kept.blocks()).unwrap();
    assert_eq!(done.lost, ["which dead letters have still to arrive"]);
}
