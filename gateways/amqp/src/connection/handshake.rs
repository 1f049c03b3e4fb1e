//! From the protocol header to an open vhost, and the connection class after that (AMQP 0-9-1 section
//! 2.2.4).
//!
//! Owns server properties, PLAIN and AMQPLAIN, the checks of `tune-ok` and `connection.update-secret`.
//! Never asks core about anything but login and vhost.

use std::sync::Arc;

use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::{Command, Reply};
use bytes::Bytes;

use super::{AmqpConnection, Cx, Phase, SILENCE_MS};
use crate::channel::{Ask, Then};
use crate::error::{AmqpError, ReplyCode};
use crate::reason;
use crate::token::ChannelLife;
use crate::wire::batch::Batch;
use crate::wire::field::{LongStr, ShortStr};
use crate::wire::frame::FRAME_MAX_LOWEST_BYTES;
use crate::wire::method::{
    ConnectionOpen, ConnectionOpenOk, ConnectionStart, ConnectionStartOk, ConnectionTune,
    ConnectionTuneOk, ConnectionUpdateSecretOk, Method, Wire,
};
use crate::wire::table::{Table, TableWriter, Value};

/// The channel that stands for the connection itself.
const CONNECTION: ChannelLife = ChannelLife {
    channel: 0,
    life: 0,
};

/// What a server of this version says of itself; only what is built is offered.
fn server_properties() -> Bytes {
    let mut capabilities = TableWriter::new();
    for name in [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ] {
        capabilities.named(name, Value::Bool(true));
    }
    let mut properties = TableWriter::new();
    properties
        .named("capabilities", Value::Table(capabilities.table()))
        .named("product", Value::text("Anabranch"))
        .named("version", Value::text(env!("CARGO_PKG_VERSION")))
        .named("platform", Value::text("Rust"))
        .named(
            "information",
            Value::text("Licensed under the Apache License 2.0"),
        );
    properties.finish()
}

/// User and password out of a PLAIN response: an empty identity, NUL, user, NUL, password (RFC 4616).
fn plain(response: &[u8]) -> Option<(&str, &[u8])> {
    let rest = response.strip_prefix(&[0])?;
    let at = rest.iter().position(|byte| *byte == 0)?;
    let (user, secret) = (std::str::from_utf8(&rest[..at]).ok()?, &rest[at + 1..]);
    (!secret.contains(&0)).then_some((user, secret))
}

/// User and password out of an AMQPLAIN response: a field table without its length, with the names `LOGIN`
/// and `PASSWORD`.
fn amqplain(response: &[u8]) -> Option<(&str, &[u8])> {
    let table = Table::new(response).ok()?;
    let field = |name| table.first(name).and_then(Value::as_long_str);
    Some((
        std::str::from_utf8(field("LOGIN")?).ok()?,
        field("PASSWORD")?,
    ))
}

fn flag(table: Option<Table<'_>>, name: &str) -> bool {
    table.and_then(|table| table.first(name)) == Some(Value::Bool(true))
}

impl AmqpConnection {
    pub(super) fn start(&mut self, cx: &mut Cx<'_>) {
        let properties = server_properties();
        // Made by us, so it is well formed.
        let server_properties = Table::new(&properties).unwrap_or_default();
        cx.out.send.method(
            0,
            &ConnectionStart {
                version_major: 0,
                version_minor: 9,
                server_properties,
                mechanisms: LongStr(b"PLAIN AMQPLAIN"),
                locales: LongStr(b"en_US"),
            },
        );
        self.phase = Phase::Start;
    }

    pub(super) fn connection_method(
        &mut self,
        method: Method<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        match (self.phase, method) {
            (_, Method::ConnectionClose(_)) => {
                self.close_for_peer(cx);
                Ok(())
            }
            (_, Method::ConnectionCloseOk(_)) => Ok(()),
            (Phase::Start, Method::ConnectionStartOk(start_ok)) => self.start_ok(start_ok, cx),
            (Phase::Tune, Method::ConnectionTuneOk(tune_ok)) => self.tune_ok(tune_ok),
            (Phase::Open, Method::ConnectionOpen(open)) => self.open_vhost(open, cx),
            (Phase::Running, Method::ConnectionUpdateSecret(_)) => {
                // A password's login never runs out, so a new secret has nothing to prolong. It is not
                // compared either: an open connection is no place to try passwords.
                cx.out.send.method(0, &ConnectionUpdateSecretOk {});
                Ok(())
            }
            (_, method) if method.id().0 == 10 => Err(AmqpError::connection(
                ReplyCode::CHANNEL_ERROR,
                "unexpected connection method in this phase of the connection",
            )),
            _ => Err(AmqpError::connection(
                ReplyCode::CHANNEL_ERROR,
                "method of a channel on channel 0",
            )),
        }
    }

    fn start_ok(
        &mut self,
        start_ok: ConnectionStartOk<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        let properties = start_ok.client_properties;
        let capabilities = match properties.first("capabilities") {
            Some(Value::Table(table)) => Some(table),
            _ => None,
        };
        let text = |name: &str| {
            let bytes = properties
                .first(name)
                .and_then(Value::as_long_str)
                .unwrap_or_default();
            String::from_utf8_lossy(&bytes[..bytes.len().min(255)]).into_owned()
        };
        self.client.name = text("connection_name");
        self.client.product = format!("{} {}", text("product"), text("version"))
            .trim()
            .to_owned();
        self.client.authentication_failure_close =
            flag(capabilities, "authentication_failure_close");
        self.client.consumer_cancel_notify = flag(capabilities, "consumer_cancel_notify");
        self.client.blocked = flag(capabilities, "connection.blocked");
        let response = start_ok.response.0;
        let (login, malformed) = match start_ok.mechanism.as_bytes() {
            b"PLAIN" => (plain(response), "PLAIN login refused: malformed response"),
            b"AMQPLAIN" => (
                amqplain(response),
                "AMQPLAIN login refused: malformed response",
            ),
            _ => {
                return Err(AmqpError::connection(
                    ReplyCode::COMMAND_INVALID,
                    format!("unknown authentication mechanism {:?}", start_ok.mechanism),
                ));
            }
        };
        let Some((user, secret)) = login else {
            let refusal = Refusal::new(ErrorKind::BadCredentials, malformed);
            return self.login_refused(&refusal, cx);
        };
        self.user = user.into();
        self.phase = Phase::LoggingIn;
        self.log_in(secret, cx);
        Ok(())
    }

    fn log_in(&mut self, secret: &[u8], cx: &mut Cx<'_>) {
        let (user, secret) = (
            Some(self.user.clone()),
            Some(Bytes::copy_from_slice(secret)),
        );
        self.ask(
            cx,
            Ask {
                of: CONNECTION,
                method: ConnectionStartOk::ID,
                then: Then::LogIn,
            },
            |token| Command::Login {
                token,
                user,
                secret,
                client_id: "".into(),
            },
        );
    }

    /// The answer to a login.
    pub(super) fn logged_in(
        &mut self,
        result: Result<Reply, Refusal>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        match result {
            Ok(_) => {
                self.phase = Phase::Tune;
                cx.out.send.method(
                    0,
                    &ConnectionTune {
                        channel_max: self.config.channel_max,
                        frame_max: self.config.frame_bytes_max,
                        heartbeat: self.config.heartbeat_s,
                    },
                );
                Ok(())
            }
            Err(refusal) => self.login_refused(&refusal, cx),
        }
    }

    fn login_refused(&mut self, refusal: &Refusal, cx: &mut Cx<'_>) -> Result<(), AmqpError> {
        let refused = matches!(
            refusal.kind,
            ErrorKind::BadCredentials | ErrorKind::AccessRefused
        );
        if refused && !self.client.authentication_failure_close {
            self.phase = Phase::Silent(cx.now.monotonic.after(SILENCE_MS));
            return Ok(());
        }
        let mut error = reason::refused(refusal, (0, 0));
        error.scope = crate::error::Scope::Connection;
        Err(error)
    }

    /// Checks what the client settled on, against what was offered.
    fn tune_ok(&mut self, tune_ok: ConnectionTuneOk) -> Result<(), AmqpError> {
        let not_allowed = |text: String| Err(AmqpError::connection(ReplyCode::NOT_ALLOWED, text));
        let (channel_max, frame_max) = (self.config.channel_max, self.config.frame_bytes_max);
        // 0 asks for no limit, which is more than was offered.
        if tune_ok.channel_max == 0 || tune_ok.channel_max > channel_max {
            return not_allowed(format!(
                "negotiated channel_max = {} is higher than the maximum allowed value ({channel_max})",
                tune_ok.channel_max
            ));
        }
        if tune_ok.frame_max == 0 || tune_ok.frame_max > frame_max {
            return not_allowed(format!(
                "negotiated frame_max = {} is higher than the maximum allowed value ({frame_max})",
                tune_ok.frame_max
            ));
        }
        if tune_ok.frame_max < FRAME_MAX_LOWEST_BYTES {
            return not_allowed(format!(
                "negotiated frame_max = {} is lower than the minimum allowed value ({FRAME_MAX_LOWEST_BYTES})",
                tune_ok.frame_max
            ));
        }
        self.channel_max = tune_ok.channel_max;
        self.frame_bytes_max = tune_ok.frame_max;
        self.heartbeat_s = tune_ok.heartbeat;
        self.phase = Phase::Open;
        Ok(())
    }

    fn open_vhost(&mut self, open: ConnectionOpen<'_>, cx: &mut Cx<'_>) -> Result<(), AmqpError> {
        let Some(name) = open.virtual_host.as_str() else {
            return Err(AmqpError::connection(
                ReplyCode::NOT_ALLOWED,
                format!("vhost {:?} not found", open.virtual_host),
            ));
        };
        let vhost: Arc<str> = name.into();
        self.phase = Phase::Entering;
        let ask = Ask {
            of: CONNECTION,
            method: ConnectionOpen::ID,
            then: Then::Enter(vhost.clone()),
        };
        self.ask(cx, ask, |token| Command::Enter { token, vhost });
        Ok(())
    }

    /// The answer to entering a vhost.
    pub(super) fn entered(
        &mut self,
        vhost: Arc<str>,
        result: Result<Reply, Refusal>,
        cx: &mut Cx<'_>,
    ) -> Result<(), AmqpError> {
        match result {
            Ok(_) => {
                self.vhost = vhost;
                self.phase = Phase::Running;
                cx.out.send.method(
                    0,
                    &ConnectionOpenOk {
                        reserved_1: ShortStr::default(),
                    },
                );
                Ok(())
            }
            Err(refusal) => Err(reason::vhost_refused(&refusal, ConnectionOpen::ID)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_is_identity_user_and_password_rfc_4616() {
        assert_eq!(plain(b"\0guest\0secret"), Some(("guest", &b"secret"[..])));
        assert_eq!(plain(b"\0\0"), Some(("", &b""[..])));
        for malformed in [
            &b""[..],
            b"guest",
            b"\0guest",
            b"id\0guest\0x",
            b"\0guest\0x\0y",
            b"\0\xff\0x",
        ] {
            assert_eq!(plain(malformed), None);
        }
    }

    #[test]
    fn amqplain_is_a_table_of_login_and_password() {
        let response = |pairs: &[(&'static str, Value<'_>)]| {
            let mut table = TableWriter::new();
            for (name, value) in pairs {
                table.named(name, *value);
            }
            table.finish()
        };
        let login = ("LOGIN", Value::text("guest"));
        let whole = response(&[("PASSWORD", Value::text("secret")), login]);
        assert_eq!(amqplain(&whole), Some(("guest", &b"secret"[..])));
        assert_eq!(amqplain(&whole[1..]), None);
        assert_eq!(amqplain(&response(&[login])), None);
        let number = response(&[login, ("PASSWORD", Value::I32(1))]);
        assert_eq!(amqplain(&number), None);
    }

    #[test]
    fn server_properties_name_the_product_and_offer_what_is_built() {
        let raw = server_properties();
        let table = Table::new(&raw).unwrap();
        assert_eq!(table.first("product"), Some(Value::text("Anabranch")));
        let Some(Value::Table(capabilities)) = table.first("capabilities") else {
            panic!("no capabilities")
        };
        assert_eq!(
            capabilities.first("publisher_confirms"),
            Some(Value::Bool(true))
        );
        assert_eq!(capabilities.first("amqp1"), None);
    }
}
