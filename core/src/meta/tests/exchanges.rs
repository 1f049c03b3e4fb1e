//! Exchanges and bindings: declared again, in use, deleted with their last binding.
//!
//! Owns the tests of who reaches whom; never of a stream's own life. Read next: [`super::streams`].

use super::*;

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
