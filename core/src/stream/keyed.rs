//! The keys of a key-shared stream: which of its messages are handed out or looked at already, by key, and
//! whom each key goes to.
//!
//! **Invariant:** messages of one key are unsettled at one reader only, and go out in the order of their
//! offsets. So a key that is in flight goes to its holder; every other key goes to the reader that wins it
//! among those attached, the same one as long as nobody joins or leaves. A message whose reader has no room
//! waits in that reader's *lane*, where only the first of each key stands; what is behind it goes on.
//! All of it is the leader's memory: after a crash nothing is handed out and nothing waits.
//!
//! What waits has been passed by the cursor, so that after a crash it comes flagged as if it had been handed
//! out: rather once too often than not.
//!
//! Owns: offset -> key of what is held or waits, holders of keys, lanes, the seats by which readers win keys.
//! Never: reads a message (`shard/keyed.rs` does, and says its key), chooses within a lane.
//! Next: `stream.rs`, which tells it of every change of an offset.

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::hash::Hasher;

/// Messages of one stream that wait for their key or for room at its reader; beyond, those behind them are
/// not looked at before some have gone out.
pub const LOOK_AHEAD_MAX: usize = 16_384;
/// Seats that readers win; keys are spread over them.
const SEATS: usize = 1024;
/// No reader has this number: the lane of keys that nobody can be handed now.
const NOBODY: u32 = 0;

/// A key, as its hash: two keys with one hash are kept in order as if they were one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Of these bytes.
    pub fn of(key: &[u8]) -> KeyHash {
        let mut hasher = FxHasher::default();
        hasher.write(key);
        KeyHash(mix(hasher.finish()))
    }
}

/// Spreads all bits over all bits (the finalizer of splitmix64).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// Who wins a seat: the highest weight.
fn weight(seat: usize, number: u32) -> u64 {
    mix((seat as u64) << 32 | u64::from(number))
}

/// A key with messages that are held or wait.
#[derive(Debug, Default)]
struct InFlight {
    /// Numbers of readers, and how many messages each holds. More than one only when the stream was in another
    /// mode before.
    holders: SmallVec<[(u32, u32); 1]>,
    waiting: BTreeSet<u64>,
    /// The lane it stands in, and its first waiting offset.
    stands: Option<(u32, u64)>,
    /// Another lane than that of its reader: who wins it may not receive it.
    diverted: Option<u32>,
}

/// Whom a key goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The reader of this number.
    Reader(u32),
    /// Nobody now: it is in flight at a reader that gets nothing more, or nobody is attached.
    Nobody,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Keyed {
    keys: FxHashMap<KeyHash, InFlight>,
    of: FxHashMap<u64, KeyHash>,
    lanes: FxHashMap<u32, BTreeSet<(u64, KeyHash)>>,
    /// All that wait.
    waiting: BTreeSet<u64>,
    /// Numbers of attached readers, ascending.
    members: Vec<u32>,
    /// The number of the reader that has each seat; empty without members.
    seats: Vec<u32>,
    /// Held offsets whose messages nobody has looked at, with the holder.
    unread: FxHashMap<u64, u32>,
    /// Came back, and wait before they can go out again: the first of a key holds up the key.
    paused: BTreeSet<u64>,
}

impl Keyed {
    /// For a stream that has these offsets handed out, with their holders.
    pub fn new(held: impl IntoIterator<Item = (u64, u32)>) -> Keyed {
        Keyed {
            unread: held.into_iter().collect(),
            ..Keyed::default()
        }
    }

    /// How many messages wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no more may be looked at.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= LOOK_AHEAD_MAX
    }

    /// Held offsets whose keys are not known, in order, with their holders.
    pub fn unread(&self) -> Vec<(u64, u32)> {
        let mut unread: Vec<_> = self.unread.iter().map(|(at, by)| (*at, *by)).collect();
        unread.sort_unstable();
        unread
    }

    /// The key of a held offset is known now.
    pub fn read(&mut self, offset: u64, key: KeyHash) {
        if let Some(holder) = self.unread.remove(&offset) {
            self.of.insert(offset, key);
            self.hold(offset, holder);
        }
    }

    /// Whether exactly these are attached, ascending.
    pub fn has_members(&self, numbers: impl Iterator<Item = u32>) -> bool {
        numbers.eq(self.members.iter().copied())
    }

    /// These are attached from now on, ascending: who has left frees its seats, who has joined wins some; keys
    /// in flight stay where they are.
    pub fn set_members(&mut self, numbers: Vec<u32>) {
        let before = std::mem::replace(&mut self.members, numbers);
        let joined: Vec<u32> = self
            .members
            .iter()
            .copied()
            .filter(|number| before.binary_search(number).is_err())
            .collect();
        if self.members.is_empty() {
            self.seats = Vec::new();
        } else {
            self.seats.resize(SEATS, NOBODY);
        }
        for (seat, owner) in self.seats.iter_mut().enumerate() {
            let stays = self.members.binary_search(owner).is_ok();
            let (best, rivals) = match stays {
                true => (Some(*owner), &joined),
                false => (None, &self.members),
            };
            let all = best.into_iter().chain(rivals.iter().copied());
            *owner = all
                .max_by_key(|number| weight(seat, *number))
                .unwrap_or(NOBODY);
        }
        self.lanes.clear();
        let waiting = self.keys.iter_mut();
        let standing = waiting.filter_map(|(key, state)| {
            state.stands = None;
            state.diverted = None;
            (!state.waiting.is_empty()).then_some(*key)
        });
        let standing: Vec<KeyHash> = standing.collect();
        for key in standing {
            self.arrange(key);
        }
    }

    /// Whom a key goes to.
    pub fn target(&self, key: KeyHash) -> Target {
        let lane = match self.keys.get(&key) {
            Some(state) => self.lane_of(key, state),
            None => self.winner(key),
        };
        match lane {
            NOBODY => Target::Nobody,
            number => Target::Reader(number),
        }
    }

    fn winner(&self, key: KeyHash) -> u32 {
        self.seats.get(seat_of(key)).copied().unwrap_or(NOBODY)
    }

    fn lane_of(&self, key: KeyHash, state: &InFlight) -> u32 {
        if self.is_held_up(state) {
            return NOBODY;
        }
        if let Some(lane) = state.diverted {
            return lane;
        }
        match state.holders[..] {
            [] => self.winner(key),
            [(only, _)] if self.members.binary_search(&only).is_ok() => only,
            _ => NOBODY,
        }
    }

    /// Whether the first message that waits of a key may not go out yet.
    fn is_held_up(&self, state: &InFlight) -> bool {
        let first = state.waiting.first();
        first.is_some_and(|first| self.paused.contains(first))
    }

    /// Whether a message may not go out yet.
    pub fn is_paused(&self, offset: u64) -> bool {
        self.paused.contains(&offset)
    }

    /// A message that waits may not go out before it is resumed, and nothing of its key that is behind it.
    pub fn pause(&mut self, offset: u64) {
        if let Some(&key) = self.of.get(&offset) {
            self.paused.insert(offset);
            self.arrange(key);
        }
    }

    /// It can go out; says whether it was paused.
    pub fn resume(&mut self, offset: u64) -> bool {
        let was = self.paused.remove(&offset);
        if was && let Some(&key) = self.of.get(&offset) {
            self.arrange(key);
        }
        was
    }

    /// How much a reader deserves a key, among several that may have it.
    pub fn claim(key: KeyHash, number: u32) -> u64 {
        weight(seat_of(key), number)
    }

    /// The first message that waits for this reader, and its key.
    pub fn first_for(&self, number: u32) -> Option<(u64, KeyHash)> {
        self.lanes.get(&number)?.first().copied()
    }

    /// The lowest offset that waits.
    pub fn first(&self) -> Option<u64> {
        self.waiting.first().copied()
    }

    /// Forgets what waits behind an offset, and says which these were: it is to be looked at once more, in order.
    pub fn forget_behind(&mut self, offset: u64) -> Vec<u64> {
        let behind: Vec<u64> = self.waiting.range(offset..).copied().collect();
        for offset in &behind {
            let paused = self.paused.contains(offset);
            self.forget(*offset);
            // It will wait once more.
            self.paused.extend(paused.then_some(*offset));
        }
        behind
    }

    /// The lowest offset that waits and that this reader can be handed: nobody else holds its key.
    pub fn first_free(&self, number: u32) -> Option<u64> {
        let states = self.keys.values();
        let free = states.filter(|state| state.free_for(number) && !self.is_held_up(state));
        free.filter_map(|state| state.waiting.first().copied())
            .min()
    }

    /// Whether nobody but this reader holds messages of the key.
    pub fn is_free_for(&self, key: KeyHash, number: u32) -> bool {
        self.keys
            .get(&key)
            .is_none_or(|state| state.free_for(number) && !self.is_held_up(state))
    }

    /// Whether messages of the key are handed out.
    pub fn is_held(&self, key: KeyHash) -> bool {
        self.keys
            .get(&key)
            .is_some_and(|state| !state.holders.is_empty())
    }

    /// Whether messages of the key wait.
    pub fn has_waiting(&self, key: KeyHash) -> bool {
        self.keys
            .get(&key)
            .is_some_and(|state| !state.waiting.is_empty())
    }

    /// The key of an offset that is about to be handed out.
    pub fn know(&mut self, offset: u64, key: KeyHash) {
        self.of.insert(offset, key);
    }

    /// A message waits.
    pub fn wait(&mut self, offset: u64, key: KeyHash) {
        self.of.insert(offset, key);
        self.keys.entry(key).or_default().waiting.insert(offset);
        self.waiting.insert(offset);
        self.arrange(key);
    }

    /// Its reader may not receive the first of a key: it waits for another, or (none) until it is not held any more.
    pub fn divert(&mut self, key: KeyHash, to: Option<u32>) {
        if let Some(state) = self.keys.get_mut(&key) {
            state.diverted = Some(to.unwrap_or(NOBODY));
            self.arrange(key);
        }
    }

    /// An offset is handed out.
    pub fn hold(&mut self, offset: u64, holder: u32) {
        self.paused.remove(&offset);
        let Some(&key) = self.of.get(&offset) else {
            self.unread.insert(offset, holder);
            return;
        };
        let state = self.keys.entry(key).or_default();
        state.waiting.remove(&offset);
        self.waiting.remove(&offset);
        state.diverted = None;
        match state.holders.iter_mut().find(|(by, _)| *by == holder) {
            Some((_, count)) => *count += 1,
            None => state.holders.push((holder, 1)),
        }
        self.arrange(key);
    }

    /// A held offset is not held any more and is done with.
    pub fn leave(&mut self, offset: u64, holder: u32) {
        if self.unread.remove(&offset).is_none()
            && let Some(key) = self.of.remove(&offset)
        {
            self.unhold(key, holder);
        }
    }

    /// A held offset goes back to its place: before the others of its key. Says whether it waits here; else its key
    /// is not known.
    pub fn release(&mut self, offset: u64, holder: u32) -> bool {
        if self.unread.remove(&offset).is_some() {
            return false;
        }
        let Some(&key) = self.of.get(&offset) else {
            return false;
        };
        self.wait(offset, key);
        self.unhold(key, holder);
        true
    }

    fn unhold(&mut self, key: KeyHash, holder: u32) {
        let Some(state) = self.keys.get_mut(&key) else {
            return;
        };
        state.holders.retain(|(by, count)| {
            *count -= u32::from(*by == holder);
            *count > 0
        });
        if state.holders.is_empty() {
            state.diverted = None;
        }
        self.arrange(key);
    }

    /// An offset that is not held does not wait any more.
    pub fn forget(&mut self, offset: u64) {
        self.paused.remove(&offset);
        let Some(key) = self.of.remove(&offset) else {
            return;
        };
        if let Some(state) = self.keys.get_mut(&key) {
            state.waiting.remove(&offset);
            self.waiting.remove(&offset);
            self.arrange(key);
        }
    }

    /// Everything that waits, for a stream that is key-shared no more.
    pub fn into_waiting(self) -> impl Iterator<Item = u64> {
        self.waiting.into_iter()
    }

    /// Puts a key into the lane it belongs in, and forgets one that is not in flight.
    fn arrange(&mut self, key: KeyHash) {
        let Some(state) = self.keys.get(&key) else {
            return;
        };
        let before = state.stands;
        let first = state.waiting.first();
        let after = first.map(|offset| (self.lane_of(key, state), *offset));
        let idle = after.is_none() && state.holders.is_empty();
        if before != after {
            if let Some((lane, offset)) = before
                && let Some(lane) = self.lanes.get_mut(&lane)
            {
                lane.remove(&(offset, key));
            }
            if let Some((lane, offset)) = after {
                self.lanes.entry(lane).or_default().insert((offset, key));
            }
            if let Some(state) = self.keys.get_mut(&key) {
                state.stands = after;
            }
        }
        if idle {
            self.keys.remove(&key);
        }
    }
}

impl InFlight {
    fn free_for(&self, number: u32) -> bool {
        self.holders.iter().all(|(by, _)| *by == number)
    }
}

fn seat_of(key: KeyHash) -> usize {
    (key.0 % SEATS as u64) as usize
}

#[cfg(test)]
mod tests;
