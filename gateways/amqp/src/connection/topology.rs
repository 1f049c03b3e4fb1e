//! Exchange and queue methods: names and arguments checked, then asked of core.
//!
//! Owns what only AMQP has an opinion on: reserved names, the default exchange, the queue that a method
//! leaves out, kinds of exchange. Whether something exists or may be done is core's answer.

use std::sync::Arc;

use anabranch_core::address::{Address, AddressError};
use anabranch_core::gateway::{
    BindTo, BindingSpec, Command, ExchangeDeclare as Exchange, ExchangeKind, StreamDeclare,
};
use anabranch_core::limits::StreamLimits;
use bytes::Bytes;

use super::{AmqpConnection, Cx, QUORUM_QUEUES_MAX};
use crate::arguments::{Flags, QueueKind};
use crate::channel::{Ask, Then};
use crate::error::{AmqpError, ReplyCode};
use crate::wire::field::ShortStr;
use crate::wire::method::{
    ExchangeBind, ExchangeDeclare, ExchangeDelete, ExchangeUnbind, Method, QueueBind, QueueDeclare,
    QueueDelete, QueuePurge, QueueUnbind, Wire,
};
use crate::wire::table::{Table, Value};
use crate::{address, arguments, delay, map, names};

/// Exchange, key and arguments of a binding, as a method names them.
type Route<'a> = (ShortStr<'a>, ShortStr<'a>, Table<'a>);

fn access_refused(text: String) -> AmqpError {
    AmqpError::channel(ReplyCode::ACCESS_REFUSED, text)
}

/// The error for a key or pattern that core has no address for.
pub(super) fn bad_key(error: AddressError) -> AmqpError {
    AmqpError::channel(
        ReplyCode::PRECONDITION_FAILED,
        format!("routing key refused: {error}"),
    )
}

/// The name of an exchange that is not the default one.
fn named_exchange<'a>(name: ShortStr<'a>) -> Result<&'a str, AmqpError> {
    match names::text(name, "exchange")? {
        "" => Err(access_refused(
            "operation not permitted on the default exchange".to_owned(),
        )),
        name => Ok(name),
    }
}

impl AmqpConnection {
    pub(super) fn topology_method(
        &mut self,
        number: u16,
        method: Method<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        match method {
            Method::ExchangeDeclare(declare) => self.declare_exchange(number, declare, cx),
            Method::ExchangeDelete(delete) => self.delete_exchange(number, delete, cx),
            Method::ExchangeBind(bind) => {
                let to = BindTo::Exchange(named_exchange(bind.destination)?.into());
                let binding = binding(to, (bind.source, bind.routing_key, bind.arguments))?;
                let then = Then::Ok {
                    nowait: bind.nowait,
                };
                self.ask_for(number, ExchangeBind::ID, then, cx, |token| Command::Bind {
                    token,
                    binding: Box::new(binding),
                });
                Ok(())
            }
            Method::ExchangeUnbind(unbind) => {
                let to = BindTo::Exchange(named_exchange(unbind.destination)?.into());
                let binding = binding(to, (unbind.source, unbind.routing_key, unbind.arguments))?;
                let then = Then::Ok {
                    nowait: unbind.nowait,
                };
                self.ask_for(number, ExchangeUnbind::ID, then, cx, |token| {
                    Command::Unbind {
                        token,
                        binding: Box::new(binding),
                    }
                });
                Ok(())
            }
            Method::QueueDeclare(declare) => self.declare_queue(number, declare, cx),
            Method::QueueBind(bind) => {
                let (queue, binding) = (
                    bind.queue,
                    (bind.exchange, bind.routing_key, bind.arguments),
                );
                let then = Then::Ok {
                    nowait: bind.nowait,
                };
                let binding = self.queue_binding(number, queue, binding)?;
                self.ask_for(number, QueueBind::ID, then, cx, |token| Command::Bind {
                    token,
                    binding: Box::new(binding),
                });
                Ok(())
            }
            Method::QueueUnbind(unbind) => {
                let (queue, binding) = (
                    unbind.queue,
                    (unbind.exchange, unbind.routing_key, unbind.arguments),
                );
                let then = Then::Ok { nowait: false };
                let binding = self.queue_binding(number, queue, binding)?;
                self.ask_for(number, QueueUnbind::ID, then, cx, |token| Command::Unbind {
                    token,
                    binding: Box::new(binding),
                });
                Ok(())
            }
            Method::QueuePurge(purge) => {
                let stream = self.queue_name(number, purge.queue)?;
                let then = Then::Counted {
                    nowait: purge.nowait,
                };
                self.ask_for(number, QueuePurge::ID, then, cx, |token| Command::Purge {
                    token,
                    stream,
                });
                Ok(())
            }
            Method::QueueDelete(delete) => {
                let name = self.queue_name(number, delete.queue)?;
                let then = Then::Counted {
                    nowait: delete.nowait,
                };
                self.ask_for(number, QueueDelete::ID, then, cx, |token| {
                    Command::DeleteStream {
                        token,
                        name,
                        if_unused: delete.if_unused,
                        if_empty: delete.if_empty,
                    }
                });
                Ok(())
            }
            method => Err(
                AmqpError::connection(ReplyCode::COMMAND_INVALID, "unexpected method")
                    .by(method.id()),
            ),
        }
    }

    /// Asks core something that the channel waits for.
    pub(super) fn ask_for(
        &mut self,
        number: u16,
        method: (u16, u16),
        then: Then,
        cx: &mut Cx<'_>,
        command: impl FnOnce(anabranch_core::id::Token) -> Command,
    ) {
        if let Some(of) = self.channel_mut(number).map(|channel| channel.life) {
            self.ask(cx, Ask { of, method, then }, command);
        }
    }

    fn declare_exchange(
        &mut self,
        number: u16,
        declare: ExchangeDeclare<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let name = named_exchange(declare.exchange)?;
        let predeclared = names::PREDECLARED.iter().any(|(known, _)| *known == name);
        if !declare.passive && names::is_reserved(name) && !predeclared {
            return Err(access_refused(format!(
                "exchange name '{name}' contains reserved prefix 'amq.*'"
            )));
        }
        let delays = declare.kind.as_bytes() == delay::EXCHANGE_TYPE;
        let kind = if declare.passive {
            // A passive declare asks for the name alone.
            ExchangeKind::Direct
        } else if delays {
            delayed_kind(declare.arguments)?
        } else {
            names::exchange_kind(declare.kind.as_bytes()).ok_or_else(|| {
                AmqpError::channel(
                    ReplyCode::PRECONDITION_FAILED,
                    format!("unknown exchange type {:?}", declare.kind),
                )
            })?
        };
        let (arguments, alternate) = if declare.passive {
            (Vec::new(), None)
        } else {
            arguments::exchange(declare.arguments)?
        };
        let exchange = Exchange {
            name: name.into(),
            kind,
            passive: declare.passive,
            durable: declare.durable,
            auto_delete: declare.auto_delete,
            internal: declare.internal,
            delays: delays && !declare.passive,
            alternate,
            arguments,
        };
        let then = Then::Ok {
            nowait: declare.nowait,
        };
        self.ask_for(number, ExchangeDeclare::ID, then, cx, |token| {
            Command::DeclareExchange {
                token,
                declare: Box::new(exchange),
            }
        });
        Ok(())
    }

    fn delete_exchange(
        &mut self,
        number: u16,
        delete: ExchangeDelete<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let name = named_exchange(delete.exchange)?;
        if names::is_reserved(name) {
            return Err(access_refused(format!(
                "exchange name '{name}' contains reserved prefix 'amq.*'"
            )));
        }
        let name: Arc<str> = name.into();
        let then = Then::Ok {
            nowait: delete.nowait,
        };
        self.ask_for(number, ExchangeDelete::ID, then, cx, |token| {
            Command::DeleteExchange {
                token,
                name,
                if_unused: delete.if_unused,
            }
        });
        Ok(())
    }

    fn declare_queue(
        &mut self,
        number: u16,
        declare: QueueDeclare<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let name: Arc<str> = match names::text(declare.queue, "queue")? {
            "" if declare.passive => self.queue_name(number, declare.queue)?,
            "" => self.names.make("amq.gen-"),
            name if names::is_reply_to(name) => {
                return self.declare_reply_to(number, name, declare.nowait, cx);
            }
            name if !declare.passive && map::answered_topic(name.as_bytes()).is_some() => {
                return Err(access_refused(format!(
                    "queue name '{name}' would take the answers to a topic"
                )));
            }
            name if !declare.passive && names::is_reserved(name) => {
                return Err(access_refused(format!(
                    "queue name '{name}' contains reserved prefix 'amq.*'"
                )));
            }
            name => name.into(),
        };
        let key = queue_address(&name)?;
        let (limits, arguments) = if declare.passive {
            (StreamLimits::default(), Vec::new())
        } else {
            let flags = Flags {
                durable: declare.durable,
                exclusive: declare.exclusive,
                auto_delete: declare.auto_delete,
            };
            let read = arguments::queue(declare.arguments, flags)?;
            if read.kind == QueueKind::Quorum {
                self.remember_quorum(name.clone());
            }
            (read.limits, read.arguments)
        };
        let then = Then::Declared {
            queue: name.clone(),
            nowait: declare.nowait,
        };
        let stream = StreamDeclare {
            name,
            key,
            passive: declare.passive,
            durable: declare.durable,
            exclusive: declare.exclusive,
            auto_delete: declare.auto_delete,
            private: false,
            limits,
            arguments,
        };
        self.ask_for(number, QueueDeclare::ID, then, cx, |token| {
            Command::DeclareStream {
                token,
                declare: Box::new(stream),
            }
        });
        Ok(())
    }

    /// Remembers that a queue counts how often its messages come back, and says so to its consumers.
    fn remember_quorum(&mut self, name: Arc<str>) {
        if self.quorum.len() >= QUORUM_QUEUES_MAX {
            self.quorum.clear();
        }
        self.quorum.insert(name);
    }

    /// The queue a method names, or the one declared last on the channel when it names none.
    pub(super) fn queue_name(
        &mut self,
        number: u16,
        name: ShortStr<'_>,
    ) -> Result<Arc<str>, AmqpError> {
        match names::text(name, "queue")? {
            "" => self
                .channel_mut(number)
                .and_then(|channel| channel.last_queue.clone())
                .ok_or_else(|| {
                    AmqpError::channel(ReplyCode::NOT_FOUND, "no previously declared queue")
                }),
            name => Ok(name.into()),
        }
    }

    /// A binding to a queue. When neither queue nor key is named, the key is the queue's name.
    fn queue_binding(
        &mut self,
        number: u16,
        queue: ShortStr<'_>,
        (exchange, key, table): Route<'_>,
    ) -> Result<BindingSpec, AmqpError> {
        let stream = self.queue_name(number, queue)?;
        let to = BindTo::Stream(stream.clone());
        let key = if queue.is_empty() && key.is_empty() {
            ShortStr::cut(stream.as_bytes())
        } else {
            key
        };
        binding(to, (exchange, key, table))
    }
}

/// How an exchange that delays routes what is due.
fn delayed_kind(arguments: Table<'_>) -> Result<ExchangeKind, AmqpError> {
    let named = arguments.first(delay::TYPE_ARGUMENT);
    let kind = named.and_then(Value::as_long_str);
    kind.and_then(names::exchange_kind).ok_or_else(|| {
        AmqpError::channel(
            ReplyCode::PRECONDITION_FAILED,
            format!(
                "Invalid argument, '{}' must be an existing exchange type",
                delay::TYPE_ARGUMENT
            ),
        )
    })
}

/// A binding as core takes it: its key both as an address and as a filter, since what it is depends on
/// the kind of exchange, which core knows.
fn binding(to: BindTo, (exchange, key, table): Route<'_>) -> Result<BindingSpec, AmqpError> {
    let exchange = named_exchange(exchange)?;
    let key = key.as_bytes();
    let address = address::key_to_address(&Bytes::copy_from_slice(key)).map_err(bad_key)?;
    let (arguments, retained) = arguments::binding(table)?;
    if retained && matches!(to, BindTo::Exchange(_)) {
        return Err(AmqpError::channel(
            ReplyCode::PRECONDITION_FAILED,
            "invalid arg 'x-retained' for binding: last values are put into queues only",
        ));
    }
    Ok(BindingSpec {
        exchange: exchange.into(),
        to,
        key: address.address,
        filter: address::pattern_to_filter(key).map_err(bad_key)?,
        retained,
        arguments,
    })
}

/// The address by which the default exchange reaches a queue.
pub(super) fn queue_address(name: &str) -> Result<Address, AmqpError> {
    let key = Bytes::copy_from_slice(name.as_bytes());
    address::key_to_address(&key)
        .map(|converted| converted.address)
        .map_err(bad_key)
}
