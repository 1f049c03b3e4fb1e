//! Streams: declared, placed, activated, owned by a connection.
//!
//! Owns the tests of a stream's life in the registry; never of what it holds. Read next: [`super::exchanges`].

use super::*;

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
