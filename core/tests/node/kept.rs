//! What a store keeps of a shard: blocks and pairs, in memory; and all that can be seen of a shard.

use super::{DataShard, Journal};
use anabranch_core::authority::{AllowAll, Authority};
use anabranch_core::id::{MonotonicMs, Now, Offset, Position, StreamId, UnixMs, VhostId, WorkerId};
use anabranch_core::index::{Block, BlockBytes, Blocks, Delta};
use anabranch_core::message::Message;
use anabranch_core::port::{Question, ShardEvent, ShardReply, ShardRequest, StreamStat};
use anabranch_core::router::Fabric;
use anabranch_core::shard::Shard;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex};

pub type Pairs = BTreeMap<Bytes, Bytes>;

/// An index file.
#[derive(Default)]
pub struct File(Mutex<BTreeMap<u32, Option<BlockBytes>>>);

impl Blocks for File {
    fn read(&self, block: Block) -> Option<BlockBytes> {
        self.0.lock().unwrap().get(&block.0)?.clone()
    }
}

#[derive(Default)]
pub struct Kept {
    file: Arc<File>,
    pairs: Pairs,
    /// Deltas that are not durable.
    unfolded: Vec<Delta>,
}

impl Kept {
    pub fn blocks(&self) -> Arc<dyn Blocks> {
        self.file.clone()
    }

    /// Writes the blocks of a delta and keeps its pairs for later.
    pub fn write(&mut self, mut delta: Delta) {
        let mut keys = BTreeSet::new();
        assert!(
            delta.pairs.iter().all(|(key, _)| keys.insert(key.clone())),
            "each key once"
        );
        let mut file = self.file.0.lock().unwrap();
        let mut numbers = BTreeSet::new();
        for (block, bytes) in delta.blocks.drain(..) {
            assert!(numbers.insert(block.0), "each block once");
            file.insert(block.0, Some(bytes));
        }
        drop(file);
        self.unfolded.push(delta);
    }

    /// What was written is durable: all pairs.
    pub fn fold(&mut self) -> Pairs {
        for (key, value) in self.unfolded.drain(..).flat_map(|delta| delta.pairs) {
            match value {
                Some(value) => drop(self.pairs.insert(key, value)),
                None => drop(self.pairs.remove(&key)),
            }
        }
        self.pairs.clone()
    }

    /// Makes a checkpoint of what a shard is now: all pairs.
    pub fn save(&mut self, shard: &mut Shard<Position>) {
        shard.freeze();
        let delta = shard.copy(usize::MAX).expect("all at once");
        self.write(delta);
        shard.written();
        self.fold();
    }

    /// With these blocks.
    pub fn of(pairs: Pairs, blocks: BTreeMap<u32, Vec<u8>>) -> Kept {
        let kept = Kept {
            pairs,
            ..Kept::default()
        };
        let blocks = blocks.into_iter();
        let blocks =
            blocks.map(|(number, bytes)| (number, bytes.into_boxed_slice().try_into().ok()));
        *kept.file.0.lock().unwrap() = blocks.collect();
        kept
    }

    /// All blocks that were ever written.
    pub fn all_blocks(&self) -> BTreeMap<u32, Vec<u8>> {
        let file = self.file.0.lock().unwrap();
        let blocks = file
            .iter()
            .filter_map(|(number, bytes)| Some((*number, bytes.as_deref()?.to_vec())));
        blocks.collect()
    }

    pub fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    /// Gives a shard just made what is kept.
    pub fn restore(&self, shard: &mut Shard<Position>) {
        let pairs = self.pairs.iter();
        let mut pairs = pairs.map(|(key, value)| (key.clone(), value.clone()));
        shard.restore_pairs(&mut pairs, self.blocks()).unwrap();
    }

    /// A new life begins with these.
    pub fn begin_with(&mut self, pairs: Pairs) {
        self.unfolded.clear();
        self.pairs = pairs;
    }

    /// Loses some blocks, or a bit of them; says how many.
    pub fn damage(&mut self, mut dice: impl FnMut() -> u64) -> u64 {
        let mut file = self.file.0.lock().unwrap();
        let mut lost = 0;
        for block in file.values_mut() {
            match (dice(), block.as_mut()) {
                (0, _) => *block = None,
                (1, Some(bytes)) => bytes[200] ^= 4,
                _ => continue,
            }
            lost += 1;
        }
        lost
    }
}

/// Who asks; no worker.
const ASKER: WorkerId = WorkerId(0x7FFE);

/// The answer of a shard that stands still; nothing when it is a refusal.
pub fn ask(
    shard: &mut Shard<Position>,
    journal: &Journal,
    question: Question,
) -> Option<ShardReply> {
    let now = Now {
        monotonic: MonotonicMs(0),
        unix: UnixMs(0),
    };
    let mut asked = vec![ShardRequest::Ask {
        ticket: 9,
        question: Box::new(question),
    }];
    shard.handle(now, ASKER, &mut asked, &mut &*journal);
    shard.dispatch(now, &mut &*journal);
    let told = shard.events().filter(|(to, _)| *to == ASKER);
    let mut events = told.flat_map(|(_, events)| events);
    let reply = events.find_map(|event| match event {
        ShardEvent::Reply { ticket: 9, result } => Some(result),
        _ => None,
    });
    events.for_each(drop);
    reply.expect("an answer").ok()
}

pub fn stats(shard: &mut Shard<Position>, journal: &Journal) -> Vec<StreamStat> {
    let Some(ShardReply::Stats(mut stats)) = ask(shard, journal, Question::StatAll) else {
        panic!("counts");
    };
    stats.sort_by_key(|stat| stat.stream);
    stats
}

pub fn peek(
    shard: &mut Shard<Position>,
    journal: &Journal,
    stream: StreamId,
    count: u32,
) -> Vec<(Offset, u32, Arc<Message>)> {
    let from = Offset(0);
    match ask(
        shard,
        journal,
        Question::Peek {
            stream,
            from: anabranch_core::gateway::SeekTo::Offset(from),
            count,
        },
    ) {
        Some(ShardReply::Messages(messages)) => messages,
        Some(other) => panic!("unexpected {other:?}"),
        None => Vec::new(),
    }
}

/// Makes a checkpoint of a shard at work: what is restored of it is what its journal gives. The shard that was restored.
pub fn survives(
    kept: &mut Kept,
    data: &mut DataShard,
    fabric: &Arc<Fabric>,
    authority: &Arc<dyn Authority>,
) -> Shard<Position> {
    kept.save(&mut data.shard);
    let fresh = || super::shard(data.shard.id().0, 9, fabric, authority);
    let (mut replayed, mut restored) = (fresh(), fresh());
    data.journal.replay(&mut replayed);
    kept.restore(&mut restored);
    let expected = seen_as(&mut replayed, &data.journal, false);
    assert_eq!(seen_as(&mut restored, &data.journal, false), expected);
    restored
}

/// Whoever applies the frames of a shard has the same state: all at once, in two halves, and after a checkpoint in
/// between.
pub fn one_state(data: &DataShard) {
    let fresh = || {
        let authority: Arc<dyn Authority> = Arc::new(AllowAll);
        super::shard(
            data.shard.id().0,
            77,
            &Arc::new(Fabric::default()),
            &authority,
        )
    };
    let half = data.journal.frames.len() / 2;
    let (mut one, mut two, mut three) = (fresh(), fresh(), fresh());
    data.journal.replay(&mut one);
    data.journal.replay_part(&mut two, ..half);
    let mut kept = Kept::default();
    kept.save(&mut two);
    kept.restore(&mut three);
    data.journal.replay_part(&mut two, half..);
    data.journal.replay_part(&mut three, half..);
    let whole = seen(&mut one, &data.journal);
    assert_eq!(whole, seen(&mut two, &data.journal));
    assert_eq!(whole, seen(&mut three, &data.journal));
}

/// All that can be seen of a shard that only applied frames.
pub fn seen(shard: &mut Shard<Position>, journal: &Journal) -> String {
    seen_as(shard, journal, true)
}

/// Without `counted` also of one that was at work: it counts what it hands out, and knows earlier what was.
fn seen_as(shard: &mut Shard<Position>, journal: &Journal, counted: bool) -> String {
    let mut out = String::new();
    for mut stat in stats(shard, journal) {
        // Filters have no order.
        stat.filters
            .sort_by(|one, next| one.filter.cmp(&next.filter));
        let stream = stat.stream;
        if !counted {
            (stat.delivered, stat.settled, stat.dropped) = (0, 0, 0);
            (stat.dead_lettered, stat.rejected) = (0, 0);
        }
        writeln!(out, "{stat:?}").unwrap();
        for (offset, attempts, message) in peek(shard, journal, stream, u32::MAX) {
            let attempts = if counted { attempts } else { 0 };
            let body = String::from_utf8_lossy(&message.body);
            writeln!(out, "  {offset} {attempts} {}", body.trim_end_matches('.')).unwrap();
        }
    }
    let values = Question::Values {
        vhost: VhostId(1),
        filter: "#".parse().unwrap(),
        hides_system: false,
        after: None,
        count: 1000,
    };
    for question in [values, Question::ValueCounts, Question::Groups] {
        writeln!(out, "{:?}", ask(shard, journal, question)).unwrap();
    }
    let dead = shard.dead_ranges(Position(0), Position(u64::MAX));
    writeln!(out, "{:?} {dead:?}", shard.oldest_position()).unwrap();
    out
}
