//! A stream as its users see it: places, trimming, purging.

use super::*;
use crate::id::{Offset, Position};

pub(super) fn stream(messages: u64) -> Stream<Position> {
    let mut stream = Stream::new(
        StreamId(1),
        VhostId(1),
        Kind::Queue,
        StreamLimits::default(),
    );
    entries(messages).for_each(|entry| stream.push(entry));
    stream
}

pub(super) fn entries(count: u64) -> impl Iterator<Item = Entry<Position>> {
    (0..count).map(|body| Entry {
        body: Position(body),
        expires: UnixMs(0),
        cost_bytes: 10,
        identifier: 0,
        quality: Quality::AtLeastOnce,
        retain: false,
        by_topic: false,
        no_local: false,
        body_bytes: 5,
        stored: UnixMs(0),
        more_identifiers: None,
    })
}

#[test]
fn released_messages_go_back_to_their_original_places() {
    let mut stream = stream(4);
    for offset in 0..3 {
        assert_eq!(stream.next(), Some(offset));
        stream.hold(offset, 1);
    }
    stream.release(2);
    stream.release(0);
    assert_eq!(stream.next(), Some(0));
    assert_eq!(stream.hold(0, 2), 2);
    assert_eq!(stream.next(), Some(2));
    assert_eq!((stream.ready(), stream.held()), (2, 2));
}

#[test]
fn the_front_is_trimmed_as_far_as_it_is_gone() {
    let mut stream = stream(3);
    for offset in 0..3 {
        stream.hold(offset, 1);
    }
    stream.remove(1);
    assert_eq!((stream.messages(), stream.bytes()), (2, 20));
    stream.remove(0);
    assert!(stream.entry(1).is_none() && stream.entry(2).is_some());
    stream.leave(2);
    assert_eq!((stream.messages(), stream.bytes()), (0, 0));
    stream.remove(2);
    assert_eq!((stream.cursor(), stream.end()), (3, 3));
}

#[test]
fn a_purge_leaves_what_is_handed_out() {
    let mut stream = stream(5);
    stream.hold(0, 1);
    stream.hold(1, 1);
    stream.release(0);
    let ranges = stream.leave_ready();
    assert_eq!(ranges, [(Offset(0), Offset(0)), (Offset(2), Offset(4))]);
    assert_eq!(stream.remove_ranges(&ranges, |_| {}), 4);
    assert_eq!(
        (
            stream.ready(),
            stream.held(),
            stream.next(),
            stream.kept().entries
        ),
        (0, 1, None, 1)
    );
}

/// There may be millions of sessions asleep, and a long queue has a chunk for each 255 messages.
#[test]
fn a_stream_and_a_chunk_take_little_memory() {
    assert!(size_of::<Stream<Position>>() <= 424);
    assert!(size_of::<chunk::Chunk<Position>>() <= 144);
}

#[test]
fn of_chunks_in_which_nothing_ends_no_entry_is_looked_at() {
    let mut stream = stream(0);
    for (nth, mut entry) in (0..600).zip(entries(600)) {
        (entry.cost_bytes, entry.stored) = (325, UnixMs(7));
        entry.expires = UnixMs(if nth == 300 { 9 } else { 0 });
        stream.push(entry);
    }
    let mut seen = Vec::new();
    let looked = stream.look(0, 1000, |offset, entry| {
        seen.push((offset, entry.map(|entry| entry.expires.0)));
    });
    assert_eq!(looked, (3 + 255, None));
    let ends = seen.iter().filter(|(_, end)| *end == Some(9));
    assert_eq!(ends.collect::<Vec<_>>(), [&(300, Some(9))]);
    assert_eq!((seen[0], seen.last()), ((0, None), Some(&(510, None))));
    assert_eq!(stream.look(0, 1, |_, _| {}), (1, Some(255)));
}
