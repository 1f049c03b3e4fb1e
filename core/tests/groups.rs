//! Groups through a whole node: each message to one member, none lost when members come, leave and die.
//!
//! Owns: conversations about memberships, lasting and passing.
//! Next: `shard/groups.rs`, `worker/groups.rs`.

mod node;

use anabranch_core::gateway::*;
use anabranch_core::id::*;
use anabranch_core::limits::Mode;
use anabranch_core::message::{Message, Quality};
use anabranch_core::port::{self, GroupStat, ShardEvent, ShardReply, ShardRequest};
use anabranch_core::worker::Outgoing;
use bytes::Bytes;
use node::kept::{Kept, survives};
use node::{Client, Node, bodies, filter, publishing};
use std::sync::Arc;

const TOKEN: Token = Token(9);

fn member(name: &str, spec: FilterSpec) -> SessionFilter {
    SessionFilter {
        spec,
        group: Some(Arc::from(name)),
        retained: SendRetained::Always,
    }
}

fn join(node: &mut Node, client: Client, name: &str, topic: &str) {
    let granted = node.subscribe_with(client, vec![member(name, filter(topic))]);
    assert_eq!(granted, [Ok(Quality::AtLeastOnce)]);
}

fn leave(node: &mut Node, client: Client, name: &str, topic: &str) -> bool {
    let filters = vec![FilterName {
        group: Some(Arc::from(name)),
        filter: topic.parse().unwrap(),
    }];
    let token = TOKEN;
    match node.reply(client, Command::Unsubscribe { token, filters }) {
        Ok(Reply::Unsubscribed(existed)) => existed[0],
        other => panic!("unexpected {other:?}"),
    }
}

fn open(node: &mut Node, worker: u16, name: &str, clean: bool, expiry_s: u32) -> (Client, bool) {
    let client = node.connect(worker);
    let session = SessionOpen {
        client_id: Arc::from(name),
        clean_start: clean,
        expiry_s,
        consumer: ConsumerTag(0),
        credit: 100,
        group_consumers: ConsumerTag(10),
        will: None,
    };
    let present = node.session_with(client, session);
    node.mail(client);
    (client, present)
}

fn publish(node: &mut Node, client: Client, count: usize) {
    for number in 0..count {
        node.publish(client, "topics", "a/b", &number.to_string(), 0);
    }
}

fn settle(node: &mut Node, client: Client, deliveries: &[Delivery], outcome: Outcome) {
    for delivery in deliveries {
        node.settle_one(client, delivery.consumer, delivery.offset, outcome);
    }
}

/// Takes what a client was handed, and settles it.
fn take(node: &mut Node, client: Client) -> Vec<Delivery> {
    let deliveries = node.mail(client).deliveries;
    settle(node, client, &deliveries, Outcome::Accepted);
    deliveries
}

/// Groups of all shards, lasting ones first.
fn groups(node: &mut Node) -> Vec<GroupStat> {
    const OUTSIDE: WorkerId = WorkerId(0x7FFF);
    let ask = || {
        vec![ShardRequest::Ask {
            ticket: 1,
            question: Box::new(port::Question::Groups),
        }]
    };
    let mut events = Vec::new();
    let ids: Vec<ShardId> = node.data.keys().copied().collect();
    for id in ids {
        let data = node.data.get_mut(&id).unwrap();
        let now = node.now;
        data.shard
            .handle(now, OUTSIDE, &mut ask(), &mut &data.journal);
        events.extend(data.shard.events().flat_map(|(_, events)| events));
    }
    for at in 0..node.workers.len() {
        node.workers[at].shard_requests(node.now, OUTSIDE, ask());
        node.workers[at].turn(node.now);
        let outgoing: Vec<Outgoing> = node.workers[at].outgoing().collect();
        for out in outgoing {
            if let Outgoing::Events { events: told, .. } = out {
                events.extend(told);
            }
        }
    }
    let replies = events.into_iter().filter_map(|event| match event {
        ShardEvent::Reply {
            result: Ok(ShardReply::Groups(groups)),
            ..
        } => Some(groups),
        _ => None,
    });
    replies.flatten().collect()
}

#[test]
fn each_message_goes_to_one_member_and_no_values_are_sent() {
    for workers in [1, 3] {
        for expiry_s in [0, 600] {
            let mut node = Node::new(workers, 3);
            let publisher = node.connect(0);
            let kept = Message {
                exchange: Bytes::from_static(b"topics"),
                address: "a/b".parse().unwrap(),
                body: Bytes::from_static(b"kept"),
                retain: true,
                ..Message::default()
            };
            let keep = publishing(0, kept);
            node.ask(publisher, keep);
            let (one, _) = open(&mut node, 0, "one", true, expiry_s);
            let (two, _) = open(&mut node, workers - 1, "two", true, expiry_s);
            join(&mut node, one, "g", "a/#");
            join(&mut node, two, "g", "a/#");
            publish(&mut node, publisher, 20);
            let (first, second) = (take(&mut node, one), take(&mut node, two));
            assert_eq!((first.len(), second.len()), (10, 10));
            assert!(
                first
                    .iter()
                    .all(|delivery| delivery.consumer == ConsumerTag(10))
            );
            let all = groups(&mut node);
            assert_eq!(all.len(), 1);
            assert_eq!(all[0].members.len(), 2);
            assert_eq!(
                all[0].stat.group.as_ref().map(|(name, _)| &**name),
                Some("g")
            );
            assert_eq!(all[0].stat.ready + all[0].stat.unsettled, 0);
        }
    }
}

#[test]
fn a_member_has_its_own_quality_number_and_tag_beside_its_session() {
    let mut node = Node::new(2, 2);
    let publisher = node.connect(0);
    let (client, _) = open(&mut node, 1, "c", true, 0);
    let spec = FilterSpec {
        identifier: 5,
        quality: Quality::ExactlyOnce,
        ..filter("a/#")
    };
    let low = FilterSpec {
        identifier: 6,
        quality: Quality::AtMostOnce,
        ..filter("a/+")
    };
    let own = SessionFilter {
        spec: filter("x"),
        group: None,
        retained: SendRetained::Never,
    };
    let granted = node.subscribe_with(client, vec![member("g", spec), own, member("h", low)]);
    assert_eq!(
        granted,
        [
            Ok(Quality::AtLeastOnce),
            Ok(Quality::AtLeastOnce),
            Ok(Quality::AtMostOnce)
        ]
    );
    publish(&mut node, publisher, 1);
    let mut got: Vec<_> = node
        .mail(client)
        .deliveries
        .iter()
        .map(|delivery| (delivery.consumer.0, delivery.identifier, delivery.quality))
        .collect();
    got.sort_unstable();
    assert_eq!(
        got,
        [(10, 5, Quality::AtLeastOnce), (11, 6, Quality::AtMostOnce)]
    );
    assert!(leave(&mut node, client, "g", "a/#"));
    assert!(!leave(&mut node, client, "g", "a/#"));
    join(&mut node, client, "g", "a/#");
    node.mail(client);
    publish(&mut node, publisher, 1);
    let tags: Vec<u32> = node
        .mail(client)
        .deliveries
        .iter()
        .map(|one| one.consumer.0)
        .collect();
    assert!(
        tags.contains(&12) && !tags.contains(&10),
        "a tag is never used again: {tags:?}"
    );
}

#[test]
fn what_a_member_holds_when_it_goes_is_another_s_at_once_and_what_it_rejects_is_nobody_s() {
    for expiry_s in [0, 600] {
        for dies in [false, true] {
            let mut node = Node::new(2, 3);
            let publisher = node.connect(0);
            let (one, _) = open(&mut node, 0, "one", true, expiry_s);
            let (two, _) = open(&mut node, 1, "two", true, expiry_s);
            join(&mut node, one, "g", "a/#");
            join(&mut node, two, "g", "a/#");
            publish(&mut node, publisher, 10);
            let held = node.mail(one).deliveries;
            let others = take(&mut node, two);
            assert_eq!((held.len(), others.len()), (5, 5));
            settle(&mut node, one, &held[..2], Outcome::Rejected);
            match dies {
                true => node.disconnect(one),
                false => assert!(leave(&mut node, one, "g", "a/#")),
            }
            let again = take(&mut node, two);
            assert_eq!(again.len(), 3, "without what was rejected");
            assert!(again.iter().all(|delivery| delivery.attempt == 2));
            let wanted: Vec<_> = held[2..].iter().map(|held| held.offset).collect();
            assert_eq!(
                again.iter().map(|one| one.offset).collect::<Vec<_>>(),
                wanted
            );
        }
    }
}

#[test]
fn a_lasting_group_gathers_without_connections_and_is_joined_again_at_resumption() {
    for restart in [false, true] {
        let mut node = Node::new(2, 3);
        let (one, _) = open(&mut node, 0, "one", true, 600);
        join(&mut node, one, "g", "a/#");
        let publisher = node.connect(1);
        publish(&mut node, publisher, 3);
        node.mail(one);
        node.disconnect(one);
        publish(&mut node, publisher, 2);
        if restart {
            node.pass(20);
            node.restart();
        }
        assert_eq!(groups(&mut node).len(), 1);
        let (one, present) = open(&mut node, 1, "one", false, 600);
        assert!(present);
        let mail = node.mail(one);
        // Opening took the mail already.
        assert!(mail.deliveries.is_empty());
        let stat = groups(&mut node).remove(0).stat;
        assert_eq!((stat.ready, stat.unsettled), (0, 5));
        assert!(leave(&mut node, one, "g", "a/#"));
        assert!(groups(&mut node).is_empty());
    }
}

#[test]
fn a_group_ends_with_its_last_member_also_when_that_is_a_session_that_expires() {
    let mut node = Node::new(2, 3);
    let (one, _) = open(&mut node, 0, "one", true, 10);
    let (two, _) = open(&mut node, 1, "two", true, 0);
    join(&mut node, one, "g", "a/#");
    join(&mut node, two, "g", "a/#");
    assert_eq!(groups(&mut node)[0].members.len(), 2);
    node.disconnect(two);
    assert_eq!(
        groups(&mut node)[0].members,
        [(Arc::from("one"), true)],
        "a session that ended with its connection"
    );
    node.disconnect(one);
    node.pass(9_000);
    assert_eq!(groups(&mut node).len(), 1);
    node.pass(1_500);
    assert!(groups(&mut node).is_empty());
    // A later session of the same client is another member.
    let (one, _) = open(&mut node, 0, "one", true, 10);
    join(&mut node, one, "g", "a/#");
    let (again, _) = open(&mut node, 1, "one", true, 10);
    join(&mut node, again, "g", "a/#");
    assert_eq!(groups(&mut node)[0].members.len(), 1);
}

#[test]
fn what_a_session_that_ended_was_a_member_of_is_told_after_a_crash_too() {
    let mut node = Node::new(1, 2);
    let (one, _) = open(&mut node, 0, "one", true, 5);
    join(&mut node, one, "g", "a/#");
    node.disconnect(one);
    // The end is in the journal, nobody has heard of it.
    node.now.unix = node.now.unix.after(6_000);
    node.now.monotonic = node.now.monotonic.after(6_000);
    for data in node.data.values_mut() {
        data.shard.timeout(node.now);
        if let Some(frame) = data.shard.take_frame(node.now) {
            let base = data.journal.bytes.len() as u64;
            data.journal.bytes.extend_from_slice(&frame);
            data.journal.frames.push((base, frame.clone()));
        }
    }
    node.restart();
    node.pass(500);
    assert!(groups(&mut node).is_empty());
    for data in node.data.values_mut() {
        survives(&mut Kept::default(), data, &node.fabric, &node.authority);
    }
}

/// A member that ends with its connection was taken over, and its membership of the lasting group stayed for good:
/// the group had no consumers and kept every message.
#[test]
fn a_member_that_was_taken_over_is_none_any_more() {
    let mut node = Node::new(2, 1);
    let (lasting, _) = open(&mut node, 0, "lasting", true, 600);
    join(&mut node, lasting, "g", "a/#");
    let (passing, _) = open(&mut node, 1, "passing", true, 0);
    join(&mut node, passing, "g", "a/#");
    let (again, _) = open(&mut node, 0, "passing", true, 0);
    node.disconnect(passing);
    node.disconnect(again);
    let members: Vec<_> = groups(&mut node)[0].members.clone();
    assert_eq!(members.len(), 1, "{members:?}");
    assert!(leave(&mut node, lasting, "g", "a/#"));
    assert!(groups(&mut node).is_empty());
}

#[test]
fn groups_survive_in_a_checkpoint() {
    let mut node = Node::new(1, 2);
    let (one, _) = open(&mut node, 0, "one", true, 600);
    join(&mut node, one, "g", "a/#");
    let publisher = node.connect(0);
    publish(&mut node, publisher, 2);
    for data in node.data.values_mut() {
        let mut kept = Kept::default();
        kept.save(&mut data.shard);
        let mut restored = node::shard(data.shard.id().0, 1, &node.fabric, &node.authority);
        kept.restore(&mut restored);
        data.shard = restored;
    }
    let stat = groups(&mut node).remove(0);
    assert_eq!((stat.stat.ready, stat.members.len()), (2, 1));
}

#[test]
fn a_lasting_group_takes_the_place_of_a_passing_one_and_nothing_is_lost() {
    for workers in [1, 3] {
        let mut node = Node::new(workers, 3);
        let publisher = node.connect(0);
        let (one, _) = open(&mut node, 0, "one", true, 0);
        let (two, _) = open(&mut node, workers - 1, "two", true, 0);
        join(&mut node, one, "g", "a/#");
        join(&mut node, two, "g", "a/#");
        publish(&mut node, publisher, 6);
        let (first, second) = (node.mail(one).deliveries, node.mail(two).deliveries);
        assert_eq!(first.len() + second.len(), 6);
        // It holds part of the passing one when the lasting one is made.
        let (lasting, _) = open(&mut node, 0, "lasting", true, 600);
        join(&mut node, lasting, "g", "a/#");
        assert_eq!(groups(&mut node).len(), 2);
        for number in 6..12 {
            node.publish(publisher, "topics", "a/b", &number.to_string(), 0);
        }
        node.disconnect(two);
        settle(&mut node, one, &first, Outcome::Accepted);
        let mut got: Vec<String> = first.iter().map(body).collect();
        for _ in 0..4 {
            for client in [one, lasting] {
                got.extend(take(&mut node, client).iter().map(body));
            }
        }
        got.sort_by_key(|text| text.parse::<u32>().unwrap());
        let wanted: Vec<String> = (0..12).map(|number| number.to_string()).collect();
        assert_eq!(got, wanted, "each once");
        node.pass(500);
        let left = groups(&mut node);
        assert_eq!(left.len(), 1, "the passing one is empty and gone");
        assert_eq!(left[0].members.len(), 2);
        // Tags of the two are different.
        publish(&mut node, publisher, 4);
        let tags: Vec<u32> = take(&mut node, one)
            .iter()
            .map(|one| one.consumer.0)
            .collect();
        assert_eq!(tags, [11, 11]);
        // A newcomer that ends with its connection joins the lasting one.
        let (late, _) = open(&mut node, workers - 1, "late", true, 0);
        join(&mut node, late, "g", "a/#");
        assert_eq!(groups(&mut node)[0].members.len(), 3);
    }
}

fn body(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message.body.to_vec()).unwrap()
}

#[test]
fn a_membership_of_many_members_is_counted_once_each_and_unsubscribing_both_kinds_is_one_answer() {
    let mut node = Node::new(2, 2);
    let (client, _) = open(&mut node, 1, "c", true, 0);
    let own = SessionFilter {
        spec: filter("x"),
        group: None,
        retained: SendRetained::Never,
    };
    node.subscribe_with(client, vec![own, member("g", filter("x"))]);
    let publisher = node.connect(0);
    node.publish(publisher, "topics", "x", "1", 0);
    let mail = node.mail(client);
    assert_eq!(bodies(&mail), ["1", "1"], "as a session and as a member");
    let name = |group: Option<&str>, filter: &str| FilterName {
        group: group.map(Arc::from),
        filter: filter.parse().unwrap(),
    };
    let filters = vec![
        name(Some("none"), "x"),
        name(None, "x"),
        name(None, "y"),
        name(Some("g"), "x"),
    ];
    let token = TOKEN;
    assert_eq!(
        node.reply(client, Command::Unsubscribe { token, filters }),
        Ok(Reply::Unsubscribed(vec![false, true, false, true]))
    );
    node.publish(publisher, "topics", "x", "2", 0);
    assert!(node.mail(client).deliveries.is_empty());
    assert!(groups(&mut node).is_empty());
}

#[test]
fn no_member_gets_what_it_published_itself_when_it_asks_so() {
    let mut node = Node::new(1, 1);
    let (one, _) = open(&mut node, 0, "one", true, 0);
    let (two, _) = open(&mut node, 0, "two", true, 0);
    let spec = FilterSpec {
        no_local: true,
        ..filter("a/#")
    };
    node.subscribe_with(one, vec![member("g", spec)]);
    publish(&mut node, one, 3);
    assert!(node.mail(one).deliveries.is_empty());
    // Somebody who may have it finds it there.
    join(&mut node, two, "g", "a/#");
    assert_eq!(take(&mut node, two).len(), 3);
}

#[test]
fn a_group_shares_as_the_policy_for_its_name_says() {
    use anabranch_core::meta::MetaCommand;
    let mut node = Node::new(2, 2);
    let vhost = node.fabric.meta().vhost("/").unwrap().id;
    let policy: anabranch_core::meta::policy::Policy = serde_json::from_value(serde_json::json!({
        "name": "in-order", "pattern": "^ord", "applies_to": "groups", "priority": 1,
        "settings": {"mode": "failover"},
    }))
    .unwrap();
    let put = MetaCommand::PutPolicy { vhost, policy };
    node.fabric.apply(node.now.unix, &put).unwrap();
    let publisher = node.connect(0);
    let (one, _) = open(&mut node, 0, "one", true, 600);
    let (two, _) = open(&mut node, 1, "two", true, 600);
    join(&mut node, one, "orders", "a/#");
    join(&mut node, two, "orders", "a/#");
    assert_eq!(groups(&mut node)[0].stat.limits.mode, Mode::Failover);
    publish(&mut node, publisher, 6);
    assert_eq!(node.mail(one).deliveries.len(), 6);
    node.disconnect(one);
    let got = node.mail(two);
    assert_eq!(bodies(&got), ["0", "1", "2", "3", "4", "5"]);
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

/// A client that comes and goes.
struct Guest {
    name: String,
    lasts: bool,
    client: Option<Client>,
    member: bool,
    held: Vec<Delivery>,
}

#[test]
fn whoever_comes_leaves_or_dies_nothing_is_lost_and_nothing_is_handed_out_twice_for_the_first_time()
{
    for seed in 1..=60u64 {
        churn(seed);
    }
}

fn churn(seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut node = Node::new(3, 3);
    let publisher = node.connect(0);
    // One is there all the time, or the group would end in between. While that one ends with its connection, so may
    // the group: until somebody else makes it last.
    let expiry_s = if seed.is_multiple_of(2) { u32::MAX } else { 0 };
    let (keeper, _) = open(&mut node, 0, "keeper", true, expiry_s);
    join(&mut node, keeper, "g", "a/#");
    let mut guests: Vec<Guest> = (0..6)
        .map(|number| Guest {
            name: format!("guest{number}"),
            lasts: number % 2 == 0,
            client: None,
            member: false,
            held: Vec::new(),
        })
        .collect();
    let mut settled: Vec<u32> = Vec::new();
    let mut firsts: Vec<u32> = Vec::new();
    let mut published = 0;
    for _ in 0..150 {
        let worker = dice.below(3) as u16;
        let guest = dice.below(guests.len());
        let guest = &mut guests[guest];
        match (dice.below(6), guest.client) {
            (0, None) => {
                let name = guest.name.clone();
                let expiry_s = if guest.lasts { 600 } else { 0 };
                let client = node.connect(worker);
                let session = SessionOpen {
                    client_id: Arc::from(name),
                    clean_start: !guest.lasts,
                    expiry_s,
                    consumer: ConsumerTag(0),
                    credit: 5,
                    group_consumers: ConsumerTag(10),
                    will: None,
                };
                let present = node.session_with(client, session);
                guest.member &= present;
                guest.client = Some(client);
            }
            (0, Some(client)) if dice.below(2) == 0 => {
                guest.held.clear();
                guest.member &= guest.lasts;
                guest.client = None;
                node.disconnect(client);
                node.mails.remove(&client.id);
            }
            (1, Some(client)) if !guest.member => {
                join(&mut node, client, "g", "a/#");
                guest.member = true;
            }
            (1, Some(client)) if dice.below(2) == 0 => {
                guest.member = false;
                guest.held.clear();
                assert!(leave(&mut node, client, "g", "a/#"));
                node.mail(client);
            }
            (2, Some(client)) => {
                let kept = dice.below(2);
                for delivery in guest.held.split_off(kept.min(guest.held.len())) {
                    settled.push(number(&delivery));
                    settle(&mut node, client, &[delivery], Outcome::Accepted);
                }
            }
            (3, _) => {
                for delivery in take(&mut node, keeper) {
                    firsts.extend((delivery.attempt == 1).then(|| number(&delivery)));
                    settled.push(number(&delivery));
                }
            }
            _ => {
                node.publish(publisher, "topics", "a/b", &published.to_string(), 0);
                published += 1;
            }
        }
        for guest in &mut guests {
            let Some(client) = guest.client else {
                continue;
            };
            let deliveries = node.mail(client).deliveries;
            let fresh = deliveries.iter().filter(|delivery| delivery.attempt == 1);
            firsts.extend(fresh.map(number));
            guest.held.extend(deliveries);
        }
    }
    for guest in &mut guests {
        if let Some(client) = guest.client {
            node.disconnect(client);
        }
    }
    loop {
        let deliveries = take(&mut node, keeper);
        if deliveries.is_empty() {
            break;
        }
        for delivery in deliveries {
            firsts.extend((delivery.attempt == 1).then(|| number(&delivery)));
            settled.push(number(&delivery));
        }
    }
    settled.sort_unstable();
    let wanted: Vec<u32> = (0..published).collect();
    assert_eq!(settled, wanted, "seed {seed}: each is settled once");
    firsts.sort_unstable();
    let handed_out = firsts.len();
    firsts.dedup();
    assert_eq!(
        firsts.len(),
        handed_out,
        "seed {seed}: once for the first time"
    );
}

fn number(delivery: &Delivery) -> u32 {
    body(delivery).parse().unwrap()
}
