//! A connection as its worker knows it: who it is, its consumers, its session, its mail.
//!
//! Owns: this state, and putting it on the list of those with mail.
//! Never: what a command does with it (`worker/commands.rs`).
//! Next: `worker/mail.rs`, `worker/held.rs`, `worker/groups.rs`.

use super::{Mail, Worker, groups, held, once};
use crate::address::TopicFilter;
use crate::authority::{Action, Circumstances, Principal, Question, Resource};
use crate::error::Refusal;
use crate::gateway::{Answer, PublishOutcome, Reply};
use crate::id::{ConnectionId, ConsumerTag, ShardId, StreamId, Token, VhostId};
use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;

/// Where a consumer reads.
#[derive(Clone, Debug)]
pub(super) struct ReaderAt {
    pub(super) shard: ShardId,
    pub(super) stream: StreamId,
    /// Queue name; empty for a session and for a private queue.
    pub(super) name: Arc<str>,
    pub(super) attached: bool,
    /// Settles nothing.
    pub(super) presettled: bool,
    /// Deliveries it has to settle.
    pub(super) held: u32,
    /// A membership: nobody is told when it ends by itself.
    pub(super) member: bool,
    /// How often its shard is asked to take back what it has: until that is answered deliveries are void.
    pub(super) giving_back: u32,
}

/// A connection's session.
#[derive(Clone, Debug)]
pub(super) struct SessionAt {
    pub(super) shard: ShardId,
    pub(super) stream: StreamId,
    pub(super) filters: FxHashSet<TopicFilter>,
    pub(super) client_id: Arc<str>,
    /// Of each of its readers.
    pub(super) credit: u32,
    pub(super) next_group_tag: ConsumerTag,
    pub(super) groups: groups::Memberships,
}

impl SessionAt {
    /// Whether it outlives its connection.
    pub(super) fn lasts(&self) -> bool {
        !self.shard.is_volatile()
    }
}

pub(super) struct Connected {
    pub(super) protocol: &'static str,
    pub(super) peer: SocketAddr,
    pub(super) principal: Option<Arc<Principal>>,
    pub(super) vhost: Option<(VhostId, Arc<str>)>,
    pub(super) mail: Mail,
    pub(super) listed: bool,
    pub(super) readers: FxHashMap<ConsumerTag, ReaderAt>,
    pub(super) session: Option<SessionAt>,
    /// Shards that know this connection.
    pub(super) touched: SmallVec<[ShardId; 2]>,
    /// Bytes published to blocked shards.
    pub(super) parked_bytes: usize,
    /// Cost of its publishes that wait for room in a stream.
    pub(super) waiting_bytes: usize,
    /// What waits for what was asked before it.
    pub(super) held: held::Held,
    /// Publishes that wait for what was published before them.
    pub(super) once: once::Queue,
    /// What its user may do on every address.
    pub(super) everywhere: Cell<Everywhere>,
    pub(super) published: u64,
    pub(super) delivered: u64,
}

/// Rights on all addresses at once, so that single ones need not be asked about; as of one generation of the rules.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Everywhere {
    of: u64,
    publish: Option<bool>,
    retain: Option<bool>,
}

impl Connected {
    pub(super) fn new(protocol: &'static str, peer: SocketAddr) -> Connected {
        Connected {
            protocol,
            peer,
            principal: None,
            vhost: None,
            mail: Mail::default(),
            listed: false,
            readers: FxHashMap::default(),
            session: None,
            touched: SmallVec::new(),
            parked_bytes: 0,
            waiting_bytes: 0,
            held: held::Held::default(),
            once: once::Queue::default(),
            everywhere: Cell::default(),
            published: 0,
            delivered: 0,
        }
    }

    pub(super) fn published_answer(&mut self, token: Token, result: PublishOutcome) {
        if let Some(Answer::Published { last, outcome, .. }) = self.mail.answers.last_mut()
            && *last != Token::NONE
            && last.0 + 1 == token.0
            && *outcome == result
        {
            *last = token;
            return;
        }
        self.mail.answers.push(Answer::Published {
            first: token,
            last: token,
            outcome: result,
        });
    }

    pub(super) fn touch(&mut self, shard: ShardId) {
        if !self.touched.contains(&shard) {
            self.touched.push(shard);
        }
    }
}

impl Worker {
    /// Whether a connection's user may set values, or else publish, at every address that does not begin with `$`,
    /// whatever the message. Asked of the rules once per connection and generation.
    pub(super) fn may_everywhere(&self, state: &Connected, retain: bool) -> bool {
        let rules = self.rules;
        let circumstantial = match retain {
            true => rules.circumstantial_retain,
            false => rules.circumstantial,
        };
        let (Some(principal), Some((_, vhost))) = (&state.principal, &state.vhost) else {
            return false;
        };
        if circumstantial {
            return false;
        }
        let mut known = state.everywhere.get();
        if known.of != rules.generation {
            known = Everywhere {
                of: rules.generation,
                ..Everywhere::default()
            };
        }
        let (action, verdict) = match retain {
            true => (Action::Retain, &mut known.retain),
            false => (Action::Publish, &mut known.publish),
        };
        if verdict.is_none() {
            let every = TopicFilter(Bytes::from_static(crate::address::MANY));
            let question = Question {
                principal,
                action,
                vhost,
                resource: Resource::Filter(&every),
                circumstances: Circumstances::default(),
            };
            *verdict = Some(self.authority.decide(&question).allowed);
        }
        let allowed = *verdict == Some(true);
        state.everywhere.set(known);
        allowed
    }

    pub(super) fn put_back(&mut self, connection: ConnectionId, mut state: Box<Connected>) {
        if !state.listed && !state.mail.is_empty() {
            state.listed = true;
            self.ready.push(connection);
        }
        self.connections.insert(connection, state);
    }

    pub(super) fn with(&mut self, connection: ConnectionId, change: impl FnOnce(&mut Connected)) {
        if let Some(state) = self.connections.get_mut(&connection) {
            change(state);
            if !state.listed {
                state.listed = true;
                self.ready.push(connection);
            }
        }
    }

    pub(super) fn done(
        &mut self,
        connection: ConnectionId,
        token: Token,
        result: Result<Reply, Refusal>,
    ) {
        if token != Token::NONE {
            let mut waited = false;
            self.with(connection, |state| {
                state.mail.answers.push(Answer::Done { token, result });
                waited = state.held.answered(token);
            });
            if waited {
                self.answered.push(connection);
            }
        }
    }
}
