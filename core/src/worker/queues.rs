//! Commands about exchanges, queues and consumers: checks, look-ups and the first step.
//!
//! Owns: the right to each, which shard or metadata it is asked of.
//! Never: what happens when the answer comes (`steps.rs`).

use super::commands::{Checked, Here};
use super::steps::{Asked, Step};
use super::values::Reading;
use super::{Connected, ReaderAt, Worker};
use crate::address::Address;
use crate::authority::{Action, Resource};
use crate::error::{ErrorKind, Refusal};
use crate::gateway::{BindTo, BindingSpec, Consume, ExchangeDeclare, Reply, StreamDeclare};
use crate::id::{ConnectionId, ConsumerTag, Now, ShardId, StreamId, Token};
use crate::meta::arguments::Arguments;
use crate::meta::{BindingChange, BindingEnd, ExchangeSpec, MetaCommand, StreamSpec};
use crate::port::{Attach, ConsumerKey, Question};
use std::sync::Arc;

impl Worker {
    pub(super) fn declare_exchange(
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
        // What is published to this one may reach that one.
        if let Some(alternate) = &declare.alternate {
            self.allow(&here, Action::Bind, Resource::Exchange(alternate))?;
        }
        let exchange = ExchangeSpec {
            name: declare.name,
            kind: declare.kind,
            durable: declare.durable,
            auto_delete: declare.auto_delete,
            internal: declare.internal,
            delays: declare.delays,
            alternate: declare.alternate,
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

    pub(super) fn delete_exchange(
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
    pub(super) fn queue(
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

    pub(super) fn find(
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

    /// A queue that is exclusive to this connection.
    fn find_own(
        &self,
        connection: ConnectionId,
        here: &Here,
        name: &str,
    ) -> Checked<(StreamId, ShardId)> {
        let found = self.find(connection, here, name)?;
        let meta = self.fabric.meta();
        let owner = meta.stream_by_id(found.0).and_then(|stream| stream.owner);
        match owner == Some(connection) {
            true => Ok(found),
            false => Err(Refusal::new(
                ErrorKind::AccessRefused,
                format!("queue '{name}' is not this connection's own"),
            )),
        }
    }

    pub(super) fn declare_stream(
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
                Question::Declared { stream },
            );
            return Ok(());
        }
        if !(declare.private && declare.exclusive) {
            self.allow(&here, Action::Configure, Resource::Queue(&declare.name))?;
        }
        let stream = StreamSpec {
            name: declare.name,
            key: checked(declare.key)?,
            durable: declare.durable,
            exclusive: declare.exclusive,
            auto_delete: declare.auto_delete,
            limits: declare.limits,
            arguments: Arguments::new(declare.arguments)?,
        };
        // What is dropped there may reach that exchange.
        if let Some(dead_letter) = &stream.limits.dead_letter {
            self.allow(
                &here,
                Action::Bind,
                Resource::Exchange(&dead_letter.exchange),
            )?;
        }
        let asked = Asked::Declared {
            token,
            vhost: here.vhost,
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

    pub(super) fn delete_stream(
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

    pub(super) fn bind(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &Connected,
        token: Token,
        binding: BindingSpec,
        command: fn(BindingChange) -> MetaCommand,
    ) -> Checked<()> {
        let here = Self::here(state)?;
        let to = match binding.to {
            BindTo::Stream(name) => {
                self.allow(&here, Action::Bind, Resource::Queue(&name))?;
                BindingEnd::Stream(name)
            }
            BindTo::Exchange(name) => {
                self.allow(&here, Action::Bind, Resource::Exchange(&name))?;
                BindingEnd::Exchange(name)
            }
        };
        self.allow(&here, Action::Bind, Resource::Exchange(&binding.exchange))?;
        let change = BindingChange {
            vhost: here.vhost,
            exchange: binding.exchange,
            to,
            key: Some(checked(binding.key)?),
            filter: binding.filter,
            arguments: Arguments::new(binding.arguments)?,
            by: connection,
        };
        let bind = command(change.clone());
        if binding.retained
            && matches!(bind, MetaCommand::Bind(_))
            && let Some(reading) = self.reading_of_queue(&here, &change)
        {
            let question = Question::Watch {
                reading: reading.key,
                vhost: reading.vhost,
                filter: reading.filter.clone(),
                queue: reading.queue.unwrap_or_default(),
            };
            let shard = reading.shard;
            let step = Step::Watched {
                token,
                change: Box::new(change),
                reading: Box::new(reading),
            };
            self.ask_shard(now, shard, connection, step, question);
            return Ok(());
        }
        self.propose(connection, Asked::Simple { token }, bind);
        Ok(())
    }

    /// The last values for a queue, when it is bound to the exchange of the vhost's sessions.
    fn reading_of_queue(&mut self, here: &Here, change: &BindingChange) -> Option<Reading> {
        let (queue, shard) = {
            let meta = self.fabric.meta();
            let vhost = meta.vhost_by_id(here.vhost)?;
            let exchange = meta.exchange(here.vhost, &change.exchange)?;
            if exchange.id != vhost.topic_exchange {
                return None;
            }
            let BindingEnd::Stream(name) = &change.to else {
                return None;
            };
            let stream = meta.stream(here.vhost, name)?;
            (stream.id, stream.shard)
        };
        let vhost = (here.vhost, &*here.name);
        let of = (&change.filter, None);
        Some(self.reading(change.by, vhost, (shard, Some(queue)), of))
    }

    pub(super) fn consume(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        consume: Consume,
    ) -> Checked<()> {
        let (here, stream, shard) = if consume.private {
            let here = Self::here(state)?;
            let (stream, shard) = self.find_own(connection, &here, &consume.stream)?;
            (here, stream, shard)
        } else {
            self.queue(connection, state, &consume.stream, Action::Consume)?
        };
        let subscribes = consume.replay.as_deref();
        if let Some(filter) = subscribes.and_then(|replay| replay.subscribes.as_ref()) {
            self.allow(&here, Action::Subscribe, Resource::Filter(filter))?;
        }
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
            // Without a name: its right is never asked again either.
            name: match consume.private {
                true => Arc::from(""),
                false => consume.stream,
            },
            attached: true,
            presettled,
            held: 0,
            member: false,
            giving_back: 0,
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
            replay: consume.replay,
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

    pub(super) fn get(
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
                    member: false,
                    giving_back: 0,
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
}

/// An address as metadata can read it back: one that cannot be would stop the journal.
fn checked(key: Address) -> Checked<Address> {
    Address::new(key.0).map_err(|why| Refusal::new(ErrorKind::BadRequest, format!("key: {why}")))
}

fn no_exchange(name: &str, vhost: &str) -> Refusal {
    Refusal::new(
        ErrorKind::NotFound,
        format!("no exchange '{name}' in vhost '{vhost}'"),
    )
}
