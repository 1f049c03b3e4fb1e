//! Exchange and queue methods: names and arguments checked, then asked of core.
//!
//! Owns what only AMQP has an opinion on: reserved names, the default exchange, the queue that a method
//! leaves out, kinds of exchange. Whether something exists or may be done is core's answer.

use std::sync::Arc;

use anabranch_core::address::{Address, AddressError, TopicFilter};
use anabranch_core::gateway::{
    BindTo, BindingSpec, Command, ExchangeDeclare as Exchange, ExchangeKind, StreamDeclare,
};
use anabranch_core::limits::StreamLimits;
use bytes::Bytes;

use super::{AmqpConnection, Cx};
use crate::channel::{Ask, Then};
use crate::error::{AmqpError, ReplyCode};
use crate::wire::field::ShortStr;
use crate::wire::method::{
    ExchangeDeclare, ExchangeDelete, Method, QueueBind, QueueDeclare, QueueDelete, QueuePurge,
    QueueUnbind, Wire,
};
use crate::wire::table::Table;
use crate::{address, arguments, names};

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
            Method::ExchangeBind(_) | Method::ExchangeUnbind(_) => Err(AmqpError::connection(
                ReplyCode::NOT_IMPLEMENTED,
                "bindings of an exchange to an exchange are not supported",
            )),
            Method::QueueDeclare(declare) => self.declare_queue(number, declare, cx),
            Method::QueueBind(bind) => {
                let (queue, binding) = (
                    bind.queue,
                    (bind.exchange, bind.routing_key, bind.arguments),
                );
                let then = Then::Ok {
                    nowait: bind.nowait,
                };
                let binding = self.binding(number, queue, binding)?;
                self.ask_for(number, QueueBind::ID, then, cx, |token| Command::Bind {
                    token,
                    binding,
                });
                Ok(())
            }
            Method::QueueUnbind(unbind) => {
                let (queue, binding) = (
                    unbind.queue,
                    (unbind.exchange, unbind.routing_key, unbind.arguments),
                );
                let then = Then::Ok { nowait: false };
                let binding = self.binding(number, queue, binding)?;
                self.ask_for(number, QueueUnbind::ID, then, cx, |token| Command::Unbind {
                    token,
                    binding,
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
        let kind = match names::exchange_kind(declare.kind) {
            Some(kind) => kind,
            // A passive declare asks for the name alone.
            None if declare.passive => ExchangeKind::Direct,
            None => {
                return Err(AmqpError::channel(
                    ReplyCode::PRECONDITION_FAILED,
                    format!("unknown exchange type {:?}", declare.kind),
                ));
            }
        };
        let arguments = if declare.passive {
            Vec::new()
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
            alternate: None,
            arguments,
        };
        let then = Then::Ok {
            nowait: declare.nowait,
        };
        self.ask_for(number, ExchangeDeclare::ID, then, cx, |token| {
            Command::DeclareExchange {
                token,
                declare: exchange,
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
            name if !declare.passive && names::is_reserved(name) => {
                return Err(access_refused(format!(
                    "queue name '{name}' contains reserved prefix 'amq.*'"
                )));
            }
            name => name.into(),
        };
        let key = queue_address(&name)?;
        let arguments = if declare.passive {
            Vec::new()
        } else {
            arguments::queue(declare.arguments)?
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
            limits: StreamLimits::default(),
            arguments,
        };
        self.ask_for(number, QueueDeclare::ID, then, cx, |token| {
            Command::DeclareStream {
                token,
                declare: stream,
            }
        });
        Ok(())
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
            names::DIRECT_REPLY_TO => Err(AmqpError::connection(
                ReplyCode::NOT_IMPLEMENTED,
                format!("pseudo-queue '{}' is not supported", names::DIRECT_REPLY_TO),
            )),
            name => Ok(name.into()),
        }
    }

    /// A binding as core takes it. When neither queue nor key is named, the key is the queue's name.
    fn binding(
        &mut self,
        number: u16,
        queue: ShortStr<'_>,
        (exchange, key, table): (ShortStr<'_>, ShortStr<'_>, Table<'_>),
    ) -> Result<BindingSpec, AmqpError> {
        let stream = self.queue_name(number, queue)?;
        let exchange = named_exchange(exchange)?;
        let key = if queue.is_empty() && key.is_empty() {
            stream.as_bytes()
        } else {
            key.as_bytes()
        };
        let filter = binding_filter(exchange, key)?;
        Ok(BindingSpec {
            exchange: exchange.into(),
            key: Address(filter.0.clone()),
            filter,
            retained: false,
            arguments: arguments::binding(table)?,
            to: BindTo::Stream(stream),
        })
    }
}

/// The canonical form of a binding key. That of a direct exchange has no wildcards; which exchanges are
/// direct is known here only of the predeclared one. For the others `*` and `#` as whole words are
/// wildcards, which only a topic exchange looks at.
fn binding_filter(exchange: &str, key: &[u8]) -> Result<TopicFilter, AmqpError> {
    let filter = if exchange == "amq.direct" {
        address::key_to_filter(key)
    } else {
        address::pattern_to_filter(key)
    };
    filter.map_err(bad_key)
}

/// The address by which the default exchange reaches a queue.
fn queue_address(name: &str) -> Result<Address, AmqpError> {
    let key = Bytes::copy_from_slice(name.as_bytes());
    address::key_to_address(&key)
        .map(|converted| converted.address)
        .map_err(bad_key)
}
