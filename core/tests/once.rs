//! Exactly once from end to end: a publisher and a reader that do what a careful peer does, and a node that dies, or
//! loses them, after every single frame.
//!
//! Owns: that what is published under a key is stored once and taken once, whatever ends when.
//! Next: `sessions.rs` for what a session promises besides.

mod node;

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::message::{Message, Quality};
use anabranch_core::worker::Mail;
use bytes::Bytes;
use node::kept::{Kept, survives};
use node::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a publishing peer knows of one of its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Unsent,
    Sent,
    Confirmed,
    Forgetting,
    Finished,
}

/// Publishes a list of messages under keys, some without, and forgets each key when its message was confirmed.
struct Publisher {
    client: Client,
    /// The key, if there is one, and how far it came.
    messages: Vec<(Option<u16>, String, Stage)>,
}

impl Publisher {
    fn new(client: Client) -> Publisher {
        let keyed = |key: u16, body: &str| (Some(key), body.to_owned(), Stage::Unsent);
        let plain = |body: &str| (None, body.to_owned(), Stage::Unsent);
        Publisher {
            client,
            messages: vec![
                keyed(1, "m1"),
                keyed(2, "m2"),
                plain("x1"),
                keyed(3, "m3"),
                // A key that is used again when it is free.
                keyed(1, "m4"),
                plain("x2"),
            ],
        }
    }

    /// What it can do now.
    fn commands(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        let mut in_use = BTreeSet::new();
        for (number, (key, body, stage)) in (0..).zip(&mut self.messages) {
            let free = key.is_none_or(|key| !in_use.contains(&key));
            match stage {
                Stage::Unsent if free => {
                    *stage = Stage::Sent;
                    commands.push(publish(self.client, 1 + number, *key, "a/b", body));
                }
                Stage::Unsent => break,
                Stage::Confirmed => {
                    let forget = |key| Command::Forget {
                        token: Token(1001 + number),
                        once: OnceKey(key),
                    };
                    commands.extend(key.map(forget));
                    *stage = key.map_or(Stage::Finished, |_| Stage::Forgetting);
                }
                Stage::Sent | Stage::Forgetting | Stage::Finished => {}
            }
            if *stage != Stage::Finished {
                in_use.extend(*key);
            }
        }
        commands
    }

    fn hear(&mut self, mail: &Mail) {
        for answer in &mail.answers {
            match answer {
                Answer::Published {
                    first,
                    last,
                    outcome,
                } => {
                    assert_eq!(*outcome, PublishOutcome::Routed);
                    for token in first.0..=last.0 {
                        self.messages[token as usize - 1].2 = Stage::Confirmed;
                    }
                }
                Answer::Done { token, result } if token.0 > 1000 => {
                    assert_eq!(*result, Ok(Reply::Done));
                    self.messages[token.0 as usize - 1001].2 = Stage::Finished;
                }
                _ => {}
            }
        }
    }

    /// Its connection was lost: what was not confirmed is sent again, under the same keys.
    fn reconnected(&mut self, client: Client) {
        self.client = client;
        for (_, _, stage) in &mut self.messages {
            *stage = match stage {
                Stage::Unsent | Stage::Sent => Stage::Unsent,
                Stage::Confirmed | Stage::Forgetting => Stage::Confirmed,
                Stage::Finished => Stage::Finished,
            };
        }
    }

    fn is_finished(&self) -> bool {
        let mut messages = self.messages.iter();
        messages.all(|(_, _, stage)| *stage == Stage::Finished)
    }
}

/// Takes every message once: it says that it has one, and settles it when that is kept.
struct Reader {
    client: Client,
    /// What it has and has not been told to let go of.
    open: BTreeSet<Offset>,
    taken: Vec<String>,
}

impl Reader {
    fn hear(&mut self, mail: &Mail) -> Vec<Command> {
        let mut commands = Vec::new();
        for delivery in &mail.deliveries {
            let offset = delivery.offset;
            if delivery.received {
                self.open.remove(&offset);
                commands.push(accept(offset));
                continue;
            }
            if self.open.insert(offset) {
                let body = std::str::from_utf8(&delivery.message.body).unwrap();
                self.taken.push(body.to_owned());
            }
            commands.push(Command::Receive {
                token: Token(1 + offset.0),
                consumer: SESSION,
                offset,
            });
        }
        for answer in &mail.answers {
            if let Answer::Done { token, result } = answer
                && result == &Ok(Reply::Done)
            {
                let offset = Offset(token.0 - 1);
                if self.open.remove(&offset) {
                    commands.push(accept(offset));
                }
            }
        }
        commands
    }
}

/// The tag of a session's deliveries.
const SESSION: ConsumerTag = ConsumerTag(0);

fn accept(offset: Offset) -> Command {
    Command::Settle {
        consumer: SESSION,
        first: offset,
        last: offset,
        outcome: Outcome::Accepted,
    }
}

fn publish(client: Client, token: u64, once: Option<u16>, address: &str, body: &str) -> Command {
    let message = Message {
        exchange: Bytes::from_static(b"topics"),
        address: address.parse().unwrap(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        quality: Quality::ExactlyOnce,
        publisher: client.id,
        ..Message::default()
    };
    Command::Publish {
        token: Token(token),
        mandatory: false,
        patient: true,
        once: once.map(OnceKey),
        later: None,
        message: Arc::new(message),
    }
}

/// Where the messages go beside the reader's session.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Data shards; the sessions and the queue are spread over them.
    shards: u16,
    /// A session that does not outlive its connection, of another worker.
    live: bool,
}

/// What ends after the last frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The node dies; nobody was told of the last frame, or everybody.
    Node { untold: bool },
    /// Both connections are lost, then come back.
    Connections,
    /// Both come back by new connections, while the old ones still seem to live.
    TakeOver,
}

struct World {
    node: Node,
    publisher: Publisher,
    reader: Reader,
    live: Option<Client>,
    live_taken: Vec<String>,
}

fn subscribe(node: &mut Node, client: Client) {
    let spec = FilterSpec {
        quality: Quality::ExactlyOnce,
        ..filter("a/#")
    };
    let filters = vec![SessionFilter {
        spec,
        group: None,
        retained: SendRetained::Never,
    }];
    node.subscribe_with(client, filters);
}

fn return_to(node: &mut Node, name: &str) -> Client {
    let client = node.connect(0);
    assert!(
        node.session(client, name, false, 3600),
        "the session is kept"
    );
    client
}

impl World {
    fn new(layout: Layout) -> World {
        let mut node = Node::new(2, layout.shards);
        let reader = node.connect(0);
        node.session(reader, "reader", false, 3600);
        subscribe(&mut node, reader);
        let publisher = node.connect(0);
        node.session(publisher, "publisher", false, 3600);
        node.declare(publisher, "queue", true).unwrap();
        node.bind(publisher, "queue", "a/#");
        let live = layout.live.then(|| {
            let live = node.connect(1);
            node.session(live, "live", true, 0);
            subscribe(&mut node, live);
            live
        });
        node.pass(100);
        let _ = (node.mail(reader), node.mail(publisher));
        World {
            node,
            publisher: Publisher::new(publisher),
            reader: Reader {
                client: reader,
                open: BTreeSet::new(),
                taken: Vec::new(),
            },
            live,
            live_taken: Vec::new(),
        }
    }

    /// Lets both peers do what they can until nothing moves; settlements are waited for.
    fn run(&mut self) {
        loop {
            let mail = self.node.mail(self.publisher.client);
            self.publisher.hear(&mail);
            let mut publishes = self.publisher.commands();
            let mail = self.node.mail(self.reader.client);
            let mut answers = self.reader.hear(&mail);
            if let Some(live) = self.live {
                let mail = self.node.mail(live);
                self.live_taken
                    .extend(bodies(&mail).iter().map(|body| (*body).to_owned()));
                for delivery in &mail.deliveries {
                    self.node.ask(live, accept(delivery.offset));
                }
            }
            if publishes.is_empty() && answers.is_empty() {
                return;
            }
            let now = self.node.now;
            self.node.workers[0].submit(now, self.publisher.client.id, &mut publishes);
            self.node.workers[0].submit(now, self.reader.client.id, &mut answers);
            self.node.settle();
            self.node.pass(10);
        }
    }

    fn frames(&self) -> usize {
        let shards = self.node.data.values();
        shards.map(|data| data.journal.frames.len()).sum()
    }

    fn end(&mut self, end: End) {
        let (publisher, reader) = (self.publisher.client, self.reader.client);
        match end {
            End::Node { .. } => {
                self.node.restart();
                self.live = None;
            }
            End::Connections => {
                self.node.disconnect(publisher);
                self.node.disconnect(reader);
                self.node.frames_left = None;
            }
            End::TakeOver => self.node.frames_left = None,
        }
        let client = return_to(&mut self.node, "publisher");
        self.publisher.reconnected(client);
        self.reader.client = return_to(&mut self.node, "reader");
    }

    fn queue(&mut self) -> Vec<String> {
        let other = self.node.connect(1);
        self.node.consume(other, "queue", u32::MAX).unwrap();
        let mail = self.node.mail(other);
        bodies(&mail)
            .iter()
            .map(|body| (*body).to_owned())
            .collect()
    }
}

/// Those under a key.
fn keyed(taken: &[String]) -> Vec<&str> {
    let keyed = taken.iter().filter(|body| body.starts_with('m'));
    keyed.map(String::as_str).collect()
}

const KEYED: [&str; 4] = ["m1", "m2", "m3", "m4"];
const LAYOUTS: [Layout; 4] = [
    Layout {
        shards: 1,
        live: false,
    },
    Layout {
        shards: 1,
        live: true,
    },
    Layout {
        shards: 4,
        live: false,
    },
    Layout {
        shards: 4,
        live: true,
    },
];

#[test]
fn the_layouts_are_what_they_say() {
    let node = Node::new(1, 4);
    let meta = node.fabric.meta();
    let home = |name: &str| meta.place("/", name);
    assert_ne!(home("publisher"), home("reader"));
    assert_ne!(home("publisher"), meta.place("/", "queue"));
}

#[test]
fn undisturbed_everything_comes_once_and_in_order() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.run();
        assert!(world.publisher.is_finished());
        let all = ["m1", "m2", "x1", "m3", "m4", "x2"];
        assert_eq!(world.reader.taken, all, "{layout:?}");
        assert_eq!(world.queue(), all, "{layout:?}");
        if layout.live {
            assert_eq!(world.live_taken, all, "{layout:?}");
        }
    }
}

#[test]
fn whatever_ends_after_whichever_frame_each_message_is_stored_once_and_taken_once() {
    let ends = [
        End::Node { untold: false },
        End::Node { untold: true },
        End::Connections,
        End::TakeOver,
    ];
    for layout in LAYOUTS {
        let mut undisturbed = World::new(layout);
        let before = undisturbed.frames();
        undisturbed.run();
        let frames = undisturbed.frames() - before;
        assert!(frames > 5);
        for end in ends {
            for left in 0..=frames as u32 {
                let case = format!("{layout:?} {end:?} after {left} of {frames} frames");
                let mut world = World::new(layout);
                world.node.frames_left = Some(left);
                world.node.last_is_untold = end == End::Node { untold: true };
                world.run();
                world.end(end);
                world.run();
                assert!(world.publisher.is_finished(), "{case}");
                assert_eq!(keyed(&world.reader.taken), KEYED, "{case}");
                assert_eq!(keyed(&world.queue()), KEYED, "{case}");
                if world.live.is_some() {
                    assert_eq!(keyed(&world.live_taken), KEYED, "{case}");
                }
            }
        }
    }
}

#[test]
fn a_checkpoint_keeps_what_is_held_and_what_was_heard() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.node.frames_left = Some(6);
        world.run();
        for data in world.node.data.values_mut() {
            let node = (&world.node.fabric, &world.node.authority);
            survives(&mut Kept::default(), data, node.0, node.1);
        }
    }
}

#[test]
fn fifty_publishes_under_keys_share_their_frames() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        let before = world.frames();
        let client = world.publisher.client;
        let mut batch: Vec<Command> = (1..=50)
            .map(|number| publish(client, number, Some(number as u16), "a/b", "m"))
            .collect();
        let now = world.node.now;
        world.node.workers[0].submit(now, client.id, &mut batch);
        world.node.settle();
        assert_eq!(
            outcomes(&world.node.mail(client)),
            [(1, 50, PublishOutcome::Routed)]
        );
        // Where all is in one shard nothing is asked before; else one frame takes all keys.
        let frames = world.frames() - before;
        assert!(
            frames <= if layout.shards == 1 { 1 } else { 4 },
            "{frames} frames, {layout:?}"
        );
    }
}

#[test]
fn a_key_of_a_session_that_ends_with_its_connection_is_no_matter() {
    let mut node = Node::new(1, 1);
    let client = node.connect(0);
    node.session(client, "live", true, 0);
    node.declare(client, "queue", true).unwrap();
    node.bind(client, "queue", "a/#");
    for token in 1..=2 {
        node.ask(client, publish(client, token, Some(1), "a", "m"));
        let told = outcomes(&node.mail(client));
        assert_eq!(told, [(token, token, PublishOutcome::Routed)]);
    }
    let forget = Command::Forget {
        token: Token(5),
        once: OnceKey(1),
    };
    assert_eq!(node.reply(client, forget), Ok(Reply::Done));
    node.consume(client, "queue", 10).unwrap();
    assert_eq!(bodies(&node.mail(client)), ["m", "m"]);
}

#[test]
fn who_lost_its_session_stores_nothing_under_its_keys() {
    let mut node = Node::new(1, 1);
    let old = node.connect(0);
    node.session(old, "p", false, 3600);
    node.declare(old, "queue", true).unwrap();
    node.bind(old, "queue", "a/#");
    let new = return_to(&mut node, "p");
    node.ask(new, publish(new, 1, Some(1), "a", "once"));
    let forget = Command::Forget {
        token: Token(5),
        once: OnceKey(1),
    };
    assert_eq!(node.reply(new, forget), Ok(Reply::Done));
    // Sent before the new connection came, and late.
    let _ = node.mail(old);
    node.ask(old, publish(old, 1, Some(1), "a", "once"));
    assert_eq!(
        outcomes(&node.mail(old)),
        [(1, 1, PublishOutcome::Refused(ErrorKind::Locked))]
    );
    node.consume(new, "queue", 10).unwrap();
    assert_eq!(bodies(&node.mail(new)), ["once"]);
}

#[test]
fn who_lost_its_session_lets_go_of_no_key() {
    let mut node = Node::new(1, 1);
    let old = node.connect(0);
    node.session(old, "p", false, 3600);
    let _new = return_to(&mut node, "p");
    let forget = Command::Forget {
        token: Token(5),
        once: OnceKey(1),
    };
    let _ = node.mail(old);
    let refused = node.reply(old, forget);
    assert_eq!(refused, Err(ErrorKind::Locked));
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        any::<bool>().prop_map(|untold| End::Node { untold }),
        Just(End::Connections),
        Just(End::TakeOver),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// One end after another, each after any number of frames.
    #[test]
    fn any_ends_one_after_another_leave_each_message_once(
        layout in 0usize..LAYOUTS.len(),
        ends in proptest::collection::vec((0u32..6, end()), 0..6),
    ) {
        let mut world = World::new(LAYOUTS[layout]);
        for (left, end) in ends {
            world.node.frames_left = Some(left);
            world.node.last_is_untold = end == End::Node { untold: true };
            world.run();
            world.end(end);
        }
        world.run();
        prop_assert!(world.publisher.is_finished());
        prop_assert_eq!(keyed(&world.reader.taken), KEYED);
        let queue = world.queue();
        prop_assert_eq!(keyed(&queue), KEYED);
        if world.live.is_some() {
            prop_assert_eq!(keyed(&world.live_taken), KEYED);
        }
    }
}
