//! From CONNECT to CONNACK.
//!
//! What CONNECT itself shows to be impossible is refused at once; then login, vhost and session
//! are asked in turn. Packets that the client sends meanwhile wait in the decoder.

use std::sync::Arc;

use anabranch_core::gateway::{Command, Outputs, Reply, SessionOpen};
use anabranch_core::id::{ConsumerTag, Now};
use bytes::Bytes;

use super::{
    Ask, Client, ConnAck, Connect, DecodeError, Fault, MqttConnection, Packet, Phase,
    PropertiesBuilder, PropertyId, ReasonCode, SESSION, Version,
};

/// A client identifier for a client that has none: 128 bits of the connection's seed.
fn assigned_id(seed: u64) -> String {
    // The finaliser of SplitMix64, so that neighbouring seeds give unlike names.
    let mix = |input: u64| {
        let mut word = input.wrapping_add(0x9E37_79B9_7F4A_7C15);
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    };
    format!("auto-{:016x}{:016x}", mix(seed), mix(!seed))
}

impl MqttConnection {
    /// What bytes that are no packet come to.
    pub(super) fn broken_packet(&mut self, error: DecodeError) -> Fault {
        match error {
            // [MQTT-3.1.0-2]: of a second CONNECT it does not matter what it asks for, and only
            // CONNACK has a code for that.
            DecodeError::ProtocolName | DecodeError::UnsupportedVersion { .. }
                if matches!(self.phase, Phase::Open) =>
            {
                Fault::peer(ReasonCode::PROTOCOL_ERROR, "a second CONNECT")
            }
            error => {
                if matches!(self.phase, Phase::Fresh) {
                    self.answer_broken_connect(&error);
                }
                error.into()
            }
        }
    }

    /// Has a CONNECT that is none answered where the peer can know the answer: a version that is
    /// not spoken, and 5.0. Anything else before CONNECT gets only the close [MQTT-3.1.0-1].
    fn answer_broken_connect(&mut self, error: &DecodeError) {
        let version = match error {
            // [MQTT-3.1.2-2], in the form that the peer is likelier to read.
            DecodeError::UnsupportedVersion { level } if *level < Version::V5.level() => {
                Some(Version::V311)
            }
            DecodeError::UnsupportedVersion { .. } => Some(Version::V5),
            // 3.1.1 [MQTT-3.1.4-1] closes without a CONNACK.
            _ => self.decoder.version().filter(|version| version.is_v5()),
        };
        if let Some(version) = version {
            self.client.version = version;
            self.phase = Phase::Opening;
        }
    }

    pub(super) fn on_connect(
        &mut self,
        now: Now,
        mut connect: Connect,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        let user = self.take_user(&mut connect);
        self.client = self.client_of(&connect);
        self.phase = Phase::Opening;
        self.heard = now.monotonic;
        if connect.properties.text(PropertyId::AUTH_METHOD).is_some() {
            return Err(Fault::refused(
                ReasonCode::BAD_AUTHENTICATION_METHOD,
                "enhanced authentication is not built yet",
            ));
        }
        // 3.1.1 [MQTT-3.1.3-8]: only a clean session may do without an identifier; in 3.1 none.
        let may_assign = match connect.version {
            Version::V31 => false,
            Version::V311 => connect.clean_start,
            Version::V5 => true,
        };
        if self.client.assigned && !may_assign {
            return Err(Fault::refused(
                ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
                "such a session needs a client identifier",
            ));
        }
        let id_bytes_max = self.shared.config.client_id_bytes_max;
        if connect.client_id.len() > usize::from(id_bytes_max) {
            return Err(Fault::refused(
                ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
                format!("the client identifier is over {id_bytes_max} bytes"),
            ));
        }
        if let Some(will) = connect.will {
            self.will = Some(self.will_of(now, will)?);
        }
        let token = self.ask(Ask::Login);
        out.commands.push(Command::Login {
            token,
            user,
            secret: connect.password,
            client_id: self.client.id.clone(),
        });
        Ok(())
    }

    /// Takes the user's name out of a CONNECT, without the vhost in front of it, which becomes
    /// that of the connection. A name and a password of no length are how some clients say that they
    /// have none, so they are nobody's.
    fn take_user(&mut self, connect: &mut Connect) -> Option<Arc<str>> {
        let username = connect.username.take()?;
        let parts = username
            .rsplit_once(':')
            .filter(|_| self.shared.config.vhost_in_username);
        let user = match parts {
            Some((vhost, user)) => {
                self.client.vhost = Arc::from(vhost);
                user
            }
            None => &username,
        };
        if user.is_empty() && connect.password.as_ref().is_none_or(Bytes::is_empty) {
            connect.password = None;
            return None;
        }
        Some(Arc::from(user))
    }

    fn client_of(&self, connect: &Connect) -> Client {
        let config = &self.shared.config;
        let int = |id| connect.properties.int(id);
        let asked_expiry_s = match connect.version {
            Version::V5 => int(PropertyId::SESSION_EXPIRY).unwrap_or(0),
            Version::V31 | Version::V311 if connect.clean_start => 0,
            Version::V31 | Version::V311 => config.session_expiry_s_v3,
        };
        let expiry_bounded =
            connect.version.is_v5() && asked_expiry_s > config.session_expiry_s_max;
        let session_expiry_s = if expiry_bounded {
            config.session_expiry_s_max
        } else {
            asked_expiry_s
        };
        let topic_alias_max = int(PropertyId::TOPIC_ALIAS_MAXIMUM)
            .and_then(|most| u16::try_from(most).ok())
            .unwrap_or(0);
        let receive_max = int(PropertyId::RECEIVE_MAXIMUM)
            .and_then(|most| u16::try_from(most).ok())
            .unwrap_or(u16::MAX);
        let packet_bytes_max = int(PropertyId::MAXIMUM_PACKET_SIZE)
            .and_then(|most| usize::try_from(most).ok())
            .unwrap_or(usize::MAX);
        let assigned = connect.client_id.is_empty();
        let id = if assigned {
            assigned_id(self.seed)
        } else {
            connect.client_id.clone()
        };
        let server_keep_alive_s = self.server_keep_alive_s(connect);
        let keep_alive_s = server_keep_alive_s.unwrap_or(connect.keep_alive_s);
        Client {
            version: connect.version,
            id: Arc::from(id),
            assigned,
            user: Arc::from(""),
            vhost: self.client.vhost.clone(),
            silence_ms_max: u64::from(keep_alive_s) * 1500,
            packet_bytes_max,
            receive_max: receive_max.min(config.inflight_max),
            topic_alias_max: topic_alias_max.min(config.topic_alias_sent_max),
            wants_reasons: int(PropertyId::REQUEST_PROBLEM_INFO) != Some(0),
            wants_response_information: int(PropertyId::REQUEST_RESPONSE_INFO) == Some(1),
            session_expiry_s,
            expiry_bounded,
            clean_start: connect.clean_start,
            left_will: false,
            server_keep_alive_s,
        }
    }

    /// The keep-alive that a 5.0 client must take instead of its own [MQTT-3.1.2-21]; 3.1.1
    /// cannot be told one.
    fn server_keep_alive_s(&self, connect: &Connect) -> Option<u16> {
        let most = self.shared.config.keep_alive_s_max;
        let over = connect.keep_alive_s == 0 || connect.keep_alive_s > most;
        (most > 0 && over && connect.version.is_v5()).then_some(most)
    }

    /// The next question, or CONNACK after the last.
    pub(super) fn on_opened(
        &mut self,
        now: Now,
        answered: &Ask,
        reply: Reply,
        out: &mut Outputs,
    ) -> Result<(), Fault> {
        match (answered, reply) {
            (Ask::Login, Reply::Principal(principal)) => {
                self.client.user = principal.user.clone();
                let token = self.ask(Ask::Enter);
                out.commands.push(Command::Enter {
                    token,
                    vhost: self.client.vhost.clone(),
                });
                Ok(())
            }
            (Ask::Enter, Reply::Done) => {
                let token = self.ask(Ask::Session);
                let durable = self.is_durable();
                let will = self.will.take_if(|_| durable).map(|will| *will);
                self.client.left_will = will.is_some();
                let session = SessionOpen {
                    client_id: self.client.id.clone(),
                    clean_start: self.client.clean_start,
                    expiry_s: self.client.session_expiry_s,
                    consumer: SESSION,
                    credit: u32::from(self.client.receive_max),
                    group_consumers: ConsumerTag(SESSION.0 + 1),
                    will,
                };
                out.commands.push(Command::OpenSession {
                    token,
                    session: Box::new(session),
                });
                Ok(())
            }
            (Ask::Session, Reply::Session { present }) => {
                self.connack(present, out)?;
                self.phase = Phase::Open;
                // Most clients ask nothing more; an idle connection keeps no queue for it.
                self.asks.shrink_to_fit();
                self.drain(now, out)
            }
            _ => Err(Fault {
                reason: ReasonCode::UNSPECIFIED_ERROR,
                why: "the broker gave an answer to another question".into(),
                by: anabranch_core::gateway::ClosedBy::Us,
            }),
        }
    }

    fn connack(&self, present: bool, out: &mut Outputs) -> Result<(), Fault> {
        let mut properties = PropertiesBuilder::new();
        if self.is_v5() {
            let config = &self.shared.config;
            if config.receive_max < u16::MAX {
                properties =
                    properties.int(PropertyId::RECEIVE_MAXIMUM, u32::from(config.receive_max));
            }
            properties = properties
                .int(PropertyId::RETAIN_AVAILABLE, u32::from(config.retained))
                .int(PropertyId::MAXIMUM_PACKET_SIZE, config.packet_bytes_max)
                .int(
                    PropertyId::TOPIC_ALIAS_MAXIMUM,
                    u32::from(config.topic_alias_max),
                )
                .int(PropertyId::WILDCARD_AVAILABLE, 1)
                .int(PropertyId::SUBSCRIPTION_IDS_AVAILABLE, 1)
                .int(PropertyId::SHARED_AVAILABLE, 1);
            if self.client.assigned {
                // [MQTT-3.2.2-16]
                properties = properties.text(PropertyId::ASSIGNED_CLIENT_ID, &self.client.id);
            }
            if let Some(keep_alive_s) = self.client.server_keep_alive_s {
                properties = properties.int(PropertyId::SERVER_KEEP_ALIVE, u32::from(keep_alive_s));
            }
            if self.client.expiry_bounded {
                // Section 3.2.2.3.2.
                let expiry_s = self.client.session_expiry_s;
                properties = properties.int(PropertyId::SESSION_EXPIRY, expiry_s);
            }
            if self.client.wants_response_information && !config.response_information.is_empty() {
                // [MQTT-3.1.2-28]
                let information = &config.response_information;
                properties = properties.text(PropertyId::RESPONSE_INFO, information);
            }
        }
        let connack = ConnAck {
            // 3.1 has no such flag.
            session_present: present && self.client.version != Version::V31,
            reason: ReasonCode::SUCCESS,
            properties: properties.build(),
        };
        if self.send(&Packet::ConnAck(connack), out) {
            return Ok(());
        }
        Err(Fault::refused(
            ReasonCode::PACKET_TOO_LARGE,
            "the client's maximum packet size is too small for CONNACK",
        ))
    }
}
