//! What a connection may ask beside publishing: checks, look-ups, and the first step of each.
//!
//! Owns: the right to each command, and which shard or metadata it is asked of.
//! Never: what happens when the answer comes (`steps.rs`).

use super::steps::{Asked, Step};
use super::{Connected, LoginRequest, Outgoing, ReaderAt, Worker, not_entered};
use crate::authority::{Action, Circumstances, Principal, Question as AuthorityQuestion, Resource};
use crate::error::{ErrorKind, Refusal};
use crate::gateway::{
    Answer, BindingSpec, Command, Consume, ExchangeDeclare, FilterSpec, Reply, SessionOpen,
    StreamDeclare,
};
use crate::id::{ConnectionId, ConsumerTag, Now, ShardId, StreamId, Token, VhostId};
use crate::meta::arguments::Arguments;
use crate::meta::{BindingChange, ExchangeSpec, MetaCommand, StreamSpec};
use crate::port::{Attach, ConsumerKey, OpenSession, Question, ShardRequest};
use std::sync::Arc;

type Checked<T> = Result<T, Refusal>;

/// The common part of a command in a vhost.
struct Here {
    vhost: VhostId,
    name: Arc<str>,
    principal: Arc<Principal>,
}

impl Worker {
    pub(super) fn command(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        command: Command,
    ) {
        match command {
            Command::Publish { .. } => {}
            Command::Settle {
                consumer,
                first,
                last,
                outcome,
            } => {
                let Some(reader) = state.readers.get_mut(&consumer) else {
                    return;
                };
                reader.held = reader.held.saturating_sub((last.0 - first.0 + 1) as u32);
                let (shard, stream) = (reader.shard, reader.stream);
                if !reader.attached && reader.held == 0 {
                    state.readers.remove(&consumer);
                }
                let consumer = ConsumerKey {
                    connection,
                    tag: consumer,
                };
                self.request(
                    now,
                    shard,
                    ShardRequest::Settle {
                        consumer,
                        stream,
                        first,
                        last,
                        outcome,
                    },
                );
            }
            Command::SetCredit { consumer, credit } => {
                if let Some(reader) = state.readers.get(&consumer) {
                    let (shard, stream) = (reader.shard, reader.stream);
                    let consumer = ConsumerKey {
                        connection,
                        tag: consumer,
                    };
                    self.request(
                        now,
                        shard,
                        ShardRequest::Credit {
                            consumer,
                            stream,
                            credit,
                        },
                    );
                }
            }
            Command::SetSessionExpiry { expiry_s } => {
                if let Some(session) = &state.session {
                    let question = Question::SessionExpiry {
                        connection,
                        expiry_s,
                    };
                    self.ask_shard(now, session.shard, connection, Step::Nothing, question);
                }
            }
            Command::Login {
                token,
                user,
                secret,
                client_id,
            } => {
                self.next_ask += 1;
                let asked = Asked::Login {
                    token,
                    client_id: client_id.clone(),
                };
                self.asked.insert(self.next_ask, (connection, asked));
                let login = LoginRequest {
                    connection,
                    protocol: state.protocol,
                    peer: state.peer,
                    user,
                    secret,
                    client_id,
                };
                self.outgoing.push(Outgoing::Verify {
                    ask: self.next_ask,
                    login,
                });
            }
            Command::Enter { token, vhost } => {
                let result = self.enter(state, vhost);
                Self::tell(state, token, result.map(|()| Reply::Done));
            }
            Command::DeclareExchange { token, declare } => {
                let result = self.declare_exchange(connection, state, token, declare);
                self.or_refuse(state, token, result);
            }
            Command::DeleteExchange {
                token,
                name,
                if_unused,
            } => {
                let result = self.delete_exchange(connection, state, token, name, if_unused);
                self.or_refuse(state, token, result);
            }
            Command::DeclareStream { token, declare } => {
                let result = self.declare_stream(now, connection, state, token, declare);
                self.or_refuse(state, token, result);
            }
            Command::DeleteStream {
                token,
                name,
                if_unused,
                if_empty,
            } => {
                let result =
                    self.delete_stream(now, connection, state, token, &name, (if_unused, if_empty));
                self.or_refuse(state, token, result);
            }
            Command::Purge { token, stream } => {
                let result = self.queue(connection, state, &stream, Action::Purge);
                let result = result.map(|(_, id, shard)| {
                    state.touch(shard);
                    self.ask_shard(
                        now,
                        shard,
                        connection,
                        Step::Count { token },
                        Question::Purge { stream: id },
                    );
                });
                self.or_refuse(state, token, result);
            }
            Command::Bind { token, binding } => {
                let result = self.bind(connection, state, token, binding, MetaCommand::Bind);
                self.or_refuse(state, token, result);
            }
            Command::Unbind { token, binding } => {
                let result = self.bind(connection, state, token, binding, MetaCommand::Unbind);
                self.or_refuse(state, token, result);
            }
            Command::Consume { token, consume } => {
                let result = self.consume(now, connection, state, token, consume);
                self.or_refuse(state, token, result);
            }
            Command::Cancel { token, consumer } => {
                let Some(reader) = state
                    .readers
                    .get(&consumer)
                    .filter(|reader| reader.attached)
                else {
                    return Self::tell(state, token, Ok(Reply::Done));
                };
                let key = ConsumerKey {
                    connection,
                    tag: consumer,
                };
                let question = Question::Detach {
                    consumer: key,
                    stream: reader.stream,
                };
                self.ask_shard(
                    now,
                    reader.shard,
                    connection,
                    Step::Cancelled {
                        token,
                        tag: consumer,
                    },
                    question,
                );
            }
            Command::Get {
                token,
                stream,
                consumer,
                presettled,
            } => {
                let result = self.get(
                    now,
                    connection,
                    state,
                    (token, consumer),
                    &stream,
                    presettled,
                );
                self.or_refuse(state, token, result);
            }
            Command::OpenSession { token, session } => {
                let result = self.open_session(now, connection, state, token, session);
                self.or_refuse(state, token, result);
            }
            Command::Subscribe { token, filters } => {
                let result = self.subscribe(now, connection, state, token, filters);
                self.or_refuse(state, token, result);
            }
            Command::Unsubscribe { token, filters } => match &mut state.session {
                Some(session) => {
                    session.filters.retain(|known| !filters.contains(known));
                    let question = Question::Unsubscribe {
                        connection,
                        filters,
                    };
                    self.ask_shard(
                        now,
                        session.shard,
                        connection,
                        Step::Unsubscribed { token },
                        question,
                    );
                }
                None => Self::tell(state, token, Err(no_session())),
            },
        }
    }

    pub(super) fn tell(state: &mut Connected, token: Token, result: Checked<Reply>) {
        if token != Token::NONE {
            state.mail.answers.push(Answer::Done { token, result });
        }
    }

    fn or_refuse(&mut self, state: &mut Connected, token: Token, result: Checked<()>) {
        if let Err(why) = result {
            if why.kind == ErrorKind::AccessRefused {
                self.counts.denied += 1;
            }
            Self::tell(state, token, Err(why));
        }
    }

    fn here(state: &Connected) -> Checked<Here> {
        match (&state.principal, &state.vhost) {
            (Some(principal), Some((vhost, name))) => Ok(Here {
                vhost: *vhost,
                name: name.clone(),
                principal: principal.clone(),
            }),
            _ => Err(not_entered()),
        }
    }

    fn allow(&self, here: &Here, action: Action, resource: Resource<'_>) -> Checked<()> {
        self.allow_with(here, action, resource, Circumstances::default())
    }

    fn allow_with(
        &self,
        here: &Here,
        action: Action,
        resource: Resource<'_>,
        circumstances: Circumstances,
    ) -> Checked<()> {
        let question = AuthorityQuestion {
            principal: &here.principal,
            action,
            vhost: &here.name,
            resource,
            circumstances,
        };
        if self.authority.decide(&question).allowed {
            return Ok(());
        }
        let on = match resource {
            Resource::Vhost => format!("vhost '{}'", here.name),
            Resource::Topic(address) => format!("topic '{address}'"),
            Resource::Filter(filter) => format!("filter '{filter}'"),
            Resource::Exchange(name) => format!("exchange '{name}' in vhost '{}'", here.name),
            Resource::Queue(name) => format!("queue '{name}' in vhost '{}'", here.name),
            Resource::Session(client) => format!("session '{client}'"),
            Resource::Admin => "administration".to_owned(),
        };
        let user = &here.principal.user;
        Err(Refusal::new(
            ErrorKind::AccessRefused,
            format!("access to {on} refused for user '{user}'"),
        ))
    }

    fn enter(&mut self, state: &mut Connected, vhost: Arc<str>) -> Checked<()> {
        let principal = state
            .principal
            .clone()
            .ok_or_else(|| Refusal::new(ErrorKind::BadCredentials, "log in first"))?;
        let id = self.fabric.meta().vhost(&vhost).map(|known| known.id);
        let id = id.ok_or_else(|| {
            Refusal::new(ErrorKind::NotFound, format!("vhost '{vhost}' not found"))
        })?;
        let here = Here {
            vhost: id,
            name: vhost.clone(),
            principal,
        };
        self.allow(&here, Action::Connect, Resource::Vhost)?;
        state.vhost = Some((id, vhost));
        Ok(())
    }

    fn declare_exchange(
        &mut self,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        declare: ExchangeDeclare,
    ) -> Checked<()> {
        let here = Self::here(state)?;
        if declare.passive {
            let found = self
                .fabric
                .meta()
                .exchange(here.vhost, &declare.name)
                .is_some();
            if !found {
                return Err(no_exchange(&declare.name, &here.name));
            }
            Self::tell(state, token, Ok(Reply::Done));
            return Ok(());
        }
        self.allow(&here, Action::Configure, Resource::Exchange(&declare.name))?;
        let exchange = ExchangeSpec {
            name: declare.name,
            kind: declare.kind,
            durable: declare.durable,
            auto_delete: declare.auto_delete,
            internal: declare.internal,
            arguments: Arguments::new(declare.arguments)?,
        };
        self.propose(
            connection,
            Asked::Simple { token },
            MetaCommand::DeclareExchange {
                vhost: here.vhost,
                exchange,
            },
        );
        Ok(())
    }

    fn delete_exchange(
        &mut self,
        connection: ConnectionId,
        state: &Connected,
        token: Token,
        name: Arc<str>,
        if_unused: bool,
    ) -> Checked<()> {
        let here = Self::here(state)?;
        self.allow(&here, Action::Configure, Resource::Exchange(&name))?;
        self.propose(
            connection,
            Asked::Simple { token },
            MetaCommand::DeleteExchange {
                vhost: here.vhost,
                name,
                if_unused,
            },
        );
        Ok(())
    }

    /// A queue by name that this connection may use for `action`.
    fn queue(
        &self,
        connection: ConnectionId,
        state: &Connected,
        name: &str,
        action: Action,
    ) -> Checked<(Here, StreamId, ShardId)> {
        let here = Self::here(state)?;
        self.allow(&here, action, Resource::Queue(name))?;
        let (id, shard) = self.find(connection, &here, name)?;
        Ok((here, id, shard))
    }

    fn find(
        &self,
        connection: ConnectionId,
        here: &Here,
        name: &str,
    ) -> Checked<(StreamId, ShardId)> {
        let meta = self.fabric.meta();
        let Some(stream) = meta.stream(here.vhost, name) else {
            return Err(Refusal::new(
                ErrorKind::NotFound,
                format!("no queue '{name}' in vhost '{}'", here.name),
            ));
        };
        if stream.locked_for(connection) {
            let why = format!(
                "cannot obtain exclusive access to locked queue '{name}' in vhost '{}'",
                here.name
            );
            return Err(Refusal::new(ErrorKind::Locked, why));
        }
        Ok((stream.id, stream.shard))
    }

    fn declare_stream(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        declare: StreamDeclare,
    ) -> Checked<()> {
        let here = Self::here(state)?;
        if declare.passive {
            let (stream, shard) = self.find(connection, &here, &declare.name)?;
            state.touch(shard);
            self.ask_shard(
                now,
                shard,
                connection,
                Step::Counted { token },
                Question::Stat { stream },
            );
            return Ok(());
        }
        self.allow(&here, Action::Configure, Resource::Queue(&declare.name))?;
        let stream = StreamSpec {
            name: declare.name,
            key: declare.key,
            durable: declare.durable,
            exclusive: declare.exclusive,
            auto_delete: declare.auto_delete,
            arguments: Arguments::new(declare.arguments)?,
        };
        let asked = Asked::Declared {
            token,
            vhost: here.vhost,
            auto_delete: stream.auto_delete,
        };
        let command = MetaCommand::DeclareStream {
            vhost: here.vhost,
            stream,
            by: connection,
            volatile: self.shard.id(),
        };
        self.propose(connection, asked, command);
        Ok(())
    }

    fn delete_stream(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        name: &str,
        only: (bool, bool),
    ) -> Checked<()> {
        let here = Self::here(state)?;
        self.allow(&here, Action::Configure, Resource::Queue(name))?;
        let (stream, shard) = match self.find(connection, &here, name) {
            Ok(found) => found,
            // Deleting what is not there is no error.
            Err(why) if why.kind == ErrorKind::NotFound => {
                Self::tell(state, token, Ok(Reply::Count(0)));
                return Ok(());
            }
            Err(why) => return Err(why),
        };
        let (if_unused, if_empty) = only;
        let question = Question::DeleteStream {
            stream,
            if_unused,
            if_empty,
        };
        state.touch(shard);
        self.ask_shard(
            now,
            shard,
            connection,
            Step::Deleted { token, stream },
            question,
        );
        Ok(())
    }

    fn bind(
        &mut self,
        connection: ConnectionId,
        state: &Connected,
        token: Token,
        binding: BindingSpec,
        command: fn(BindingChange) -> MetaCommand,
    ) -> Checked<()> {
        let here = Self::here(state)?;
        self.allow(&here, Action::Bind, Resource::Queue(&binding.stream))?;
        self.allow(&here, Action::Bind, Resource::Exchange(&binding.exchange))?;
        let change = BindingChange {
            vhost: here.vhost,
            exchange: binding.exchange,
            stream: binding.stream,
            filter: binding.filter,
            arguments: Arguments::new(binding.arguments)?,
            by: connection,
        };
        self.propose(connection, Asked::Simple { token }, command(change));
        Ok(())
    }

    fn consume(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        consume: Consume,
    ) -> Checked<()> {
        let (here, stream, shard) =
            self.queue(connection, state, &consume.stream, Action::Consume)?;
        if state.readers.len() >= self.limits.consumers_max {
            let why = format!(
                "the connection has {} consumers, which is the limit",
                state.readers.len()
            );
            return Err(Refusal::new(ErrorKind::QuotaExceeded, why));
        }
        if state.readers.contains_key(&consume.consumer) {
            return Err(Refusal::new(
                ErrorKind::BadRequest,
                "the consumer tag is in use",
            ));
        }
        let tag = consume.consumer;
        let presettled = consume.presettled;
        let reader = ReaderAt {
            shard,
            stream,
            name: consume.stream,
            attached: true,
            presettled,
            held: 0,
        };
        state.readers.insert(tag, reader);
        state.touch(shard);
        let attach = Attach {
            consumer: ConsumerKey { connection, tag },
            principal: here.principal,
            vhost: here.name,
            stream,
            exclusive: consume.exclusive,
            presettled: consume.presettled,
            credit: consume.credit,
            priority: consume.priority,
            no_local: consume.no_local,
        };
        self.ask_shard(
            now,
            shard,
            connection,
            Step::Attached { token, tag },
            Question::Attach(attach),
        );
        Ok(())
    }

    fn get(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        (token, tag): (Token, ConsumerTag),
        name: &str,
        presettled: bool,
    ) -> Checked<()> {
        let (here, stream, shard) = self.queue(connection, state, name, Action::Consume)?;
        match state.readers.get(&tag) {
            Some(reader) if reader.stream != stream => {
                return Err(Refusal::new(
                    ErrorKind::BadRequest,
                    "the consumer tag belongs to another queue",
                ));
            }
            Some(_) => {}
            None => {
                let reader = ReaderAt {
                    shard,
                    stream,
                    name: Arc::from(name),
                    attached: false,
                    presettled,
                    held: 0,
                };
                state.readers.insert(tag, reader);
            }
        }
        state.touch(shard);
        let question = Question::Get {
            stream,
            consumer: ConsumerKey { connection, tag },
            principal: here.principal,
            vhost: here.name,
            presettled,
        };
        self.ask_shard(now, shard, connection, Step::Got { token, tag }, question);
        Ok(())
    }

    fn open_session(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        session: SessionOpen,
    ) -> Checked<()> {
        let here = Self::here(state)?;
        let open = OpenSession {
            consumer: ConsumerKey {
                connection,
                tag: session.consumer,
            },
            principal: here.principal,
            vhost: here.vhost,
            vhost_name: here.name.clone(),
            client_id: session.client_id,
            clean_start: session.clean_start,
            expiry_s: session.expiry_s,
            credit: session.credit,
            here: false,
        };
        let home = self.fabric.meta().place(&here.name, &open.client_id);
        let home = home.ok_or_else(|| {
            Refusal::new(
                ErrorKind::Unavailable,
                "the node is not ready yet: no shard is placed",
            )
        })?;
        state.touch(home);
        let step = Step::Opened {
            token,
            open: Box::new(open.clone()),
        };
        self.ask_shard(now, home, connection, step, Question::OpenSession(open));
        Ok(())
    }

    fn subscribe(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        filters: Vec<FilterSpec>,
    ) -> Checked<()> {
        let here = Self::here(state)?;
        let mut refused = Vec::with_capacity(filters.len());
        let mut allowed = Vec::with_capacity(filters.len());
        for spec in filters {
            let circumstances = Circumstances {
                quality: spec.quality as u8,
                ..Circumstances::default()
            };
            let verdict = self.allow_with(
                &here,
                Action::Subscribe,
                Resource::Filter(&spec.filter),
                circumstances,
            );
            refused.push(verdict.err());
            if refused.last().is_some_and(Option::is_none) {
                allowed.push(spec);
            } else {
                self.counts.denied += 1;
            }
        }
        let Some(session) = &mut state.session else {
            return Err(no_session());
        };
        let added = allowed
            .iter()
            .filter(|spec| !session.filters.contains(&spec.filter))
            .count();
        if session.filters.len() + added > self.limits.filters_max {
            return Err(Refusal::new(
                ErrorKind::QuotaExceeded,
                "the session has as many filters as it may have",
            ));
        }
        for spec in &allowed {
            if !session.filters.contains(&spec.filter) {
                session.filters.push(spec.filter.clone());
            }
        }
        let step = Step::Subscribed { token, refused };
        self.ask_shard(
            now,
            session.shard,
            connection,
            step,
            Question::Subscribe {
                connection,
                filters: allowed,
            },
        );
        Ok(())
    }
}

fn no_session() -> Refusal {
    Refusal::new(ErrorKind::NotFound, "the connection has no session")
}

fn no_exchange(name: &str, vhost: &str) -> Refusal {
    Refusal::new(
        ErrorKind::NotFound,
        format!("no exchange '{name}' in vhost '{vhost}'"),
    )
}
