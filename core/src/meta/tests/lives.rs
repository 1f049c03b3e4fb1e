//! Vhosts, users and rules come and go; a new life of the node.
//!
//! Owns the tests of what is not an exchange, a stream or a binding. Read next: [`super`].

use super::*;

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
