//! Conversations as text: what a client sends and the broker answers, and what must come of it.
//!
//! Each file of `tests/scripts` is run whole and cut at random places; both must give the transcript in
//! the file. Lines: `>` the client sends (lines in a row are one piece, an empty line ends it), `!` the
//! broker answers (several at once joined by `&`),
//! `<` frames sent, `?` commands asked, `=` the connection is over. `% include open` runs another file
//! first without showing it. `UPDATE_SCRIPTS=1` writes what came out into the files: read it before you
//! commit it.

#[path = "script/mod.rs"]
mod script;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anabranch_amqp::{AmqpConfig, AmqpGateway, map};
use anabranch_core::gateway::{Connection, Gateway, Input, Outputs, Seat};
use anabranch_core::id::{ConnectionId, MonotonicMs, Now, UnixMs};
use anabranch_core::properties::Codecs;
use bytes::Bytes;
use script::broker::{self, OtherOrigin, Tokens};
use script::peer;

/// A linear congruential generator: enough to cut bytes at places nobody chose.
struct Cuts(Option<u64>);

impl Cuts {
    /// How many of `len` bytes come next.
    fn next(&mut self, len: usize) -> usize {
        let Some(state) = &mut self.0 else { return len };
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let most = if *state >> 60 == 0 { 4000 } else { 40 };
        ((*state >> 33) as usize % most + 1).min(len)
    }
}

struct Run {
    connection: Box<dyn Connection>,
    now: Now,
    tokens: Tokens,
    cuts: Cuts,
    over: bool,
}

impl Run {
    fn new(seed: Option<u64>) -> Run {
        let mut codecs = Codecs::default();
        codecs.register(map::ORIGIN, AmqpGateway::properties());
        codecs.register(OtherOrigin::TAG, Arc::new(OtherOrigin));
        let config = AmqpConfig {
            body_bytes_max: 100_000,
            ..AmqpConfig::default()
        };
        let gateway = AmqpGateway::new(config, codecs).expect("a good configuration");
        let now = Now {
            monotonic: MonotonicMs(1_000_000),
            unix: UnixMs(1_700_000_000_000),
        };
        let peer = "127.0.0.1:40000".parse().expect("an address");
        let seat = Seat {
            id: ConnectionId(7),
            peer,
            now,
            seed: 42,
        };
        Run {
            connection: gateway.accept(seat),
            now,
            tokens: Tokens::default(),
            cuts: Cuts(seed),
            over: false,
        }
    }

    fn feed(&mut self, input: Input<'_>, out: &mut Outputs) {
        if !self.over {
            self.connection.handle(self.now, input, out);
            self.over = out.close.is_some();
        }
    }

    fn send(&mut self, bytes: &[u8], out: &mut Outputs) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(self.cuts.next(rest.len()));
            self.feed(Input::Bytes(Bytes::copy_from_slice(head)), out);
            rest = tail;
        }
    }

    /// Feeds a block of `!` lines: answers and deliveries in a row are one list each.
    fn say(&mut self, line: &str, out: &mut Outputs) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "deliver" => {
                let count =
                    peer::value(&words, "count").map_or(1, |n| n.parse().expect("a number"));
                let mut deliveries = Vec::new();
                for at in 0..count {
                    let mut delivery = broker::delivery(&words[1..]);
                    delivery.offset.0 += at;
                    deliveries.push(delivery);
                }
                self.feed(Input::Deliveries(&mut deliveries), out);
                assert!(deliveries.is_empty(), "a connection drains its deliveries");
            }
            "time" => {
                let ms = words[1].parse::<u64>().expect("milliseconds");
                self.now = Now {
                    monotonic: self.now.monotonic.after(ms),
                    unix: self.now.unix.after(ms),
                };
                if self
                    .connection
                    .poll_timeout()
                    .is_some_and(|at| at <= self.now.monotonic)
                {
                    self.feed(Input::Timeout, out);
                }
            }
            "stop" => self.feed(Input::Stop(broker::stop_reason(words[1])), out),
            "closed" => self.feed(Input::Closed, out),
            _ => {
                let parts = line.split(" & ");
                let mut answers = parts
                    .map(|part| {
                        broker::answer(&part.split_whitespace().collect::<Vec<_>>(), &self.tokens)
                    })
                    .collect();
                self.feed(Input::Answers(&mut answers), out);
                assert!(answers.is_empty(), "a connection drains its answers");
            }
        }
    }

    /// Runs one block of inputs and gives what came of it.
    fn block(&mut self, sent: &[u8], said: Option<&str>) -> String {
        let mut out = Outputs::default();
        if !sent.is_empty() {
            self.send(sent, &mut out);
        }
        if let Some(line) = said {
            self.say(line, &mut out);
        }
        let mut text = String::new();
        for frame in peer::shown_frames(out.send.take_all()) {
            let _ = writeln!(text, "< {frame}");
        }
        for command in broker::joined(std::mem::take(&mut out.commands)) {
            let _ = writeln!(
                text,
                "? {}",
                broker::shown_command(&command, &mut self.tokens)
            );
        }
        if let Some(close) = out.close {
            let _ = writeln!(text, "= {:?}: {}", close.by, close.why);
        }
        text
    }

    /// Runs a script and gives the whole transcript.
    fn script(&mut self, path: &Path) -> String {
        let source =
            std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut transcript = String::new();
        let mut sent = Vec::new();
        let mut lines = source
            .lines()
            .filter(|line| !line.starts_with(['<', '?', '=']))
            .peekable();
        while let Some(line) = lines.next() {
            let _ = writeln!(transcript, "{line}");
            if let Some(name) = line.strip_prefix("% include ") {
                self.script(&path.with_file_name(format!("{name}.txt")));
            } else if let Some(sends) = line.strip_prefix("> ") {
                sent.extend(peer::bytes_of(sends));
                if !lines.peek().is_some_and(|next| next.starts_with("> ")) {
                    transcript += &self.block(&std::mem::take(&mut sent), None);
                }
            } else if let Some(says) = line.strip_prefix("! ") {
                transcript += &self.block(&[], Some(says));
            }
        }
        transcript
    }
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .expect("scripts are part of the repository")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "txt"))
        .collect();
    all.sort();
    all
}

#[test]
fn every_script_gives_its_transcript() {
    let update = std::env::var_os("UPDATE_SCRIPTS").is_some();
    let mut wrong = String::new();
    for path in scripts() {
        let expected = std::fs::read_to_string(&path).expect("a script");
        let got = Run::new(None).script(&path);
        if got != expected {
            if update {
                std::fs::write(&path, &got).expect("scripts can be written");
            }
            let _ = writeln!(wrong, "--- {}\n{got}", path.display());
        }
    }
    assert!(wrong.is_empty() || update, "other than written:\n{wrong}");
}

#[test]
fn every_script_gives_its_transcript_at_any_fragmentation() {
    for path in scripts() {
        let expected = std::fs::read_to_string(&path).expect("a script");
        for seed in 0..25 {
            let got = Run::new(Some(seed)).script(&path);
            assert_eq!(got, expected, "{} cut with seed {seed}", path.display());
        }
    }
}

#[test]
fn random_frames_never_panic_a_connection() {
    let open = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts/open.txt");
    for seed in 1..400u64 {
        let mut run = Run::new(Some(seed));
        run.script(&open);
        let mut state = seed;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        for _ in 0..30 {
            let (class, method) = anabranch_amqp::wire::method::ALL
                [random() % anabranch_amqp::wire::method::ALL.len()];
            let mut payload = vec![
                (class >> 8) as u8,
                class as u8,
                (method >> 8) as u8,
                method as u8,
            ];
            payload.extend((0..random() % 30).map(|_| (random() % 4) as u8));
            let kind = [1, 1, 1, 1, 2, 3, 8][random() % 7];
            let frame = peer::frame(kind, (random() % 3) as u16, &payload);
            let mut out = Outputs::default();
            run.send(&frame, &mut out);
        }
    }
}
