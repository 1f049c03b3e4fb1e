//! What happens when the answer to a question comes: the next step, or the connection's answer.
//!
//! Owns: [`Step`] (questions to shards) and [`Asked`] (questions to metadata and the login service).
//! Never: the first step of a command (`commands.rs`).

use super::groups::{Joining, Part};
use super::values::Reading;
use super::{Connected, HostAnswer, ReaderAt, SessionAt, Verified, Worker};
use crate::authority::Principal;
use crate::error::Refusal;
use crate::gateway::{Answer, Reply};
use crate::id::{ConnectionId, ConsumerTag, Now, ShardId, StreamId, Token, VhostId};
use crate::meta::{BindingChange, MetaCommand, MetaReply};
use crate::port::{OpenSession, Question, ReadingKey, ShardReply};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What waits for a shard's answer.
#[derive(Debug)]
pub(super) enum Step {
    /// Nobody waits.
    Nothing,
    /// Reply `Done`.
    Simple { token: Token },
    /// A key was taken: a part of a publish can go.
    Taken { part: u64, session: StreamId },
    /// Reply with the count.
    Count { token: Token },
    /// Reply with ready and consumers.
    Counted { token: Token },
    /// The stream was made: activate it.
    Created { token: Token, stream: StreamId },
    /// The stream was deleted: metadata follows.
    Deleted { token: Token, stream: StreamId },
    /// A consumer was attached.
    Attached { token: Token, tag: ConsumerTag },
    /// A consumer was detached.
    Cancelled { token: Token, tag: ConsumerTag },
    /// What a consumer had was taken back.
    GaveBack { token: Token, tag: ConsumerTag },
    /// One message was taken, or none.
    Got { token: Token, tag: ConsumerTag },
    /// A session was claimed, or opened.
    Opened {
        token: Token,
        open: Box<OpenSession>,
    },
    /// Filters were bound; those refused before are filled in.
    Subscribed {
        token: Token,
        refused: Vec<Option<Refusal>>,
        readings: Vec<Reading>,
    },
    /// The session's own part of a subscription was bound.
    SubscribedPart {
        gathering: u64,
        places: Vec<usize>,
        readings: Vec<Reading>,
    },
    /// The session's own part was unbound.
    UnsubscribedPart { gathering: u64, places: Vec<usize> },
    /// A membership was noted: it is joined in this shard.
    Enlisted {
        joining: Box<Joining>,
        shard: ShardId,
    },
    /// A member was attached, or sent elsewhere.
    Joined { joining: Box<Joining> },
    /// A member was taken off.
    Left {
        tag: ConsumerTag,
        part: Option<Part>,
    },
    /// A member whose session has ended was taken off.
    Parted { from: ShardId, number: u64 },
    /// A worker has sent on what it had routed.
    Flushed { key: ReadingKey },
    /// A page of last values was read.
    ValuesRead { key: ReadingKey },
    /// It was handed in.
    HandedIn { key: ReadingKey },
    /// The shard of a queue watches for last values: the binding may be made.
    Watched {
        token: Token,
        change: Box<BindingChange>,
        reading: Box<Reading>,
    },
    /// Filters were unbound.
    Unsubscribed { token: Token },
}

/// What waits for metadata or the login service.
#[derive(Debug)]
pub(super) enum Asked {
    /// Nobody waits.
    Nothing,
    /// Reply `Done`.
    Simple { token: Token },
    /// Credentials.
    Login { token: Token, client_id: Arc<str> },
    /// A stream was registered: its shard makes it.
    Declared { token: Token, vhost: VhostId },
    /// A stream was activated: count it.
    Activated {
        token: Token,
        stream: StreamId,
        shard: ShardId,
    },
    /// A binding was made: the queue gets last values.
    Bound { token: Token, reading: Box<Reading> },
    /// A stream's registration was removed.
    Unregistered { token: Token, messages: u64 },
}

impl Worker {
    /// The host's answer to a question of this worker.
    pub fn host_answer(&mut self, now: Now, answer: HostAnswer) {
        match answer {
            HostAnswer::Verified { ask, result } => {
                let Some((connection, Asked::Login { token, client_id })) = self.asked.remove(&ask)
                else {
                    return;
                };
                self.logged_in(connection, token, client_id, result);
            }
            HostAnswer::Proposed { ask, result } => {
                let Some((connection, asked)) = self.asked.remove(&ask) else {
                    return;
                };
                self.proposed(now, connection, asked, result);
                self.release_answered(now);
            }
        }
    }

    fn logged_in(
        &mut self,
        connection: ConnectionId,
        token: Token,
        client_id: Arc<str>,
        result: Result<Verified, Refusal>,
    ) {
        self.next_principal += 1;
        let id = (u64::from(self.id.0) << 48) | self.next_principal;
        let Some(state) = self.connections.get_mut(&connection) else {
            return;
        };
        let result = result.map(|verified| {
            let principal = Arc::new(Principal {
                id,
                user: verified.user,
                anonymous: verified.anonymous,
                client_id,
                protocol: state.protocol,
                address: Some(state.peer.ip()),
                roles: verified.roles,
            });
            state.principal = Some(principal.clone());
            state.everywhere.take();
            Reply::Principal(principal)
        });
        self.done(connection, token, result);
    }

    fn proposed(
        &mut self,
        now: Now,
        connection: ConnectionId,
        asked: Asked,
        result: Result<MetaReply, Refusal>,
    ) {
        match asked {
            Asked::Nothing | Asked::Login { .. } => {}
            Asked::Simple { token } => self.done(connection, token, result.map(|_| Reply::Done)),
            Asked::Bound { token, reading } => {
                let bound = result.is_ok();
                self.done(connection, token, result.map(|_| Reply::Done));
                match bound {
                    true => self.begin_readings(now, vec![*reading]),
                    false => self.end_watch(now, reading.key, reading.shard, reading.queue),
                }
            }
            Asked::Unregistered { token, messages } => {
                self.done(connection, token, result.map(|_| Reply::Count(messages)));
            }
            Asked::Declared { token, vhost } => match result {
                Ok(MetaReply::Stream {
                    id, shard, active, ..
                }) => {
                    let gone = !self.connections.contains_key(&connection);
                    let mine = self
                        .fabric
                        .meta()
                        .stream_by_id(id)
                        .is_some_and(|stream| stream.owner == Some(connection));
                    if gone && mine {
                        return self.drop_stream(now, id, shard);
                    }
                    self.touch(connection, shard);
                    if active {
                        self.ask_shard(
                            now,
                            shard,
                            connection,
                            Step::Counted { token },
                            Question::Declared { stream: id },
                        );
                    } else {
                        let (name, limits) = {
                            let meta = self.fabric.meta();
                            let name = meta.stream_by_id(id).map(|stream| stream.name.clone());
                            (name.unwrap_or_default(), meta.effective_limits(id))
                        };
                        let question = Question::CreateStream {
                            stream: id,
                            vhost,
                            name,
                            limits,
                        };
                        self.ask_shard(
                            now,
                            shard,
                            connection,
                            Step::Created { token, stream: id },
                            question,
                        );
                    }
                }
                Ok(_) => self.done(
                    connection,
                    token,
                    Ok(Reply::Stream {
                        ready: 0,
                        consumers: 0,
                    }),
                ),
                Err(why) => self.done(connection, token, Err(why)),
            },
            Asked::Activated {
                token,
                stream,
                shard,
            } => match result {
                Ok(_) => self.ask_shard(
                    now,
                    shard,
                    connection,
                    Step::Counted { token },
                    Question::Declared { stream },
                ),
                Err(why) => self.done(connection, token, Err(why)),
            },
        }
    }

    fn touch(&mut self, connection: ConnectionId, shard: ShardId) {
        if let Some(state) = self.connections.get_mut(&connection) {
            state.touch(shard);
        }
    }

    pub(super) fn step(
        &mut self,
        now: Now,
        shard: ShardId,
        connection: ConnectionId,
        step: Step,
        result: Result<ShardReply, Refusal>,
    ) {
        match step {
            Step::Nothing => {}
            Step::Simple { token } => self.done(connection, token, result.map(|_| Reply::Done)),
            Step::Taken { part, session } => self.taken(now, connection, part, session, result),
            Step::Count { token } => {
                let reply = result.map(|reply| Reply::Count(count(&reply)));
                self.done(connection, token, reply);
            }
            Step::Counted { token } => {
                let reply = result.map(|reply| match reply {
                    ShardReply::Stat(stat) => Reply::Stream {
                        ready: stat.ready,
                        consumers: stat.consumers,
                    },
                    _ => Reply::Stream {
                        ready: 0,
                        consumers: 0,
                    },
                });
                self.done(connection, token, reply);
            }
            Step::Created { token, stream } => match result {
                Ok(_) => self.propose(
                    connection,
                    Asked::Activated {
                        token,
                        stream,
                        shard,
                    },
                    MetaCommand::ActivateStream { stream },
                ),
                Err(why) => self.done(connection, token, Err(why)),
            },
            Step::Deleted { token, stream } => match result {
                Ok(reply) => {
                    let asked = Asked::Unregistered {
                        token,
                        messages: count(&reply),
                    };
                    self.propose(connection, asked, MetaCommand::DeleteStream { stream });
                }
                Err(why) => self.done(connection, token, Err(why)),
            },
            Step::Attached { token, tag } => {
                if result.is_err() {
                    self.with(connection, |state| drop(state.readers.remove(&tag)));
                }
                let reply = result.map(|reply| match reply {
                    ShardReply::Replaying => Reply::Replaying,
                    _ => Reply::Done,
                });
                self.done(connection, token, reply);
            }
            Step::Cancelled { token, tag } => {
                self.with(connection, |state| {
                    let deliveries = &state.mail.deliveries;
                    let more = deliveries.iter().any(|delivery| delivery.consumer == tag);
                    if let Some(reader) = state.readers.get_mut(&tag) {
                        reader.attached = false;
                        // What needs no settlement is never counted as held.
                        if reader.held == 0 && (reader.presettled || !more) {
                            state.readers.remove(&tag);
                        }
                    }
                    if token != Token::NONE {
                        // Behind what was delivered before.
                        let result = result.map(|_| Reply::Done);
                        state.mail.late.push(Answer::Done { token, result });
                    }
                });
            }
            Step::GaveBack { token, tag } => {
                self.void(now, connection, tag);
                self.done(connection, token, result.map(|_| Reply::Done));
            }
            Step::Got { token, tag } => self.got(connection, token, tag, result),
            Step::Opened { token, open } => {
                self.opened(now, shard, connection, token, *open, result)
            }
            Step::Subscribed {
                token,
                refused,
                readings,
            } => {
                let bound = result.is_ok();
                let reply = result.map(|reply| {
                    let mut granted = match reply {
                        ShardReply::Subscribed(granted) => granted,
                        _ => Vec::new(),
                    }
                    .into_iter();
                    let merged = refused.into_iter().filter_map(|refused| match refused {
                        Some(why) => Some(Err(why)),
                        None => granted.next(),
                    });
                    Reply::Subscribed(merged.collect())
                });
                self.done(connection, token, reply);
                if bound && self.connections.contains_key(&connection) {
                    self.begin_readings(now, readings);
                }
            }
            Step::SubscribedPart {
                gathering,
                places,
                readings,
            } => self.subscribed_part(now, gathering, &places, readings, result),
            Step::UnsubscribedPart { gathering, places } => {
                self.unsubscribed_part(now, gathering, &places, result);
            }
            Step::Enlisted { joining, shard } => {
                self.enlisted(now, connection, *joining, shard, result);
            }
            Step::Joined { joining } => self.joined(now, connection, shard, *joining, result),
            Step::Left { tag, part } => self.left(now, connection, tag, part),
            Step::Parted { from, number } => self.parted(now, from, number, result),
            Step::Flushed { key } => self.flushed(now, key),
            Step::ValuesRead { key } => self.values_read(now, key, result),
            Step::HandedIn { key } => self.handed_in(now, key, result),
            Step::Watched {
                token,
                change,
                reading,
            } => match result {
                Ok(_) => {
                    let asked = Asked::Bound { token, reading };
                    self.propose(connection, asked, MetaCommand::Bind(*change));
                }
                Err(why) => self.done(connection, token, Err(why)),
            },
            Step::Unsubscribed { token } => {
                let reply = result.map(|reply| match reply {
                    ShardReply::Unsubscribed(existed) => Reply::Unsubscribed(existed),
                    _ => Reply::Unsubscribed(Vec::new()),
                });
                self.done(connection, token, reply);
            }
        }
    }

    fn got(
        &mut self,
        connection: ConnectionId,
        token: Token,
        tag: ConsumerTag,
        result: Result<ShardReply, Refusal>,
    ) {
        let reply = result.map(|reply| match reply {
            ShardReply::Got(delivery, ready) => Reply::Got { delivery, ready },
            _ => Reply::Got {
                delivery: None,
                ready: 0,
            },
        });
        if let Ok(Reply::Got {
            delivery: Some(delivery),
            ..
        }) = &reply
        {
            self.counts.delivered += 1;
            self.counts.delivered_bytes += delivery.message.body.len() as u64;
            self.with(connection, |state| {
                state.delivered += 1;
                if let Some(reader) = state.readers.get_mut(&tag) {
                    reader.held += 1;
                }
            });
        }
        self.done(connection, token, reply);
    }

    fn opened(
        &mut self,
        now: Now,
        shard: ShardId,
        connection: ConnectionId,
        token: Token,
        open: OpenSession,
        result: Result<ShardReply, Refusal>,
    ) {
        match result {
            Ok(ShardReply::Session {
                present,
                stream: Some(stream),
                filters,
                groups,
            }) => {
                let Some(state) = self.connections.get_mut(&connection) else {
                    return;
                };
                attach_session(state, shard, stream, &open, filters);
                self.done(connection, token, Ok(Reply::Session { present }));
                self.rejoin(now, connection, groups);
                self.renew_session(now, connection);
            }
            // Nothing is to be kept: it lives in this worker's own volatile shard.
            Ok(_) if !open.here => {
                let shard = self.shard.id();
                self.touch(connection, shard);
                let open = OpenSession {
                    here: true,
                    clean_start: true,
                    expiry_s: 0,
                    ..open
                };
                let step = Step::Opened {
                    token,
                    open: Box::new(open.clone()),
                };
                self.ask_shard(now, shard, connection, step, Question::OpenSession(open));
            }
            Ok(_) => self.done(connection, token, Ok(Reply::Session { present: false })),
            Err(why) => self.done(connection, token, Err(why)),
        }
    }
}

fn attach_session(
    state: &mut Connected,
    shard: ShardId,
    stream: StreamId,
    open: &OpenSession,
    filters: Vec<crate::address::TopicFilter>,
) {
    state.touch(shard);
    let reader = ReaderAt {
        shard,
        stream,
        name: Arc::from(""),
        attached: true,
        presettled: false,
        held: 0,
        member: false,
        giving_back: 0,
    };
    state.readers.insert(open.consumer.tag, reader);
    let filters = filters.into_iter().collect();
    state.session = Some(SessionAt {
        shard,
        stream,
        filters,
        client_id: open.client_id.clone(),
        credit: open.credit,
        next_group_tag: open.group_consumers,
        groups: FxHashMap::default(),
    });
}

fn count(reply: &ShardReply) -> u64 {
    match reply {
        ShardReply::Count(count) => *count,
        _ => 0,
    }
}
