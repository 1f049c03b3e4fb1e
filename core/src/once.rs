//! Messages that are stored once, as they are counted: by a session that publishes under keys, and by the shards
//! that store its messages.
//!
//! A session gives each key a number when it first hears of it and never gives that number again. Where the session
//! does not live, the number says whether a message is a repeat; numbers below the lowest that the session still
//! holds are not sent any more and are forgotten.
//!
//! Owns: [`Keys`] (a session's) and [`Heard`] (a storing shard's). Persisted in checkpoints: fields append only
//! with the checkpoint's version.
//! Never: messages; who asks (`shard/once.rs`).

use crate::gateway::OnceKey;
use crate::id::{StreamId, UnixMs};
use crate::shard::Changes;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The keys that a session holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Keys {
    last: u64,
    held: BTreeMap<OnceKey, Taken>,
    numbers: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Taken {
    number: u64,
    /// The session's own shard has stored the message.
    stored: bool,
}

impl Keys {
    /// The key's number: a new one, unless the key is held.
    pub fn take(&mut self, key: OnceKey) -> u64 {
        let last = &mut self.last;
        let taken = self.held.entry(key).or_insert_with(|| {
            *last += 1;
            Taken {
                number: *last,
                stored: false,
            }
        });
        self.numbers.insert(taken.number);
        taken.number
    }

    /// The lowest number of a key that is held; the next number when none is.
    pub fn floor(&self) -> u64 {
        self.numbers.first().copied().unwrap_or(self.last + 1)
    }

    /// Whether the session's own shard has stored the message of this key.
    pub fn is_stored(&self, key: OnceKey) -> bool {
        self.held.get(&key).is_some_and(|taken| taken.stored)
    }

    /// The session's own shard has stored it; takes the key.
    pub fn stored(&mut self, key: OnceKey) {
        self.take(key);
        if let Some(taken) = self.held.get_mut(&key) {
            taken.stored = true;
        }
    }

    /// The next message under this key is another one.
    pub fn forget(&mut self, key: OnceKey) {
        if let Some(taken) = self.held.remove(&key) {
            self.numbers.remove(&taken.number);
        }
    }

    /// How many keys are held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

/// How long the numbers of a session that sends nothing are remembered, in milliseconds.
const REMEMBERED_MS: u64 = 24 * 3600 * 1000;
/// How exactly that time is kept, in milliseconds.
const GRAIN_MS: u64 = 3600 * 1000;
/// Sessions remembered; beyond, the one that was silent longest is forgotten.
const SESSIONS_MAX: usize = 65_536;
/// Separate ranges of numbers remembered of one session; beyond, the lowest is forgotten.
const RANGES_MAX: usize = 4096;

/// The numbers of messages that a shard has stored, by the session that published them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Heard {
    sessions: BTreeMap<StreamId, Numbers>,
    by_time: BTreeSet<(UnixMs, StreamId)>,
    /// For checkpoints.
    #[serde(skip)]
    pub(crate) changes: Changes<StreamId>,
}

/// What is remembered of one session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Numbers {
    floor: u64,
    /// First and last of each, in order, none touching the next.
    ranges: Vec<(u64, u64)>,
    touched: UnixMs,
}

impl Heard {
    fn touch(&mut self, session: StreamId) {
        let sessions = &self.sessions;
        self.changes
            .touch(&session, || sessions.get(&session).map(encoded));
    }

    /// The next session of which something is to be copied into a checkpoint, with what.
    pub(crate) fn next_change(&mut self) -> Option<(StreamId, Option<Bytes>)> {
        let sessions = &self.sessions;
        self.changes
            .next(|session| sessions.get(session).map(encoded))
    }

    /// Remembers what a checkpoint has.
    pub(crate) fn restore(&mut self, session: StreamId, numbers: Numbers) {
        self.by_time.insert((numbers.touched, session));
        self.sessions.insert(session, numbers);
    }

    /// Remembers what a whole checkpoint has: all of it is new to the next one.
    pub(crate) fn replace(&mut self, heard: Heard) {
        for (session, numbers) in heard.sessions {
            self.touch(session);
            self.restore(session, numbers);
        }
    }

    /// Whether the message of this number was stored here; `floor` is the lowest that may still be sent.
    pub fn knows(&self, session: StreamId, number: u64, floor: u64) -> bool {
        let numbers = self.sessions.get(&session);
        numbers.is_some_and(|numbers| number < numbers.floor.max(floor) || numbers.contains(number))
    }

    /// It is stored here now.
    pub fn note(&mut self, session: StreamId, number: u64, floor: u64, at: UnixMs) {
        self.touch(session);
        let is_new = !self.sessions.contains_key(&session);
        let numbers = self.sessions.entry(session).or_default();
        numbers.raise(floor);
        numbers.insert(number);
        if is_new || at >= numbers.touched.after(GRAIN_MS) {
            self.by_time.remove(&(numbers.touched, session));
            numbers.touched = at;
            self.by_time.insert((at, session));
            self.forget_silent(at);
        }
    }

    fn forget_silent(&mut self, now: UnixMs) {
        while let Some(&(touched, session)) = self.by_time.first() {
            if touched.after(REMEMBERED_MS) > now && self.sessions.len() <= SESSIONS_MAX {
                return;
            }
            self.forget(session);
        }
    }

    /// The session sends nothing any more.
    pub fn forget(&mut self, session: StreamId) {
        if self.sessions.contains_key(&session) {
            self.touch(session);
        }
        if let Some(numbers) = self.sessions.remove(&session) {
            self.by_time.remove(&(numbers.touched, session));
        }
    }
}

fn encoded(numbers: &Numbers) -> Bytes {
    // Encoding to a growing buffer can only fail for types that are not in it.
    postcard::to_allocvec(numbers).unwrap_or_default().into()
}

impl Numbers {
    fn raise(&mut self, floor: u64) {
        if floor <= self.floor {
            return;
        }
        self.floor = floor;
        let below = self.ranges.partition_point(|(_, last)| *last < floor);
        self.ranges.drain(..below);
        if let Some((first, _)) = self.ranges.first_mut() {
            *first = floor.max(*first);
        }
    }

    fn contains(&self, number: u64) -> bool {
        let at = self.ranges.partition_point(|(_, last)| *last < number);
        self.ranges
            .get(at)
            .is_some_and(|(first, _)| *first <= number)
    }

    fn insert(&mut self, number: u64) {
        if number < self.floor || self.contains(number) {
            return;
        }
        let at = self.ranges.partition_point(|(_, last)| *last < number);
        let joins_next = self
            .ranges
            .get(at)
            .is_some_and(|(first, _)| *first == number + 1);
        let before = at.checked_sub(1).map(|before| self.ranges[before]);
        let joins_last = before.is_some_and(|(_, last)| last + 1 == number);
        match (joins_last, joins_next) {
            (true, true) => {
                self.ranges[at - 1].1 = self.ranges[at].1;
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at - 1].1 = number,
            (false, true) => self.ranges[at].0 = number,
            (false, false) => self.ranges.insert(at, (number, number)),
        }
        if self.ranges.len() > RANGES_MAX {
            self.ranges.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SESSION: StreamId = StreamId(7);

    #[derive(Clone, Debug)]
    enum Step {
        Publish(u16),
        /// Sent, but lost on the way.
        Lose(u16),
        Forget(u16),
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u16..6).prop_map(Step::Publish),
            1 => (0u16..6).prop_map(Step::Lose),
            3 => (0u16..6).prop_map(Step::Forget),
            1 => Just(Step::Restart),
        ]
    }

    fn again<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
        postcard::from_bytes(&postcard::to_allocvec(value).unwrap()).unwrap()
    }

    proptest! {
        /// Between two times that a key is forgotten, its message is stored once, however often it is sent.
        #[test]
        fn a_key_is_stored_once_until_it_is_forgotten(steps in proptest::collection::vec(step(), 0..300)) {
            let (mut keys, mut heard) = (Keys::default(), Heard::default());
            let mut stored: BTreeMap<u16, bool> = BTreeMap::new();
            let mut given: BTreeSet<u64> = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Publish(key) => {
                        let number = keys.take(OnceKey(key));
                        let known = heard.knows(SESSION, number, keys.floor());
                        prop_assert_eq!(known, stored.get(&key) == Some(&true));
                        if !known {
                            prop_assert!(given.insert(number), "a number comes once");
                            heard.note(SESSION, number, keys.floor(), UnixMs(1));
                        }
                        stored.insert(key, true);
                    }
                    Step::Lose(key) => {
                        keys.take(OnceKey(key));
                    }
                    Step::Forget(key) => {
                        keys.forget(OnceKey(key));
                        stored.remove(&key);
                    }
                    Step::Restart => (keys, heard) = (again(&keys), again(&heard)),
                }
                prop_assert!(keys.len() <= 6);
            }
        }

        #[test]
        fn ranges_are_a_set(numbers in proptest::collection::vec(1u64..60, 0..100), floor in 0u64..60) {
            let (mut ranges, mut model) = (Numbers::default(), BTreeSet::new());
            for number in numbers {
                ranges.insert(number);
                model.insert(number);
            }
            ranges.raise(floor);
            for number in floor..62 {
                prop_assert_eq!(ranges.contains(number), model.contains(&number));
            }
            prop_assert!(ranges.ranges.is_sorted_by(|one, next| one.1 + 1 < next.0));
        }
    }

    #[test]
    fn who_is_silent_for_a_day_is_forgotten() {
        let mut heard = Heard::default();
        heard.note(SESSION, 1, 1, UnixMs(0));
        heard.note(StreamId(8), 1, 1, UnixMs(REMEMBERED_MS - 1));
        assert!(heard.knows(SESSION, 1, 1));
        heard.note(StreamId(9), 1, 1, UnixMs(REMEMBERED_MS));
        assert!(!heard.knows(SESSION, 1, 1) && heard.knows(StreamId(8), 1, 1));
        assert_eq!(heard.by_time.len(), heard.sessions.len());
    }

    #[test]
    fn a_late_repeat_below_the_floor_is_known() {
        let mut heard = Heard::default();
        heard.note(SESSION, 1, 1, UnixMs(0));
        heard.note(SESSION, 5, 4, UnixMs(0));
        assert!(heard.knows(SESSION, 1, 1) && heard.knows(SESSION, 3, 2));
        assert!(!heard.knows(SESSION, 4, 4) && heard.knows(SESSION, 5, 4));
    }

    #[test]
    fn what_is_remembered_of_one_session_is_bounded() {
        let mut heard = Heard::default();
        for number in 0..2 * RANGES_MAX as u64 {
            heard.note(SESSION, 1 + 2 * number, 1, UnixMs(0));
        }
        assert_eq!(heard.sessions[&SESSION].ranges.len(), RANGES_MAX);
        assert!(heard.knows(SESSION, 4 * RANGES_MAX as u64 - 1, 1));
    }
}
