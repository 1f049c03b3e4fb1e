//! Every method of AMQP 0-9-1, in both directions, from one table.
//!
//! The table gives each method's class, id, sender and arguments in the order of the XML grammar; a
//! macro makes of it a struct per method, the enum `Method`, and their decoding and encoding. Values
//! borrow from the frame they were read from. Extensions that deployed clients rely on are in it:
//! exchange.bind, basic.nack, confirm, connection.blocked, connection.update-secret, access.request.
//! What a method *means* is the connection's business.

use bytes::{BufMut, BytesMut};

use super::field::{Field, FieldError, LongStr, Reader, ShortStr, Writer};
use super::table::Table;
use crate::error::{AmqpError, ReplyCode};

/// Which peer may send a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The client only.
    Client,
    /// The server only.
    Server,
    /// Either.
    Both,
}

/// A method that can be written.
pub trait Wire {
    /// `(class, method)` of the XML grammar.
    const ID: (u16, u16);
    /// Appends the arguments, without class and method id.
    fn write_arguments(&self, writer: &mut Writer<'_>);

    /// Appends class id, method id and arguments: a method frame's whole payload.
    #[inline]
    fn write(&self, out: &mut BytesMut) {
        out.put_u16(Self::ID.0);
        out.put_u16(Self::ID.1);
        self.write_arguments(&mut Writer::new(out));
    }
}

/// A method whose arguments can be read.
pub trait Arguments<'a>: Sized {
    /// Reads the arguments, without class and method id.
    ///
    /// # Errors
    /// What is malformed.
    fn read_arguments(reader: &mut Reader<'a>) -> Result<Self, FieldError>;

    /// Reads the arguments that follow the ids in a method frame's payload, to the end.
    ///
    /// # Errors
    /// 502 when they are malformed.
    #[inline]
    fn decode_arguments(arguments: &'a [u8]) -> Result<Self, AmqpError>
    where
        Self: Wire,
    {
        let mut reader = Reader::new(arguments);
        let read =
            Self::read_arguments(&mut reader).and_then(|method| reader.end().map(|()| method));
        read.map_err(|error| malformed(Self::ID, error))
    }
}

macro_rules! methods {
    ($a:lifetime; $(
        $(#[$doc:meta])*
        $class:literal $id:literal $sender:ident $wire_name:literal
        $name:ident $(<$lt:lifetime>)? { $($field:ident: $domain:ty),* $(,)? }
    )*) => {
        $(
            $(#[$doc])*
            #[doc = concat!("\n\n`", $wire_name, "`, class ", stringify!($class), ", method ", stringify!($id), ".")]
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $name $(<$lt>)? {
                $(
                    #[doc = concat!("Argument `", stringify!($field), "` of `", $wire_name, "`.")]
                    pub $field: $domain,
                )*
            }

            impl $(<$lt>)? Wire for $name $(<$lt>)? {
                const ID: (u16, u16) = ($class, $id);
                #[inline]
                fn write_arguments(&self, _writer: &mut Writer<'_>) {
                    $(self.$field.write(_writer);)*
                }
            }

            impl<$a> Arguments<$a> for $name $(<$lt>)? {
                #[inline]
                fn read_arguments(_reader: &mut Reader<$a>) -> Result<Self, FieldError> {
                    Ok(Self { $($field: Field::read(_reader)?,)* })
                }
            }
        )*

        /// Any method.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Method<$a> {
            $(
                #[doc = concat!("`", $wire_name, "`")]
                $name($name $(<$lt>)?),
            )*
        }

        impl<$a> Method<$a> {
            /// Reads the arguments of the method `id`; `None` when there is no such method.
            #[inline]
            fn read(id: (u16, u16), reader: &mut Reader<$a>) -> Result<Option<Self>, FieldError> {
                Ok(Some(match id {
                    $(($class, $id) => Method::$name($name::read_arguments(reader)?),)*
                    _ => return Ok(None),
                }))
            }

            /// `(class, method)` of the XML grammar.
            pub fn id(&self) -> (u16, u16) {
                match self {
                    $(Method::$name(_) => ($class, $id),)*
                }
            }

            /// Appends class id, method id and arguments: a method frame's whole payload.
            pub fn write(&self, out: &mut BytesMut) {
                match self {
                    $(Method::$name(method) => method.write(out),)*
                }
            }
        }

        $(
            impl<$a> From<$name $(<$lt>)?> for Method<$a> {
                fn from(method: $name $(<$lt>)?) -> Self {
                    Method::$name(method)
                }
            }
        )*

        /// Which peer may send a method, and the method's name in the standard; `None` when there is
        /// no such method.
        pub fn describe(id: (u16, u16)) -> Option<(Sender, &'static str)> {
            match id {
                $(($class, $id) => Some((Sender::$sender, $wire_name)),)*
                _ => None,
            }
        }

        /// Every method there is, as `(class, method)`.
        pub const ALL: &[(u16, u16)] = &[$(($class, $id)),*];
    };
}

methods! { 'a;
    /// Opens the negotiation: what the server is and how it can be logged in to.
    10 10 Server "connection.start" ConnectionStart<'a> {
        version_major: u8, version_minor: u8, server_properties: Table<'a>, mechanisms: LongStr<'a>,
        locales: LongStr<'a>,
    }
    /// Chooses a mechanism and logs in.
    10 11 Client "connection.start-ok" ConnectionStartOk<'a> {
        client_properties: Table<'a>, mechanism: ShortStr<'a>, response: LongStr<'a>, locale: ShortStr<'a>,
    }
    /// A further challenge of the login mechanism.
    10 20 Server "connection.secure" ConnectionSecure<'a> { challenge: LongStr<'a> }
    /// The answer to a challenge.
    10 21 Client "connection.secure-ok" ConnectionSecureOk<'a> { response: LongStr<'a> }
    /// Proposes limits; heartbeat in seconds.
    10 30 Server "connection.tune" ConnectionTune { channel_max: u16, frame_max: u32, heartbeat: u16 }
    /// Settles limits; heartbeat in seconds.
    10 31 Client "connection.tune-ok" ConnectionTuneOk { channel_max: u16, frame_max: u32, heartbeat: u16 }
    /// Opens a virtual host.
    10 40 Client "connection.open" ConnectionOpen<'a> {
        virtual_host: ShortStr<'a>, reserved_1: ShortStr<'a>, reserved_2: bool,
    }
    /// The virtual host is open.
    10 41 Server "connection.open-ok" ConnectionOpenOk<'a> { reserved_1: ShortStr<'a> }
    /// Closes the connection.
    10 50 Both "connection.close" ConnectionClose<'a> {
        reply_code: u16, reply_text: ShortStr<'a>, class_id: u16, method_id: u16,
    }
    /// The connection is closed.
    10 51 Both "connection.close-ok" ConnectionCloseOk {}
    /// Publishing is held back.
    10 60 Server "connection.blocked" ConnectionBlocked<'a> { reason: ShortStr<'a> }
    /// Publishing goes on.
    10 61 Server "connection.unblocked" ConnectionUnblocked {}
    /// Replaces the secret the connection logged in with.
    10 70 Client "connection.update-secret" ConnectionUpdateSecret<'a> {
        new_secret: LongStr<'a>, reason: ShortStr<'a>,
    }
    /// The secret is replaced.
    10 71 Server "connection.update-secret-ok" ConnectionUpdateSecretOk {}

    /// Opens a channel.
    20 10 Client "channel.open" ChannelOpen<'a> { reserved_1: ShortStr<'a> }
    /// The channel is open.
    20 11 Server "channel.open-ok" ChannelOpenOk<'a> { reserved_1: LongStr<'a> }
    /// Pauses or resumes content.
    20 20 Both "channel.flow" ChannelFlow { active: bool }
    /// Content is paused or resumed.
    20 21 Both "channel.flow-ok" ChannelFlowOk { active: bool }
    /// Closes the channel.
    20 40 Both "channel.close" ChannelClose<'a> {
        reply_code: u16, reply_text: ShortStr<'a>, class_id: u16, method_id: u16,
    }
    /// The channel is closed.
    20 41 Both "channel.close-ok" ChannelCloseOk {}

    /// Asks for a ticket of the access model of AMQP 0-8.
    30 10 Client "access.request" AccessRequest<'a> {
        realm: ShortStr<'a>, exclusive: bool, passive: bool, active: bool, write: bool, read: bool,
    }
    /// A ticket that means nothing.
    30 11 Server "access.request-ok" AccessRequestOk { ticket: u16 }

    /// Creates or checks an exchange.
    40 10 Client "exchange.declare" ExchangeDeclare<'a> {
        ticket: u16, exchange: ShortStr<'a>, kind: ShortStr<'a>, passive: bool, durable: bool,
        auto_delete: bool, internal: bool, nowait: bool, arguments: Table<'a>,
    }
    /// The exchange is there.
    40 11 Server "exchange.declare-ok" ExchangeDeclareOk {}
    /// Deletes an exchange.
    40 20 Client "exchange.delete" ExchangeDelete<'a> {
        ticket: u16, exchange: ShortStr<'a>, if_unused: bool, nowait: bool,
    }
    /// The exchange is gone.
    40 21 Server "exchange.delete-ok" ExchangeDeleteOk {}
    /// Binds an exchange to an exchange.
    40 30 Client "exchange.bind" ExchangeBind<'a> {
        ticket: u16, destination: ShortStr<'a>, source: ShortStr<'a>, routing_key: ShortStr<'a>,
        nowait: bool, arguments: Table<'a>,
    }
    /// The binding is there.
    40 31 Server "exchange.bind-ok" ExchangeBindOk {}
    /// Removes a binding of an exchange to an exchange.
    40 40 Client "exchange.unbind" ExchangeUnbind<'a> {
        ticket: u16, destination: ShortStr<'a>, source: ShortStr<'a>, routing_key: ShortStr<'a>,
        nowait: bool, arguments: Table<'a>,
    }
    /// The binding is gone.
    40 51 Server "exchange.unbind-ok" ExchangeUnbindOk {}

    /// Creates or checks a queue.
    50 10 Client "queue.declare" QueueDeclare<'a> {
        ticket: u16, queue: ShortStr<'a>, passive: bool, durable: bool, exclusive: bool,
        auto_delete: bool, nowait: bool, arguments: Table<'a>,
    }
    /// The queue is there.
    50 11 Server "queue.declare-ok" QueueDeclareOk<'a> {
        queue: ShortStr<'a>, message_count: u32, consumer_count: u32,
    }
    /// Binds a queue to an exchange.
    50 20 Client "queue.bind" QueueBind<'a> {
        ticket: u16, queue: ShortStr<'a>, exchange: ShortStr<'a>, routing_key: ShortStr<'a>,
        nowait: bool, arguments: Table<'a>,
    }
    /// The binding is there.
    50 21 Server "queue.bind-ok" QueueBindOk {}
    /// Removes what is ready in a queue.
    50 30 Client "queue.purge" QueuePurge<'a> { ticket: u16, queue: ShortStr<'a>, nowait: bool }
    /// How many messages were removed.
    50 31 Server "queue.purge-ok" QueuePurgeOk { message_count: u32 }
    /// Deletes a queue.
    50 40 Client "queue.delete" QueueDelete<'a> {
        ticket: u16, queue: ShortStr<'a>, if_unused: bool, if_empty: bool, nowait: bool,
    }
    /// The queue is gone, and so many messages with it.
    50 41 Server "queue.delete-ok" QueueDeleteOk { message_count: u32 }
    /// Removes a binding of a queue.
    50 50 Client "queue.unbind" QueueUnbind<'a> {
        ticket: u16, queue: ShortStr<'a>, exchange: ShortStr<'a>, routing_key: ShortStr<'a>,
        arguments: Table<'a>,
    }
    /// The binding is gone.
    50 51 Server "queue.unbind-ok" QueueUnbindOk {}

    /// Limits how much is delivered without acknowledgement; size in bytes.
    60 10 Client "basic.qos" BasicQos { prefetch_size: u32, prefetch_count: u16, global: bool }
    /// The limit holds.
    60 11 Server "basic.qos-ok" BasicQosOk {}
    /// Starts a consumer.
    60 20 Client "basic.consume" BasicConsume<'a> {
        ticket: u16, queue: ShortStr<'a>, consumer_tag: ShortStr<'a>, no_local: bool, no_ack: bool,
        exclusive: bool, nowait: bool, arguments: Table<'a>,
    }
    /// The consumer is there.
    60 21 Server "basic.consume-ok" BasicConsumeOk<'a> { consumer_tag: ShortStr<'a> }
    /// Ends a consumer; from the server, says that one ended.
    60 30 Both "basic.cancel" BasicCancel<'a> { consumer_tag: ShortStr<'a>, nowait: bool }
    /// The consumer is gone.
    60 31 Both "basic.cancel-ok" BasicCancelOk<'a> { consumer_tag: ShortStr<'a> }
    /// Publishes a message; content follows.
    60 40 Client "basic.publish" BasicPublish<'a> {
        ticket: u16, exchange: ShortStr<'a>, routing_key: ShortStr<'a>, mandatory: bool, immediate: bool,
    }
    /// Gives back a message that could not be routed; content follows.
    60 50 Server "basic.return" BasicReturn<'a> {
        reply_code: u16, reply_text: ShortStr<'a>, exchange: ShortStr<'a>, routing_key: ShortStr<'a>,
    }
    /// Delivers a message to a consumer; content follows.
    60 60 Server "basic.deliver" BasicDeliver<'a> {
        consumer_tag: ShortStr<'a>, delivery_tag: u64, redelivered: bool, exchange: ShortStr<'a>,
        routing_key: ShortStr<'a>,
    }
    /// Asks for one message.
    60 70 Client "basic.get" BasicGet<'a> { ticket: u16, queue: ShortStr<'a>, no_ack: bool }
    /// The one message; content follows.
    60 71 Server "basic.get-ok" BasicGetOk<'a> {
        delivery_tag: u64, redelivered: bool, exchange: ShortStr<'a>, routing_key: ShortStr<'a>,
        message_count: u32,
    }
    /// There is no message to get.
    60 72 Server "basic.get-empty" BasicGetEmpty<'a> { reserved_1: ShortStr<'a> }
    /// Acknowledges deliveries, or from the server publishes.
    60 80 Both "basic.ack" BasicAck { delivery_tag: u64, multiple: bool }
    /// Refuses one delivery.
    60 90 Client "basic.reject" BasicReject { delivery_tag: u64, requeue: bool }
    /// Asks for everything unacknowledged again, without an answer.
    60 100 Client "basic.recover-async" BasicRecoverAsync { requeue: bool }
    /// Asks for everything unacknowledged again.
    60 110 Client "basic.recover" BasicRecover { requeue: bool }
    /// Everything unacknowledged comes again.
    60 111 Server "basic.recover-ok" BasicRecoverOk {}
    /// Refuses deliveries, or from the server publishes.
    60 120 Both "basic.nack" BasicNack { delivery_tag: u64, multiple: bool, requeue: bool }

    /// Asks for every publish on the channel to be confirmed.
    85 10 Client "confirm.select" ConfirmSelect { nowait: bool }
    /// Publishes will be confirmed.
    85 11 Server "confirm.select-ok" ConfirmSelectOk {}

    /// Puts the channel into transactions.
    90 10 Client "tx.select" TxSelect {}
    /// The channel is in transactions.
    90 11 Server "tx.select-ok" TxSelectOk {}
    /// Commits the transaction.
    90 20 Client "tx.commit" TxCommit {}
    /// The transaction is committed.
    90 21 Server "tx.commit-ok" TxCommitOk {}
    /// Gives the transaction up.
    90 30 Client "tx.rollback" TxRollback {}
    /// The transaction is given up.
    90 31 Server "tx.rollback-ok" TxRollbackOk {}
}

impl<'a> Method<'a> {
    /// Reads a method frame's payload, whoever sent it.
    ///
    /// # Errors
    /// 502 when the ids or the arguments are malformed, 540 when there is no such method; both close
    /// the connection.
    #[inline]
    pub fn decode(payload: &'a [u8]) -> Result<Self, AmqpError> {
        let mut reader = Reader::new(payload);
        let id = match (u16::read(&mut reader), u16::read(&mut reader)) {
            (Ok(class), Ok(method)) => (class, method),
            _ => {
                return Err(AmqpError::connection(
                    ReplyCode::SYNTAX_ERROR,
                    "method frame is too short for class and method id",
                ));
            }
        };
        let read = Method::read(id, &mut reader).and_then(|method| match method {
            Some(_) => reader.end().map(|()| method),
            None => Ok(None),
        });
        match read {
            Ok(Some(method)) => Ok(method),
            Ok(None) => Err(unknown(id)),
            Err(error) => Err(malformed(id, error)),
        }
    }

    /// Reads a method frame's payload that a client sent.
    ///
    /// # Errors
    /// As `decode`, and 503 for a method that only servers send.
    #[inline]
    pub fn decode_from_client(payload: &'a [u8]) -> Result<Self, AmqpError> {
        let method = Self::decode(payload)?;
        match describe(method.id()) {
            Some((Sender::Server, name)) => Err(AmqpError::connection(
                ReplyCode::COMMAND_INVALID,
                format!("{name} is sent by servers only"),
            )
            .by(method.id())),
            _ => Ok(method),
        }
    }
}

#[cold]
fn unknown(id: (u16, u16)) -> AmqpError {
    AmqpError::connection(
        ReplyCode::NOT_IMPLEMENTED,
        format!("no method {} in class {}", id.1, id.0),
    )
    .by(id)
}

#[cold]
fn malformed(id: (u16, u16), error: FieldError) -> AmqpError {
    let name = describe(id).map_or("method", |(_, name)| name);
    AmqpError::connection(ReplyCode::SYNTAX_ERROR, format!("{name}: {error}")).by(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_publish_has_the_layout_of_the_xml_grammar() {
        let publish = BasicPublish {
            ticket: 0,
            exchange: ShortStr::cut(b"ex"),
            routing_key: ShortStr::cut(b"k"),
            mandatory: true,
            immediate: false,
        };
        let mut out = BytesMut::new();
        Wire::write(&publish, &mut out);
        assert_eq!(&out[..], b"\x00\x3c\x00\x28\x00\x00\x02ex\x01k\x01");
        assert_eq!(Method::decode(&out), Ok(Method::BasicPublish(publish)));
    }

    #[test]
    fn codes_for_what_cannot_be_read_are_told_apart() {
        let code = |payload: &[u8]| Method::decode_from_client(payload).unwrap_err().code;
        assert_eq!(code(&[0, 60, 0]), ReplyCode::SYNTAX_ERROR);
        assert_eq!(code(&[0, 60, 0, 250]), ReplyCode::NOT_IMPLEMENTED);
        assert_eq!(code(&[0, 99, 0, 10]), ReplyCode::NOT_IMPLEMENTED);
        assert_eq!(code(&[0, 60, 0, 80, 0, 0]), ReplyCode::SYNTAX_ERROR);
        assert_eq!(code(&[0, 10, 0, 51, 0]), ReplyCode::SYNTAX_ERROR);
        assert_eq!(code(&[0, 10, 0, 61]), ReplyCode::COMMAND_INVALID);
        let error = Method::decode(&[0, 60, 0, 80, 0]).unwrap_err();
        assert_eq!((error.class_id, error.method_id), (60, 80));
        assert!(error.code.is_hard());
    }

    #[test]
    fn every_method_is_in_the_table_once() {
        let mut ids = ALL.to_vec();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), ALL.len());
        assert_eq!(ALL.len(), 66);
    }
}
