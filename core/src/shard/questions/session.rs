//! Who has which session: claiming a client id, and losing it to another connection.
//!
//! Owns: the leader's memory of owners; whether a session is kept in this shard.
//! Never: what opening one changes on every replica (`shard/apply/session.rs`).
//! Next: `shard/settle.rs`, for the end of a connection.

use crate::error::Refusal;
use crate::id::{ConnectionId, Now, Sequence, StreamId, UnixMs, WorkerId};
use crate::port::{OpenSession, ShardEvent, ShardReply, Ticket};
use crate::record::{Change, Mark};
use crate::shard::{Owner, Place, Shard};
use crate::stream::Stream;

impl<B: Place> Shard<B> {
    pub(in crate::shard) fn session_of(&self, connection: ConnectionId) -> Option<StreamId> {
        self.live.get(&connection).and_then(|live| live.session)
    }

    /// Makes a change of the connection's session, or refuses with `why` when it has none.
    pub(super) fn change_own(
        &mut self,
        now: Now,
        mark: Mark,
        connection: ConnectionId,
        why: fn() -> Refusal,
        change: impl FnOnce(StreamId) -> Change,
    ) {
        match self.session_of(connection) {
            Some(stream) => self.change(now.unix, mark, change(stream)),
            None => self.answer_result(mark, Err(why())),
        }
    }

    pub(super) fn open_session(
        &mut self,
        now: Now,
        from: WorkerId,
        ticket: Ticket,
        open: OpenSession,
    ) {
        let connection = open.consumer.connection;
        let name = (open.vhost, open.client_id.clone());
        let before = self.owners.insert(name.clone(), Owner { connection });
        if let Some(before) = before.filter(|before| before.connection != connection) {
            self.outbox.event(
                before.connection.worker(),
                ShardEvent::Displaced {
                    connection: before.connection,
                },
            );
            self.displace(now.unix, before.connection);
        }
        self.live.entry(connection).or_default().owns = Some(name.clone());
        let known = self.session_place(open.vhost, &open.client_id);
        let exists = known.is_some();
        let keep = open.here || open.expiry_s > 0 || (exists && !open.clean_start);
        if !keep {
            // An earlier one is forgotten; the worker opens the new one in its own shard.
            let stream = known.and_then(|place| self.streams[place as usize].as_deref());
            if let Some(stream) = stream.map(|stream| stream.id) {
                self.change(now.unix, Mark::default(), Change::EndSession { stream });
            }
            return self.reply(
                from,
                ticket,
                Ok(ShardReply::Session {
                    present: false,
                    stream: None,
                    filters: Vec::new(),
                    groups: Vec::new(),
                }),
            );
        }
        let mark = Mark {
            lane: self.lane(from),
            sequence: Sequence(ticket),
        };
        let (vhost, client_id) = (open.vhost, open.client_id.clone());
        let (clean_start, expiry_s) = (open.clean_start, open.expiry_s);
        let change = match open.will.clone().filter(|_| !open.here) {
            None => Change::OpenSession {
                vhost,
                client_id,
                clean_start,
                expiry_s,
            },
            Some(will) => Change::OpenSessionWith {
                vhost,
                client_id,
                clean_start,
                expiry_s,
                will,
            },
        };
        self.asked.insert((from, ticket), open);
        self.change(now.unix, mark, change);
    }

    /// An old connection of a client loses its session: what it holds goes back, it gets nothing more.
    fn displace(&mut self, now: UnixMs, connection: ConnectionId) {
        self.asked
            .retain(|_, open| open.consumer.connection != connection);
        let Some(live) = self.live.remove(&connection) else {
            return;
        };
        let mut read: Vec<StreamId> = Vec::with_capacity(live.readers.len());
        for (id, key) in live.readers {
            self.detach(id, key, true);
            read.push(id);
        }
        // When it is gone, nothing is known here any more of what it read.
        self.leave_groups(now, connection, &read);
        if let Some(session) = live
            .session
            .and_then(|id| self.stream_mut(id))
            .and_then(Stream::session_mut)
        {
            session.live = None;
        }
    }
}
