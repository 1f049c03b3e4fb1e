//! Queues with priorities: a stream per level, so that each level keeps its own order, its places and its chunks.
//!
//! The queue's own stream is the highest level; a level below is made when its first message comes, as a stream whose id
//! says what it is a level of ([`StreamId::level`]), so that records and checkpoints treat it as any other. It has the
//! queue's limits and name, but no readers: those of the queue are lent to one level after the other, highest first. What
//! leaves the shard is named by level and place ([`Offset::of_level`]); so a settlement finds its level at once. A queue
//! without priorities has nothing of this.
//!
//! What is too much goes from the front, that is from the highest level that has something ready, as clients of other
//! brokers know it. Each level drops what has ended at its own front.
//!
//! Owns: the list of levels, lending readers, what concerns all levels of a queue.
//! Never: what a level does with one message (`deliver.rs`, `settle.rs`, `limit.rs`).

use super::questions::{no_stream, stat};
use super::seek::place_in;
use super::{Bodies, NotYet, Place, Shard};
use crate::death::DeathReason;
use crate::error::Refusal;
use crate::id::{Now, Offset, StreamId};
use crate::limits::{Mode, StreamLimits};
use crate::port::{SeekTo, ShardReply, StreamStat};
use crate::stream::{Kind, Ranges, Stream, Volume};
use rustc_hash::FxHashMap;

/// The levels below the highest of each queue that has some: rank and place in the shard, by rank.
pub(super) type Levels = FxHashMap<StreamId, Vec<(u8, u32)>>;

impl<B: Place> Shard<B> {
    /// A stream came into the shard.
    pub(super) fn level_came(&mut self, id: StreamId, place: u32) {
        if id.rank() != 0 {
            let list = self.levels.entry(id.whole()).or_default();
            let at = list.partition_point(|(rank, _)| *rank < id.rank());
            list.insert(at, (id.rank(), place));
        }
    }

    /// Removes all levels below the highest; returns how many messages were ready there.
    pub(super) fn remove_levels(&mut self, id: StreamId) -> u64 {
        if self.levels.is_empty() {
            return 0;
        }
        let levels = self.levels.remove(&id).unwrap_or_default();
        let ready = levels.iter().map(|(rank, _)| self.remove(id.level(*rank)));
        ready.map(Option::unwrap_or_default).sum()
    }

    /// Where the level of a queue is that a message of this priority goes to.
    pub(super) fn level_for(&mut self, at: u32, max: u8, priority: u8) -> u32 {
        let rank = max - priority.min(max);
        let Some(queue) = self.streams[at as usize].as_deref().filter(|_| rank != 0) else {
            return at;
        };
        let id = queue.id.level(rank);
        if let Some(place) = self.by_id.get(&id) {
            return *place;
        }
        let limits = StreamLimits::clone(&queue.limits);
        let mut level = Stream::new(id, queue.vhost, Kind::Queue, limits);
        level.name = queue.name.clone();
        self.insert(level)
    }

    /// Lists the queue that a stream is a level of.
    pub(super) fn list_whole(&mut self, id: StreamId) {
        if let Some(&place) = self.by_id.get(&id.whole()) {
            self.list(place);
        }
    }

    fn level_places(&self, id: StreamId) -> impl Iterator<Item = u32> + use<B> {
        let list = self.levels.get(&id).cloned().unwrap_or_default();
        list.into_iter().map(|(_, place)| place)
    }

    pub(super) fn levels_below(&self, id: StreamId) -> impl Iterator<Item = &Stream<B>> {
        let list = self.levels.get(&id).into_iter().flatten();
        list.filter_map(|(_, place)| self.streams[*place as usize].as_deref())
    }

    /// Lends a queue's readers to one level after the other, highest first, as long as `act` says so. The queue's own
    /// stream was taken out.
    fn each_level(
        &mut self,
        queue: &mut Stream<B>,
        mut act: impl FnMut(&mut Shard<B>, &mut Stream<B>) -> bool,
    ) {
        if !act(self, queue) || queue.limits.priority_max.is_none() {
            return;
        }
        for place in self.level_places(queue.id) {
            if !self.lend(queue, place, &mut act) {
                return;
            }
        }
    }

    /// Lends a queue's readers to the level at this place.
    fn lend(
        &mut self,
        queue: &mut Stream<B>,
        place: u32,
        act: impl FnOnce(&mut Shard<B>, &mut Stream<B>) -> bool,
    ) -> bool {
        let Some(mut level) = self.streams[place as usize].take() else {
            return true;
        };
        std::mem::swap(&mut queue.readers, &mut level.readers);
        let more = act(self, &mut level);
        std::mem::swap(&mut queue.readers, &mut level.readers);
        self.streams[place as usize] = Some(level);
        more
    }

    /// The same for a stream that may have levels and is where it belongs.
    pub(super) fn with_levels(
        &mut self,
        id: StreamId,
        act: impl FnMut(&mut Shard<B>, &mut Stream<B>) -> bool,
    ) {
        self.with_stream(id, |shard, queue| shard.each_level(queue, act));
    }

    /// Lends a queue's readers to one of its levels, if there is such a one.
    pub(super) fn with_level(
        &mut self,
        id: StreamId,
        rank: u8,
        act: impl FnOnce(&mut Shard<B>, &mut Stream<B>),
    ) {
        let Some(&place) = self.by_id.get(&id.level(rank)).filter(|_| rank != 0) else {
            return;
        };
        self.with_stream(id, |shard, queue| {
            shard.lend(queue, place, |shard, level| {
                act(shard, level);
                true
            });
        });
    }

    /// Whether something holds of any level of a stream.
    pub(super) fn any_level(&self, id: StreamId, holds: impl Fn(&Stream<B>) -> bool) -> bool {
        let place = self.by_id.get(&id);
        let queue = place.and_then(|place| self.streams[*place as usize].as_deref());
        queue.is_some_and(&holds) || self.levels_below(id).any(holds)
    }

    /// The first that this reader holds of a run of one level, as the outside calls them; the queue's own stream was
    /// taken out.
    pub(super) fn first_held_in(
        &self,
        queue: &Stream<B>,
        (first, last): (Offset, Offset),
        number: u32,
    ) -> Option<Offset> {
        if first.rank() == 0 {
            return queue.first_held((first.0, last.0), number).map(Offset);
        }
        let place = self.by_id.get(&queue.id.level(first.rank()))?;
        let level = self.streams[*place as usize].as_deref()?;
        let held = level.first_held((first.place(), last.place()), number)?;
        Some(level.outside(held))
    }

    /// What is ready in the levels below the highest.
    pub(super) fn ready_below(&self, id: StreamId) -> Volume {
        let mut ready = Volume::default();
        if !self.levels.is_empty() {
            let below = self.levels_below(id);
            below.for_each(|level| ready.replace(Volume::default(), level.ready_volume()));
        }
        ready
    }

    /// Somebody else may be served now.
    pub(super) fn recall_levels(&mut self, id: StreamId) {
        for place in self.level_places(id) {
            if let Some(level) = self.streams[place as usize].as_deref_mut() {
                level.recall_aside();
            }
        }
    }

    /// Other limits for all levels below the highest.
    pub(super) fn limit_levels(&mut self, id: StreamId, limits: &StreamLimits) {
        for place in self.level_places(id) {
            if let Some(level) = self.streams[place as usize].as_deref_mut() {
                level.touch();
                level.limits = limits.clone().into();
            }
        }
    }

    /// Hands out from a queue with priorities, and does what its limits ask.
    pub(super) fn dispatch_levels(
        &mut self,
        now: Now,
        queue: &mut Stream<B>,
        bodies: &mut dyn Bodies<B>,
    ) {
        let ordered = matches!(queue.limits.mode, Mode::Exclusive | Mode::Failover);
        if ordered && queue.readers.elect().is_some_and(|(_, other)| other) {
            queue.recall_aside();
            self.recall_levels(queue.id);
        }
        self.each_level(queue, |shard, level| {
            let paused = shard.dispatch_level(now, level, bodies);
            !paused && level.readers.any_room()
        });
        let mut ready = Volume::default();
        self.each_level(queue, |shard, level| {
            shard.enforce_times(now, level);
            ready.replace(Volume::default(), level.ready_volume());
            true
        });
        if queue.limits.drops_oldest() && queue.is_over(ready) {
            self.each_level(queue, |shard, level| {
                while level.is_over(ready)
                    && let Some(oldest) = level.oldest_ready()
                {
                    let before = level.ready_volume();
                    shard.bury(level, oldest, DeathReason::Overflow);
                    ready.replace(before, level.ready_volume());
                }
                level.is_over(ready)
            });
        }
        self.each_level(queue, |shard, level| {
            shard.arm(level);
            shard.note_cursor(level);
            true
        });
    }

    /// Hands out from one level; whether its next message is on its way, so that no other is to overtake it.
    fn dispatch_level(
        &mut self,
        now: Now,
        level: &mut Stream<B>,
        bodies: &mut dyn Bodies<B>,
    ) -> bool {
        self.unpause(level.id);
        self.dispatch_stream(now, level, bodies);
        self.is_paused(level.id)
    }

    /// Settles everything that can go out of a stream and its levels; returns what that is.
    pub(super) fn leave_ready(&mut self, id: StreamId) -> Ranges {
        let mut all = Ranges::new();
        self.with_levels(id, |_, level| {
            let ranges = level.leave_ready();
            all.extend(outside(level, &ranges));
            true
        });
        all
    }

    /// Ranges as the outside calls them are gone; returns how many messages that were.
    pub(super) fn remove_of_levels(&mut self, id: StreamId, ranges: &[(Offset, Offset)]) -> u64 {
        let by_level = ranges.chunk_by(|one, next| one.0.rank() == next.0.rank());
        let removed = by_level.map(|part| match part[0].0.rank() {
            0 => self.remove_ranges(id, part),
            rank => {
                let inside = |at: Offset| Offset(at.place());
                let part = part.iter();
                let part: Ranges = part
                    .map(|(first, last)| (inside(*first), inside(*last)))
                    .collect();
                self.remove_ranges(id.level(rank), &part)
            }
        });
        removed.sum()
    }

    /// What a stream keeps from a place on, in the order in which it goes out.
    pub(super) fn peek(
        &mut self,
        id: StreamId,
        from: SeekTo,
        count: u32,
        bodies: &mut dyn Bodies<B>,
    ) -> Result<Result<ShardReply, Refusal>, NotYet> {
        if !self.by_id.contains_key(&id) {
            return Ok(Err(no_stream()));
        }
        let mut places = Vec::new();
        let mut known = Ok(());
        self.with_levels(id, |_, level| {
            let left = count as usize - places.len();
            known = place_in(level, from, bodies).map(|from| {
                let present = level.present_from(from).take(left);
                let named =
                    present.map(|(at, tries, entry)| (level.outside(at), tries, entry.body));
                places.extend(named);
            });
            known.is_ok() && places.len() < count as usize
        });
        known?;
        let mut read = Vec::with_capacity(places.len());
        for (offset, tries, body) in places {
            if let Some(message) = bodies.fetch(&body).here()? {
                read.push((offset, tries, message));
            }
        }
        Ok(Ok(ShardReply::Messages(read)))
    }

    /// The counts of a stream, with those of its levels.
    pub(super) fn stat(&self, id: StreamId) -> Option<StreamStat> {
        let place = *self.by_id.get(&id)?;
        let mut all = stat(self.streams[place as usize].as_deref()?);
        for level in self.levels_below(id).map(stat) {
            all.ready += level.ready;
            all.unsettled += level.unsettled;
            all.bytes += level.bytes;
            all.published += level.published;
            all.delivered += level.delivered;
            all.settled += level.settled;
            all.dropped += level.dropped;
            all.dead_lettered += level.dead_lettered;
            all.rejected += level.rejected;
        }
        all.dead_letters_waiting = self.unsent_of(id).entries;
        Some(all)
    }
}

/// Ranges of a level as the outside calls them.
pub(super) fn outside<B: Place>(
    level: &Stream<B>,
    ranges: &[(Offset, Offset)],
) -> impl Iterator<Item = (Offset, Offset)> {
    let named = ranges.iter();
    named.map(|(first, last)| (level.outside(first.0), level.outside(last.0)))
}
