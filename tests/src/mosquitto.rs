//! `mosquitto_pub`, `mosquitto_sub` and `mosquitto_rr` as processes.
//!
//! Never: reports a subscriber as ready before the broker has granted its subscription.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::process::Process;

/// How long a message or an answer may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Marks a line of `mosquitto_sub` that is a message; the others are its log.
const MARK: &str = "> ";

fn command(program: &str, to: SocketAddr) -> Command {
    // Without it, output to a pipe waits for a full buffer.
    let mut command = Command::new("stdbuf");
    command.args([
        "-oL",
        program,
        "-h",
        &to.ip().to_string(),
        "-p",
        &to.port().to_string(),
    ]);
    command
}

/// Publishes with `mosquitto_pub` and gives its exit code and what it printed.
pub fn publish(to: SocketAddr, arguments: &[&str]) -> (i32, String) {
    let mut process = Process::start(
        "mosquitto_pub",
        command("mosquitto_pub", to).args(arguments),
    );
    process.close_stdin();
    let status = process.exit_within(LIMIT).expect("mosquitto_pub ends");
    process.stderr.wait(0, LIMIT, |_| None::<()>);
    process.stdout.wait(0, LIMIT, |_| None::<()>);
    let mut lines = process.stdout.all();
    lines.extend(process.stderr.all());
    (status.code().unwrap_or(-1), lines.join("\n"))
}

/// A running `mosquitto_rr`, which asks and prints the answer.
pub struct Request {
    process: Process,
}

impl Request {
    /// Asks; the answer is waited for in [`Request::answer`].
    pub fn start(to: SocketAddr, arguments: &[&str]) -> Self {
        Self {
            process: Process::start("mosquitto_rr", command("mosquitto_rr", to).args(arguments)),
        }
    }

    /// The first line of the answer.
    ///
    /// # Panics
    /// When none comes in time.
    pub fn answer(self) -> String {
        let line = self
            .process
            .stdout
            .wait(0, LIMIT, |line| Some(line.to_owned()));
        line.unwrap_or_else(|| panic!("no answer\n{}", self.process.story()))
    }
}

/// A running `mosquitto_sub`.
pub struct Subscriber {
    process: Process,
    seen: usize,
}

impl Subscriber {
    /// Subscribes and waits for the grant. `format` is what `-F` takes.
    ///
    /// # Panics
    /// When the broker does not grant the subscription in time.
    pub fn start(to: SocketAddr, arguments: &[&str], format: &str) -> Self {
        let process = Process::start(
            "mosquitto_sub",
            command("mosquitto_sub", to)
                .args(["-d", "-F", &format!("{MARK}{format}")])
                .args(arguments),
        );
        let granted = process.stdout.wait(0, LIMIT, |line| {
            line.starts_with("Subscribed (mid").then_some(())
        });
        assert!(
            granted.is_some(),
            "no SUBACK for {arguments:?}\n{}",
            process.story()
        );
        Self { process, seen: 0 }
    }

    /// The next message, as the format writes it.
    ///
    /// # Panics
    /// When none comes in time.
    pub fn take_one(&mut self) -> String {
        let mut at = 0;
        let seen = self.seen;
        let found = self.process.stdout.wait(0, LIMIT, |line| {
            let message = line.strip_prefix(MARK)?;
            at += 1;
            (at > seen).then(|| message.to_owned())
        });
        self.seen += 1;
        found.unwrap_or_else(|| panic!("no message\n{}", self.process.story()))
    }

    /// Ends it with SIGINT, on which it disconnects.
    pub fn stop(mut self) {
        self.process.signal(Signal::INT);
        assert!(
            self.process.exit_within(LIMIT).is_some(),
            "mosquitto_sub does not end"
        );
    }
}
