//! Wills: when a message that a session leaves behind is published, and when not.
//!
//! Owns: the end of a connection, a session and a node as a will sees them, in simulated time.
//! Next: `sessions.rs`.

mod node;

use anabranch_core::authority::{Action, Authority, Question, Verdict};
use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::message::{Message, Quality};
use bytes::Bytes;
use node::kept::{Kept, survives};
use node::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const NEVER: u32 = u32::MAX;

fn opening(name: &str, clean_start: bool, expiry_s: u32, will: Option<Will>) -> SessionOpen {
    SessionOpen {
        client_id: Arc::from(name),
        clean_start,
        expiry_s,
        consumer: ConsumerTag(0),
        credit: 10,
        group_consumers: ConsumerTag(1),
        will,
    }
}

fn will(node: &Node, body: &str, delay_s: u32) -> Option<Will> {
    let message = Message {
        exchange: Bytes::from_static(b"topics"),
        address: "wills/d".parse().unwrap(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        quality: Quality::ExactlyOnce,
        published: node.now.unix,
        expires: Some(node.now.unix.after(60_000)),
        ..Message::default()
    };
    Some(Will {
        message: Arc::new(message),
        delay_s,
    })
}

/// A device with a will, and somebody who hears of it.
struct World {
    node: Node,
    device: Client,
    watcher: Client,
}

impl World {
    fn new(expiry_s: u32, delay_s: u32) -> World {
        let mut node = Node::new(2, 2);
        let watcher = node.connect(1);
        node.session(watcher, "watcher", false, NEVER);
        node.subscribe(watcher, "wills/#");
        let device = node.connect(0);
        let open = opening("d", false, expiry_s, will(&node, "will", delay_s));
        node.session_with(device, open);
        World {
            node,
            device,
            watcher,
        }
    }

    /// What was heard since the last time; it is settled.
    fn heard(&mut self) -> Vec<String> {
        let mail = self.node.mail(self.watcher);
        for delivery in &mail.deliveries {
            let accept = Command::Settle {
                consumer: ConsumerTag(0),
                first: delivery.offset,
                last: delivery.offset,
                outcome: Outcome::Accepted,
            };
            self.node.ask(self.watcher, accept);
        }
        self.node.pass(10);
        bodies(&mail)
            .iter()
            .map(|body| (*body).to_owned())
            .collect()
    }

    fn lose(&mut self) {
        self.node.disconnect(self.device);
        self.node.pass(10);
    }

    /// By another connection; what it leaves.
    fn reopen(&mut self, clean_start: bool, will: Option<Will>) -> bool {
        self.device = self.node.connect(0);
        let open = opening("d", clean_start, 3600, will);
        self.node.session_with(self.device, open)
    }

    fn pass_s(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.node.pass(1000);
        }
    }
}

#[test]
fn a_connection_that_is_lost_leaves_its_will_at_once() {
    let mut world = World::new(3600, 0);
    assert!(world.heard().is_empty());
    world.lose();
    assert_eq!(world.heard(), ["will"]);
    world.pass_s(7200);
    assert!(world.heard().is_empty(), "once");
}

#[test]
fn a_connection_that_ends_in_order_leaves_none() {
    let mut world = World::new(2, 0);
    world.node.ask(world.device, Command::DropWill);
    world.lose();
    world.pass_s(10);
    assert!(world.heard().is_empty());
}

#[test]
fn only_the_new_connections_will_is_left() {
    let mut world = World::new(3600, 0);
    world.node.ask(world.device, Command::DropWill);
    world.lose();
    let second = will(&world.node, "second", 0);
    assert!(world.reopen(false, second));
    world.lose();
    assert_eq!(world.heard(), ["second"]);
    assert!(world.reopen(false, None));
    world.lose();
    assert!(world.heard().is_empty());
}

#[test]
fn a_will_waits_for_its_delay_and_not_longer() {
    let mut world = World::new(3600, 5);
    world.lose();
    world.pass_s(4);
    assert!(world.heard().is_empty());
    world.pass_s(2);
    let mail = &world.node.mails[&world.watcher.id].deliveries[0];
    let message = &mail.message;
    let lived = message.expires.unwrap().0 - message.published.0;
    assert_eq!(lived, 60_000, "its life begins when it is published");
    assert!(world.node.now.unix.0 - message.published.0 < 2000);
    assert_eq!(world.heard(), ["will"]);
}

#[test]
fn resuming_in_time_makes_a_will_void_and_resuming_late_does_not() {
    let mut world = World::new(3600, 5);
    world.lose();
    world.pass_s(3);
    assert!(world.reopen(false, None));
    world.pass_s(10);
    assert!(world.heard().is_empty());

    let mut late = World::new(3600, 5);
    late.lose();
    // Due, though nobody has looked.
    late.node.now.unix = late.node.now.unix.after(5_000);
    assert!(late.reopen(false, None));
    assert_eq!(late.heard(), ["will"]);
}

#[test]
fn the_end_of_the_session_comes_before_the_delay() {
    for (expiry_s, delay_s) in [(3, 60), (3, 3), (0, 60)] {
        let mut world = World::new(3600, delay_s);
        let expiry = Command::SetSessionExpiry { expiry_s };
        world.node.ask(world.device, expiry);
        world.lose();
        if expiry_s > 0 {
            world.pass_s(2);
            assert!(world.heard().is_empty());
        }
        world.pass_s(3);
        assert_eq!(world.heard(), ["will"], "{expiry_s} {delay_s}");
    }
}

#[test]
fn a_takeover_leaves_the_will_when_nothing_was_to_be_waited_for() {
    for (delay_s, clean_start, left) in [(0, false, true), (9, false, false), (9, true, true)] {
        let mut world = World::new(3600, delay_s);
        let old = world.device;
        assert_eq!(world.reopen(clean_start, None), !clean_start);
        assert_eq!(world.node.mail(old).stop, Some(StopReason::TakenOver));
        world.node.disconnect(old);
        world.pass_s(30);
        assert_eq!(
            world.heard().len(),
            usize::from(left),
            "{delay_s} {clean_start}"
        );
    }
}

#[test]
fn a_clean_start_that_keeps_nothing_ends_the_session_and_leaves_its_will() {
    let mut world = World::new(3600, 60);
    world.lose();
    let fresh = world.node.connect(0);
    let open = opening("d", true, 0, None);
    assert!(!world.node.session_with(fresh, open));
    world.node.pass(10);
    assert_eq!(world.heard(), ["will"]);
}

#[test]
fn a_node_that_dies_ends_its_connections() {
    let mut world = World::new(3600, 0);
    world.node.restart();
    world.node.pass(1000);
    world.watcher = world.node.connect(1);
    world.node.session(world.watcher, "watcher", false, NEVER);
    assert_eq!(world.heard(), ["will"]);

    let mut later = World::new(3600, 5);
    later.node.restart();
    later.watcher = later.node.connect(1);
    later.node.session(later.watcher, "watcher", false, NEVER);
    later.pass_s(4);
    assert!(later.heard().is_empty());
    later.pass_s(2);
    assert_eq!(later.heard(), ["will"]);
}

/// Whatever frame is the last before the node dies: a will that is due comes, and a void one does not.
#[test]
fn a_will_that_is_due_survives_the_node_at_every_frame() {
    for untold in [false, true] {
        for left in 0..8 {
            let mut world = World::new(3600, 0);
            world.node.declare(world.watcher, "left", true).unwrap();
            world.node.bind(world.watcher, "left", "wills/#");
            world.node.pass(100);
            world.node.frames_left = Some(left);
            world.node.last_is_untold = untold;
            world.lose();
            let mut heard = world.heard();
            world.node.restart();
            world.watcher = world.node.connect(1);
            world.node.session(world.watcher, "watcher", false, NEVER);
            world.pass_s(2);
            heard.append(&mut world.heard());
            heard.dedup();
            assert_eq!(heard, ["will"], "after {left} frames, untold: {untold}");
            world.node.restart();
            world.watcher = world.node.connect(1);
            world.node.session(world.watcher, "watcher", false, NEVER);
            world.pass_s(2);
            assert!(
                world.heard().is_empty(),
                "after {left} frames, untold: {untold}"
            );
            let reader = world.node.connect(0);
            world.node.consume(reader, "left", 10).unwrap();
            let stored = world.node.mail(reader);
            assert_eq!(bodies(&stored), ["will"], "after {left} frames");
        }
    }
}

#[test]
fn a_checkpoint_keeps_wills_before_and_after_they_are_due() {
    let mut world = World::new(3600, 0);
    let testament = will(&world.node, "testament", 0);
    world.reopen(false, testament);
    let mut stores: BTreeMap<ShardId, Kept> = BTreeMap::new();
    let mut kept = |world: &mut World| {
        let mut kept = 0;
        for (id, data) in &mut world.node.data {
            let store = stores.entry(*id).or_default();
            survives(store, data, &world.node.fabric, &world.node.authority);
            let values = store.pairs().values().flat_map(|value| value.windows(9));
            kept += values.filter(|part| part == b"testament").count();
        }
        kept
    };
    assert_eq!(kept(&mut world), 1);
    // The end of the connection is the last that is written: the will is due and stored nowhere else.
    world.node.pass(100);
    world.node.frames_left = Some(1);
    world.node.disconnect(world.device);
    assert_eq!(kept(&mut world), 1);
    world.node.frames_left = None;
    world.node.pass(100);
    assert!(world.heard().contains(&"testament".to_owned()));
    assert_eq!(kept(&mut world), 0);
}

/// Nobody may publish.
struct Mute;

impl Authority for Mute {
    fn decide(&self, question: &Question<'_>) -> Verdict {
        Verdict {
            allowed: question.action != Action::Publish,
            rule: None,
        }
    }

    fn generation(&self) -> u64 {
        1
    }

    fn circumstantial(&self, _: Action) -> bool {
        false
    }
}

#[test]
fn a_will_that_may_not_be_published_may_not_be_left() {
    let mut node = Node::with(1, 1, Arc::new(Mute));
    let device = node.connect(0);
    let session = opening("d", false, 3600, will(&node, "will", 0));
    let token = Token(9);
    let refused = node.reply(
        device,
        Command::OpenSession {
            token,
            session: Box::new(session),
        },
    );
    assert_eq!(refused, Err(ErrorKind::AccessRefused));
    let session = opening("d", false, 3600, None);
    let open = node.reply(
        device,
        Command::OpenSession {
            token,
            session: Box::new(session),
        },
    );
    assert_eq!(open, Ok(Reply::Session { present: false }));
}

#[test]
fn a_will_can_be_a_last_value() {
    let mut world = World::new(3600, 0);
    let mut last = will(&world.node, "last", 0).unwrap();
    let message = Message {
        retain: true,
        ..Message::clone(&last.message)
    };
    last.message = Arc::new(message);
    world.reopen(false, Some(last));
    world.lose();
    let late = world.node.connect(0);
    world.node.session(late, "late", false, 3600);
    let every = SessionFilter {
        spec: filter("wills/#"),
        group: None,
        retained: SendRetained::Always,
    };
    world.node.subscribe_with(late, vec![every]);
    let got = world.node.mail(late);
    assert_eq!(bodies(&got), ["last"]);
    assert!(got.deliveries[0].retain);
}

/// One rule, once it is in force: nobody publishes.
#[derive(Default)]
struct Late(AtomicBool);

impl Authority for Late {
    fn decide(&self, question: &Question<'_>) -> Verdict {
        let denied = question.action == Action::Publish && self.0.load(Ordering::SeqCst);
        Verdict {
            allowed: !denied,
            rule: denied.then(|| Arc::from("3")),
        }
    }

    fn generation(&self) -> u64 {
        u64::from(self.0.load(Ordering::SeqCst))
    }

    fn circumstantial(&self, _: Action) -> bool {
        false
    }
}

/// A will was published although its user had been denied that address while it waited.
#[test]
fn a_rule_made_while_a_will_waits_counts() {
    for denied in [false, true] {
        let rules = Arc::new(Late::default());
        let mut node = Node::with(1, 1, rules.clone());
        let listener = node.connect(0);
        node.session(listener, "listener", true, 0);
        node.subscribe(listener, "wills/#");
        let device = node.connect(0);
        let session = opening("d", false, 3600, will(&node, "testament", 5));
        let token = Token(9);
        node.reply(
            device,
            Command::OpenSession {
                token,
                session: Box::new(session),
            },
        )
        .unwrap();
        node.disconnect(device);
        rules.0.store(denied, Ordering::SeqCst);
        (0..20).for_each(|_| node.pass(500));
        let heard = node.mail(listener).deliveries.len();
        assert_eq!(heard, usize::from(!denied));
    }
}
