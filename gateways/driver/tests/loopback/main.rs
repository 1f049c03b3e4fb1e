//! The driver over real sockets, with a protocol made for it (see `gateway.rs`).

mod gateway;
mod setup;
mod tls;
mod websocket;

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::{Answer, Command, StopReason};
use anabranch_driver::{Call, ConnectionState, DriverLimits, ListenerSetup, StartError};
use setup::{Client, Node};
use std::io::Write;

fn quick() -> DriverLimits {
    DriverLimits {
        linger_ms: 500,
        drain_ms: 1_000,
        // A few clients are enough to be on every worker.
        worker_company: 1,
        ..DriverLimits::default()
    }
}

#[test]
fn bytes_come_and_go_on_every_worker() {
    let node = Node::start(3, quick());
    let mut clients: Vec<Client> = (0..6).map(|_| node.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.say(&format!("echo {number}"));
        assert_eq!(client.line(), number.to_string());
    }
    let mut by_worker = [0; 3];
    for row in node.rows() {
        by_worker[usize::from(row.id.worker().0)] += 1;
        assert_eq!(row.state, ConnectionState::Opening);
        assert!(row.received_bytes == 7 && row.sent_bytes == 2, "{row:?}");
    }
    assert_eq!(by_worker, [2, 2, 2], "few connections are spread evenly");
    assert_eq!(node.driver.totals().open, 6);
    assert_eq!(node.driver.open_by_gateway(), vec![("words", 6)]);
}

#[test]
fn words_in_one_packet_are_answered_in_order_and_a_split_word_waits() {
    let node = Node::start(1, quick());
    let mut client = node.connect();
    client.raw(b"echo a\necho b\nec");
    assert_eq!((client.line(), client.line()), ("a".into(), "b".into()));
    client.raw(b"ho c\n");
    assert_eq!(client.line(), "c");
}

#[test]
fn a_login_is_answered_through_the_host() {
    let node = Node::start(1, quick());
    let mut client = node.connect();
    client.say("login anna");
    assert_eq!(client.line(), "in");
    let mut other = node.connect();
    other.say("login mallory");
    assert_eq!(other.line(), "out");
    client.say("enter");
    assert_eq!(client.line(), "entered");
    assert!(
        node.rows()
            .iter()
            .any(|row| row.state == ConnectionState::Running)
    );
}

#[test]
fn whoever_does_not_log_in_in_time_is_told_and_closed() {
    let limits = DriverLimits {
        login_ms: 50,
        ..quick()
    };
    let node = Node::start(1, limits);
    let mut client = node.connect();
    assert_eq!(client.line(), "stop LoginTimeout");
    client.expect_end();
    node.until_empty();
}

#[test]
fn a_connection_that_entered_a_vhost_outlives_the_login_time() {
    let limits = DriverLimits {
        login_ms: 200,
        ..quick()
    };
    let node = Node::start(1, limits);
    let mut client = node.connect();
    client.say("login anna");
    assert_eq!(client.line(), "in");
    client.say("enter");
    assert_eq!(client.line(), "entered");
    client.say("tick 400");
    assert_eq!(client.line(), "tick");
}

#[test]
fn a_large_answer_arrives_whole_at_a_reader_that_takes_its_time() {
    let node = Node::start(1, quick());
    let mut client = node.connect();
    let size = 20 * 1024 * 1024;
    client.say(&format!("big {size}"));
    client.say("echo end");
    // Until it reads, the bytes are the driver's to keep.
    node.until(|rows| rows.iter().any(|row| row.unsent_bytes > size / 4));
    assert_eq!(client.bytes(size), size);
    assert_eq!(client.line(), "end");
    node.until(|rows| rows.iter().all(|row| row.unsent_bytes == 0));
}

#[test]
fn a_peer_that_never_reads_is_stopped() {
    let limits = DriverLimits {
        stall_ms: 100,
        ..quick()
    };
    let node = Node::start(1, limits);
    let mut client = node.connect();
    client.say("big 20000000");
    node.until_empty();
    drop(client);
}

#[test]
fn a_peer_that_asks_without_reading_is_stopped_by_size() {
    let limits = DriverLimits {
        unsent_hold_bytes: 100_000,
        unsent_stop_bytes: 1_000_000,
        ..quick()
    };
    let node = Node::start(1, limits);
    let mut client = node.connect();
    client.say("big 20000000");
    node.until(|rows| rows.iter().any(|row| row.unsent_bytes > 100_000));
    client.say("big 2000000");
    node.until_empty();
}

#[test]
fn an_operator_ends_a_connection_in_its_own_words() {
    let node = Node::start(2, quick());
    let mut client = node.connect();
    client.say("echo here");
    assert_eq!(client.line(), "here");
    let id = node.rows()[0].id;
    assert!(node.stop(id, StopReason::Kicked));
    assert_eq!(client.line(), "stop Kicked");
    client.expect_end();
    node.until_empty();
    assert!(!node.stop(id, StopReason::Kicked), "it is gone");
}

#[test]
fn the_last_words_arrive_though_the_peer_has_sent_more_than_was_read() {
    let node = Node::start(1, quick());
    let mut client = node.connect();
    // What follows the unknown word is never fed; a careless close would reset the socket and lose `a`.
    client.raw(b"echo a\nbogus\n");
    client.raw(&[b'y'; 200_000]);
    assert_eq!(client.line(), "a");
    client.expect_end();
}

#[test]
fn a_panicking_gateway_ends_its_own_connection_only() {
    let node = Node::start(1, quick());
    let mut victim = node.connect();
    let mut other = node.connect();
    victim.say("panic");
    victim.expect_end();
    other.say("echo alive");
    assert_eq!(other.line(), "alive");
}

#[test]
fn a_connection_above_the_limit_is_closed_and_one_that_left_makes_room() {
    let limits = DriverLimits {
        connections_max: 2,
        ..quick()
    };
    let node = Node::start(2, limits);
    let mut first = node.connect();
    let mut second = node.connect();
    for client in [&mut first, &mut second] {
        client.say("echo in");
        assert_eq!(client.line(), "in");
    }
    node.connect().expect_end();
    first.say("quit");
    first.expect_end();
    node.until(|rows| rows.len() == 1);
    let mut third = node.connect();
    third.say("echo in");
    assert_eq!(third.line(), "in");
}

#[test]
fn a_call_is_answered_like_a_connection_and_leaves_nothing() {
    let node = Node::start(2, quick());
    let (tell, told) = std::sync::mpsc::channel();
    for (vhost, stream) in [("/", "no queue"), ("no vhost", "no queue")] {
        let tell = tell.clone();
        node.driver.call(Call {
            who: setup::anna(),
            protocol: "words",
            peer: node.address(),
            vhost: vhost.into(),
            command: Command::Purge {
                token: Call::TOKEN,
                stream: stream.into(),
            },
            done: Box::new(move |answers| tell.send(answers).unwrap()),
        });
    }
    let mut answers = [told.recv().unwrap(), told.recv().unwrap()];
    answers.sort_by_key(Result::is_err);
    let [Ok(purged), Err(no_vhost)] = answers else {
        panic!("{answers:?}");
    };
    let [Answer::Done { token, result }] = &purged[..] else {
        panic!("{purged:?}");
    };
    assert_eq!(*token, Call::TOKEN);
    assert_eq!(result.as_ref().unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(no_vhost.kind, ErrorKind::NotFound);
    let (tell, told) = std::sync::mpsc::channel();
    node.driver.inspect(
        |worker| worker.counts().connections,
        move |counts| tell.send(counts).unwrap(),
    );
    assert_eq!(told.recv().unwrap(), [0, 0]);
}

#[test]
fn a_taken_port_is_named() {
    let node = Node::start(1, quick());
    let error =
        setup::start_at(vec![ListenerSetup::plain(node.address())], 1, quick()).unwrap_err();
    assert!(matches!(error, StartError::Bind { .. }));
    let text = error.to_string();
    assert!(
        text.contains(&node.address().to_string()) && text.contains("words"),
        "{text}"
    );
}

#[test]
fn a_shutdown_tells_everyone_and_is_over_before_the_slowest() {
    let node = Node::start(2, quick());
    let mut clients: Vec<Client> = (0..4).map(|_| node.connect()).collect();
    for client in &mut clients {
        client.say("echo in");
        assert_eq!(client.line(), "in");
    }
    // This one does not read at all and is given up on.
    let mut deaf = node.connect();
    deaf.say("big 20000000");
    node.until(|rows| rows.iter().any(|row| row.unsent_bytes > 0));
    node.driver.shutdown();
    for client in &mut clients {
        assert_eq!(client.line(), "stop Shutdown");
        client.expect_end();
    }
    assert!(std::net::TcpStream::connect(node.address()).is_err());
    deaf.socket().flush().ok();
}
