//! What commands do to the metadata, and what survives in a checkpoint.

use super::*;
use crate::address::Address;
use crate::error::{ErrorKind, Refusal};
use crate::gateway::ExchangeKind;
use crate::id::{UnixMs, WorkerId};
use crate::limits::StreamLimits;
use crate::meta::arguments::Arguments;
use crate::properties::Value;
use bytes::Bytes;

const HERE: ConnectionId = ConnectionId(1);
const THERE: ConnectionId = ConnectionId(2);
const MAIN: VhostId = VhostId(1);

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

fn queue(name: &str) -> StreamSpec {
    StreamSpec {
        name: name.into(),
        key: name.parse().unwrap(),
        durable: true,
        exclusive: false,
        auto_delete: false,
        limits: StreamLimits::default(),
        arguments: Arguments::default(),
    }
}

fn number(name: &'static str, value: i64, bits: u8) -> Arguments {
    let name = Bytes::from_static(name.as_bytes());
    Arguments::new(vec![(name, Value::Int(value, bits))]).unwrap()
}

fn create_vhost(name: &str) -> MetaCommand {
    MetaCommand::CreateVhost {
        name: name.into(),
        exchanges: vec![
            exchange("main.topic", ExchangeKind::Topic),
            exchange("main.direct", ExchangeKind::Direct),
        ],
        topic_exchange: "main.topic".into(),
    }
}

fn declare(stream: StreamSpec, by: ConnectionId) -> MetaCommand {
    MetaCommand::DeclareStream {
        vhost: MAIN,
        stream,
        by,
        volatile: ShardId::volatile(WorkerId(0)),
    }
}

fn declare_exchange(exchange: ExchangeSpec) -> MetaCommand {
    MetaCommand::DeclareExchange {
        vhost: MAIN,
        exchange,
    }
}

fn binding(exchange: &str, stream: &str, filter: &str) -> BindingChange {
    BindingChange {
        vhost: MAIN,
        exchange: exchange.into(),
        to: BindingEnd::Stream(stream.into()),
        key: None,
        filter: filter.parse().unwrap(),
        arguments: Arguments::default(),
        by: HERE,
    }
}

fn apply(meta: &mut Meta, command: MetaCommand) -> Result<MetaReply, Refusal> {
    // What is proposed is what is journalled: every command must survive that.
    let journalled = serde_json::to_vec(&command).unwrap();
    assert_eq!(
        serde_json::from_slice::<MetaCommand>(&journalled).unwrap(),
        command
    );
    meta.apply(UnixMs(1_000), &command)
}

#[track_caller]
fn done(meta: &mut Meta, command: MetaCommand) -> MetaReply {
    apply(meta, command).unwrap()
}

/// The refusal's kind, having checked that nothing but a counter could have changed.
#[track_caller]
fn refused(meta: &mut Meta, command: MetaCommand) -> Refusal {
    let before = meta.encode();
    let refusal = apply(meta, command).unwrap_err();
    assert_eq!(meta.encode(), before, "a refused command changed something");
    refusal
}

#[track_caller]
fn made(meta: &mut Meta, spec: StreamSpec) -> StreamId {
    match done(meta, declare(spec, HERE)) {
        MetaReply::Stream { id, active, .. } => {
            if !active {
                done(meta, MetaCommand::ActivateStream { stream: id });
            }
            id
        }
        other => panic!("{other:?}"),
    }
}

/// A vhost, two data shards.
fn fresh() -> Meta {
    let mut meta = Meta::default();
    done(&mut meta, MetaCommand::NodeStarted { incarnation: 1 });
    assert_eq!(done(&mut meta, create_vhost("/")), MetaReply::Vhost(MAIN));
    let slots = placement::Placement::even(&[ShardId(1), ShardId(2)]);
    done(&mut meta, MetaCommand::SetPlacement { slots });
    meta
}

/// Streams that a publish to this exchange and address would reach, by name, once per binding.
fn reached(meta: &Meta, exchange: &str, address: &str) -> Vec<String> {
    let address: Address = address.parse().unwrap();
    let Some(exchange) = meta.exchange(MAIN, exchange) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    meta.table(exchange.id)
        .unwrap()
        .visit(&address, |target, _| {
            let Target::Stream(stream) = target else {
                panic!("leads to {target:?}");
            };
            names.push(meta.stream_by_id(stream).unwrap().name.to_string());
        });
    names.sort();
    names
}

#[test]
fn a_vhost_comes_with_its_exchanges_and_only_once() {
    let mut meta = fresh();
    let names: Vec<&str> = meta
        .exchanges(MAIN)
        .map(|exchange| &*exchange.name)
        .collect();
    assert_eq!(names, ["", "main.direct", "main.topic"]);
    let generation = meta.generation();
    assert_eq!(done(&mut meta, create_vhost("/")), MetaReply::Vhost(MAIN));
    assert_eq!(meta.generation(), generation);
    let topic = meta.exchange(MAIN, "main.topic").unwrap().id;
    assert_eq!(meta.vhost("/").unwrap().topic_exchange, topic);
    let delete = MetaCommand::DeleteExchange {
        vhost: MAIN,
        name: "main.direct".into(),
        if_unused: false,
    };
    assert_eq!(refused(&mut meta, delete).kind, ErrorKind::AccessRefused);
}

#[test]
fn a_vhost_without_a_topic_exchange_is_refused() {
    let mut meta = Meta::default();
    let command = MetaCommand::CreateVhost {
        name: "/".into(),
        exchanges: vec![exchange("x", ExchangeKind::Direct)],
        topic_exchange: "x".into(),
    };
    assert_eq!(refused(&mut meta, command).kind, ErrorKind::BadRequest);
}

#[test]
fn a_deleted_vhost_takes_everything_with_it() {
    let mut meta = fresh();
    let id = made(&mut meta, queue("jobs"));
    done(
        &mut meta,
        MetaCommand::Bind(binding("main.topic", "jobs", "a/#")),
    );
    let shard = meta.stream_by_id(id).unwrap().shard;
    let delete = || MetaCommand::DeleteVhost { name: "/".into() };
    assert_eq!(
        done(&mut meta, delete()),
        MetaReply::Removed(vec![(id, shard)])
    );
    assert_eq!(refused(&mut meta, delete()).kind, ErrorKind::NotFound);
    assert!(meta.streams.is_empty() && meta.exchanges.is_empty() && meta.bindings.is_empty());
    assert!(meta.identities.is_empty() && meta.vhost("/").is_none());
    assert_eq!(
        done(&mut meta, create_vhost("/")),
        MetaReply::Vhost(VhostId(2))
    );
}

#[test]
fn the_default_exchange_reaches_every_stream_by_its_key() {
    let mut meta = fresh();
    let id = made(&mut meta, queue("a/b"));
    assert_eq!(reached(&meta, "", "a/b"), ["a/b"]);
    done(&mut meta, MetaCommand::DeleteStream { stream: id });
    assert!(reached(&meta, "", "a/b").is_empty());
}

#[test]
fn the_default_exchange_cannot_be_changed() {
    let mut meta = fresh();
    made(&mut meta, queue("jobs"));
    for command in [
        declare_exchange(exchange("", ExchangeKind::Direct)),
        MetaCommand::DeleteExchange {
            vhost: MAIN,
            name: "".into(),
            if_unused: false,
        },
        MetaCommand::Bind(binding("", "jobs", "x")),
        MetaCommand::Unbind(binding("", "jobs", "jobs")),
    ] {
        assert_eq!(refused(&mut meta, command).kind, ErrorKind::AccessRefused);
    }
}

#[test]
fn an_exchange_is_declared_again_only_as_it_is() {
    let mut meta = fresh();
    let mut spec = exchange("logs", ExchangeKind::Fanout);
    spec.arguments = number("depth", 7, 8);
    let first = done(&mut meta, declare_exchange(spec.clone()));
    spec.arguments = number("depth", 7, 64);
    let MetaReply::Exchange { id, created: true } = first else {
        panic!("{first:?}");
    };
    let again = MetaReply::Exchange { id, created: false };
    assert_eq!(done(&mut meta, declare_exchange(spec.clone())), again);

    let mut differs = |change: fn(&mut ExchangeSpec), expected: &str| {
        let mut other = spec.clone();
        change(&mut other);
        let refusal = refused(&mut meta, declare_exchange(other));
        assert_eq!(refusal.kind, ErrorKind::Inequivalent);
        let text = format!("inequivalent arg {expected}");
        assert_eq!(refusal.text, text);
    };
    let of = "for exchange 'logs' in vhost '/': received";
    differs(
        |spec| spec.kind = ExchangeKind::Topic,
        &format!("'type' {of} 'topic' but current is 'fanout'"),
    );
    differs(
        |spec| spec.durable = false,
        &format!("'durable' {of} 'false' but current is 'true'"),
    );
    differs(
        |spec| spec.auto_delete = true,
        &format!("'auto_delete' {of} 'true' but current is 'false'"),
    );
    differs(
        |spec| spec.internal = true,
        &format!("'internal' {of} 'true' but current is 'false'"),
    );
    differs(
        |spec| spec.arguments = Arguments::default(),
        &format!("'depth' {of} none but current is '7'"),
    );
}

#[test]
fn a_used_exchange_is_deleted_only_when_that_does_not_matter() {
    let mut meta = fresh();
    made(&mut meta, queue("jobs"));
    done(
        &mut meta,
        declare_exchange(exchange("x", ExchangeKind::Direct)),
    );
    done(&mut meta, MetaCommand::Bind(binding("x", "jobs", "k")));
    let delete = |if_unused| MetaCommand::DeleteExchange {
        vhost: MAIN,
        name: "x".into(),
        if_unused,
    };
    assert_eq!(refused(&mut meta, delete(true)).kind, ErrorKind::InUse);
    assert_eq!(done(&mut meta, delete(false)), MetaReply::Done);
    assert!(meta.bindings.is_empty());
    assert_eq!(done(&mut meta, delete(true)), MetaReply::Done);
}

#[test]
fn a_stream_is_routed_to_by_its_state_and_declared_again_as_it_is() {
    let mut meta = fresh();
    let mut spec = queue("jobs");
    spec.arguments = number("limit", 9, 32);
    let generation = meta.generation();
    let first = done(&mut meta, declare(spec.clone(), HERE));
    let MetaReply::Stream {
        id,
        shard,
        created: true,
        active: false,
    } = first
    else {
        panic!("{first:?}");
    };
    assert_eq!(meta.place("/", "jobs"), Some(shard));
    assert_eq!(
        meta.generation(),
        generation,
        "routes do not change by it yet"
    );
    done(&mut meta, MetaCommand::ActivateStream { stream: id });
    assert!(meta.generation() > generation);
    spec.arguments = number("limit", 9, 64);
    let again = MetaReply::Stream {
        id,
        shard,
        created: false,
        active: true,
    };
    assert_eq!(done(&mut meta, declare(spec.clone(), THERE)), again);
    spec.arguments = number("limit", 8, 32);
    let refusal = refused(&mut meta, declare(spec, THERE));
    assert_eq!(refusal.kind, ErrorKind::Inequivalent);
    assert_eq!(
        refusal.text,
        "inequivalent arg 'limit' for queue 'jobs' in vhost '/': received '8' but current is '9'"
    );
}

#[test]
fn activating_a_deleted_stream_says_so() {
    let mut meta = fresh();
    let id = made(&mut meta, queue("jobs"));
    for _ in 0..2 {
        let reply = done(&mut meta, MetaCommand::DeleteStream { stream: id });
        assert_eq!(reply, MetaReply::Done);
    }
    let activate = MetaCommand::ActivateStream { stream: id };
    assert_eq!(refused(&mut meta, activate).kind, ErrorKind::NotFound);
    assert_ne!(made(&mut meta, queue("jobs")), id, "ids are never reused");
}

#[test]
fn an_exclusive_stream_is_locked_for_others_and_lives_in_memory() {
    let mut meta = fresh();
    let mut spec = queue("mine");
    spec.exclusive = true;
    let id = made(&mut meta, spec.clone());
    assert!(meta.stream_by_id(id).unwrap().shard.is_volatile());
    assert_eq!(meta.streams_owned_by(HERE).count(), 1);
    done(&mut meta, declare(spec.clone(), HERE));
    done(
        &mut meta,
        MetaCommand::Bind(binding("main.topic", "mine", "#")),
    );
    let mut foreign = binding("main.topic", "mine", "x");
    foreign.by = THERE;
    let mut shared = spec.clone();
    shared.exclusive = false;
    for command in [
        declare(spec, THERE),
        declare(shared, HERE),
        MetaCommand::Bind(foreign.clone()),
        MetaCommand::Unbind(foreign),
    ] {
        assert_eq!(refused(&mut meta, command).kind, ErrorKind::Locked);
    }
    done(&mut meta, MetaCommand::DeleteStream { stream: id });
    assert_eq!(meta.streams_owned_by(HERE).count(), 0);
    assert!(meta.owners.is_empty());
}

#[test]
fn an_existing_stream_cannot_become_exclusive() {
    let mut meta = fresh();
    made(&mut meta, queue("jobs"));
    let mut spec = queue("jobs");
    spec.exclusive = true;
    assert_eq!(
        refused(&mut meta, declare(spec, HERE)).kind,
        ErrorKind::Locked
    );
}

#[test]
fn without_placement_no_durable_stream_is_made() {
    let mut meta = Meta::default();
    done(&mut meta, create_vhost("/"));
    let refusal = refused(&mut meta, declare(queue("jobs"), HERE));
    assert_eq!(refusal.kind, ErrorKind::Unavailable);
    let mut spec = queue("fleeting");
    spec.durable = false;
    made(&mut meta, spec);
}

#[test]
fn the_same_binding_twice_is_one_and_arguments_tell_bindings_apart() {
    let mut meta = fresh();
    made(&mut meta, queue("jobs"));
    let plain = binding("main.topic", "jobs", "a/+");
    let mut marked = plain.clone();
    marked.arguments = number("mark", 1, 8);
    for change in [&plain, &plain, &marked, &marked] {
        done(&mut meta, MetaCommand::Bind(change.clone()));
    }
    assert_eq!(meta.bindings(MAIN).count(), 2);
    assert_eq!(reached(&meta, "main.topic", "a/b"), ["jobs", "jobs"]);
    for left in [1, 1, 0] {
        let change = if left == 1 { &plain } else { &marked };
        done(&mut meta, MetaCommand::Unbind(change.clone()));
        assert_eq!(meta.bindings(MAIN).count(), left);
    }
    assert!(reached(&meta, "main.topic", "a/b").is_empty());
    assert!(meta.identities.is_empty());
}

#[test]
fn binding_what_is_not_there_is_refused_and_unbinding_it_is_not() {
    let mut meta = fresh();
    made(&mut meta, queue("jobs"));
    for (exchange, stream, text) in [
        ("none", "jobs", "no exchange 'none' in vhost '/'"),
        ("main.topic", "none", "no queue 'none' in vhost '/'"),
    ] {
        let change = binding(exchange, stream, "x");
        let refusal = refused(&mut meta, MetaCommand::Bind(change.clone()));
        assert_eq!((refusal.kind, &*refusal.text), (ErrorKind::NotFound, text));
        done(&mut meta, MetaCommand::Unbind(change));
    }
    done(
        &mut meta,
        MetaCommand::Unbind(binding("main.topic", "jobs", "x")),
    );
}

#[test]
fn a_headers_binding_that_does_not_say_how_to_match_is_refused() {
    let mut meta = fresh();
    made(&mut meta, queue("jobs"));
    done(
        &mut meta,
        declare_exchange(exchange("h", ExchangeKind::Headers)),
    );
    let mut change = binding("h", "jobs", "");
    change.arguments = number("x-match", 1, 8);
    assert_eq!(
        refused(&mut meta, MetaCommand::Bind(change)).kind,
        ErrorKind::BadRequest
    );
}

#[test]
fn an_auto_delete_exchange_goes_with_its_last_binding() {
    let mut meta = fresh();
    let mut spec = exchange("passing", ExchangeKind::Direct);
    spec.auto_delete = true;
    let id = made(&mut meta, queue("jobs"));
    for by_stream in [false, true] {
        done(&mut meta, declare_exchange(spec.clone()));
        for key in ["a", "b"] {
            done(
                &mut meta,
                MetaCommand::Bind(binding("passing", "jobs", key)),
            );
        }
        done(
            &mut meta,
            MetaCommand::Unbind(binding("passing", "jobs", "a")),
        );
        assert!(meta.exchange(MAIN, "passing").is_some());
        let last = match by_stream {
            false => MetaCommand::Unbind(binding("passing", "jobs", "b")),
            true => MetaCommand::DeleteStream { stream: id },
        };
        done(&mut meta, last);
        assert!(meta.exchange(MAIN, "passing").is_none());
    }
}

#[test]
fn a_new_life_of_the_node_drops_what_lived_in_memory() {
    let mut meta = fresh();
    made(&mut meta, queue("kept"));
    for (name, durable, exclusive) in [("fleeting", false, false), ("mine", true, true)] {
        let mut spec = queue(name);
        (spec.durable, spec.exclusive) = (durable, exclusive);
        made(&mut meta, spec);
    }
    let mut passing = exchange("passing", ExchangeKind::Topic);
    passing.durable = false;
    done(&mut meta, declare_exchange(passing));
    for (exchange, stream) in [
        ("passing", "kept"),
        ("main.topic", "kept"),
        ("main.topic", "fleeting"),
        ("main.topic", "mine"),
    ] {
        done(&mut meta, MetaCommand::Bind(binding(exchange, stream, "#")));
    }
    done(&mut meta, MetaCommand::NodeStarted { incarnation: 1 });
    assert_eq!(
        meta.streams(MAIN).count(),
        3,
        "the same life changes nothing"
    );
    done(&mut meta, MetaCommand::NodeStarted { incarnation: 2 });
    let left: Vec<&str> = meta.streams(MAIN).map(|stream| &*stream.name).collect();
    assert_eq!(left, ["kept"]);
    assert!(meta.exchange(MAIN, "passing").is_none());
    assert_eq!(meta.bindings(MAIN).count(), 1);
    assert_eq!(reached(&meta, "main.topic", "x"), ["kept"]);
    assert!(reached(&meta, "", "fleeting").is_empty());
}

#[test]
fn users_and_rules_come_and_go_in_order() {
    let mut meta = fresh();
    let generation = meta.generation();
    let user = User {
        name: "ann".into(),
        password: Some(PasswordHash("$argon2id$secret".into())),
        roles: vec!["operators".into()],
        tags: vec![],
    };
    assert!(!format!("{user:?}").contains("secret"));
    done(&mut meta, MetaCommand::PutUser(user.clone()));
    assert_eq!(meta.user("ann"), Some(&user));
    for (id, order) in [("b", 1), ("a", 1), ("z", -5)] {
        let rule = Rule {
            id: id.into(),
            order,
            body: serde_json::json!({ "effect": "allow" }),
        };
        done(&mut meta, MetaCommand::PutRule(rule));
    }
    let ids: Vec<&str> = meta.rules().iter().map(|rule| &*rule.id).collect();
    assert_eq!(ids, ["z", "a", "b"]);
    assert_eq!(meta.rules_generation(), 4);
    done(&mut meta, MetaCommand::DeleteRule { id: "a".into() });
    done(&mut meta, MetaCommand::DeleteUser { name: "ann".into() });
    assert_eq!(
        (meta.rules_generation(), meta.generation()),
        (6, generation)
    );
    for command in [
        MetaCommand::DeleteRule { id: "a".into() },
        MetaCommand::DeleteUser { name: "ann".into() },
    ] {
        assert_eq!(refused(&mut meta, command).kind, ErrorKind::NotFound);
    }
}

#[test]
fn names_have_a_length() {
    let mut meta = fresh();
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    for name in ["", &long] {
        let mut spec = queue("q");
        spec.name = name.into();
        assert_eq!(
            refused(&mut meta, declare(spec, HERE)).kind,
            ErrorKind::BadRequest
        );
        assert_eq!(
            refused(&mut meta, create_vhost(name)).kind,
            ErrorKind::BadRequest
        );
    }
}

/// One of everything that a checkpoint holds.
fn sample() -> Meta {
    let mut meta = fresh();
    let kept = made(&mut meta, queue("kept"));
    made(&mut meta, queue("gone"));
    let gone = meta.stream(MAIN, "gone").unwrap().id;
    done(&mut meta, MetaCommand::DeleteStream { stream: gone });
    let mut spec = queue("mine");
    spec.exclusive = true;
    spec.arguments = Arguments::new(vec![
        (
            Bytes::from_static(b"text"),
            Value::Text(Bytes::from_static(b"plain")),
        ),
        (
            Bytes::from_static(b"raw"),
            Value::Binary(Bytes::from_static(&[0, 255])),
        ),
        (Bytes::from_static(b"half"), Value::Double(0.5)),
    ])
    .unwrap();
    done(&mut meta, declare(spec, HERE));
    done(
        &mut meta,
        declare_exchange(exchange("h", ExchangeKind::Headers)),
    );
    let mut headers = binding("h", "kept", "");
    headers.arguments = number("wanted", 1, 32);
    done(&mut meta, MetaCommand::Bind(headers));
    done(
        &mut meta,
        MetaCommand::Bind(binding("main.topic", "kept", "a/+/#")),
    );
    let user = User {
        name: "ann".into(),
        password: Some(PasswordHash(
            "$argon2id$v=19$m=8,t=1,p=1$c2FsdA$aGFzaA".into(),
        )),
        roles: vec!["operators".into()],
        tags: vec!["administrator".into()],
    };
    done(&mut meta, MetaCommand::PutUser(user));
    let rule = Rule {
        id: "all".into(),
        order: 10,
        body: serde_json::json!({ "effect": "allow", "actions": ["publish"] }),
    };
    done(&mut meta, MetaCommand::PutRule(rule));
    assert!(meta.stream_by_id(kept).is_some());
    meta
}

/// The committed file was written by version 1 and is never written again: every later build must read
/// it, and as long as the version is 1 must write the same.
#[test]
fn a_checkpoint_of_version_1_is_read() {
    let committed = include_bytes!("samples/meta-v1.checkpoint");
    let meta = Meta::decode(committed).unwrap();
    assert_eq!(meta.encode(), sample().encode());
    assert_eq!(meta.encode(), committed);
}

#[test]
fn what_is_decoded_behaves_as_what_was_encoded() {
    let mut before = sample();
    let mut after = Meta::decode(&before.encode()).unwrap();
    assert_eq!(reached(&after, "main.topic", "a/b"), ["kept"]);
    assert_eq!(reached(&after, "", "kept"), ["kept"]);
    assert_eq!(after.streams_owned_by(HERE).count(), 1);
    for command in [
        MetaCommand::Bind(binding("main.topic", "kept", "a/+/#")),
        declare(queue("next"), HERE),
        MetaCommand::NodeStarted { incarnation: 2 },
        MetaCommand::DeleteVhost { name: "/".into() },
        create_vhost("/"),
    ] {
        let expected = apply(&mut before, command.clone());
        assert_eq!(apply(&mut after, command), expected);
        assert_eq!(after.encode(), before.encode());
    }
}

#[test]
fn bytes_that_are_no_checkpoint_are_refused() {
    let good = sample().encode();
    assert!(Meta::decode(&[]).is_err());
    assert!(Meta::decode(&good[..good.len() - 1]).is_err());
    let mut newer = good.clone();
    newer[0] = 2;
    assert!(matches!(
        Meta::decode(&newer),
        Err(checkpoint::CheckpointError::Version(Some(2)))
    ));
    let text = String::from_utf8(good[1..].to_vec()).unwrap();
    for (from, to) in [
        (r#""exchange":4,"stream""#, r#""exchange":99,"stream""#),
        (r#""vhost":1,"name":"kept""#, r#""vhost":9,"name":"kept""#),
        (r#""vhost":1,"name":"h""#, r#""vhost":9,"name":"h""#),
    ] {
        assert!(text.contains(from), "{from}");
        let broken = [vec![1], text.replace(from, to).into_bytes()].concat();
        assert!(matches!(
            Meta::decode(&broken),
            Err(checkpoint::CheckpointError::NotWhole(_))
        ));
    }
}
