//! A backend in memory that makes up its traffic, for the console's development and the API's tests.
//!
//! Owns a small broker-shaped state whose numbers move with the clock. Never checks rules on data
//! beyond the rights of console roles: the real ones live in the server.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anabranch_admin::backend::{BackendError, Identity};
use anabranch_admin::model::{
    Binding, BodyEncoding, Connection, Effect, Exchange, Gauges, Listener, Member, Node, Overview,
    PeekedMessage, Policy, PolicySettings, ProtocolCount, Resource, RetainedValue, Rule,
    RuleOrigin, SessionRow, Stream, Subject, Subscription, Totals, User,
};

#[path = "answers.rs"]
mod answers;

/// The name of the group of shared subscriptions.
const GROUP: &str = "$share/workers/plant/+/temp";

/// The backend.
pub struct Fake {
    started: Instant,
    started_at_ms: u64,
    state: Mutex<State>,
}

struct State {
    users: Vec<(User, String, u64)>,
    rules: Vec<Rule>,
    policies: Vec<Policy>,
    next_rule: u64,
    exchanges: Vec<Exchange>,
    bindings: Vec<Binding>,
    streams: Vec<(Stream, Vec<PeekedMessage>)>,
    /// In the order of their addresses.
    retained: Vec<RetainedValue>,
    closed: Vec<String>,
    busy: bool,
}

impl Fake {
    /// A node with an administrator `admin` / `admin-password`; `busy` adds streams and traffic.
    pub fn new(busy: bool) -> Self {
        let mut exchanges: Vec<Exchange> = [
            ("", "direct"),
            ("amq.direct", "direct"),
            ("amq.fanout", "fanout"),
            ("amq.headers", "headers"),
            ("amq.topic", "topic"),
        ]
        .into_iter()
        .map(|(name, kind)| Exchange {
            vhost: "/".into(),
            name: name.into(),
            kind: kind.into(),
            durable: true,
            predeclared: true,
            ..Exchange::default()
        })
        .collect();
        let (mut bindings, mut streams) = (Vec::new(), Vec::new());
        if busy {
            exchanges.push(Exchange {
                vhost: "/".into(),
                name: "orders".into(),
                kind: "direct".into(),
                durable: true,
                alternate: Some("amq.fanout".into()),
                ..Exchange::default()
            });
            for (exchange, kind, destination, pattern) in [
                ("amq.topic", "queue", "plant-temperatures", "plant.*.temp"),
                ("amq.topic", "queue", "plant-archive", "plant.#"),
                ("amq.topic", "exchange", "orders", "order.#"),
                ("amq.topic", "session", "gateway-7", "command.gateway-7.#"),
                ("amq.topic", "group", GROUP, "plant.*.temp"),
                ("orders", "queue", "orders-eu", "eu"),
                ("orders", "queue", "orders-us", "us"),
            ] {
                bindings.push(Binding {
                    vhost: "/".into(),
                    exchange: exchange.into(),
                    destination_kind: kind.into(),
                    destination: destination.into(),
                    pattern: pattern.into(),
                    arguments: BTreeMap::new(),
                });
            }
            for (name, kind) in [
                ("plant-temperatures", "queue"),
                ("plant-archive", "stream"),
                ("gateway-7", "session"),
                (GROUP, "group"),
                ("orders-eu", "queue"),
                ("orders-us", "queue"),
                ("empty-queue", "queue"),
            ] {
                let stream = Stream {
                    vhost: "/".into(),
                    name: name.into(),
                    kind: kind.into(),
                    durable: true,
                    state: "running".into(),
                    ..settled(name)
                };
                let held = if name == "empty-queue" { 0 } else { 8 };
                let messages = (0..held).map(message).collect();
                streams.push((stream, messages));
            }
        }
        let admin = User {
            name: "admin".into(),
            roles: vec!["administrator".into()],
            ..User::default()
        };
        let mut rules = vec![rule(
            "administrators",
            Effect::Allow,
            0,
            "role",
            "administrator",
            &["*"],
            "*",
            "prefix",
            "",
        )];
        if busy {
            rules.insert(
                0,
                rule(
                    "7",
                    Effect::Deny,
                    10,
                    "everyone",
                    "",
                    &["publish", "receive"],
                    "topic",
                    "filter",
                    "plant/secret/#",
                ),
            );
            rules.push(rule(
                "8",
                Effect::Allow,
                0,
                "role",
                "sensor",
                &["connect", "publish"],
                "topic",
                "filter",
                "plant/${user}/#",
            ));
            rules.push(rule(
                "9",
                Effect::Allow,
                -5,
                "user",
                "reader",
                &["connect", "subscribe", "receive"],
                "topic",
                "filter",
                "plant/+/temp",
            ));
        }
        for (name, actions) in [
            ("management", "admin.management"),
            ("administrator", "admin.all"),
        ] {
            let mut rule = rule(
                &format!("role:{name}"),
                Effect::Allow,
                0,
                "role",
                name,
                &[actions],
                "admin",
                "prefix",
                "",
            );
            rule.origin = RuleOrigin::Role;
            rules.push(rule);
        }
        let mut users = vec![(admin, "admin-password".to_owned(), 1)];
        if busy {
            for (name, role) in [
                ("sensor-12", "sensor"),
                ("reader", "reader"),
                ("grafana", "monitoring"),
            ] {
                users.push((
                    User {
                        name: name.into(),
                        roles: vec![role.into()],
                        ..User::default()
                    },
                    "password".into(),
                    1,
                ));
            }
        }
        Fake {
            started: Instant::now(),
            started_at_ms: wall_ms(),
            state: Mutex::new(State {
                users,
                rules,
                policies: if busy { vec![by_plant()] } else { Vec::new() },
                next_rule: 10,
                exchanges,
                bindings,
                streams,
                retained: if busy {
                    (0..30).map(value).collect()
                } else {
                    Vec::new()
                },
                closed: Vec::new(),
                busy,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64() + 400.0
    }

    /// A total that grows at about `rate` a second, in waves of `period_s`.
    fn wave(&self, rate: f64, period_s: f64) -> u64 {
        let at = self.seconds();
        (rate
            * (at
                + 0.45 * period_s / std::f64::consts::TAU
                    * (1.0 - (at * std::f64::consts::TAU / period_s).cos()))) as u64
    }

    fn live(&self, stream: &Stream, messages: usize) -> Stream {
        let mut stream = stream.clone();
        let place = stream.name.len() as f64;
        if stream.name == "empty-queue" || !self.state_busy() || stream.published == 1 {
            stream.ready = messages as u64;
        } else {
            stream.published = self.wave(300.0 + place, 40.0 + place);
            let depth = 400.0 + 350.0 * ((self.seconds() + place * 3.0) / 9.0).sin();
            stream.ready = depth as u64 * if stream.kind == "stream" { 40 } else { 1 };
            stream.unacknowledged = if stream.kind == "queue" {
                40 + (place as u64 % 7) * 9
            } else {
                0
            };
            stream.consumers = 1 + place as u64 % 3;
            stream.delivered = stream.published.saturating_sub(stream.ready);
            stream.acknowledged = stream.delivered.saturating_sub(stream.unacknowledged);
        }
        stream.bytes = (stream.ready + stream.unacknowledged) * 181;
        stream.live = (stream.kind == "session").then_some(true);
        if stream.mode.is_empty() {
            let session = stream.kind == "session";
            stream.mode = if session { "exclusive" } else { "shared" }.into();
        }
        stream.subscriptions = vec![Subscription {
            name: String::new(),
            mode: stream.mode.clone(),
            ready: stream.ready,
            unacknowledged: stream.unacknowledged,
            consumers: stream.consumers,
        }];
        stream
    }

    fn state_busy(&self) -> bool {
        // Called while the state is locked by nobody: readers copy first.
        self.state().busy
    }

    fn rows(&self) -> Vec<Stream> {
        let copies: Vec<(Stream, usize)> = self
            .state()
            .streams
            .iter()
            .map(|(stream, messages)| (stream.clone(), messages.len()))
            .collect();
        copies
            .iter()
            .map(|(stream, messages)| self.live(stream, *messages))
            .collect()
    }

    fn connection_rows(&self) -> Vec<Connection> {
        let state = self.state();
        if !state.busy {
            return Vec::new();
        }
        let closed = state.closed.clone();
        drop(state);
        let mut rows = Vec::new();
        for (id, protocol, user, client, peer) in [
            ("1", "mqtt", "sensor-12", "gateway-7", "192.0.2.17:52011"),
            ("2", "mqtt", "sensor-12", "gateway-8", "192.0.2.18:40122"),
            ("3", "amqp", "reader", "pika 1.3.2", "198.51.100.4:50212"),
            ("4", "amqp", "admin", "amqplib 0.10", "127.0.0.1:51320"),
            ("5", "mqtt", "", "probe", "127.0.0.1:51322"),
        ] {
            if closed.iter().any(|gone| gone == id) {
                continue;
            }
            let rate = 40.0 * id.len() as f64 + 37.0 * f64::from(id.as_bytes()[0] - b'0');
            let device = protocol == "mqtt";
            rows.push(Connection {
                id: id.into(),
                protocol: protocol.into(),
                transport: if id == "2" { "wss" } else { "tcp" }.into(),
                user: user.into(),
                client_id: client.into(),
                peer: peer.into(),
                vhost: "/".into(),
                connected_at_ms: self.started_at_ms - 4_000_000,
                state: if id == "4" { "blocked" } else { "running" }.into(),
                channels: (!device).then_some(2),
                session: device.then(|| SessionRow {
                    name: client.into(),
                    durable: id == "1",
                    subscriptions: 3,
                }),
                consumers: 1,
                unacknowledged: if device { 0 } else { 42 },
                received: self.wave(if device { rate } else { 3.0 }, 30.0),
                delivered: self.wave(if device { 2.0 } else { rate }, 25.0),
                bytes_in: self.wave(rate * 140.0, 30.0),
                bytes_out: self.wave(rate * 90.0, 30.0),
                details: BTreeMap::from([
                    (
                        "version".to_owned(),
                        if device { "5.0" } else { "0-9-1" }.to_owned(),
                    ),
                    ("keep-alive".to_owned(), "60 s".to_owned()),
                ]),
            });
        }
        rows
    }

    fn overview_now(&self) -> Overview {
        let streams = self.rows();
        let connections = self.connection_rows();
        let state = self.state();
        let sum = |number: fn(&Stream) -> u64| streams.iter().map(number).sum::<u64>();
        let busy = state.busy;
        let total = |rate: f64, period: f64| if busy { self.wave(rate, period) } else { 0 };
        let count = |kind: &str| streams.iter().filter(|stream| stream.kind == kind).count() as u64;
        let protocols = ["mqtt", "amqp"]
            .into_iter()
            .map(|protocol| ProtocolCount {
                protocol: protocol.into(),
                connections: connections
                    .iter()
                    .filter(|row| row.protocol == protocol)
                    .count() as u64,
            })
            .collect();
        Overview {
            node: Node {
                name: "anabranch@example".into(),
                version: "0.1.0".into(),
                started_at_ms: self.started_at_ms,
                memory_bytes: 48 << 20,
                disk_used_bytes: 3 << 30,
                disk_free_bytes: 211 << 30,
                tier_url: Some("s3://plant-history/anabranch".to_owned()),
            },
            gauges: Gauges {
                connections: connections.len() as u64,
                channels: connections.iter().filter_map(|row| row.channels).sum(),
                sessions: count("session"),
                queues: count("queue"),
                streams: count("stream"),
                consumers: sum(|stream| stream.consumers),
                exchanges: state.exchanges.len() as u64,
                bindings: state.bindings.len() as u64,
                users: state.users.len() as u64,
                ready: sum(|stream| stream.ready),
                unacknowledged: sum(|stream| stream.unacknowledged),
                stored_bytes: sum(|stream| stream.bytes),
                retained: state.retained.len() as u64,
                delayed: state.exchanges.iter().map(|row| row.delayed).sum(),
                store_run_bytes: 48_000_000,
                store_index_blocks: 2048,
                store_index_cached_bytes: 24 << 20,
                store_index_damaged: 0,
                store_checkpoint_ms: 85,
                store_local_segments: 17,
                store_local_bytes: 17 << 26,
                store_tier_segments: 412,
                store_tier_bytes: 412 << 26,
                ..Gauges::default()
            },
            totals: Totals {
                received: total(5200.0, 41.0),
                delivered: total(9800.0, 33.0),
                acknowledged: total(9600.0, 33.0),
                unroutable: total(0.1, 30.0),
                dropped: 0,
                refused: total(0.2, 9.0),
                bytes_in: total(910_000.0, 41.0),
                bytes_out: total(1_500_000.0, 33.0),
                connections_opened: 1200,
                logins_failed: 3,
                handshakes_failed: 1,
                syncs: total(480.0, 10.0),
                ..Totals::default()
            },
            protocols,
            listeners: [
                ("mqtt", "tcp", "0.0.0.0:1883"),
                ("mqtt", "wss", "0.0.0.0:8084"),
                ("amqp", "tcp", "0.0.0.0:5672"),
                ("amqp", "tls", "0.0.0.0:5671"),
                ("http", "tcp", "127.0.0.1:15672"),
            ]
            .into_iter()
            .map(|(protocol, transport, address)| Listener {
                protocol: protocol.into(),
                transport: transport.into(),
                address: address.into(),
            })
            .collect(),
            alarms: Vec::new(),
        }
    }

    fn identity_of(&self, name: &str) -> Option<Identity> {
        self.state()
            .users
            .iter()
            .find(|(user, _, _)| user.name == name)
            .map(|(user, _, version)| Identity {
                user: user.name.clone(),
                roles: user.roles.clone(),
                groups: user.groups.clone(),
                credential_version: *version,
            })
    }
}

fn wall_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

fn by_plant() -> Policy {
    Policy {
        vhost: "/".into(),
        name: "by-plant".into(),
        pattern: "^workers$".into(),
        applies_to: "groups".into(),
        priority: 0,
        settings: PolicySettings {
            mode: Some("key_shared".into()),
            ..PolicySettings::default()
        },
    }
}

/// What some streams have that others have not.
fn settled(name: &str) -> Stream {
    let none = Stream::default();
    match name {
        GROUP => Stream {
            group: Some("workers".into()),
            filter: Some("plant/+/temp".into()),
            mode: "key_shared".into(),
            policies: vec!["by-plant".into()],
            members: ["worker-1", "worker-2", "worker-3"]
                .into_iter()
                .map(|client| Member {
                    client_id: client.into(),
                    durable: client != "worker-3",
                })
                .collect(),
            ..none
        },
        "orders-eu" => Stream {
            mode: "failover".into(),
            active: Some("3".into()),
            dropped: 15,
            dead_lettered: 12,
            rejected: 3,
            policies: vec!["orders".into()],
            limits: PolicySettings {
                message_ttl_ms: Some(3_600_000),
                messages_max: Some(100_000),
                overflow: Some("reject".into()),
                delivery_limit: Some(5),
                dead_letter_exchange: Some("amq.fanout".into()),
                ..PolicySettings::default()
            },
            arguments: BTreeMap::from([("x-message-ttl".to_owned(), 3_600_000.into())]),
            ..none
        },
        _ => none,
    }
}

fn value(number: u64) -> RetainedValue {
    let body = format!("{{\"celsius\": {:.1}}}", 18.0 + number as f64 / 7.0);
    RetainedValue {
        vhost: "/".into(),
        address: format!("plant/{number:02}/temp"),
        published_at_ms: wall_ms() - 60_000 * (40 - number),
        content_type: Some("application/json".into()),
        body_bytes: body.len() as u64,
        body,
        ..RetainedValue::default()
    }
}

fn message(number: u64) -> PeekedMessage {
    let body = if number % 3 == 2 {
        "AAECAwQFBgc=".to_owned()
    } else {
        format!(
            "{{\"celsius\": {:.1}, \"at\": \"2026-11-29T10:0{number}:00Z\"}}",
            20.0 + number as f64 / 3.0
        )
    };
    PeekedMessage {
        offset: 100 + number,
        address: format!("plant/{number}/temp"),
        exchange: "amq.topic".into(),
        published_at_ms: wall_ms() - 1000 * (60 - number),
        durable: true,
        content_type: (number % 3 != 2).then(|| "application/json".to_owned()),
        headers: BTreeMap::from([
            ("unit".to_owned(), "C".into()),
            ("line".to_owned(), number.into()),
        ]),
        body_encoding: if number % 3 == 2 {
            BodyEncoding::Base64
        } else {
            BodyEncoding::Utf8
        },
        body_bytes: body.len() as u64,
        body,
        ..PeekedMessage::default()
    }
}

#[allow(clippy::too_many_arguments, reason = "the columns of a table of rules")]
fn rule(
    id: &str,
    effect: Effect,
    priority: i32,
    subject: &str,
    value: &str,
    actions: &[&str],
    kind: &str,
    match_kind: &str,
    pattern: &str,
) -> Rule {
    Rule {
        id: id.into(),
        effect,
        priority,
        subjects: vec![Subject {
            kind: subject.into(),
            value: value.into(),
        }],
        actions: actions.iter().map(|action| (*action).to_owned()).collect(),
        resource: Resource {
            vhost: "*".into(),
            kind: kind.into(),
            match_kind: match_kind.into(),
            pattern: pattern.into(),
        },
        ..Rule::default()
    }
}

fn missing<T>(what: &str, name: &str) -> Result<T, BackendError> {
    Err(BackendError::NotFound(format!(
        "there is no {what} {name:?}"
    )))
}
