//! What core refused, in AMQP's reply codes.
//!
//! Every `ErrorKind` is mapped here to a code and a scope, with no arm for the rest: a new kind does
//! not compile until it has its place. Never decides what is refused.

use anabranch_core::error::{ErrorKind, Refusal};

use crate::error::{AmqpError, ReplyCode, Scope};

/// Code and scope of a refused command.
pub fn reaction(kind: ErrorKind) -> (ReplyCode, Scope) {
    match kind {
        ErrorKind::AccessRefused => (ReplyCode::ACCESS_REFUSED, Scope::Channel),
        ErrorKind::BadCredentials => (ReplyCode::ACCESS_REFUSED, Scope::Connection),
        ErrorKind::BadRequest => (ReplyCode::PRECONDITION_FAILED, Scope::Channel),
        ErrorKind::Busy => (ReplyCode::RESOURCE_ERROR, Scope::Connection),
        ErrorKind::Inequivalent => (ReplyCode::PRECONDITION_FAILED, Scope::Channel),
        ErrorKind::InUse => (ReplyCode::PRECONDITION_FAILED, Scope::Channel),
        ErrorKind::Locked => (ReplyCode::RESOURCE_LOCKED, Scope::Channel),
        ErrorKind::MessageTooLarge => (ReplyCode::PRECONDITION_FAILED, Scope::Channel),
        ErrorKind::NotEmpty => (ReplyCode::PRECONDITION_FAILED, Scope::Channel),
        ErrorKind::NotFound => (ReplyCode::NOT_FOUND, Scope::Channel),
        ErrorKind::NotSupported => (ReplyCode::NOT_IMPLEMENTED, Scope::Connection),
        ErrorKind::QuotaExceeded => (ReplyCode::PRECONDITION_FAILED, Scope::Channel),
        ErrorKind::SecondConsumer => (ReplyCode::ACCESS_REFUSED, Scope::Channel),
        ErrorKind::ShuttingDown => (ReplyCode::CONNECTION_FORCED, Scope::Connection),
        ErrorKind::StorageFailed => (ReplyCode::INTERNAL_ERROR, Scope::Connection),
        ErrorKind::Unavailable => (ReplyCode::INTERNAL_ERROR, Scope::Connection),
    }
}

/// The error a refused command gives its channel or connection.
pub fn refused(refusal: &Refusal, method: (u16, u16)) -> AmqpError {
    let (code, scope) = reaction(refusal.kind);
    AmqpError {
        code,
        text: refusal.text.clone().into(),
        class_id: method.0,
        method_id: method.1,
        scope,
    }
}

/// The error for a vhost that may not be opened: always 530 (not allowed) on the connection, except
/// when the broker cannot answer.
pub fn vhost_refused(refusal: &Refusal, method: (u16, u16)) -> AmqpError {
    let (code, _) = reaction(refusal.kind);
    let code = if refusal.kind.is_ours() {
        code
    } else {
        ReplyCode::NOT_ALLOWED
    };
    AmqpError::connection(code, refusal.text.clone()).by(method)
}

/// Whether a refused publish is the broker's trouble, which a confirming publisher is told by
/// `basic.nack` and may try again, rather than the publisher's error, which closes its channel.
pub fn is_nacked(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Busy
        | ErrorKind::QuotaExceeded
        | ErrorKind::ShuttingDown
        | ErrorKind::StorageFailed
        | ErrorKind::Unavailable => true,
        ErrorKind::AccessRefused
        | ErrorKind::BadCredentials
        | ErrorKind::BadRequest
        | ErrorKind::Inequivalent
        | ErrorKind::InUse
        | ErrorKind::Locked
        | ErrorKind::MessageTooLarge
        | ErrorKind::NotEmpty
        | ErrorKind::NotFound
        | ErrorKind::NotSupported
        | ErrorKind::SecondConsumer => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_codes_close_the_connection_and_soft_codes_the_channel() {
        let refusal = |kind| Refusal::new(kind, "no queue 'jobs' in vhost '/'");
        let error = refused(&refusal(ErrorKind::NotFound), (50, 30));
        assert_eq!(
            (error.code, error.scope),
            (ReplyCode::NOT_FOUND, Scope::Channel)
        );
        assert_eq!(
            error.reply_text(),
            "NOT_FOUND - no queue 'jobs' in vhost '/'"
        );
        for kind in [
            ErrorKind::NotSupported,
            ErrorKind::Busy,
            ErrorKind::StorageFailed,
            ErrorKind::ShuttingDown,
        ] {
            let (code, scope) = reaction(kind);
            assert!(code.is_hard() && scope == Scope::Connection, "{kind:?}");
        }
        assert_eq!(
            vhost_refused(&refusal(ErrorKind::AccessRefused), (10, 40)).code,
            ReplyCode::NOT_ALLOWED
        );
        assert_eq!(
            vhost_refused(&refusal(ErrorKind::Unavailable), (10, 40)).code,
            ReplyCode::INTERNAL_ERROR
        );
    }
}
