//! Streams whose messages stay, for a whole node: who reads what from where, what settling does, what leaves and when.
//!
//! The last test does the same at random beside a list.

mod node;

use anabranch_core::address::TopicFilter;
use anabranch_core::authority::{Action, Authority, Question, Resource, Verdict};
use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::{Mode, StreamLimits};
use anabranch_core::message::{Message, OriginTag};
use anabranch_core::meta::MetaCommand;
use anabranch_core::meta::policy::{AppliesTo, Policy, Settings};
use anabranch_core::port::{KeptRange, Question as ShardQuestion};
use anabranch_core::properties::{Properties, Value};
use anabranch_core::shard::FILTER_HEADER;
use bytes::Bytes;
use node::{Client, Node, TAG, bodies, reader};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

fn kept(age_max_ms: Option<u64>, bytes_max: Option<u64>) -> StreamLimits {
    StreamLimits {
        mode: Mode::Replay,
        age_max_ms,
        bytes_max,
        ..StreamLimits::default()
    }
}

/// A node with a stream `s` that keeps everything, and so many connections.
fn node(clients: usize) -> (Node, Vec<Client>) {
    let mut node = Node::new(1, 1);
    let clients: Vec<Client> = (0..clients).map(|_| node.connect(0)).collect();
    node.declare_with(clients[0], "s", true, kept(None, None))
        .unwrap();
    (node, clients)
}

fn from(place: SeekTo, credit: u32) -> Consume {
    only(place, None, credit)
}

fn only(from: SeekTo, only: Option<ValueFilter>, credit: u32) -> Consume {
    Consume {
        replay: Some(Box::new(Replay {
            from,
            only,
            subscribes: None,
        })),
        ..reader("s", TAG, credit)
    }
}

fn publish(node: &mut Node, client: Client, bodies: impl IntoIterator<Item = u64>) {
    for body in bodies {
        node.publish(client, "", "s", &body.to_string(), 0);
    }
}

fn taken(node: &mut Node, client: Client) -> Vec<u64> {
    let mail = node.mail(client);
    for delivery in &mail.deliveries {
        assert_eq!((delivery.consumer, delivery.attempt), (TAG, 1));
        let body = std::str::from_utf8(&delivery.message.body).unwrap();
        assert_eq!(body, delivery.offset.to_string());
    }
    mail.deliveries.iter().map(|one| one.offset.0).collect()
}

fn accept(node: &mut Node, client: Client, first: u64, last: u64) {
    let settle = Command::Settle {
        consumer: TAG,
        first: Offset(first),
        last: Offset(last),
        outcome: Outcome::Accepted,
    };
    node.ask(client, settle);
}

#[test]
fn each_reader_reads_all_of_it_from_its_own_place_and_nothing_leaves() {
    let (mut node, c) = node(4);
    publish(&mut node, c[0], 0..5);
    assert_eq!(
        node.consume_with(c[0], from(SeekTo::Start, 9)),
        Ok(Reply::Replaying)
    );
    assert_eq!(
        node.consume_with(c[1], from(SeekTo::Last, 9)),
        Ok(Reply::Replaying)
    );
    assert_eq!(
        node.consume_with(c[2], from(SeekTo::Offset(Offset(2)), 9)),
        Ok(Reply::Replaying)
    );
    assert_eq!(
        node.consume(c[3], "s", 9),
        Ok(Reply::Replaying),
        "from its end"
    );
    publish(&mut node, c[0], 5..7);
    let all = [
        (c[0], vec![0, 1, 2, 3, 4, 5, 6]),
        (c[1], vec![4, 5, 6]),
        (c[2], vec![2, 3, 4, 5, 6]),
        (c[3], vec![5, 6]),
    ];
    for (client, offsets) in all {
        assert_eq!(taken(&mut node, client), offsets);
        accept(&mut node, client, 0, 6);
    }
    let stat = node.stat("s");
    assert_eq!((stat.ready, stat.unsettled, stat.consumers), (7, 0, 4));
    let at = node.now.unix;
    let range = KeptRange {
        first: Offset(0),
        first_at: at,
        last: Offset(6),
        last_at: at,
    };
    assert_eq!(stat.kept, Some(range));
}

#[test]
fn settling_makes_room_and_brings_nothing_back_however_it_is_done() {
    let (mut node, c) = node(1);
    publish(&mut node, c[0], 0..6);
    node.consume_with(c[0], from(SeekTo::Start, 2)).unwrap();
    assert_eq!(taken(&mut node, c[0]), [0, 1]);
    for (outcome, next) in [
        (Outcome::Accepted, 2),
        (Outcome::Released, 3),
        (Outcome::Rejected, 4),
    ] {
        node.settle_one(c[0], TAG, Offset(next - 2), outcome);
        assert_eq!(taken(&mut node, c[0]), [next]);
    }
    // Neither twice nor what it was not handed.
    node.settle_one(c[0], TAG, Offset(2), Outcome::Accepted);
    node.settle_one(c[0], TAG, Offset(5), Outcome::Accepted);
    assert!(taken(&mut node, c[0]).is_empty());
    let credit = Command::SetCredit {
        consumer: TAG,
        credit: 3,
    };
    node.ask(c[0], credit);
    assert_eq!(taken(&mut node, c[0]), [5]);
    assert_eq!(node.stat("s").ready, 6);
}

#[test]
fn a_reader_that_goes_holds_nothing_and_the_next_one_begins_where_it_says() {
    let (mut node, c) = node(2);
    publish(&mut node, c[0], 0..3);
    node.consume_with(c[0], from(SeekTo::Start, 9)).unwrap();
    assert_eq!(taken(&mut node, c[0]), [0, 1, 2]);
    node.cancel(c[0], TAG);
    accept(&mut node, c[0], 0, 1);
    let stat = node.stat("s");
    assert_eq!((stat.unsettled, stat.consumers, stat.ready), (0, 0, 3));
    node.consume_with(c[1], from(SeekTo::Offset(Offset(1)), 9))
        .unwrap();
    node.disconnect(c[1]);
    node.consume_with(c[0], from(SeekTo::Start, 1)).unwrap_err();
    accept(&mut node, c[0], 2, 2);
    node.consume_with(c[0], from(SeekTo::Start, 1)).unwrap();
    assert_eq!(taken(&mut node, c[0]), [0]);
}

#[test]
fn what_does_not_go_with_a_stream_is_refused() {
    let (mut node, c) = node(2);
    let presettled = Consume {
        presettled: true,
        ..from(SeekTo::Start, 9)
    };
    assert_eq!(
        node.consume_with(c[0], presettled),
        Err(ErrorKind::NotSupported)
    );
    let endless = from(SeekTo::Start, u32::MAX);
    assert_eq!(node.consume_with(c[0], endless), Err(ErrorKind::BadRequest));
    let get = Command::Get {
        token: Token(9),
        stream: Arc::from("s"),
        consumer: ConsumerTag(8),
        presettled: false,
    };
    assert_eq!(node.reply(c[0], get), Err(ErrorKind::NotSupported));
    let purge = Command::Purge {
        token: Token(9),
        stream: Arc::from("s"),
    };
    assert_eq!(node.reply(c[0], purge), Err(ErrorKind::NotSupported));
    let seek = node.question("s", |stream| ShardQuestion::Seek {
        stream,
        to: SeekTo::End,
    });
    assert_eq!(seek.map(drop), Err(ErrorKind::NotSupported));
    node.declare(c[0], "q", true).unwrap();
    let other = Consume {
        stream: Arc::from("q"),
        ..from(SeekTo::Start, 9)
    };
    assert_eq!(node.consume_with(c[0], other), Err(ErrorKind::BadRequest));
    let alone = Consume {
        exclusive: true,
        ..from(SeekTo::Start, 9)
    };
    node.consume_with(c[0], alone).unwrap();
    assert_eq!(node.consume(c[1], "s", 9), Err(ErrorKind::SecondConsumer));
}

#[test]
fn a_time_is_that_at_which_messages_came_in() {
    let (mut node, c) = node(1);
    let start = node.now.unix.0;
    for body in 0..10 {
        publish(&mut node, c[0], [body]);
        node.pass(100);
    }
    for (after, first) in [(0, 0), (300, 3), (301, 4), (900, 9), (901, 10)] {
        let c = node.connect(0);
        let place = SeekTo::Time(UnixMs(start + after));
        node.consume_with(c, from(place, 99)).unwrap();
        let rest: Vec<u64> = (first..10).collect();
        assert_eq!(taken(&mut node, c), rest, "{after}");
    }
}

#[test]
fn what_is_too_old_or_too_much_leaves_though_nobody_publishes_and_stays_gone() {
    let mut node = Node::new(1, 1);
    let c = node.connect(0);
    node.declare_with(c, "s", true, kept(Some(10_000), Some(8)))
        .unwrap();
    publish(&mut node, c, 0..5);
    assert_eq!(node.stat("s").ready, 5);
    publish(&mut node, c, 5..10);
    let range = node.stat("s").kept.unwrap();
    assert_eq!(
        (range.first, range.last),
        (Offset(2), Offset(9)),
        "eight bytes"
    );
    node.publish(c, "", "s", "a large one", 0);
    let range = node.stat("s").kept.unwrap();
    assert_eq!(
        (range.first, range.last),
        (Offset(10), Offset(10)),
        "the newest is never too much"
    );
    node.pass(9_000);
    publish(&mut node, c, [11]);
    assert_eq!(node.stat("s").kept.unwrap().first, Offset(11));
    node.pass(9_000);
    assert_eq!(node.stat("s").ready, 1);
    node.pass(2_000);
    assert_eq!((node.stat("s").ready, node.stat("s").kept), (0, None));
    node.restart();
    let c = node.connect(0);
    assert_eq!((node.stat("s").ready, node.stat("s").kept), (0, None));
    publish(&mut node, c, [12]);
    node.consume_with(c, from(SeekTo::Start, 9)).unwrap();
    assert_eq!(taken(&mut node, c), [12], "offsets go on");
}

/// Each round planned the next look anew, so where rounds followed each other closely nothing was ever looked at.
#[test]
fn rounds_that_follow_closely_do_not_put_off_what_is_due() {
    let mut node = Node::new(1, 1);
    let c = node.connect(0);
    node.declare_with(c, "s", true, kept(Some(1_000), None))
        .unwrap();
    publish(&mut node, c, 0..3);
    for _ in 0..300 {
        node.pass(5);
    }
    assert_eq!(node.stat("s").ready, 0);
}

#[test]
fn a_crash_keeps_messages_offsets_and_retention() {
    let mut node = Node::new(1, 1);
    let c = node.connect(0);
    node.declare_with(c, "s", true, kept(Some(60_000), None))
        .unwrap();
    publish(&mut node, c, 0..4);
    node.consume_with(c, from(SeekTo::Start, 2)).unwrap();
    accept(&mut node, c, 0, 1);
    node.restart();
    let c = node.connect(0);
    node.consume_with(c, from(SeekTo::Start, 9)).unwrap();
    assert_eq!(taken(&mut node, c), [0, 1, 2, 3]);
    node.pass(61_000);
    assert_eq!(node.stat("s").ready, 0);
}

#[test]
fn policies_bound_age_and_size_and_make_no_queue_a_stream() {
    let (mut node, c) = node(1);
    node.declare(c[0], "q", true).unwrap();
    let vhost = node.fabric.meta().vhost("/").unwrap().id;
    let policy = |settings| MetaCommand::PutPolicy {
        vhost,
        policy: Policy {
            name: "p".into(),
            pattern: "".into(),
            applies_to: AppliesTo::All,
            priority: 0,
            settings,
        },
    };
    let stream = policy(Settings {
        mode: Some(Mode::Replay),
        ..Settings::default()
    });
    let refused = node.fabric.apply(node.now.unix, &stream).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::BadRequest);
    publish(&mut node, c[0], 0..8);
    let bounds = policy(Settings {
        mode: Some(Mode::Failover),
        messages_max: Some(1),
        bytes_max: Some(5),
        age_max_ms: Some(60_000),
        ..Settings::default()
    });
    node.fabric.apply(node.now.unix, &bounds).unwrap();
    node.pass(600);
    let stat = node.stat("s");
    assert_eq!((stat.mode, stat.ready), (Mode::Replay, 5));
    assert_eq!(stat.limits, kept(Some(60_000), Some(5)));
    assert_eq!(node.stat("q").limits.age_max_ms, None);
}

#[test]
fn a_policy_s_filters_are_kept_in_streams_that_match_for_as_long_as_it_counts() {
    let (mut node, c) = node(1);
    let vhost = node.fabric.meta().vhost("/").unwrap().id;
    let policy = |filters: &[&str]| MetaCommand::PutPolicy {
        vhost,
        policy: Policy {
            name: "p".into(),
            pattern: "^s".into(),
            applies_to: AppliesTo::Streams,
            priority: 0,
            settings: Settings {
                capture: Some(filters.iter().map(|one| one.parse().unwrap()).collect()),
                ..Settings::default()
            },
        },
    };
    node.declare(c[0], "sq", true).unwrap();
    let at = node.now.unix;
    node.fabric.apply(at, &policy(&["a/#", "b"])).unwrap();
    node.declare_with(c[0], "s2", true, kept(None, None))
        .unwrap();
    let publish = |node: &mut Node, address| node.publish(c[0], "topics", address, "x", 0);
    publish(&mut node, "a/1");
    publish(&mut node, "b");
    publish(&mut node, "c");
    let ready = |node: &mut Node| ["s", "s2", "sq"].map(|name| node.stat(name).ready);
    assert_eq!(ready(&mut node), [2, 2, 0]);
    // A client's own binding is another one.
    node.bind(c[0], "s2", "b");
    node.fabric.apply(at, &policy(&["b", "c"])).unwrap();
    publish(&mut node, "a/1");
    publish(&mut node, "b");
    publish(&mut node, "c");
    assert_eq!(ready(&mut node), [4, 4, 0]);
    node.restart();
    let c = node.connect(0);
    let gone = MetaCommand::DeletePolicy {
        vhost,
        name: "p".into(),
    };
    node.fabric.apply(at, &gone).unwrap();
    node.publish(c, "topics", "c", "x", 0);
    node.publish(c, "topics", "b", "x", 0);
    assert_eq!(ready(&mut node), [4, 5, 0]);
}

#[test]
fn a_message_s_own_time_does_not_count_and_is_not_told() {
    let (mut node, c) = node(1);
    let message = Message {
        address: "s".parse().unwrap(),
        expires: Some(node.now.unix.after(100)),
        ..Message::default()
    };
    node.ask(c[0], command(message));
    node.pass(5_000);
    node.consume_with(c[0], from(SeekTo::Start, 9)).unwrap();
    let mail = node.mail(c[0]);
    assert_eq!(mail.deliveries[0].message.expires, None);
}

fn command(message: Message) -> Command {
    Command::Publish {
        later: None,
        token: Token::NONE,
        mandatory: false,
        patient: true,
        once: None,
        message: Arc::new(message),
    }
}

/// With this filter value.
fn valued(body: u64, value: Option<&str>) -> Message {
    let value = value.map(|value| Value::Text(Bytes::copy_from_slice(value.as_bytes())));
    let properties = Properties {
        headers: value
            .map(|value| (Bytes::from_static(FILTER_HEADER), value))
            .into_iter()
            .collect(),
        ..Properties::default()
    };
    Message {
        address: "s".parse().unwrap(),
        origin: OriginTag::BROKER,
        properties: properties.encode(),
        body: Bytes::from(body.to_string()),
        ..Message::default()
    }
}

#[test]
fn a_filter_is_exact_and_passes_over_the_rest_in_rounds() {
    let (mut node, c) = node(3);
    for body in 0..3000 {
        let value = match body % 1000 {
            7 => Some("emea"),
            8 => None,
            _ => Some("apac"),
        };
        let worker = usize::from(c[0].id.worker().0);
        node.workers[worker].submit(node.now, c[0].id, &mut vec![command(valued(body, value))]);
    }
    node.settle();
    let emea = |unfiltered| {
        Some(ValueFilter {
            values: vec![Bytes::from_static(b"emea")],
            unfiltered,
        })
    };
    node.consume_with(c[1], only(SeekTo::Start, emea(false), 9))
        .unwrap();
    node.consume_with(c[2], only(SeekTo::Start, emea(true), 9))
        .unwrap();
    // One round looks at a share of it, and asks to be called again at once.
    for _ in 0..60 {
        node.pass(0);
    }
    assert_eq!(taken(&mut node, c[1]), [7, 1007, 2007]);
    assert_eq!(taken(&mut node, c[2]), [7, 8, 1007, 1008, 2007, 2008]);
}

#[test]
fn several_readers_at_one_place_take_turns_of_a_share_each() {
    let (mut node, c) = node(2);
    for body in 0..1000 {
        let message = command(valued(body, None));
        node.workers[0].submit(node.now, c[0].id, &mut vec![message]);
    }
    node.settle();
    for client in [c[0], c[1]] {
        node.consume_with(client, from(SeekTo::Start, 2000))
            .unwrap();
    }
    for _ in 0..20 {
        node.pass(0);
    }
    let all: Vec<u64> = (0..1000).collect();
    assert_eq!(taken(&mut node, c[0]), all);
    assert_eq!(taken(&mut node, c[1]), all);
}

#[test]
fn a_share_of_large_messages_is_a_few_of_them() {
    let (mut node, c) = node(2);
    for _ in 0..40 {
        let message = Message {
            address: "s".parse().unwrap(),
            body: Bytes::from(vec![7; 20_000]),
            ..Message::default()
        };
        node.workers[0].submit(node.now, c[0].id, &mut vec![command(message)]);
    }
    node.settle();
    node.consume_with(c[1], from(SeekTo::Start, 100)).unwrap();
    let mut rounds = Vec::new();
    while rounds.iter().sum::<usize>() < 40 {
        node.pass(0);
        rounds.push(node.mail(c[1]).deliveries.len());
        assert!(rounds.len() < 40, "{rounds:?}");
    }
    assert!(rounds[1..].iter().all(|count| *count <= 4), "{rounds:?}");
}

/// Denies to subscribe to what stands under `secret`, and to receive from there.
#[derive(Debug)]
struct NoSecrets;

impl Authority for NoSecrets {
    fn decide(&self, question: &Question<'_>) -> Verdict {
        let secret = match question.resource {
            Resource::Topic(address) => address.as_str().starts_with("secret"),
            Resource::Filter(filter) => {
                let text = filter.to_string();
                text.starts_with("secret") || (text == "#" && question.action == Action::Receive)
            }
            _ => false,
        };
        let denied = secret && matches!(question.action, Action::Receive | Action::Subscribe);
        Verdict {
            allowed: !denied,
            rule: None,
        }
    }

    fn generation(&self) -> u64 {
        0
    }

    fn circumstantial(&self, _: Action) -> bool {
        false
    }
}

#[test]
fn a_reader_needs_the_right_to_the_filter_it_comes_by_and_to_each_address() {
    let mut node = Node::with(1, 1, Arc::new(NoSecrets));
    let c = node.connect(0);
    node.declare_with(c, "s", true, kept(None, None)).unwrap();
    node.bind(c, "s", "#");
    for address in ["open/a", "secret/b", "open/c"] {
        node.publish(c, "topics", address, address, 0);
    }
    let by = |filter: &str| {
        let mut consume = from(SeekTo::Start, 9);
        if let Some(replay) = consume.replay.as_deref_mut() {
            replay.subscribes = Some(filter.parse::<TopicFilter>().unwrap());
        }
        consume
    };
    assert_eq!(
        node.consume_with(c, by("secret/s")),
        Err(ErrorKind::AccessRefused)
    );
    node.consume_with(c, by("open/s")).unwrap();
    assert_eq!(bodies(&node.mail(c)), ["open/a", "open/c"]);
}

#[derive(Clone, Debug)]
enum Step {
    Publish(u8),
    Attach(usize, u8, u64, u32, bool),
    Settle(usize, u64),
    Detach(usize),
    Pass(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1u8..6).prop_map(Step::Publish),
        4 => (0usize..3, 0u8..5, 0u64..40, 1u32..6, any::<bool>())
            .prop_map(|(who, how, at, credit, some)| Step::Attach(who, how, at, credit, some)),
        6 => (0usize..3, 0u64..4).prop_map(|(who, more)| Step::Settle(who, more)),
        1 => (0usize..3).prop_map(Step::Detach),
        3 => (1u64..3000).prop_map(Step::Pass),
        1 => Just(Step::Restart),
    ]
}

/// A reader as a list sees it.
struct Seen {
    next: usize,
    credit: usize,
    filtered: bool,
    unsettled: Vec<u64>,
}

/// The whole of a stream as a list of times; offsets are places in it.
struct Model {
    came: Vec<u64>,
    first: usize,
    readers: BTreeMap<usize, Seen>,
}

impl Model {
    /// Every third message has the value.
    fn has_value(offset: usize) -> bool {
        offset.is_multiple_of(3)
    }

    fn place(&self, how: u8, at: u64, start: u64) -> (SeekTo, usize) {
        let end = self.came.len();
        match how {
            0 => (SeekTo::Start, self.first),
            1 => (SeekTo::Last, end.saturating_sub(1).max(self.first)),
            2 => (SeekTo::End, end),
            3 => (
                SeekTo::Offset(Offset(at)),
                (at as usize).clamp(self.first, end),
            ),
            _ => {
                let time = start + at * 300;
                let found = (self.first..end).find(|offset| self.came[*offset] >= time);
                (SeekTo::Time(UnixMs(time)), found.unwrap_or(end))
            }
        }
    }

    /// What a reader is to be handed now.
    fn due(&mut self, who: usize) -> Vec<u64> {
        let (first, end) = (self.first, self.came.len());
        let Some(seen) = self.readers.get_mut(&who) else {
            return Vec::new();
        };
        let mut due = Vec::new();
        seen.next = seen.next.max(first);
        while seen.next < end && seen.unsettled.len() < seen.credit {
            if !seen.filtered || Model::has_value(seen.next) {
                seen.unsettled.push(seen.next as u64);
                due.push(seen.next as u64);
            }
            seen.next += 1;
        }
        due
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn at_random_it_is_a_list_with_a_place_for_each_reader(
        steps in proptest::collection::vec(step(), 1..60),
        bytes_max in proptest::option::of(3u64..40),
        age_max_ms in proptest::option::of(2_000u64..9_000),
    ) {
        let mut node = Node::new(1, 1);
        let owner = node.connect(0);
        node.declare_with(owner, "s", true, kept(age_max_ms, bytes_max)).unwrap();
        let start = node.now.unix.0;
        let mut model = Model { came: Vec::new(), first: 0, readers: BTreeMap::new() };
        let mut clients: Vec<Client> = (0..3).map(|_| node.connect(0)).collect();
        let mut publisher = node.connect(0);
        for step in steps {
            match step {
                Step::Publish(count) => for _ in 0..count {
                    let offset = model.came.len();
                    let value = if Model::has_value(offset) { Some("v") } else { None };
                    node.ask(publisher, command(valued(offset as u64, value)));
                    model.came.push(node.now.unix.0);
                },
                Step::Attach(who, how, at, credit, filtered) => {
                    if model.readers.contains_key(&who) {
                        continue;
                    }
                    let (place, next) = model.place(how, at, start);
                    let filter = filtered.then(|| ValueFilter {
                        values: vec![Bytes::from_static(b"v")],
                        unfiltered: false,
                    });
                    prop_assert_eq!(
                        node.consume_with(clients[who], only(place, filter, credit)),
                        Ok(Reply::Replaying)
                    );
                    let unsettled = Vec::new();
                    let credit = credit as usize;
                    model.readers.insert(who, Seen { next, credit, filtered, unsettled });
                }
                Step::Settle(who, more) => {
                    let Some(seen) = model.readers.get_mut(&who) else { continue };
                    let Some(&first) = seen.unsettled.first() else { continue };
                    let last = first + more;
                    accept(&mut node, clients[who], first, last);
                    seen.unsettled.retain(|offset| *offset > last);
                }
                Step::Detach(who) => {
                    node.disconnect(clients[who]);
                    clients[who] = node.connect(0);
                    model.readers.remove(&who);
                }
                Step::Pass(ms) => node.pass(ms),
                Step::Restart => {
                    node.restart();
                    clients = (0..3).map(|_| node.connect(0)).collect();
                    publisher = node.connect(0);
                    model.readers.clear();
                }
            }
            for (who, client) in clients.iter().enumerate() {
                let got = taken(&mut node, *client);
                // What was too old or too much may have been handed out just before it left.
                let due = model.due(who);
                prop_assert_eq!(got, due, "reader {}", who);
            }
            let now = node.now.unix.0;
            let size = |offset: usize| offset.to_string().len() as u64;
            let stat = node.stat("s");
            let first = stat.kept.map_or(model.came.len(), |range| range.first.0 as usize);
            // Nothing leaves that need not, and what must leave does so within the second.
            for gone in model.first..first {
                let rest: u64 = (gone..model.came.len()).map(size).sum();
                let much = bytes_max.is_some_and(|most| rest > most);
                let old = age_max_ms.is_some_and(|ms| model.came[gone] + ms <= now);
                prop_assert!(much || old, "{} left too early", gone);
            }
            if first < model.came.len() {
                let rest: u64 = (first..model.came.len()).map(size).sum();
                let much = bytes_max.is_some_and(|most| rest > most && first + 1 < model.came.len());
                let old = age_max_ms.is_some_and(|ms| model.came[first] + ms + 1000 < now);
                prop_assert!(!much && !old, "{} is still there", first);
            }
            model.first = first;
        }
    }
}
