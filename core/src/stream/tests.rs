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
