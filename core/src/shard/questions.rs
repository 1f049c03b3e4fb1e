//! What a shard is asked and answers itself, or makes a change of.
//!
//! Owns: the first step of each [`Question`].
//! Never: what a committed change does (`shard/apply.rs`).
//! Next: `questions/attach.rs`, `questions/session.rs`, `questions/stat.rs`.

mod attach;
mod session;
mod stat;

pub(super) use stat::{stat, totals};

use super::values::PageOf;
use super::{Bodies, NotYet, Place, Shard, Store};
use crate::error::{ErrorKind, Refusal};
use crate::id::{Now, Sequence, WorkerId};
use crate::port::{Question, ReadingKey, ShardReply, StreamTotals, Ticket};
use crate::record::{AsJson, Change, Mark};

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
                // What has to arrive elsewhere is not to go with it.
                let owes = if_empty && (self.unsent_of(stream).entries > 0 || self.pins(stream));
                if owes {
                    let why = "dead letters of the queue have not arrived yet";
                    let refusal = Refusal::new(ErrorKind::NotEmpty, why);
                    return self.reply(from, ticket, Err(refusal));
                }
                if !(if_unused && used) {
                    // What is handed out does not count; only the leader knows what that is.
                    let only_if = if_empty.then(|| self.out_offsets(stream));
                    let change = Change::DeleteStream { stream, only_if };
                    return self.change(now.unix, mark, change);
                }
                Err(Refusal::new(ErrorKind::InUse, "the queue has consumers"))
            }
            Question::Purge { stream: id } => match self.stream_mut(id) {
                Some(stream) if stream.replays() => {
                    let why = format!("messages are not removed from stream '{}'", stream.name);
                    Err(Refusal::new(ErrorKind::NotSupported, why))
                }
                Some(_) => {
                    self.tell_delivered(id);
                    let ranges = self.leave_ready(id);
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
                Err(NotYet) => {
                    return self.ask_later(now, from, ticket, Question::Seek { stream, to });
                }
                Ok(Ok(ranges)) => {
                    return self.change(now.unix, mark, Change::Purge { stream, ranges });
                }
                Ok(Err(why)) => Err(why),
            },
            Question::Stat { stream } => {
                self.drop_expired(now.unix, stream);
                match self.stat(stream) {
                    Some(stat) => Ok(ShardReply::Stat(Box::new(stat))),
                    None => Err(no_stream()),
                }
            }
            Question::StatAll => {
                let ids = self.streams.iter().flatten().map(|stream| stream.id);
                let whole = ids.filter(|id| id.rank() == 0);
                let all = whole.filter_map(|id| self.stat(id)).collect();
                Ok(ShardReply::Stats(all))
            }
            Question::Totals => {
                let all = self.streams.iter().flatten();
                let totals = StreamTotals {
                    dead_letters_waiting: self.unsent.letters(),
                    ..totals(all.map(|stream| &**stream))
                };
                Ok(ShardReply::Totals(Box::new(totals)))
            }
            Question::Peek {
                stream,
                from: at,
                count,
            } => match self.peek(stream, at, count, bodies) {
                Ok(answer) => answer,
                Err(NotYet) => {
                    let question = Question::Peek {
                        stream,
                        from: at,
                        count,
                    };
                    return self.ask_later(now, from, ticket, question);
                }
            },
            Question::Delayed { exchange, count } => match self.delayed(exchange, count, bodies) {
                Ok(delayed) => Ok(ShardReply::Delayed(delayed)),
                Err(NotYet) => {
                    let question = Question::Delayed { exchange, count };
                    return self.ask_later(now, from, ticket, question);
                }
            },
            Question::Attach(attach) => self.attach(attach),
            Question::Detach { consumer, stream } => {
                self.detach(stream, consumer, false);
                self.outbox.settle_order(consumer.connection);
                Ok(ShardReply::Done)
            }
            Question::GiveBack {
                consumer,
                stream,
                except,
            } => {
                self.take_back(stream, consumer, &except);
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
                let who = (consumer, principal.clone(), vhost.clone());
                match self.get(now, stream, who, presettled, bodies) {
                    Ok(answer) => answer,
                    Err(NotYet) => {
                        let question = Question::Get {
                            stream,
                            consumer,
                            principal,
                            vhost,
                            presettled,
                        };
                        return self.ask_later(now, from, ticket, question);
                    }
                }
            }
            Question::OpenSession(open) => return self.open_session(now, from, ticket, open),
            Question::SessionExpiry {
                connection,
                expiry_s,
            } => {
                return self.change_own(now, mark, connection, no_session, |stream| {
                    Change::SessionExpiry { stream, expiry_s }
                });
            }
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
            Question::DropWill { connection } => {
                return self.change_own(now, mark, connection, no_session, |stream| {
                    Change::DropWill { stream }
                });
            }
            Question::Take { connection, key } => {
                return self.change_own(now, mark, connection, taken_over, |stream| {
                    Change::Taken { stream, key }
                });
            }
            Question::Forget { connection, key } => {
                return self.change_own(now, mark, connection, taken_over, |stream| {
                    Change::Forgotten { stream, key }
                });
            }
            Question::Receive {
                consumer,
                stream,
                offset,
            } => match self.receive(from, ticket, consumer, stream, offset) {
                Some(result) => result,
                None => return,
            },
            Question::DeleteSession { vhost, client_id } => {
                let found = self.session_place(vhost, &client_id);
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
            } => {
                return self.change_own(now, mark, connection, no_session, |stream| {
                    Change::Membership {
                        stream,
                        name,
                        filter,
                        spec,
                    }
                });
            }
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
