//! What a shard is asked and answers itself, or makes a change of.
//!
//! Owns: the first step of each [`Question`]; attaching readers, taking one message, claiming a client id.
//! Never: what a committed change does (`apply.rs`).

use super::values::PageOf;
use super::{Bodies, Owner, Place, Shard, Store};
use crate::authority::Principal;
use crate::dispatch::Reader;
use crate::error::{ErrorKind, Refusal};
use crate::gateway::Delivery;
use crate::id::{ConnectionId, Now, Offset, Sequence, StreamId, WorkerId};
use crate::limits::Mode;
use crate::port::{
    Attach, ConsumerKey, OpenSession, Question, ReadingKey, ShardEvent, ShardReply, StreamStat,
    Ticket,
};
use crate::record::{AsJson, Change, Mark};
use crate::stream::Stream;
use std::sync::Arc;

impl<B: Place> Shard<B> {
    pub(super) fn ask(
        &mut self,
        now: Now,
        from: WorkerId,
        ticket: Ticket,
        question: Question,
        bodies: &mut dyn Bodies<B>,
    ) where
        Self: Store<B>,
    {
        let mark = Mark {
            lane: self.lane(from),
            sequence: Sequence(ticket),
        };
        let result = match question {
            Question::CreateStream {
                stream,
                vhost,
                name,
                limits,
            } => {
                let limits = AsJson(limits);
                let change = Change::CreateStreamWith {
                    stream,
                    vhost,
                    name,
                    limits,
                };
                return self.change(now.unix, mark, change);
            }
            Question::DeleteStream {
                stream,
                if_unused,
                if_empty,
            } => {
                let used = self
                    .stream_mut(stream)
                    .is_some_and(|stream| stream.readers.attached() > 0);
                if !(if_unused && used) {
                    // What is handed out does not count; only the leader knows what that is.
                    let only_if = if_empty.then(|| self.out_offsets(stream));
                    let change = Change::DeleteStream { stream, only_if };
                    return self.change(now.unix, mark, change);
                }
                Err(Refusal::new(ErrorKind::InUse, "the queue has consumers"))
            }
            Question::Purge { stream: id } => match self.stream_mut(id) {
                Some(stream) => {
                    let ranges = stream.leave_ready();
                    return self.change(now.unix, mark, Change::Purge { stream: id, ranges });
                }
                None => Err(no_stream()),
            },
            Question::Declared { stream } => {
                self.used(stream);
                return self.ask(now, from, ticket, Question::Stat { stream }, bodies);
            }
            Question::SetLimits { stream, limits } => {
                let limits = AsJson(limits);
                return self.change(now.unix, mark, Change::SetLimits { stream, limits });
            }
            Question::Seek { stream, to } => match self.seek(stream, to, bodies) {
                Ok(ranges) => {
                    return self.change(now.unix, mark, Change::Purge { stream, ranges });
                }
                Err(why) => Err(why),
            },
            Question::Stat { stream } => {
                self.drop_expired(now.unix, stream);
                match self.stream_mut(stream) {
                    Some(stream) => Ok(ShardReply::Stat(Box::new(stat(stream)))),
                    None => Err(no_stream()),
                }
            }
            Question::StatAll => {
                let all = self
                    .streams
                    .iter()
                    .flatten()
                    .map(|stream| stat(stream))
                    .collect();
                Ok(ShardReply::Stats(all))
            }
            Question::Peek {
                stream,
                from,
                count,
            } => match self.stream_mut(stream) {
                Some(stream) => {
                    let places: Vec<_> = stream
                        .present_from(from.0)
                        .take(count as usize)
                        .map(|(offset, tries, entry)| (offset, tries, entry.body.clone()))
                        .collect();
                    let read = places.iter().filter_map(|(offset, tries, body)| {
                        Some((Offset(*offset), *tries, bodies.fetch(body)?))
                    });
                    Ok(ShardReply::Messages(read.collect()))
                }
                None => Err(no_stream()),
            },
            Question::Attach(attach) => self.attach(attach).map(|()| ShardReply::Done),
            Question::Detach { consumer, stream } => {
                self.detach(stream, consumer, false);
                self.outbox.settle_order(consumer.connection);
                Ok(ShardReply::Done)
            }
            Question::Get {
                stream,
                consumer,
                principal,
                vhost,
                presettled,
            } => {
                self.drop_expired(now.unix, stream);
                self.used(stream);
                let who = (consumer, principal, vhost);
                self.get(now, stream, who, presettled, bodies)
            }
            Question::OpenSession(open) => return self.open_session(now, from, ticket, open),
            Question::SessionExpiry {
                connection,
                expiry_s,
            } => match self.session_of(connection) {
                Some(stream) => {
                    return self.change(now.unix, mark, Change::SessionExpiry { stream, expiry_s });
                }
                None => Err(no_session()),
            },
            Question::Subscribe {
                connection,
                filters,
                readings,
            } => match self.session_of(connection) {
                Some(stream) => {
                    let vhost = self.stream_mut(stream).map(|stream| stream.vhost);
                    for (number, filter) in readings {
                        let key = ReadingKey { connection, number };
                        let vhost = vhost.unwrap_or_default();
                        self.watches.open(key, vhost, &filter, None);
                    }
                    return self.change(now.unix, mark, Change::Subscribe { stream, filters });
                }
                None => Err(no_session()),
            },
            Question::Unsubscribe {
                connection,
                filters,
            } => match self.session_of(connection) {
                Some(stream) => {
                    for filter in &filters {
                        self.watches.close_all(connection, Some(filter));
                    }
                    return self.change(now.unix, mark, Change::Unsubscribe { stream, filters });
                }
                None => Err(no_session()),
            },
            Question::DropWill { connection } => match self.session_of(connection) {
                Some(stream) => {
                    return self.change(now.unix, mark, Change::DropWill { stream });
                }
                None => Err(no_session()),
            },
            Question::Take { connection, key } => match self.session_of(connection) {
                Some(stream) => {
                    return self.change(now.unix, mark, Change::Taken { stream, key });
                }
                None => Err(taken_over()),
            },
            Question::Forget { connection, key } => match self.session_of(connection) {
                Some(stream) => {
                    return self.change(now.unix, mark, Change::Forgotten { stream, key });
                }
                None => Err(taken_over()),
            },
            Question::Receive {
                consumer,
                stream,
                offset,
            } => match self.receive(from, ticket, consumer, stream, offset) {
                Some(result) => result,
                None => return,
            },
            Question::DeleteSession { vhost, client_id } => {
                let found = self.sessions.get(&(vhost, client_id)).copied();
                match found.and_then(|place| self.streams[place as usize].as_deref()) {
                    Some(stream)
                        if stream
                            .session()
                            .is_some_and(|session| session.live.is_none()) =>
                    {
                        let change = Change::EndSession { stream: stream.id };
                        return self.change(now.unix, mark, change);
                    }
                    Some(_) => Err(Refusal::new(
                        ErrorKind::InUse,
                        "the session has a live connection",
                    )),
                    None => Ok(ShardReply::Count(0)),
                }
            }
            Question::Values {
                vhost,
                filter,
                hides_system,
                after,
                count,
            } => {
                let of = PageOf {
                    vhost,
                    filter,
                    hides_system,
                    after,
                    count: count.max(1) as usize,
                };
                return self.read_values(from, ticket, of);
            }
            Question::ValueCounts => {
                let kept = self.values.kept();
                Ok(ShardReply::ValueCounts {
                    values: kept.entries,
                    bytes: kept.bytes,
                })
            }
            Question::DropValue { vhost, address } => {
                return self.change(now.unix, mark, Change::DropValue { vhost, address });
            }
            Question::Watch {
                reading,
                vhost,
                filter,
                queue,
            } => {
                self.watches.open(reading, vhost, &filter, Some(queue));
                Ok(ShardReply::Done)
            }
            Question::HandIn(hand_in) => return self.hand_in(from, ticket, *hand_in),
            Question::JoinGroup(join) => return self.join_group(now, from, ticket, *join),
            Question::LeaveGroup {
                group,
                member,
                connection,
            } => return self.leave_group(now, mark, group, (member, connection)),
            Question::RetireGroup { group } => {
                self.retire_group(&group);
                Ok(ShardReply::Done)
            }
            Question::Membership {
                connection,
                name,
                filter,
                spec,
            } => match self.session_of(connection) {
                Some(stream) => {
                    let change = Change::Membership {
                        stream,
                        name,
                        filter,
                        spec,
                    };
                    return self.change(now.unix, mark, change);
                }
                None => Err(no_session()),
            },
            Question::Parted { number } => {
                return self.change(now.unix, mark, Change::Parted { number });
            }
            Question::Groups => Ok(ShardReply::Groups(self.group_stats())),
            Question::Flush => match self.journalled() {
                // Nobody routes here.
                true => Ok(ShardReply::Done),
                false => return self.flushes.push((from, ticket)),
            },
        };
        self.reply(from, ticket, result);
    }

    pub(super) fn session_of(&self, connection: ConnectionId) -> Option<StreamId> {
        self.live.get(&connection).and_then(|live| live.session)
    }

    fn attach(&mut self, attach: Attach) -> Result<(), Refusal> {
        self.used(attach.stream);
        let receives_all = self.receives_all(&attach.principal, &attach.vhost);
        let stream = self.stream_mut(attach.stream).ok_or_else(no_stream)?;
        let others = stream.readers.attached() > 0;
        let alone = attach.exclusive || stream.limits.mode == Mode::Exclusive;
        if stream.readers.exclusive() || (alone && others) {
            return Err(Refusal::new(
                ErrorKind::SecondConsumer,
                "the queue has a consumer, and one of the two or the queue is exclusive",
            ));
        }
        stream.readers.add(Reader {
            number: 0,
            key: attach.consumer,
            principal: attach.principal,
            vhost: attach.vhost,
            presettled: attach.presettled,
            exclusive: attach.exclusive,
            no_local: attach.no_local,
            priority: attach.priority,
            credit: attach.credit,
            held: 0,
            travelling: 0,
            attached: true,
            receives_all,
            member: None,
        });
        stream.recall_aside();
        let live = self.live.entry(attach.consumer.connection).or_default();
        live.readers.push((attach.stream, attach.consumer));
        if let Some(&place) = self.by_id.get(&attach.stream) {
            self.list(place);
        }
        Ok(())
    }

    fn get(
        &mut self,
        now: Now,
        id: StreamId,
        (key, principal, vhost): (ConsumerKey, Arc<Principal>, Arc<str>),
        presettled: bool,
        bodies: &mut dyn Bodies<B>,
    ) -> Result<ShardReply, Refusal> {
        let receives_all = self.receives_all(&principal, &vhost);
        let place = *self.by_id.get(&id).ok_or_else(no_stream)?;
        let mut stream = self.streams[place as usize].take().ok_or_else(no_stream)?;
        let mut got = None;
        while let Some(offset) = self.next_single(now, &mut stream, key, bodies) {
            let Some(entry) = stream.entry(offset).cloned() else {
                break;
            };
            let Some(message) = bodies.fetch(&entry.body) else {
                stream.set_aside(offset);
                continue;
            };
            if entry.by_topic
                && !receives_all
                && !self.may_receive(&principal, &vhost, &message.address)
            {
                self.withhold(&principal, &message.address);
                stream.set_aside(offset);
                continue;
            }
            let delivery = |attempt| Delivery {
                consumer: key.tag,
                offset: Offset(offset),
                attempt,
                quality: entry.quality,
                retain: entry.retain,
                identifier: entry.identifier,
                more_identifiers: entry.more_identifiers.clone(),
                received: false,
                message: message.clone(),
            };
            if presettled {
                let attempt = stream.attempts(offset) + 1;
                stream.tally.delivered += 1;
                stream.tally.settled += 1;
                self.dismiss(&mut stream, offset);
                got = Some(delivery(attempt));
            } else {
                if stream.readers.find(key).is_none() {
                    stream.readers.add(holder(key, principal, vhost));
                    self.live
                        .entry(key.connection)
                        .or_default()
                        .readers
                        .push((id, key));
                }
                let number = stream.readers.find(key).map_or(0, |reader| {
                    reader.held += 1;
                    reader.number
                });
                got = Some(delivery(stream.hold(offset, number)));
            }
            break;
        }
        stream.recall_aside();
        let ready = stream.ready();
        self.note_cursor(&stream);
        self.streams[place as usize] = Some(stream);
        Ok(ShardReply::Got(got, ready))
    }

    fn open_session(&mut self, now: Now, from: WorkerId, ticket: Ticket, open: OpenSession) {
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
            self.displace(before.connection);
        }
        self.live.entry(connection).or_default().owns = Some(name.clone());
        let exists = self.sessions.contains_key(&name);
        let keep = open.here || open.expiry_s > 0 || (exists && !open.clean_start);
        if !keep && !exists {
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
        if keep {
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
        } else if let Some(stream) = self
            .sessions
            .get(&name)
            .and_then(|place| self.streams[*place as usize].as_deref())
        {
            let id = stream.id;
            self.change(now.unix, Mark::default(), Change::EndSession { stream: id });
            self.reply(
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
    }

    /// An old connection of a client loses its session: what it holds goes back, it gets nothing more.
    fn displace(&mut self, connection: ConnectionId) {
        self.asked
            .retain(|_, open| open.consumer.connection != connection);
        let Some(live) = self.live.remove(&connection) else {
            return;
        };
        for (id, key) in live.readers {
            self.detach(id, key, true);
        }
        if let Some(session) = live
            .session
            .and_then(|id| self.stream_mut(id))
            .and_then(Stream::session_mut)
        {
            session.live = None;
        }
    }
}

pub(super) fn no_stream() -> Refusal {
    Refusal::new(ErrorKind::NotFound, "the queue is gone")
}

/// A question about a session that the connection had.
pub(super) fn taken_over() -> Refusal {
    Refusal::new(ErrorKind::Locked, "another connection has the session")
}

pub(super) fn no_session() -> Refusal {
    Refusal::new(ErrorKind::NotFound, "the connection has no session")
}

fn holder(
    key: ConsumerKey,
    principal: Arc<crate::authority::Principal>,
    vhost: Arc<str>,
) -> Reader {
    Reader {
        number: 0,
        key,
        principal,
        vhost,
        presettled: false,
        exclusive: false,
        no_local: false,
        priority: 0,
        credit: 0,
        held: 0,
        travelling: 0,
        attached: false,
        receives_all: false,
        member: None,
    }
}

pub(super) fn stat<B: Clone>(stream: &Stream<B>) -> StreamStat {
    let session = stream.session();
    StreamStat {
        stream: stream.id,
        vhost: stream.vhost,
        session: session.map(|session| session.client_id.clone()),
        group: stream
            .group()
            .map(|group| (group.name.clone(), group.spec.filter.clone())),
        live: session.is_some_and(|session| session.live.is_some()),
        filters: session
            .map(|session| session.filters.to_vec())
            .unwrap_or_default(),
        will: session.is_some_and(|session| session.will.is_some()),
        keys: session
            .and_then(|session| session.keys.as_ref())
            .map_or(0, |keys| keys.len() as u64),
        ready: stream.ready(),
        unsettled: stream.held(),
        consumers: stream.readers.attached() as u32,
        mode: stream.limits.mode,
        active: match stream.limits.mode {
            Mode::Exclusive | Mode::Failover => stream.readers.lead().map(|reader| reader.key),
            Mode::Shared | Mode::KeyShared => None,
        },
        bytes: stream.bytes(),
        published: stream.tally.published,
        delivered: stream.tally.delivered,
        settled: stream.tally.settled,
        dropped: stream.tally.dropped,
        dead_lettered: stream.tally.dead_lettered,
        rejected: stream.tally.rejected,
        limits: stream.limits.clone(),
    }
}
