//! What happens to what was handed out: settled, released, or left behind by a connection that is gone.
//!
//! Owns: settlements, detaching, the end of a connection as a shard sees it.
//! Never: hands out (`deliver.rs`).
//! Next: `frame.rs`, which writes settlements into the journal.

use super::{Place, Shard};
use crate::death::DeathReason;
use crate::gateway::Outcome;
use crate::id::{ConnectionId, Now, Offset, StreamId, UnixMs};
use crate::port::{ConsumerKey, ShardEvent};
use crate::record::{Change, Mark};
use crate::stream::{Ranges, Stream, extend, extend_by};

impl<B: Place> Shard<B> {
    /// One settled offset: at once where nothing is journalled, else by the next frame.
    pub(crate) fn dismiss(&mut self, stream: &mut Stream<B>, offset: u64) {
        if self.journalled() {
            stream.leave(offset);
            extend(self.settles.entry(stream.id).or_default(), offset);
        } else {
            let before = stream.kept();
            stream.remove(offset);
            self.account(stream.is_queue(), before, stream.kept());
        }
    }

    pub(super) fn settle(
        &mut self,
        now: Now,
        key: ConsumerKey,
        id: StreamId,
        first: Offset,
        last: Offset,
        outcome: Outcome,
    ) {
        let Some(&place) = self.by_id.get(&id) else {
            return;
        };
        if first.rank() != 0 {
            self.settles_since.get_or_insert(now.monotonic);
            let range = (first.place(), last.place());
            self.with_level(id, first.rank(), |shard, level| {
                shard.settle_held(level, key, range, outcome);
            });
            return self.list(place);
        }
        let Some(mut stream) = self.streams[place as usize].take() else {
            return;
        };
        if stream.replays() {
            Self::settle_replayed(&mut stream, key, (first, last), outcome);
            self.streams[place as usize] = Some(stream);
            return self.list(place);
        }
        self.settle_held(&mut stream, key, (first.0, last.0), outcome);
        self.settles_since.get_or_insert(now.monotonic);
        let more = stream.has_next();
        self.streams[place as usize] = Some(stream);
        if more {
            self.list(place);
        }
    }

    /// [`Shard::dismiss`] for all that a reader holds of a range; says how much that was.
    fn dismiss_held(&mut self, stream: &mut Stream<B>, range: (u64, u64), number: u32) -> u32 {
        let count = if self.journalled() {
            let mut left = Ranges::new();
            let count = stream.leave_held(range, number, &mut left);
            if count > 0 {
                extend_by(self.settles.entry(stream.id).or_default(), &left);
            }
            count
        } else {
            let before = stream.kept();
            let count = stream.remove_held(range, number);
            self.account(stream.is_queue(), before, stream.kept());
            count
        };
        stream.tally.settled += count;
        count as u32
    }

    /// What a reader holds of a stream in a range is settled.
    fn settle_held(
        &mut self,
        stream: &mut Stream<B>,
        key: ConsumerKey,
        (first, last): (u64, u64),
        outcome: Outcome,
    ) {
        let known = stream.readers.find(key).map(|reader| {
            reader.silent = false;
            // What a reader leaves behind that was detached is ready at once. One that takes single messages is never
            // attached and has no credit.
            (reader.number, reader.attached || reader.credit == 0)
        });
        if let Some((number, waits)) = known {
            let mut count = 0;
            let top = last.min(stream.end().saturating_sub(1));
            let at_once = outcome == Outcome::Accepted && stream.takes_runs();
            if at_once {
                count = self.dismiss_held(stream, (first, last), number);
            }
            for offset in (first..=top).take_while(|_| !at_once) {
                if !stream.is_held_by(offset, number) {
                    continue;
                }
                count += 1;
                match outcome {
                    Outcome::Released => self.give_back(stream, offset, waits),
                    Outcome::Accepted => {
                        stream.tally.settled += 1;
                        self.dismiss(stream, offset);
                    }
                    Outcome::Rejected => {
                        self.bury(stream, offset, DeathReason::Rejected);
                    }
                }
            }
            let spent = stream.readers.find(key).is_some_and(|reader| {
                reader.held = reader.held.saturating_sub(count);
                !reader.attached && reader.held == 0
            });
            if spent {
                stream.readers.remove(key);
                if let Some(live) = self.live.get_mut(&key.connection) {
                    live.readers.retain(|(_, held)| *held != key);
                }
            }
        }
    }

    /// What only the leader knows to be out of the stream's hands: with a reader, or on its way out.
    pub(super) fn out_offsets(&mut self, id: StreamId) -> Vec<Offset> {
        let mut all = Vec::new();
        self.with_levels(id, |_, level| {
            let out = level.out_offsets().into_iter();
            all.extend(out.map(|offset| level.outside(offset.0)));
            true
        });
        all
    }

    pub(super) fn gone(&mut self, now: Now, connection: ConnectionId) {
        self.watches.close_all(connection, None);
        self.forget_questions(connection);
        self.asked
            .retain(|_, open| open.consumer.connection != connection);
        let Some(live) = self.live.remove(&connection) else {
            self.leave_groups(now.unix, connection, &[]);
            return;
        };
        let mut read: Vec<StreamId> = Vec::with_capacity(live.readers.len());
        for (id, key) in live.readers {
            self.detach(id, key, true);
            read.push(id);
        }
        self.leave_groups(now.unix, connection, &read);
        if let Some(owned) = live.owns
            && self
                .owners
                .get(&owned)
                .is_some_and(|owner| owner.connection == connection)
        {
            self.owners.remove(&owned);
        }
        if let Some(id) = live.session {
            self.close_session(now.unix, id, Some(connection));
        }
    }

    /// A session's connection ended: it expires from now on, or ends at once.
    /// Not while another connection than this one has it.
    pub(crate) fn close_session(
        &mut self,
        now: UnixMs,
        id: StreamId,
        connection: Option<ConnectionId>,
    ) {
        let Some(session) = self.stream_mut(id).and_then(Stream::session_mut) else {
            return;
        };
        if session.live.is_some() && session.live != connection {
            return;
        }
        session.live = None;
        let change = match session.expiry_s {
            0 => Change::EndSession { stream: id },
            _ => Change::CloseSession { stream: id },
        };
        self.change(now, Mark::default(), change);
    }

    /// Takes a reader off; with `all` what it holds goes back too.
    pub(super) fn detach(&mut self, id: StreamId, key: ConsumerKey, all: bool) {
        let Some(&place) = self.by_id.get(&id) else {
            return;
        };
        self.used(id);
        if all {
            self.give_all_back(id, key);
        }
        let Some(stream) = self.streams[place as usize].as_deref_mut() else {
            return;
        };
        let Some(reader) = stream.readers.find(key) else {
            return;
        };
        let was_attached = std::mem::replace(&mut reader.attached, false);
        // Where messages stay, what it holds is nobody's business when it is gone.
        let holds = reader.held > 0 && reader.cursor.is_none();
        if all || !holds {
            stream.readers.remove(key);
        }
        let unused = was_attached && stream.limits.auto_delete && stream.readers.attached() == 0;
        let more = stream.has_next();
        if more {
            self.list(place);
        }
        if unused {
            self.outbox
                .event(key.connection.worker(), ShardEvent::Unused { stream: id });
        }
    }
}
