//! Handing out: from streams that have something to readers that have room.
//!
//! Owns: the loop over listed streams, expiry at the head, the right to receive asked again at delivery.
//! Never: what a settled or lost message does afterwards (`shard/settle.rs`, `shard/forward.rs`).
//! Next: `dispatch.rs` (the choice), `stream.rs` (the states).

use crate::address::{Address, TopicFilter};
use crate::authority::{Action, Circumstances, Principal, Question, Resource};
use crate::death::DeathReason;
use crate::dispatch::{Choice, Reader, travel_units};
use crate::gateway::Delivery;
use crate::id::{Now, Offset, StreamId, UnixMs};
use crate::limits::Mode;
use crate::message::{Message, Quality};
use crate::shard::{Bodies, CACHE_ENTRIES_MAX, Fetched, Place, Shard, Store, Withheld};
use crate::stream::{Entry, Stream};
use bytes::Bytes;
use std::sync::Arc;

impl<B: Place> Shard<B> {
    /// Hands out whatever can be, from every stream that changed since the last call.
    pub fn dispatch(&mut self, now: Now, bodies: &mut dyn Bodies<B>)
    where
        Self: Store<B>,
    {
        self.now = now;
        if self.authority.generation() != self.verdict_generation {
            self.renew_rights();
        }
        let mut listed = std::mem::take(&mut self.list);
        self.unfinished = false;
        for place in listed.drain(..) {
            let Some(mut stream) = self.streams[place as usize].take() else {
                continue;
            };
            stream.listed = false;
            if stream.replays() {
                let more =
                    self.dispatch_replay(&mut stream, bodies) | self.retain(now, &mut stream);
                self.streams[place as usize] = Some(stream);
                if more {
                    self.unfinished = true;
                    self.list(place);
                }
                continue;
            }
            if stream.limits.priority_max.is_some() {
                self.dispatch_levels(now, &mut stream, bodies);
            } else {
                self.dispatch_stream(now, &mut stream, bodies);
                if stream.session().is_none() {
                    self.enforce(now, &mut stream);
                }
                self.note_cursor(&stream);
            }
            self.streams[place as usize] = Some(stream);
        }
        self.take_waiting();
        self.send_forwards(now, bodies);
        if !self.reads.is_empty() {
            self.answer_reads(now.unix);
        }
        self.answer_pages();
        self.tell_partings();
        self.unfinished |= self.free_ended();
        self.plan(now);
        self.delays.plan(now);
        if !self.settles.is_empty() {
            self.settles_since.get_or_insert(now.monotonic);
        }
        self.block_or_resume();
        // Nothing is listed while handing out, so the buffer can be kept.
        if self.list.is_empty() {
            self.list = listed;
        }
    }

    /// What was handed out is to be known after a crash: with the next frame.
    pub(super) fn note_cursor(&mut self, stream: &Stream<B>) {
        if self.journalled() && stream.cursor() > stream.cursor_known {
            self.settles.entry(stream.id).or_default();
        }
    }

    pub(super) fn dispatch_stream(
        &mut self,
        now: Now,
        stream: &mut Stream<B>,
        bodies: &mut dyn Bodies<B>,
    ) {
        if stream.next_owed().is_some() && !self.hand_out_owed(stream) {
            return;
        }
        let only = match stream.limits.mode {
            Mode::Shared => None,
            Mode::Exclusive | Mode::Failover => match self.elect(stream) {
                Some(place) => Some(place),
                None => return,
            },
            Mode::KeyShared => return self.dispatch_keyed(now, stream, bodies),
            // Each reader by itself (`replay.rs`).
            Mode::Replay => return,
        };
        while let Some(offset) = stream.next() {
            let room = match only {
                None => stream.readers.any_room(),
                Some(place) => stream.readers.get(place).is_some_and(Reader::has_room),
            };
            if !room {
                break;
            }
            // One whose block is damaged must not hold up those behind it; it stays, for whoever can mend it.
            let Some(entry) = stream.entry(offset) else {
                stream.set_aside(offset);
                continue;
            };
            // What ended before it could be handed out has its one chance.
            let over = ended(&entry, now.unix);
            if over && (offset < stream.bounds.seen || stream.session().is_some()) {
                self.end_message(stream, offset);
                continue;
            }
            let message = match bodies.fetch(&entry.body) {
                Fetched::Here(message) => message,
                // Nothing of the stream overtakes it.
                Fetched::Later => return self.pause(stream.id),
                // So with one whose record is damaged.
                Fetched::Lost => {
                    stream.set_aside(offset);
                    continue;
                }
            };
            match self.choose(stream, only, &entry, &message) {
                Choice::Reader(place) => self.hand_out(stream, place, offset, &entry, message),
                Choice::NoRoom | Choice::Nobody if over => self.end_message(stream, offset),
                Choice::NoRoom => break,
                Choice::Nobody => self.nobody_may(stream, offset, &entry, &message),
            }
        }
        if stream.session().is_some() && stream.has_next() {
            self.pass_blocked(now, stream, bodies);
        }
    }

    /// A session whose reader has no credit left still gets what need not be settled.
    fn pass_blocked(&mut self, now: Now, stream: &mut Stream<B>, bodies: &mut dyn Bodies<B>) {
        let mut from = stream.cursor();
        while let Some(offset) = stream.next_unsettled_free(from) {
            from = offset + 1;
            if !stream
                .readers
                .at(0)
                .is_some_and(|reader| reader.can_travel())
            {
                break;
            }
            let Some(entry) = stream.entry(offset) else {
                stream.set_aside(offset);
                continue;
            };
            if ended(&entry, now.unix) {
                self.drop_message(stream, offset);
                continue;
            }
            let message = match bodies.fetch(&entry.body) {
                Fetched::Here(message) => message,
                Fetched::Later => return self.pause(stream.id),
                Fetched::Lost => {
                    stream.set_aside(offset);
                    continue;
                }
            };
            let unwanted = stream.readers.at(0).is_none_or(|reader| {
                let own = entry.no_local && message.publisher == reader.key.connection;
                let (principal, vhost, all) = (
                    reader.principal.clone(),
                    reader.vhost.clone(),
                    reader.receives_all,
                );
                own || !(all || self.may_receive(&principal, &vhost, &message.address))
            });
            match unwanted {
                true => self.drop_message(stream, offset),
                false => self.hand_out(stream, 0, offset, &entry, message),
            }
        }
    }

    /// No reader that comes into question may receive a message.
    pub(super) fn nobody_may(
        &mut self,
        stream: &mut Stream<B>,
        offset: u64,
        entry: &Entry<B>,
        message: &Message,
    ) {
        let denied = stream
            .readers
            .iter()
            .find(|reader| entry.by_topic && reader.attached && !reader.receives_all);
        if let Some(principal) = denied.map(|reader| reader.principal.clone()) {
            self.withhold(&principal, &message.address);
        }
        // A session's only reader will never get it; a queue or group may have others later.
        match stream.session() {
            None => stream.set_aside(offset),
            Some(_) => self.drop_message(stream, offset),
        }
    }

    /// Notes that somebody may not receive a message that was meant for it.
    pub(super) fn withhold(&mut self, from: &Principal, address: &Address) {
        let withheld = self.withheld.get_or_insert_with(|| Withheld {
            count: 0,
            user: from.user.clone(),
            address: Address(Bytes::copy_from_slice(&address.0)),
        });
        withheld.count += 1;
    }

    /// A message's time is over.
    pub(super) fn end_message(&mut self, stream: &mut Stream<B>, offset: u64) {
        self.bury(stream, offset, DeathReason::Expired);
    }

    pub(super) fn drop_message(&mut self, stream: &mut Stream<B>, offset: u64) {
        stream.tally.dropped += 1;
        self.dismiss(stream, offset);
    }

    /// Among all readers, or whether this one can be handed it.
    fn choose(
        &mut self,
        stream: &mut Stream<B>,
        only: Option<usize>,
        entry: &Entry<B>,
        message: &Message,
    ) -> Choice {
        let may = |reader: &Reader| self.may_take(reader, entry, message);
        match only {
            None => stream.readers.choose(may),
            Some(place) => stream.readers.choose_only(place, may),
        }
    }

    /// Whether a reader may be handed a message at all.
    pub(super) fn may_take(
        &mut self,
        reader: &Reader,
        entry: &Entry<B>,
        message: &Message,
    ) -> bool {
        if reader.is_own(message) || (entry.no_local && message.publisher == reader.key.connection)
        {
            return false;
        }
        !entry.by_topic
            || reader.receives_all
            || self.may_receive(&reader.principal, &reader.vhost, &message.address)
    }

    pub(super) fn hand_out(
        &mut self,
        stream: &mut Stream<B>,
        place: usize,
        offset: u64,
        entry: &Entry<B>,
        message: Arc<Message>,
    ) {
        let session = stream.session().is_some();
        let Some(reader) = stream.readers.at(place) else {
            return;
        };
        let (quality, identifier, retain) = match &reader.member {
            None => (entry.quality, entry.identifier, entry.retain),
            Some(member) => (
                entry.quality.min(member.quality),
                member.identifier,
                member.retain_as_published && message.retain,
            ),
        };
        let settles = session || reader.member.is_some();
        let presettled = reader.presettled || (settles && quality == Quality::AtMostOnce);
        reader.travelling += travel_units(entry.cost_bytes as usize);
        let (key, number) = (reader.key, reader.number);
        let attempt = if presettled {
            let attempt = stream.attempts(offset) + 1;
            stream.tally.delivered += 1;
            stream.tally.settled += 1;
            self.dismiss(stream, offset);
            attempt
        } else {
            reader.held += 1;
            let outside = Offset::of_level(stream.id.rank(), offset);
            let unsettled = reader.unsettled.as_deref_mut();
            let noted = unsettled.is_some_and(|unsettled| unsettled.note_watched(outside.0));
            let attempt = stream.hold_entry(offset, number, entry.body_bytes);
            if !noted {
                self.note_unsettled(stream, place, offset);
            }
            attempt
        };
        let delivery = Delivery {
            consumer: key.tag,
            offset: stream.outside(offset),
            attempt,
            quality,
            retain,
            identifier,
            more_identifiers: entry.more_identifiers.clone(),
            received: false,
            message,
        };
        self.outbox.deliver(key.connection, delivery);
    }

    /// Drops what has ended at the head of a stream, so that counts tell what is there.
    pub(crate) fn drop_expired(&mut self, now: UnixMs, id: StreamId) {
        self.with_levels(id, |shard, stream| {
            shard.bury_ended_first(now, stream);
            true
        });
    }

    /// Whether this principal may be handed messages of this address.
    pub(crate) fn may_receive(
        &mut self,
        principal: &Principal,
        vhost: &str,
        address: &Address,
    ) -> bool {
        let cached = !self.authority.circumstantial(Action::Receive);
        let key = (principal.id, address.clone());
        if cached && let Some(known) = self.verdicts.get(&key) {
            return *known;
        }
        let question = Question {
            principal,
            action: Action::Receive,
            vhost,
            resource: Resource::Topic(address),
            circumstances: Circumstances::default(),
        };
        let allowed = self.authority.decide(&question).allowed;
        if cached {
            if self.verdicts.len() >= CACHE_ENTRIES_MAX {
                self.verdicts.clear();
            }
            // The key must not keep a read buffer alive.
            self.verdicts.insert(
                (principal.id, Address(Bytes::copy_from_slice(&address.0))),
                allowed,
            );
        }
        allowed
    }

    /// Whether it may receive every address, so that single messages need not be asked about.
    pub(crate) fn receives_all(&self, principal: &Principal, vhost: &str) -> bool {
        let every = TopicFilter(Bytes::from_static(crate::address::MANY));
        let question = Question {
            principal,
            action: Action::Receive,
            vhost,
            resource: Resource::Filter(&every),
            circumstances: Circumstances::default(),
        };
        !self.authority.circumstantial(Action::Receive) && self.authority.decide(&question).allowed
    }

    /// The rules changed: what was remembered is void, what was set aside is tried again.
    pub(crate) fn renew_rights(&mut self) {
        self.verdict_generation = self.authority.generation();
        self.verdicts.clear();
        for place in 0..self.streams.len() {
            let Some(mut stream) = self.streams[place].take() else {
                continue;
            };
            for reader in stream.readers.iter_mut() {
                reader.receives_all = self.receives_all(&reader.principal, &reader.vhost);
            }
            stream.recall_aside();
            let more = stream.has_next();
            self.streams[place] = Some(stream);
            if more {
                self.list(place as u32);
            }
        }
    }
}

pub(super) fn ended<B>(entry: &Entry<B>, now: UnixMs) -> bool {
    entry.expires.0 != 0 && entry.expires <= now
}
