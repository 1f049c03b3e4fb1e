//! WebSocket listeners, with tungstenite as the client.

use anabranch_driver::{DriverLimits, ListenerSetup, Origins, TransportKind, WebSocketSetup};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use tungstenite::client::IntoClientRequest;
use tungstenite::http::HeaderValue;
use tungstenite::protocol::frame::Frame;
use tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tungstenite::{HandshakeError, Message, WebSocket};

use crate::quick;
use crate::setup::{Client, Node, any};
use crate::tls::Files;

fn setup() -> WebSocketSetup {
    WebSocketSetup {
        path: None,
        subprotocols: &["words"],
        subprotocol_required: true,
        origins: Origins::Any,
        frame_bytes_max: 1 << 24,
    }
}

fn listener(setup: WebSocketSetup) -> ListenerSetup {
    ListenerSetup {
        websocket: Some(Arc::new(setup)),
        ..ListenerSetup::plain(any())
    }
}

fn node(limits: DriverLimits) -> Node {
    Node::listening(vec![listener(setup())], 2, limits)
}

/// What a WebSocket carries, as bytes.
struct Carried<S> {
    web: WebSocket<S>,
    unread: Vec<u8>,
}

impl<S: Read + Write> Read for Carried<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.unread.is_empty() {
            match self.web.read() {
                Ok(Message::Binary(bytes)) => self.unread = bytes.to_vec(),
                Ok(Message::Close(_)) => return Ok(0),
                Ok(_) => {}
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        let count = into.len().min(self.unread.len());
        into[..count].copy_from_slice(&self.unread[..count]);
        self.unread.drain(..count);
        Ok(count)
    }
}

impl<S: Read + Write> Write for Carried<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.web.send(Message::binary(bytes.to_vec()));
        sent.map(|()| bytes.len()).map_err(io::Error::other)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.web.flush().map_err(io::Error::other)
    }
}

/// Opens a WebSocket; the status when it is refused.
fn open<S: Read + Write>(stream: S, subprotocol: &str) -> Result<WebSocket<S>, u16> {
    let mut request = "ws://localhost/any".into_client_request().unwrap();
    let offer = HeaderValue::from_str(subprotocol).unwrap();
    request
        .headers_mut()
        .insert("Sec-WebSocket-Protocol", offer);
    match tungstenite::client(request, stream) {
        Ok((web, response)) => {
            assert_eq!(response.headers()["Sec-WebSocket-Protocol"], "words");
            Ok(web)
        }
        Err(HandshakeError::Failure(tungstenite::Error::Http(response))) => {
            Err(response.status().as_u16())
        }
        Err(error) => panic!("{error}"),
    }
}

fn carried<S: Read + Write>(stream: S) -> Client<Carried<S>> {
    let web = open(stream, "chat, words").unwrap();
    Client::over(Carried {
        web,
        unread: Vec::new(),
    })
}

fn echo(client: &mut Client<Carried<impl Read + Write>>, text: &str) {
    client.say(&format!("echo {text}"));
    assert_eq!(client.line(), text);
}

impl<S: Read + Write> Client<Carried<S>> {
    fn web(&mut self) -> &mut WebSocket<S> {
        &mut self.socket().web
    }

    /// Sends a frame as it is.
    fn frame(&mut self, data: Data, last: bool, payload: &'static [u8]) {
        let frame = Frame::message(payload, OpCode::Data(data), last);
        self.web().send(Message::Frame(frame)).unwrap();
    }

    /// The code of the driver's close frame, which is the next that comes.
    fn close_code(&mut self) -> CloseCode {
        match self.web().read() {
            Ok(Message::Close(Some(frame))) => frame.code,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn words_pass_and_both_ends_are_in_order() {
    let node = node(quick());
    let mut client = carried(node.socket());
    echo(&mut client, "a");
    let row = &node.rows()[0];
    assert_eq!(row.transport, TransportKind::Ws);
    assert_eq!(
        (row.received_bytes, row.sent_bytes),
        (7, 2),
        "its own bytes"
    );
    client.say("quit");
    assert_eq!(client.close_code(), CloseCode::Normal);
    node.until(<[_]>::is_empty);

    let mut client = carried(node.socket());
    echo(&mut client, "b");
    client.web().close(None).unwrap();
    loop {
        match client.web().read() {
            Ok(Message::Close(_)) => {}
            Err(tungstenite::Error::ConnectionClosed) => break,
            other => panic!("{other:?}"),
        }
    }
    node.until(<[_]>::is_empty);
    assert_eq!(node.driver.totals().handshakes_failed, 0);
}

#[test]
fn a_word_may_span_frames_and_a_frame_hold_several_words() {
    // [MQTT-6.0.0-2]
    let node = node(quick());
    let mut client = carried(node.socket());
    client.frame(Data::Binary, false, b"ec");
    client
        .web()
        .send(Message::Ping("still there?".into()))
        .unwrap();
    client.frame(Data::Continue, false, b"");
    client.frame(Data::Continue, true, b"ho a\necho b\nech");
    client.frame(Data::Binary, true, b"o c\n");
    assert!(matches!(client.web().read(), Ok(Message::Pong(said)) if said == "still there?"));
    assert_eq!(
        [client.line(), client.line(), client.line()],
        ["a", "b", "c"]
    );
}

#[test]
fn a_text_frame_closes() {
    // [MQTT-6.0.0-1]
    let node = node(quick());
    let mut client = carried(node.socket());
    client.web().send(Message::text("echo a\n")).unwrap();
    assert_eq!(client.close_code(), CloseCode::Unsupported);
    node.until(<[_]>::is_empty);
    assert_eq!(
        node.driver.totals().handshakes_failed,
        0,
        "it was past that"
    );
}

#[test]
fn a_frame_that_is_too_long_closes_before_it_came() {
    let small = WebSocketSetup {
        frame_bytes_max: 1000,
        ..setup()
    };
    let node = Node::listening(vec![listener(small)], 1, quick());
    let mut client = carried(node.socket());
    let head = [0x82, 0xFF, 0, 0, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    client.web().get_mut().write_all(&head).unwrap();
    assert_eq!(client.close_code(), CloseCode::Size);
    node.until(<[_]>::is_empty);
}

#[test]
fn much_passes_both_ways_and_unsent_bytes_stay_with_the_slow_reader() {
    let node = node(quick());
    let mut client = carried(node.socket());
    let size = 20 * 1024 * 1024;
    client.say(&format!("big {size}"));
    client.say("echo end");
    node.until(|rows| rows.iter().any(|row| row.unsent_bytes > size / 4));
    assert_eq!(client.bytes(size), size);
    assert_eq!(client.line(), "end");
    node.until(|rows| rows.iter().all(|row| row.unsent_bytes == 0));
    echo(&mut client, &"z".repeat(1_000_000));
}

#[test]
fn pings_that_nobody_waits_for_cost_no_memory() {
    let limits = DriverLimits {
        login_ms: 60_000,
        ..quick()
    };
    let node = node(limits);
    let mut client = carried(node.socket());
    let mut reader = client.web().get_ref().try_clone().unwrap();
    let mut ping = vec![0x89, 0x80 | 100, 0, 0, 0, 0];
    ping.resize(106, b'p');
    let pings = ping.repeat(1_000);
    let sent: usize = 100 * pings.len();
    for _ in 0..100 {
        client.web().get_mut().write_all(&pings).unwrap();
    }
    client.frame(Data::Binary, true, b"quit\n");
    // What was answered is whole, and no more than was asked.
    let mut answers = Vec::new();
    reader.read_to_end(&mut answers).unwrap();
    assert!(answers.len() < sent && answers.starts_with(b"\x8a\x64ppp"));
    node.until(<[_]>::is_empty);
}

#[test]
fn an_opening_that_does_not_fit_is_answered_and_counted() {
    let elsewhere = WebSocketSetup {
        path: Some("/words".to_owned()),
        ..setup()
    };
    let node = Node::listening(vec![listener(elsewhere), listener(setup())], 1, quick());
    assert_eq!(open(node.socket(), "words").err(), Some(404));
    let other = TcpStream::connect(node.driver.listening()[1].address).unwrap();
    assert_eq!(open(other, "chat").err(), Some(400));
    node.until_refused(2);
}

#[test]
fn what_is_no_opening_is_refused_counted_and_harms_nobody() {
    let node = node(quick());
    let mut bystander = carried(node.socket());
    echo(&mut bystander, "here");
    let long = [
        b"GET / HTTP/1.1\r\nHost: here\r\nX: ".to_vec(),
        vec![b'x'; 9_000],
    ]
    .concat();
    let long_and_whole = [&long[..], b"\r\n\r\n"].concat();
    let openings: [(&[u8], &str); 6] = [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "426"),
        (b"POST / HTTP/1.1\r\n", "400"),
        (b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x03abc", "400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"),
        (&long, "431"),
        (&long_and_whole, "431"),
    ];
    for (count, (opening, status)) in (1..).zip(openings) {
        let mut client = node.connect();
        client.raw(opening);
        let mut said = Vec::new();
        client.socket().read_to_end(&mut said).unwrap();
        let said = String::from_utf8(said).unwrap();
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{said}");
        node.until(|rows| rows.len() == 1);
        assert_eq!(node.driver.totals().handshakes_failed, count);
    }
    let mut state = 11_u64;
    for round in 0..200_usize {
        let mut bytes = match round % 3 {
            0 => Vec::new(),
            1 => b"GET ".to_vec(),
            // An opening in order, then chance instead of frames.
            _ => REQUEST.as_bytes().to_vec(),
        };
        bytes.extend((0..round * 5).map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as u8
        }));
        let mut client = node.connect();
        client.raw(&bytes);
        client.socket().shutdown(Shutdown::Write).ok();
        client.socket().read_to_end(&mut Vec::new()).ok();
    }
    node.until(|rows| rows.len() == 1);
    echo(&mut bystander, "still here");
}

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Protocol: words\r\nSec-WebSocket-Version: 13\r\n\r\n";

#[test]
fn frames_may_follow_the_request_at_once_and_all_of_it_byte_by_byte() {
    let node = node(quick());
    let mut bytes = REQUEST.as_bytes().to_vec();
    // Masked with zeros, so as it is.
    for word in [&b"echo first\n"[..], b"quit\n"] {
        bytes.extend([0x82, 0x80 | word.len() as u8, 0, 0, 0, 0]);
        bytes.extend(word);
    }
    for size in [bytes.len(), 1] {
        let mut client = node.connect();
        for piece in bytes.chunks(size) {
            client.raw(piece);
        }
        let mut said = Vec::new();
        client.socket().read_to_end(&mut said).unwrap();
        assert!(said.starts_with(b"HTTP/1.1 101 "));
        assert!(
            said.ends_with(b"\r\n\r\n\x82\x06first\n\x88\x02\x03\xe8"),
            "{said:?}"
        );
    }
    node.until(<[_]>::is_empty);
}

#[test]
fn a_goodbye_right_behind_the_last_word_is_answered() {
    let node = node(quick());
    let mut client = node.connect();
    let mut bytes = REQUEST.as_bytes().to_vec();
    bytes.extend(b"\x82\x8b\0\0\0\0login anna\n\x88\x82\0\0\0\0\x03\xe9");
    client.raw(&bytes);
    let mut said = Vec::new();
    client.socket().read_to_end(&mut said).unwrap();
    assert!(said.ends_with(b"\r\n\r\n\x88\x02\x03\xe9"), "{said:?}");
    node.until_empty();
    assert_eq!(
        node.driver.totals().received_bytes,
        11,
        "the word was taken"
    );
}

#[test]
fn half_an_opening_is_ended_in_time() {
    let limits = DriverLimits {
        login_ms: 100,
        ..quick()
    };
    let node = node(limits);
    for (count, half) in (1..).zip(["", "GET / HT", &REQUEST[..REQUEST.len() - 1]]) {
        let mut client = node.connect();
        client.raw(half.as_bytes());
        client.expect_end();
        node.until_refused(count);
    }
    // Who has opened and does not log in is told so in its protocol's words.
    let mut client = carried(node.socket());
    assert_eq!(client.line(), "stop LoginTimeout");
    assert_eq!(client.close_code(), CloseCode::Normal);
    node.until_refused(3);
}

#[test]
fn a_websocket_in_tls_is_both() {
    let files = Files::new();
    let both = ListenerSetup {
        tls: Some(files.load()),
        ..listener(setup())
    };
    let node = Node::listening(vec![both], 2, quick());
    let mut client = carried(files.secure(node.socket()));
    echo(&mut client, "both");
    assert_eq!(node.rows()[0].transport, TransportKind::Wss);
    client.frame(Data::Binary, false, b"ec");
    client.web().send(Message::Ping("?".into())).unwrap();
    client.frame(Data::Continue, true, b"ho a\n");
    assert!(matches!(client.web().read(), Ok(Message::Pong(said)) if said == "?"));
    assert_eq!(client.line(), "a");
    let size = 5_000_000;
    client.say(&format!("big {size}"));
    assert_eq!(client.bytes(size), size);
    echo(&mut client, &"z".repeat(300_000));
    client.say("quit");
    assert_eq!(client.close_code(), CloseCode::Normal);
    // The WebSocket's end, then that of TLS: rustls fails without the latter.
    assert_eq!(client.web().get_mut().read(&mut [0]).unwrap(), 0);
    node.until(<[_]>::is_empty);
    // TLS without a WebSocket in it.
    let mut other = files.secure(node.socket());
    other.write_all(b"echo a\n").unwrap();
    let mut said = String::new();
    other.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 400 "), "{said}");
    node.until_refused(1);
}
