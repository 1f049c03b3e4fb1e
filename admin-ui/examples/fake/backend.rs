//! A backend in memory that makes up its traffic, for the console's development and the API's tests.
//!
//! Owns a small broker-shaped state whose numbers move with the clock. Never checks rules on data
//! beyond the rights of console roles: the real ones live in the server.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anabranch_admin::backend::{Answer, Backend, BackendError, Identity, Right};
use anabranch_admin::model::{
    About, Binding, BodyEncoding, Connection, DeclareStream, Effect, Exchange, ExplainStep,
    Explanation, Gauges, Listener, NewUser, Node, Overview, PeekedMessage, ProtocolCount, Publish,
    Question, Resource, Rule, RuleOrigin, SessionRow, Stream, Subject, Subscription, Totals, User,
    UserChange,
};

/// The backend.
pub struct Fake {
    started: Instant,
    started_at_ms: u64,
    state: Mutex<State>,
}

struct State {
    users: Vec<(User, String, u64)>,
    rules: Vec<Rule>,
    next_rule: u64,
    exchanges: Vec<Exchange>,
    bindings: Vec<Binding>,
    streams: Vec<(Stream, Vec<PeekedMessage>)>,
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
                ..Exchange::default()
            });
            for (exchange, destination, pattern) in [
                ("amq.topic", "plant-temperatures", "plant.*.temp"),
                ("amq.topic", "plant-archive", "plant.#"),
                ("amq.topic", "session of gateway-7", "command/gateway-7/#"),
                ("orders", "orders-eu", "eu"),
                ("orders", "orders-us", "us"),
            ] {
                bindings.push(Binding {
                    vhost: "/".into(),
                    exchange: exchange.into(),
                    destination_kind: "queue".into(),
                    destination: destination.into(),
                    pattern: pattern.into(),
                    arguments: BTreeMap::new(),
                });
            }
            for (name, kind) in [
                ("plant-temperatures", "queue"),
                ("plant-archive", "stream"),
                ("session of gateway-7", "session"),
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
                    ..Stream::default()
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
                next_rule: 10,
                exchanges,
                bindings,
                streams,
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
        stream.subscriptions = vec![Subscription {
            name: String::new(),
            mode: if stream.kind == "session" {
                "exclusive"
            } else {
                "shared"
            }
            .into(),
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
                syncs: total(480.0, 10.0),
            },
            protocols,
            listeners: [
                ("mqtt", "0.0.0.0:1883"),
                ("amqp", "0.0.0.0:5672"),
                ("http", "127.0.0.1:15672"),
            ]
            .into_iter()
            .map(|(protocol, address)| Listener {
                protocol: protocol.into(),
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

impl Backend for Fake {
    fn login<'a>(
        &'a self,
        user: &'a str,
        password: &'a str,
        _: IpAddr,
    ) -> Answer<'a, Option<Identity>> {
        let right = self
            .state()
            .users
            .iter()
            .any(|(row, known, _)| row.name == user && known == password);
        let identity = self.identity_of(user).filter(|_| right);
        Box::pin(async move { Ok(identity) })
    }

    fn identity<'a>(&'a self, user: &'a str) -> Answer<'a, Option<Identity>> {
        let identity = self.identity_of(user);
        Box::pin(async move { Ok(identity) })
    }

    fn may(&self, who: &Identity, right: Right) -> bool {
        who.roles.iter().any(|role| match role.as_str() {
            "administrator" => true,
            "management" => right == Right::Management,
            "monitoring" => matches!(right, Right::Management | Right::Monitoring),
            _ => false,
        })
    }

    fn about(&self) -> Answer<'_, About> {
        Box::pin(async {
            Ok(About {
                node: "anabranch@example".into(),
                version: "0.1.0".into(),
                vhosts: vec!["/".into()],
            })
        })
    }

    fn overview(&self) -> Answer<'_, Overview> {
        Box::pin(async { Ok(self.overview_now()) })
    }

    fn ready(&self) -> Result<(), BackendError> {
        Ok(())
    }

    fn connections<'a>(
        &'a self,
        vhost: Option<&'a str>,
        user: Option<&'a str>,
    ) -> Answer<'a, Vec<Connection>> {
        let mut rows = self.connection_rows();
        rows.retain(|row| {
            vhost.is_none_or(|vhost| row.vhost == vhost) && user.is_none_or(|user| row.user == user)
        });
        Box::pin(async move { Ok(rows) })
    }

    fn close_connection<'a>(&'a self, _: &'a Identity, id: &'a str, _: &'a str) -> Answer<'a, ()> {
        let known = self.connection_rows().iter().any(|row| row.id == id);
        Box::pin(async move {
            if !known {
                return missing("connection", id);
            }
            self.state().closed.push(id.to_owned());
            Ok(())
        })
    }

    fn exchanges<'a>(&'a self, _: Option<&'a str>) -> Answer<'a, Vec<Exchange>> {
        Box::pin(async { Ok(self.state().exchanges.clone()) })
    }

    fn declare_exchange<'a>(&'a self, _: &'a Identity, exchange: Exchange) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            match state.exchanges.iter().find(|row| row.name == exchange.name) {
                Some(row) if row.kind != exchange.kind => Err(BackendError::Conflict(format!(
                    "exchange {} exists as {}",
                    row.name, row.kind
                ))),
                Some(_) => Ok(()),
                None => {
                    state.exchanges.push(exchange);
                    Ok(())
                }
            }
        })
    }

    fn delete_exchange<'a>(
        &'a self,
        _: &'a Identity,
        _: &'a str,
        name: &'a str,
        _: bool,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            match state.exchanges.iter().find(|row| row.name == name) {
                Some(row) if row.predeclared => Err(BackendError::Forbidden(format!(
                    "exchange {name} cannot be deleted"
                ))),
                Some(_) => {
                    state.exchanges.retain(|row| row.name != name);
                    state.bindings.retain(|row| row.exchange != name);
                    Ok(())
                }
                None => missing("exchange", name),
            }
        })
    }

    fn bindings<'a>(&'a self, _: Option<&'a str>) -> Answer<'a, Vec<Binding>> {
        Box::pin(async { Ok(self.state().bindings.clone()) })
    }

    fn bind<'a>(&'a self, _: &'a Identity, binding: Binding) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            if !state
                .streams
                .iter()
                .any(|(stream, _)| stream.name == binding.destination)
            {
                return missing("queue", &binding.destination);
            }
            if !state.bindings.contains(&binding) {
                state.bindings.push(binding);
            }
            Ok(())
        })
    }

    fn unbind<'a>(&'a self, _: &'a Identity, binding: Binding) -> Answer<'a, ()> {
        Box::pin(async move {
            self.state().bindings.retain(|row| *row != binding);
            Ok(())
        })
    }

    fn streams<'a>(&'a self, _: Option<&'a str>) -> Answer<'a, Vec<Stream>> {
        Box::pin(async { Ok(self.rows()) })
    }

    fn stream<'a>(&'a self, _: &'a str, name: &'a str) -> Answer<'a, Stream> {
        Box::pin(async move {
            self.rows()
                .into_iter()
                .find(|row| row.name == name)
                .map_or_else(|| missing("stream", name), Ok)
        })
    }

    fn declare_stream<'a>(
        &'a self,
        _: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        declare: DeclareStream,
    ) -> Answer<'a, bool> {
        Box::pin(async move {
            let mut state = self.state();
            if let Some((row, _)) = state.streams.iter().find(|(row, _)| row.name == name) {
                return if row.kind == declare.kind {
                    Ok(false)
                } else {
                    Err(BackendError::Conflict(format!(
                        "{name} exists as a {}",
                        row.kind
                    )))
                };
            }
            let stream = Stream {
                vhost: vhost.into(),
                name: name.into(),
                kind: declare.kind,
                durable: declare.durable,
                state: "running".into(),
                published: 1,
                ..Stream::default()
            };
            state.streams.push((stream, Vec::new()));
            Ok(true)
        })
    }

    fn delete_stream<'a>(
        &'a self,
        _: &'a Identity,
        _: &'a str,
        name: &'a str,
        if_empty: bool,
        _: bool,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let ready = self
                .rows()
                .iter()
                .find(|row| row.name == name)
                .map(|row| row.ready);
            match ready {
                None => missing("stream", name),
                Some(ready) if if_empty && ready > 0 => Err(BackendError::Conflict(format!(
                    "{name} holds {ready} messages"
                ))),
                Some(_) => {
                    self.state().streams.retain(|(row, _)| row.name != name);
                    Ok(())
                }
            }
        })
    }

    fn purge<'a>(&'a self, _: &'a Identity, _: &'a str, name: &'a str) -> Answer<'a, u64> {
        Box::pin(async move {
            match self
                .state()
                .streams
                .iter_mut()
                .find(|(row, _)| row.name == name)
            {
                Some((_, messages)) => Ok(std::mem::take(messages).len() as u64),
                None => missing("stream", name),
            }
        })
    }

    fn peek<'a>(
        &'a self,
        _: &'a Identity,
        _: &'a str,
        name: &'a str,
        offset: Option<u64>,
        count: usize,
        _: usize,
    ) -> Answer<'a, Vec<PeekedMessage>> {
        Box::pin(async move {
            match self
                .state()
                .streams
                .iter()
                .find(|(row, _)| row.name == name)
            {
                Some((_, messages)) => Ok(messages
                    .iter()
                    .filter(|message| offset.is_none_or(|offset| message.offset >= offset))
                    .take(count)
                    .cloned()
                    .collect()),
                None => missing("stream", name),
            }
        })
    }

    fn publish<'a>(&'a self, _: &'a Identity, publish: Publish) -> Answer<'a, u64> {
        Box::pin(async move {
            let mut state = self.state();
            let mut routed = 0;
            for (stream, messages) in &mut state.streams {
                if publish.exchange.is_empty() && stream.name == publish.address {
                    routed += 1;
                    let offset = messages.last().map_or(0, |message| message.offset + 1);
                    messages.push(PeekedMessage {
                        offset,
                        address: publish.address.clone(),
                        published_at_ms: wall_ms(),
                        body_bytes: publish.body.len() as u64,
                        body: publish.body.clone(),
                        body_encoding: publish.body_encoding,
                        content_type: publish.content_type.clone(),
                        durable: publish.durable,
                        ..PeekedMessage::default()
                    });
                }
            }
            Ok(routed)
        })
    }

    fn users(&self) -> Answer<'_, Vec<User>> {
        Box::pin(async {
            Ok(self
                .state()
                .users
                .iter()
                .map(|(user, _, _)| user.clone())
                .collect())
        })
    }

    fn create_user<'a>(&'a self, _: &'a Identity, user: NewUser) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            if state.users.iter().any(|(row, _, _)| row.name == user.name) {
                return Err(BackendError::Conflict(format!("user {} exists", user.name)));
            }
            let row = User {
                name: user.name,
                roles: user.roles,
                groups: user.groups,
                protected: false,
            };
            state.users.push((row, user.password, 1));
            Ok(())
        })
    }

    fn change_user<'a>(
        &'a self,
        _: &'a Identity,
        name: &'a str,
        change: UserChange,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            let Some((user, password, version)) =
                state.users.iter_mut().find(|(row, _, _)| row.name == name)
            else {
                return missing("user", name);
            };
            if let Some(new) = change.password {
                *password = new;
                *version += 1;
            }
            if let Some(roles) = change.roles {
                user.roles = roles;
            }
            if let Some(groups) = change.groups {
                user.groups = groups;
            }
            Ok(())
        })
    }

    fn delete_user<'a>(&'a self, _: &'a Identity, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            let before = state.users.len();
            state.users.retain(|(row, _, _)| row.name != name);
            if state.users.len() == before {
                missing("user", name)
            } else {
                Ok(())
            }
        })
    }

    fn rules(&self) -> Answer<'_, Vec<Rule>> {
        Box::pin(async {
            let mut rules = self.state().rules.clone();
            rules.sort_by_key(|rule| {
                (
                    std::cmp::Reverse(rule.priority),
                    rule.effect == Effect::Allow,
                )
            });
            Ok(rules)
        })
    }

    fn create_rule<'a>(&'a self, _: &'a Identity, mut rule: Rule) -> Answer<'a, Rule> {
        Box::pin(async move {
            if rule.subjects.is_empty() {
                return Err(BackendError::Invalid("a rule needs a subject".into()));
            }
            let mut state = self.state();
            rule.id = state.next_rule.to_string();
            state.next_rule += 1;
            state.rules.push(rule.clone());
            Ok(rule)
        })
    }

    fn replace_rule<'a>(
        &'a self,
        _: &'a Identity,
        id: &'a str,
        mut rule: Rule,
    ) -> Answer<'a, Rule> {
        Box::pin(async move {
            match self.state().rules.iter_mut().find(|row| row.id == id) {
                Some(row) => {
                    rule.id = id.to_owned();
                    *row = rule.clone();
                    Ok(rule)
                }
                None => missing("rule", id),
            }
        })
    }

    fn delete_rule<'a>(&'a self, _: &'a Identity, id: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut state = self.state();
            let before = state.rules.len();
            state.rules.retain(|row| row.id != id);
            if state.rules.len() == before {
                missing("rule", id)
            } else {
                Ok(())
            }
        })
    }

    fn explain(&self, question: Question) -> Answer<'_, Explanation> {
        Box::pin(async move {
            let rules = self.rules().await?;
            let mut steps = Vec::new();
            for rule in rules {
                let about = |subject: &Subject| {
                    subject.kind == "everyone"
                        || subject.kind == "user" && subject.value == question.user
                        || subject.kind == "role"
                            && self
                                .identity_of(&question.user)
                                .is_some_and(|user| user.roles.contains(&subject.value))
                };
                let start = rule
                    .resource
                    .pattern
                    .trim_end_matches('#')
                    .replace("${user}", &question.user);
                let outcome = if !rule
                    .actions
                    .iter()
                    .any(|action| *action == question.action || action == "*")
                {
                    "other_action"
                } else if !rule.subjects.iter().any(about) {
                    "other_subject"
                } else if !(question.name.starts_with(&start) || start.contains('+')) {
                    "other_resource"
                } else {
                    "decides"
                };
                steps.push(ExplainStep {
                    rule: rule.id.clone(),
                    outcome: outcome.into(),
                    text: outcome.replace('_', " "),
                });
                if outcome == "decides" {
                    let allowed = rule.effect == Effect::Allow;
                    let verb = if allowed { "allows" } else { "denies" };
                    return Ok(Explanation {
                        allowed,
                        reason: format!(
                            "rule {} {verb} {} on {} {} in vhost {}",
                            rule.id, question.action, question.kind, question.name, question.vhost
                        ),
                        rule: Some(rule.id),
                        steps,
                    });
                }
            }
            Ok(Explanation {
                allowed: false,
                rule: None,
                reason: format!(
                    "no rule allows {} on {} {} in vhost {}",
                    question.action, question.kind, question.name, question.vhost
                ),
                steps,
            })
        })
    }
}
