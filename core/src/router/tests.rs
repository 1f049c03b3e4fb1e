//! Where messages go, and that a remembered route never outlives a change.

use super::*;
use crate::address::Address;
use crate::id::{ConnectionId, WorkerId};
use crate::limits::StreamLimits;
use crate::message::OriginTag;
use crate::meta::arguments::Arguments;
use crate::meta::placement::Placement;
use crate::meta::{BindingChange, BindingEnd, ExchangeSpec, StreamSpec};
use crate::properties::{Properties, Value};
use bytes::Bytes;
use proptest::prelude::*;

const MAIN: VhostId = VhostId(1);
const HERE: ConnectionId = ConnectionId(1);
const VOLATILE: ShardId = ShardId(0x8003);

struct Node {
    fabric: Arc<Fabric>,
    router: Router,
}

fn exchange(name: &str, kind: ExchangeKind) -> ExchangeSpec {
    ExchangeSpec {
        name: name.into(),
        kind,
        durable: true,
        auto_delete: false,
        internal: false,
        delays: false,
        alternate: None,
        arguments: Arguments::default(),
    }
}

fn message(exchange: &str, address: &str) -> Message {
    Message {
        exchange: Bytes::copy_from_slice(exchange.as_bytes()),
        address: address.parse().unwrap(),
        ..Message::default()
    }
}

impl Node {
    /// A vhost with one exchange of each kind, `topic` being that of sessions; durable streams go to
    /// shard 1.
    fn new() -> Node {
        let fabric = Arc::new(Fabric::default());
        let router = Router::new(fabric.clone(), Codecs::default());
        let node = Node { fabric, router };
        node.apply(MetaCommand::CreateVhost {
            name: "/".into(),
            exchanges: vec![
                exchange("topic", ExchangeKind::Topic),
                exchange("other", ExchangeKind::Topic),
                exchange("direct", ExchangeKind::Direct),
                exchange("headers", ExchangeKind::Headers),
            ],
            topic_exchange: "topic".into(),
        });
        let slots = Placement::even(&[ShardId(1)]);
        node.apply(MetaCommand::SetPlacement { slots });
        node
    }

    fn apply(&self, command: MetaCommand) -> MetaReply {
        self.fabric.apply(UnixMs(1), &command).unwrap()
    }

    fn declare(&self, name: &str, durable: bool) -> StreamId {
        let stream = StreamSpec {
            name: name.into(),
            key: name.parse().unwrap(),
            durable,
            exclusive: false,
            auto_delete: false,
            limits: StreamLimits::default(),
            arguments: Arguments::default(),
        };
        let command = MetaCommand::DeclareStream {
            vhost: MAIN,
            stream,
            by: HERE,
            volatile: ShardId::volatile(WorkerId(3)),
        };
        match self.apply(command) {
            MetaReply::Stream { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    fn queue(&self, name: &str, durable: bool) -> StreamId {
        let id = self.declare(name, durable);
        self.apply(MetaCommand::ActivateStream { stream: id });
        id
    }

    fn bind_with(&self, exchange: &str, stream: &str, key: &str, arguments: Arguments) {
        self.apply(MetaCommand::Bind(BindingChange {
            vhost: MAIN,
            exchange: exchange.into(),
            to: BindingEnd::Stream(stream.into()),
            key: None,
            filter: key.parse().unwrap(),
            arguments,
            by: HERE,
        }));
    }

    fn bind(&self, exchange: &str, stream: &str, key: &str) {
        self.bind_with(exchange, stream, key, Arguments::default());
    }

    fn route(&mut self, exchange: &str, address: &str) -> Rc<Route> {
        self.router.route(MAIN, &message(exchange, address))
    }

    /// Targets as plain lists, asked twice: the second time from memory.
    #[track_caller]
    fn targets(&mut self, exchange: &str, address: &str) -> Vec<(ShardId, Vec<StreamId>)> {
        let first = self.route(exchange, address);
        let again = self.route(exchange, address);
        assert!(Rc::ptr_eq(&first, &again), "not remembered");
        let targets = first.targets.iter();
        targets
            .map(|(shard, streams)| (*shard, streams.to_vec()))
            .collect()
    }
}

#[test]
fn a_publish_reaches_streams_and_interested_shards_once() {
    let mut node = Node::new();
    let stored = node.queue("stored", true);
    let passing = node.queue("passing", false);
    for key in ["plant/#", "plant/+/temp", "#"] {
        node.bind("topic", "stored", key);
        node.bind("topic", "passing", key);
    }
    for (filter, shard) in [("plant/+/temp", 2), ("plant/#", 2), ("#", 1)] {
        let filter = filter.parse().unwrap();
        node.fabric.begin_interest(MAIN, &filter, ShardId(shard));
    }
    let expected = [
        (ShardId(1), vec![stored]),
        (ShardId(2), vec![]),
        (VOLATILE, vec![passing]),
    ];
    assert_eq!(node.targets("topic", "plant/7/temp"), expected);
    let route = node.route("topic", "plant/7/temp");
    assert_eq!((route.by_topic, route.topic_kind), (Some(MAIN), true));
    assert_eq!(node.targets("topic", "x").len(), 2);
}

#[test]
fn sessions_hear_only_their_vhosts_topic_exchange() {
    let mut node = Node::new();
    node.fabric
        .begin_interest(MAIN, &"#".parse().unwrap(), ShardId(1));
    let route = node.route("other", "a");
    assert!(route.targets.is_empty() && route.topic_kind && route.by_topic.is_none());
    let route = node.route("direct", "a");
    assert!(route.targets.is_empty() && !route.topic_kind);
}

#[test]
fn the_default_exchange_leads_to_the_stream_of_that_key() {
    let mut node = Node::new();
    let id = node.queue("jobs", true);
    assert_eq!(node.targets("", "jobs"), [(ShardId(1), vec![id])]);
    assert!(node.targets("", "none").is_empty());
}

#[test]
fn a_stream_is_no_target_before_it_is_active() {
    let mut node = Node::new();
    let id = node.declare("jobs", true);
    node.bind("direct", "jobs", "k");
    assert!(node.targets("direct", "k").is_empty());
    node.apply(MetaCommand::ActivateStream { stream: id });
    assert_eq!(node.targets("direct", "k"), [(ShardId(1), vec![id])]);
}

#[test]
fn a_missing_or_internal_exchange_is_said_to_be_so() {
    let mut node = Node::new();
    assert!(node.route("none", "a").exchange_missing);
    let unreadable = Message {
        exchange: Bytes::from_static(&[0xff]),
        ..Message::default()
    };
    assert!(node.router.route(MAIN, &unreadable).exchange_missing);
    let mut spec = exchange("none", ExchangeKind::Fanout);
    spec.internal = true;
    node.apply(MetaCommand::DeclareExchange {
        vhost: MAIN,
        exchange: spec,
    });
    let route = node.route("none", "a");
    assert!(!route.exchange_missing && route.internal);
    assert!(
        node.router
            .route(VhostId(2), &message("topic", "a"))
            .exchange_missing
    );
}

#[test]
fn every_change_is_seen_by_the_next_publish() {
    let mut node = Node::new();
    let id = node.queue("jobs", true);
    let there = vec![(ShardId(1), vec![id])];
    assert!(node.targets("topic", "a").is_empty());
    node.bind("topic", "jobs", "a");
    assert_eq!(node.targets("topic", "a"), there);
    let filter: TopicFilter = "+".parse().unwrap();
    node.fabric.begin_interest(MAIN, &filter, ShardId(2));
    assert_eq!(node.targets("topic", "a").len(), 2);
    node.fabric.end_interest(MAIN, &filter, ShardId(2));
    assert_eq!(node.targets("topic", "a"), there);
    node.apply(MetaCommand::DeleteStream { stream: id });
    assert!(node.targets("topic", "a").is_empty());
    let empty = Meta::default();
    node.fabric.install(empty);
    assert!(node.route("topic", "a").exchange_missing);
}

#[test]
fn what_cannot_change_a_route_leaves_them_remembered() {
    let mut node = Node::new();
    let filter: TopicFilter = "a".parse().unwrap();
    node.fabric.begin_interest(MAIN, &filter, ShardId(1));
    let before = node.route("topic", "a");
    node.fabric.begin_interest(MAIN, &filter, ShardId(1));
    node.declare("creating", true);
    let rules = node.fabric.rules_generation();
    node.apply(MetaCommand::PutRule(crate::meta::Rule {
        id: "r".into(),
        order: 0,
        body: serde_json::Value::Null,
    }));
    assert!(node.fabric.rules_generation() > rules);
    assert!(Rc::ptr_eq(&before, &node.route("topic", "a")));
}

#[test]
fn numbers_tell_routes_apart_and_stay() {
    let mut node = Node::new();
    let first = node.route("topic", "a").number;
    let second = node.route("topic", "b").number;
    assert_ne!(first, second);
    assert_eq!(node.route("topic", "a").number, first);
    // Where the name of the exchange ends matters.
    let third = node.route("topi", "c/a").number;
    assert!(third != first && third != second);
}

#[test]
fn a_headers_exchange_is_asked_for_each_message() {
    let mut node = Node::new();
    let (red, both) = (node.queue("red", true), node.queue("both", true));
    let text = |text: &'static str| Value::Text(Bytes::from_static(text.as_bytes()));
    let wanted = |pairs: Vec<(&'static str, Value)>| {
        let pairs = pairs
            .into_iter()
            .map(|(name, value)| (Bytes::from(name), value));
        Arguments::new(pairs.collect()).unwrap()
    };
    node.bind_with("headers", "red", "", wanted(vec![("colour", text("red"))]));
    let any = vec![
        ("x-match", text("any")),
        ("colour", text("red")),
        ("size", text("big")),
    ];
    node.bind_with("headers", "both", "", wanted(any));
    node.bind_with(
        "headers",
        "both",
        "k",
        wanted(vec![("colour", Value::Void)]),
    );
    let mut check = |name: &'static str, value: &'static str, expected: &[StreamId]| {
        let properties = Properties {
            headers: vec![(Bytes::from(name), text(value))],
            ..Properties::default()
        };
        let message = Message {
            origin: OriginTag::BROKER,
            properties: properties.encode(),
            ..message("headers", "same")
        };
        for _ in 0..2 {
            let route = node.router.route(MAIN, &message);
            assert!(route.depends_on_headers && !route.topic_kind);
            let found = route.targets.iter().flat_map(|(_, streams)| streams.iter());
            assert_eq!(found.copied().collect::<Vec<_>>(), expected);
        }
    };
    check("colour", "red", &[red, both]);
    check("colour", "blue", &[both]);
    check("size", "big", &[both]);
    check("size", "small", &[]);
}

#[test]
fn a_router_remembers_a_bounded_number_of_routes() {
    let mut node = Node::new();
    for number in 0..ROUTES_MAX + 10 {
        node.route("topic", &format!("device/{number}"));
    }
    assert_eq!(node.router.known.len(), 10);
    let long = "x".repeat(ROUTE_KEY_BYTES_MAX);
    node.route("topic", &long);
    assert_eq!(node.router.known.len(), 10);
}

#[test]
fn a_router_remembers_routes_to_a_bounded_number_of_streams() {
    let mut node = Node::new();
    let streams = 500;
    for number in 0..streams {
        let name = format!("q{number}");
        node.queue(&name, true);
        node.bind("topic", &name, "#");
    }
    for number in 0..ROUTED_STREAMS_MAX / streams + 10 {
        node.route("topic", &format!("device/{number}"));
        assert!(node.router.known_streams <= ROUTED_STREAMS_MAX);
    }
    assert!(node.router.known.len() < 20);
}

fn joined(level: &'static str) -> impl Strategy<Value = String> {
    proptest::collection::vec(level, 0..4).prop_map(|levels| levels.join("/"))
}

proptest! {
    #[test]
    fn a_topic_route_is_what_the_filters_say(
        bindings in proptest::collection::vec((0usize..4, joined("[ab+#]")), 0..12),
        sessions in proptest::collection::vec((1u16..4, joined("[ab+#]")), 0..12),
        addresses in proptest::collection::vec(joined("[ab]"), 1..6),
    ) {
        let mut node = Node::new();
        let ids: Vec<StreamId> = (0..4).map(|n| node.queue(&format!("q{n}"), n % 2 == 0)).collect();
        for (stream, filter) in &bindings {
            node.bind("topic", &format!("q{stream}"), filter);
        }
        for (shard, filter) in &sessions {
            node.fabric.begin_interest(MAIN, &filter.parse().unwrap(), ShardId(*shard));
        }
        let filter = |text: &str| text.parse::<TopicFilter>().unwrap();
        for address in &addresses {
            let parsed: Address = address.parse().unwrap();
            let mut expected: std::collections::BTreeMap<ShardId, Vec<StreamId>> = Default::default();
            for (number, id) in ids.iter().enumerate() {
                let of = bindings.iter().filter(|(stream, _)| *stream == number);
                if of.clone().any(|(_, text)| filter(text).matches(&parsed)) {
                    let shard = if number % 2 == 0 { ShardId(1) } else { VOLATILE };
                    expected.entry(shard).or_default().push(*id);
                }
            }
            for (shard, text) in &sessions {
                if filter(text).matches(&parsed) {
                    expected.entry(ShardId(*shard)).or_default();
                }
            }
            let expected: Vec<_> = expected.into_iter().collect();
            prop_assert_eq!(node.targets("topic", address), expected);
        }
    }
}

impl Node {
    fn make_exchange(&self, name: &str, kind: ExchangeKind, alternate: Option<&str>) {
        let exchange = ExchangeSpec {
            alternate: alternate.map(Into::into),
            ..exchange(name, kind)
        };
        self.apply(MetaCommand::DeclareExchange {
            vhost: MAIN,
            exchange,
        });
    }

    fn join(&self, from: &str, to: &str, key: &str) {
        self.apply(MetaCommand::Bind(BindingChange {
            vhost: MAIN,
            exchange: from.into(),
            to: BindingEnd::Exchange(to.into()),
            key: None,
            filter: key.parse().unwrap(),
            arguments: Arguments::default(),
            by: HERE,
        }));
    }
}

#[test]
fn a_message_goes_on_from_exchange_to_exchange_and_circles_end() {
    let mut node = Node::new();
    let stored = node.queue("stored", true);
    for name in ["one", "two"] {
        node.make_exchange(name, ExchangeKind::Fanout, None);
    }
    node.join("direct", "one", "k");
    node.join("one", "two", "");
    node.join("two", "one", "");
    node.bind("one", "stored", "");
    node.bind("two", "stored", "");
    assert_eq!(node.targets("direct", "k"), [(ShardId(1), vec![stored])]);
    assert!(node.targets("direct", "other").is_empty());
    node.apply(MetaCommand::DeleteExchange {
        vhost: MAIN,
        name: "one".into(),
        if_unused: false,
    });
    assert!(node.targets("direct", "k").is_empty());
}

#[test]
fn sessions_are_reached_through_other_exchanges_too() {
    let mut node = Node::new();
    node.make_exchange("in", ExchangeKind::Fanout, None);
    node.join("in", "topic", "");
    let filter: TopicFilter = "a/+".parse().unwrap();
    node.fabric.begin_interest(MAIN, &filter, VOLATILE);
    let route = node.route("in", "a/b");
    assert_eq!(route.by_topic, Some(MAIN));
    assert_eq!(node.targets("in", "a/b"), [(VOLATILE, vec![])]);
}

#[test]
fn what_no_binding_takes_goes_to_the_alternate_exchange() {
    let mut node = Node::new();
    let (taken, rest) = (node.queue("taken", true), node.queue("rest", true));
    node.make_exchange("rest", ExchangeKind::Fanout, Some("first"));
    node.make_exchange("first", ExchangeKind::Direct, Some("rest"));
    node.bind("first", "taken", "a");
    node.bind("rest", "rest", "");
    assert_eq!(node.targets("first", "a"), [(ShardId(1), vec![taken])]);
    assert_eq!(node.targets("first", "b"), [(ShardId(1), vec![rest])]);
    // Two that name each other, and nobody takes it.
    node.make_exchange("x", ExchangeKind::Direct, Some("y"));
    node.make_exchange("y", ExchangeKind::Direct, Some("x"));
    assert!(node.targets("x", "a").is_empty());
}

#[test]
fn a_key_that_looks_like_a_wildcard_is_literal_where_keys_are_compared() {
    let mut node = Node::new();
    let stored = node.queue("stored", true);
    node.apply(MetaCommand::Bind(BindingChange {
        vhost: MAIN,
        exchange: "direct".into(),
        to: BindingEnd::Stream("stored".into()),
        key: Some("a/%2B".parse().unwrap()),
        filter: "a/+".parse().unwrap(),
        arguments: Arguments::default(),
        by: HERE,
    }));
    assert!(node.targets("direct", "a/b").is_empty());
    assert_eq!(
        node.targets("direct", "a/%2B"),
        [(ShardId(1), vec![stored])]
    );
}
