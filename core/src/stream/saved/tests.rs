//! Streams come back as they were saved.

use super::super::tests::{entries, stream};
use super::*;
use crate::index::{Block, BlockBytes, Blocks};
use crate::message::Quality;
use crate::stream::index::Next;
use std::sync::Mutex;

#[derive(Default)]
struct File(Mutex<BTreeMap<Block, BlockBytes>>);

impl Blocks for File {
    fn read(&self, block: Block) -> Option<BlockBytes> {
        self.0.lock().unwrap().get(&block).cloned()
    }
}

/// All of a stream as pairs, and from them again.
fn through_pairs(before: &mut Stream<Position>) -> Stream<Position> {
    let index = Arc::new(Index::new(0));
    let file = Arc::new(File::default());
    index.set_blocks(file.clone());
    before.adopt(&index);
    index.freeze();
    let mut state = index.lock();
    while let Some(next) = state.next() {
        match next {
            Next::Head(_) => before.copy_head(&mut state),
            Next::Chunk(_, number) => before.copy_chunk(number, &mut state),
            Next::Gone(_) => panic!("nothing is gone"),
        }
    }
    let delta = state.finish();
    drop(state);
    file.0.lock().unwrap().extend(delta.blocks);
    let mut after: Option<Stream<Position>> = None;
    let mut received = Vec::new();
    let pairs: BTreeMap<_, _> = delta.pairs.into_iter().collect();
    for (key, value) in pairs {
        let value = value.unwrap();
        match &mut after {
            None => {
                let (stream, owed) = Stream::restore_head(before.serial, &value).unwrap();
                (after, received) = (Some(stream), owed);
            }
            Some(after) => {
                let number = u64::from_be_bytes(key[9..].try_into().unwrap());
                after.restore_chunk(number, &value).unwrap();
            }
        }
    }
    let mut after = after.unwrap();
    after.restored(received);
    after.adopt(&index);
    after
}

#[test]
fn a_restored_stream_has_what_had_not_left_and_knows_what_was_handed_out() {
    let mut before = stream(5);
    for offset in 0..3 {
        before.hold(offset, 1);
    }
    before.remove(0);
    before.remove(2);
    before.leave(1);
    before.cursor_known = 3;
    let after = through_pairs(&mut before);
    assert_eq!((after.messages(), after.bytes()), (3, 30));
    assert_eq!(
        (after.next(), after.attempts(1), after.attempts(3)),
        (Some(1), 1, 0)
    );
}

#[test]
fn further_numbers_of_filters_come_back_and_go_with_their_message() {
    let mut before = stream(0);
    for (nth, mut entry) in (0..).zip(entries(600)) {
        entry.identifier = u32::from(nth == 300) * 4;
        entry.more_identifiers = (nth == 300).then(|| Arc::new(vec![7, 9]));
        before.push(entry);
    }
    let mut after = through_pairs(&mut before);
    let more = |stream: &Stream<Position>, offset| stream.entry(offset).unwrap().more_identifiers;
    assert_eq!(more(&after, 300), Some(Arc::new(vec![7, 9])));
    assert_eq!(
        (more(&after, 299), after.entry(300).unwrap().identifier),
        (None, 4)
    );
    after.remove(300);
    assert!(after.more_identifiers.is_none());
}

/// Many messages wait for credit: only chunks that have one that needs none are looked at.
#[test]
fn a_chunk_knows_whether_some_ask_for_no_settlement() {
    let mut before = stream(600);
    let mut last = entries(1).next().unwrap();
    last.quality = Quality::AtMostOnce;
    before.push(last);
    let after = through_pairs(&mut before);
    assert_eq!(after.next_unsettled_free(0), Some(600));
    let asked = after.chunks.from(0).map(|chunk| chunk.some_unsettled());
    assert_eq!(asked.collect::<Vec<_>>(), [false, false, true]);
}
