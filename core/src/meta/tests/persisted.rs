//! What survives in a checkpoint, and what is refused as none.
//!
//! Owns the tests of the persisted form, with a file that version 1 wrote. Read next: `meta/checkpoint.rs`.

use super::*;

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
    let committed = include_bytes!("../samples/meta-v1.checkpoint");
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
