//! Replays the conversation scripts: the whole reads, byte by byte, and in random pieces.
//!
//! Set `REWRITE_SCRIPTS=1` to write what comes out as what is expected; commit such a change only
//! when it is understood.

mod notation;

use std::fs;
use std::path::{Path, PathBuf};

use anabranch_core::gateway::{Command, Connection, Gateway, Input, Outputs, Seat, StopReason};
use anabranch_core::id::{ConnectionId, MonotonicMs, Now, Token, UnixMs, WorkerId};
use anabranch_core::properties::Codecs;
use anabranch_mqtt::codec::{Decoder, Packet, Version, encode};
use anabranch_mqtt::{MqttConfig, MqttGateway};
use bytes::{Bytes, BytesMut};

/// Random fragmentations that each script is replayed at.
const FRAGMENTATIONS: u64 = 20;

/// How a script's reads are cut.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Whole,
    Bytes,
    Random(u64),
}

/// What happens, and what must come out.
struct Step {
    inputs: Vec<String>,
    expected: Vec<String>,
}

struct Script {
    path: PathBuf,
    title: String,
    config: MqttConfig,
    version: Option<Version>,
    steps: Vec<Step>,
}

/// Lines that go into one input when they stand in a row start with the same of these.
fn verb(line: &str) -> &str {
    line.split([' ', 'h']).next().unwrap_or("")
}

/// Whether two lines in a row are one input. Answers to questions are not: the next question
/// follows from the answer.
fn together(first: &str, line: &str) -> bool {
    let published = |line: &str| line.starts_with("! published");
    verb(first) == verb(line)
        && match verb(line) {
            ">" | "*" => true,
            "!" => published(first) && published(line),
            _ => false,
        }
}

impl Script {
    fn read(path: &Path) -> Script {
        let text = fs::read_to_string(path).expect("a readable script");
        let mut lines = text.lines();
        let title = lines.next().unwrap_or("").to_owned();
        let mut script = Script {
            path: path.to_owned(),
            title,
            config: MqttConfig::default(),
            version: None,
            steps: Vec::new(),
        };
        let mut joins = false;
        for line in lines {
            let line = line.trim();
            let is_output = line.starts_with(['<', '?', '=']);
            if line.is_empty() || line.starts_with('#') {
                joins = false;
            } else if let Some(rest) = line.strip_prefix("config ") {
                script.configure(rest);
            } else if let Some(level) = line.strip_prefix("version ") {
                script.version = Some(match level {
                    "3" => Version::V31,
                    "5" => Version::V5,
                    _ => Version::V311,
                });
            } else if is_output {
                script
                    .steps
                    .last_mut()
                    .expect("an input first")
                    .expected
                    .push(line.to_owned());
                joins = false;
            } else {
                let joined = |step: &&mut Step| joins && together(&step.inputs[0], line);
                let last = script.steps.last_mut().filter(joined);
                match last {
                    Some(step) => step.inputs.push(line.to_owned()),
                    None => script.steps.push(Step {
                        inputs: vec![line.to_owned()],
                        expected: Vec::new(),
                    }),
                }
                joins = true;
            }
        }
        script
    }

    fn configure(&mut self, pairs: &str) {
        let mut json = serde_json::to_value(&self.config).expect("a table");
        for pair in pairs.split_whitespace() {
            let (key, value) = pair.split_once('=').expect("key=value");
            json[key] = match value {
                "true" | "false" => (value == "true").into(),
                _ => value
                    .parse::<u64>()
                    .map_or_else(|_| value.into(), Into::into),
            };
        }
        self.config = serde_json::from_value(json).expect("a legal configuration");
    }

    /// Plays all steps and gives the lines that came out of each.
    fn play(&self, cut: Cut) -> Vec<Vec<String>> {
        let mut player = Player::new(self, cut);
        self.steps
            .iter()
            .map(|step| player.step(&step.inputs))
            .collect()
    }

    fn rewrite(&self, outcome: &[Vec<String>]) {
        let text = fs::read_to_string(&self.path).expect("a readable script");
        let mut out = Vec::new();
        let mut step = 0;
        let mut inputs_left = 0;
        for line in text.lines() {
            let trimmed = line.trim();
            if trimmed.starts_with(['<', '?', '=']) {
                continue;
            }
            out.push(line.to_owned());
            let is_input = !(trimmed.is_empty()
                || trimmed.starts_with('#')
                || trimmed.starts_with("config ")
                || trimmed.starts_with("version "));
            if is_input {
                if inputs_left == 0 {
                    inputs_left = self.steps[step].inputs.len();
                }
                inputs_left -= 1;
                if inputs_left == 0 {
                    out.extend(outcome[step].iter().cloned());
                    step += 1;
                }
            }
        }
        fs::write(&self.path, out.join("\n") + "\n").expect("a writable script");
    }
}

struct Player {
    connection: Box<dyn Connection>,
    now: Now,
    cut: Cut,
    version: Version,
    reader: Decoder,
    asked: Vec<Token>,
    over: bool,
}

impl Player {
    fn new(script: &Script, cut: Cut) -> Player {
        let gateway = MqttGateway::new(script.config.clone(), Codecs::default())
            .expect("a legal configuration");
        let now = Now {
            monotonic: MonotonicMs(1_000),
            unix: UnixMs(1_000_000_000),
        };
        let seat = Seat {
            id: ConnectionId::new(WorkerId(0), 1),
            peer: "127.0.0.1:50000".parse().expect("an address"),
            now,
            seed: 42,
        };
        let version = script.version.unwrap_or(Version::V311);
        let mut player = Player {
            connection: gateway.accept(seat),
            now,
            cut,
            version,
            reader: Decoder::new(usize::MAX),
            asked: Vec::new(),
            over: false,
        };
        player.reader.set_version(version);
        player
    }

    fn step(&mut self, inputs: &[String]) -> Vec<String> {
        let mut out = Outputs::default();
        let mut after = Vec::new();
        match verb(&inputs[0]) {
            ">" => {
                let mut bytes = BytesMut::new();
                for line in inputs {
                    self.client_bytes(line, &mut bytes);
                }
                self.feed(bytes.freeze(), &mut out);
            }
            "open" => after = self.open(&inputs[0]),
            "!" => {
                let mut answers: Vec<_> = inputs
                    .iter()
                    .map(|line| notation::answer(&line[1..], &mut self.asked))
                    .collect();
                self.handle(Input::Answers(&mut answers), &mut out);
                assert!(self.over || answers.is_empty(), "all answers are taken");
            }
            "*" => {
                let mut deliveries: Vec<_> = inputs
                    .iter()
                    .map(|line| notation::delivery(&line[1..], self.now))
                    .collect();
                self.handle(Input::Deliveries(&mut deliveries), &mut out);
                assert!(
                    self.over || deliveries.is_empty(),
                    "all deliveries are taken"
                );
            }
            "tick" => {
                let ms: u64 = inputs[0][5..].trim().parse().expect("milliseconds");
                self.now.monotonic = self.now.monotonic.after(ms);
                self.now.unix = self.now.unix.after(ms);
                if self
                    .connection
                    .poll_timeout()
                    .is_some_and(|due| due <= self.now.monotonic)
                {
                    self.handle(Input::Timeout, &mut out);
                }
            }
            "stop" => self.handle(Input::Stop(stop(inputs[0][5..].trim())), &mut out),
            "closed" => self.handle(Input::Closed, &mut out),
            other => panic!("no such line: {other}"),
        }
        let mut lines = self.lines(&mut out);
        lines.append(&mut after);
        lines
    }

    fn handle(&mut self, input: Input<'_>, out: &mut Outputs) {
        assert!(!self.over, "nothing is fed after the end");
        self.connection.handle(self.now, input, out);
        self.over |= out.close.is_some();
    }

    fn client_bytes(&mut self, line: &str, bytes: &mut BytesMut) {
        if let Some(hex) = line.strip_prefix(">hex ") {
            for word in hex.split_whitespace() {
                bytes.extend_from_slice(&[u8::from_str_radix(word, 16).expect("hex")]);
            }
            return;
        }
        let packet = notation::packet(&line[1..]);
        if let Packet::Connect(connect) = &packet {
            self.version = connect.version;
            self.reader.set_version(connect.version);
        }
        encode(&packet, self.version, bytes).expect("the version has such a packet");
    }

    fn feed(&mut self, mut bytes: Bytes, out: &mut Outputs) {
        let mut random = match self.cut {
            Cut::Random(seed) => seed,
            Cut::Whole | Cut::Bytes => 0,
        };
        while !bytes.is_empty() && !self.over {
            let piece = match self.cut {
                Cut::Whole => bytes.len(),
                Cut::Bytes => 1,
                Cut::Random(_) => {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (random >> 33) as usize % 12 + 1
                }
            };
            let piece = bytes.split_to(piece.min(bytes.len()));
            self.handle(Input::Bytes(piece), out);
        }
    }

    /// A whole handshake with yes to everything; gives only what comes out after it.
    fn open(&mut self, line: &str) -> Vec<String> {
        let connect = format!("> {line}");
        let word = if line.contains(" resume") {
            "present"
        } else {
            "new"
        };
        let mut last = self.step(&[connect]);
        for answer in [
            "! principal ann".to_owned(),
            "! done".into(),
            format!("! session {word}"),
        ] {
            last = self.step(&[answer]);
        }
        assert!(
            last[0].starts_with("< connack 0"),
            "the connection opens: {last:?}"
        );
        last.split_off(1)
    }

    fn lines(&mut self, out: &mut Outputs) -> Vec<String> {
        let mut lines = Vec::new();
        self.reader.feed(Bytes::from(out.send.take_all()));
        while let Some(packet) = self
            .reader
            .next_packet()
            .expect("the server's bytes are legal")
        {
            let line = notation::packet_line(&packet, self.version);
            lines.push(format!("< {}", line.trim_end()));
        }
        assert_eq!(self.reader.held_bytes(), 0, "whole packets only");
        for command in out.commands.drain(..) {
            self.asked.extend(question(&command));
            lines.extend(
                notation::command_lines(&command)
                    .iter()
                    .map(|line| format!("? {line}")),
            );
        }
        if let Some(close) = out.close.take() {
            lines.push(format!("= {:?}: {}", close.by, close.why));
        }
        lines
    }
}

/// The token of a command that a `!` line answers.
fn question(command: &Command) -> Option<Token> {
    match command {
        Command::Login { token, .. }
        | Command::Enter { token, .. }
        | Command::OpenSession { token, .. }
        | Command::Subscribe { token, .. }
        | Command::Consume { token, .. }
        | Command::Unsubscribe { token, .. }
        | Command::Receive { token, .. } => Some(*token),
        Command::Forget { token, .. } if *token != Token::NONE => Some(*token),
        _ => None,
    }
}

fn stop(word: &str) -> StopReason {
    match word {
        "shutdown" => StopReason::Shutdown,
        "kicked" => StopReason::Kicked,
        "taken-over" => StopReason::TakenOver,
        "unauthorised" => StopReason::Unauthorised,
        "slow-reader" => StopReason::SlowReader,
        "login-timeout" => StopReason::LoginTimeout,
        other => panic!("no such stop: {other}"),
    }
}

fn scripts() -> Vec<Script> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the scripts are committed")
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    paths.sort();
    paths.iter().map(|path| Script::read(path)).collect()
}

#[test]
fn conversations_go_as_their_scripts_say_at_any_fragmentation() {
    let rewrite = std::env::var_os("REWRITE_SCRIPTS").is_some();
    let mut wrong = Vec::new();
    for script in scripts() {
        let name = script
            .path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        assert!(
            script.title.contains("[MQTT-"),
            "{name}: line one cites the clause"
        );
        if rewrite {
            script.rewrite(&script.play(Cut::Whole));
            continue;
        }
        let cuts = [Cut::Whole, Cut::Bytes]
            .into_iter()
            .chain((1..=FRAGMENTATIONS).map(Cut::Random));
        for cut in cuts {
            for (step, lines) in script.steps.iter().zip(script.play(cut)) {
                if step.expected != lines {
                    wrong.push(format!(
                        "{name} at {cut:?}, after {:?}\n  expected {:#?}\n  came {lines:#?}",
                        step.inputs, step.expected
                    ));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differences, the first:\n{}",
        wrong.len(),
        wrong[0]
    );
}
