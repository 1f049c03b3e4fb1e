//! A protocol of one word per line, for tests of the driver: each word makes the driver do one thing.
//!
//! `echo <text>` answers the text; `big <n>` answers n bytes; `login <user>` asks for a login and
//! answers `in` or `out`; `enter` enters a vhost and answers `entered`; `tick <ms>` answers `tick` after
//! that time; `panic` panics; `quit` ends. When stopped, it says `stop <reason>`.

use anabranch_core::gateway::{
    Answer, Close, ClosedBy, Command, Connection, ConnectionView, Gateway, Input, Outputs, Seat,
};
use anabranch_core::id::{MonotonicMs, Now, Token};
use anabranch_core::message::{Message, OriginTag};
use anabranch_core::properties::{Properties, PropertyCodec};
use std::borrow::Cow;
use std::sync::Arc;

const LOGIN: Token = Token(1);
const ENTER: Token = Token(2);

pub struct Words;

struct NoProperties;

impl PropertyCodec for NoProperties {
    fn to_neutral(&self, _: &Message) -> Properties {
        Properties::default()
    }
}

impl Gateway for Words {
    fn name(&self) -> &'static str {
        "words"
    }
    fn tag(&self) -> OriginTag {
        OriginTag(99)
    }
    fn codec(&self) -> Arc<dyn PropertyCodec> {
        Arc::new(NoProperties)
    }
    fn accept(&self, _: Seat) -> Box<dyn Connection> {
        Box::new(Line::default())
    }
}

#[derive(Default)]
struct Line {
    partial: Vec<u8>,
    tick: Option<MonotonicMs>,
    user: String,
    vhost: String,
}

impl Line {
    fn word(&mut self, now: Now, line: &str, out: &mut Outputs) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "echo" => say(out, rest),
            "big" => {
                let bytes = vec![b'x'; rest.parse().unwrap_or(0)];
                out.send.put_payload(&bytes.into());
            }
            "login" => {
                self.user = rest.to_owned();
                out.commands.push(Command::Login {
                    token: LOGIN,
                    user: Some(rest.into()),
                    secret: None,
                    client_id: "".into(),
                });
            }
            "enter" => out.commands.push(Command::Enter {
                token: ENTER,
                vhost: "/".into(),
            }),
            "tick" => self.tick = Some(now.monotonic.after(rest.parse().unwrap_or(0))),
            "panic" => panic!("a gateway's bug, as the test asked for"),
            "quit" => end(out, ClosedBy::Peer, "it said quit"),
            _ => end(out, ClosedBy::PeerFault, "no such word"),
        }
    }
}

fn say(out: &mut Outputs, text: &str) {
    out.send.tail().extend_from_slice(text.as_bytes());
    out.send.tail().extend_from_slice(b"\n");
}

fn end(out: &mut Outputs, by: ClosedBy, why: &'static str) {
    let why = Cow::Borrowed(why);
    out.close = Some(Close { by, why });
}

impl Connection for Line {
    fn handle(&mut self, now: Now, input: Input<'_>, out: &mut Outputs) {
        match input {
            Input::Bytes(bytes) => {
                self.partial.extend_from_slice(&bytes);
                while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = self.partial.drain(..=end).collect();
                    let line = String::from_utf8_lossy(&line[..end]).into_owned();
                    self.word(now, &line, out);
                }
            }
            Input::Answers(answers) => {
                for answer in answers.drain(..) {
                    match answer {
                        Answer::Done { token, result } if token == LOGIN => {
                            say(out, if result.is_ok() { "in" } else { "out" });
                        }
                        Answer::Done { token, result } if token == ENTER && result.is_ok() => {
                            self.vhost = "/".to_owned();
                            say(out, "entered");
                        }
                        other => say(out, &format!("{other:?}")),
                    }
                }
            }
            Input::Deliveries(deliveries) => deliveries.clear(),
            Input::Timeout => {
                self.tick = None;
                say(out, "tick");
            }
            Input::Closed => {}
            Input::Stop(reason) => {
                say(out, &format!("stop {reason:?}"));
                end(out, ClosedBy::Us, "it was stopped");
            }
        }
    }

    fn poll_timeout(&self) -> Option<MonotonicMs> {
        self.tick
    }

    fn view(&self) -> ConnectionView {
        ConnectionView {
            protocol: "words 1".to_owned(),
            user: self.user.clone(),
            vhost: self.vhost.clone(),
            ..ConnectionView::default()
        }
    }
}
