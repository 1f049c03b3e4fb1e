//! What a connection may ask beside publishing: checks, look-ups, and the first step of each.
//!
//! Owns: the right to each command, and which shard or metadata it is asked of.
//! Never: what happens when the answer comes (`steps.rs`).
//! Next: `queues.rs`, `sessions.rs`.

use super::sessions::no_session;
use super::steps::{Asked, Step};
use super::{Connected, LoginRequest, Outgoing, Worker, not_entered};
use crate::authority::{Action, Circumstances, Principal, Question as AuthorityQuestion, Resource};
use crate::error::{ErrorKind, Refusal};
use crate::gateway::{Answer, Command, Outcome, Reply};
use crate::id::{ConnectionId, Now, Token, VhostId};
use crate::meta::MetaCommand;
use crate::port::{ConsumerKey, Question, ShardRequest};
use std::sync::Arc;

pub(super) type Checked<T> = Result<T, Refusal>;

/// The common part of a command in a vhost.
pub(super) struct Here {
    pub(super) vhost: VhostId,
    pub(super) name: Arc<str>,
    pub(super) principal: Arc<Principal>,
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
                let result = self.declare_exchange(connection, state, token, *declare);
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
                let result = self.declare_stream(now, connection, state, token, *declare);
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
                let result = self.bind(now, connection, state, token, *binding, MetaCommand::Bind);
                self.or_refuse(state, token, result);
            }
            Command::Unbind { token, binding } => {
                let result =
                    self.bind(now, connection, state, token, *binding, MetaCommand::Unbind);
                self.or_refuse(state, token, result);
            }
            Command::Consume { token, consume } => {
                let result = self.consume(now, connection, state, token, *consume);
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
            Command::GiveBack {
                token,
                consumer,
                except,
            } => {
                let Some(reader) = state.readers.get_mut(&consumer) else {
                    return Self::tell(state, token, Ok(Reply::Done));
                };
                reader.giving_back += 1;
                reader.held = except.len() as u32;
                let (shard, tag) = (reader.shard, consumer);
                let question = Question::GiveBack {
                    consumer: ConsumerKey { connection, tag },
                    stream: reader.stream,
                    except,
                };
                let step = Step::GaveBack { token, tag };
                self.ask_shard(now, shard, connection, step, question);
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
            Command::Atomic { commands } => {
                // One that would be refused refuses all, before anything is sent.
                let refused = commands.iter().find_map(|command| match command {
                    Command::Publish { message, .. } => self.would_refuse(state, message),
                    _ => None,
                });
                if let Some(kind) = refused {
                    for command in commands {
                        match command {
                            Command::Publish { token, .. } => self.refuse(state, token, kind),
                            Command::Settle {
                                consumer,
                                first,
                                last,
                                ..
                            } => {
                                let outcome = Outcome::Released;
                                let back = Command::Settle {
                                    consumer,
                                    first,
                                    last,
                                    outcome,
                                };
                                self.command(now, connection, state, back);
                            }
                            _ => {}
                        }
                    }
                    return;
                }
                self.undivided = true;
                for command in commands {
                    match command {
                        Command::Publish {
                            token,
                            mandatory,
                            patient,
                            once: _,
                            later,
                            message,
                        } => {
                            let how = (mandatory, patient);
                            let when = (None, later);
                            self.publish(connection, state, token, how, when, message);
                        }
                        other => self.command(now, connection, state, other),
                    }
                }
                self.undivided = false;
            }
            Command::Receive {
                token,
                consumer,
                offset,
            } => {
                let Some(reader) = state.readers.get(&consumer) else {
                    return Self::tell(state, token, Err(no_session()));
                };
                let question = Question::Receive {
                    consumer: ConsumerKey {
                        connection,
                        tag: consumer,
                    },
                    stream: reader.stream,
                    offset,
                };
                let shard = reader.shard;
                self.ask_shard(now, shard, connection, Step::Simple { token }, question);
            }
            Command::Forget { token, once } => {
                let result = self.forget(now, connection, state, token, once);
                self.or_refuse(state, token, result);
            }
            Command::DropWill => {
                if let Some(session) = state.session.as_ref().filter(|session| session.lasts()) {
                    let question = Question::DropWill { connection };
                    self.ask_shard(now, session.shard, connection, Step::Nothing, question);
                }
            }
            Command::OpenSession { token, session } => {
                let result = self.open_session(now, connection, state, token, *session);
                self.or_refuse(state, token, result);
            }
            Command::Subscribe { token, filters } => {
                let result = self.subscribe(now, connection, state, token, filters);
                self.or_refuse(state, token, result);
            }
            Command::Unsubscribe { token, filters } => {
                self.unsubscribe(now, connection, state, token, filters);
            }
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

    pub(super) fn here(state: &Connected) -> Checked<Here> {
        match (&state.principal, &state.vhost) {
            (Some(principal), Some((vhost, name))) => Ok(Here {
                vhost: *vhost,
                name: name.clone(),
                principal: principal.clone(),
            }),
            _ => Err(not_entered()),
        }
    }

    pub(super) fn allow(&self, here: &Here, action: Action, resource: Resource<'_>) -> Checked<()> {
        self.allow_with(here, action, resource, Circumstances::default())
    }

    pub(super) fn allow_with(
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

    pub(super) fn enter(&mut self, state: &mut Connected, vhost: Arc<str>) -> Checked<()> {
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
        state.everywhere.take();
        Ok(())
    }
}
