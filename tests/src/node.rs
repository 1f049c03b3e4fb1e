//! One node of the real server: started on free ports over a folder of its own, stopped, killed
//! and restarted on the same data and the same ports.
//!
//! Never: shares a folder or a port with another node of the test run.
//! Read next: `api.rs` for what an administrator does to it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::process::Process;
use crate::{Api, repository};

/// How long a start may take, recovery included.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a drain may take.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// What a node is started with.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// `--dev`: anonymous MQTT, AMQP and API `guest`/`guest`.
    pub dev: bool,
    /// The text of a configuration file, passed with `--config`.
    pub config: Option<String>,
    /// More arguments of `serve`.
    pub arguments: Vec<String>,
    /// The data folder, where it is not to lie in a folder of the node's own.
    pub data: Option<PathBuf>,
    /// Environment variables.
    pub environment: Vec<(String, String)>,
}

/// Where a node listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Devices.
    pub mqtt: SocketAddr,
    /// Applications.
    pub amqp: SocketAddr,
    /// API and console.
    pub http: SocketAddr,
}

/// A running node. Dropped, it is killed and its data is deleted.
pub struct Node {
    process: Process,
    start: Start,
    addresses: Addresses,
    data: PathBuf,
    folder: TempDir,
}

impl Node {
    /// A node with users and rules: nobody but `admin` may do anything yet.
    pub fn secured() -> Self {
        Self::start(Start::default())
    }

    /// A node started with `--dev`.
    pub fn dev() -> Self {
        Self::start(Start {
            dev: true,
            ..Start::default()
        })
    }

    /// Starts a node over an empty folder and waits for `ready`.
    ///
    /// # Panics
    /// When it exits or says nothing in time.
    pub fn start(start: Start) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("anabranch-test-")
            .tempdir()
            .unwrap();
        let own = || folder.path().join("data");
        let data = start.data.clone().unwrap_or_else(own);
        let (process, addresses) = launch(&start, folder.path(), &data, None);
        Self {
            process,
            start,
            addresses,
            data,
            folder,
        }
    }

    /// Where it listens.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Where a gateway listens by another transport than plain TCP (`tls`, `ws` or `wss`), as the node
    /// said when it was ready.
    ///
    /// # Panics
    /// When it does not.
    pub fn listener(&self, gateway: &str, transport: &str) -> SocketAddr {
        let named = self.wait_log(Duration::ZERO, |line| {
            let line: Value = serde_json::from_str(line).ok()?;
            let event = line.get("fields").unwrap_or(&line);
            (event.get("message")? == "ready").then(|| event[transport].clone())
        });
        let named = named.unwrap_or_default();
        let text = named.as_str().unwrap_or_default();
        let mut each = text.split(", ").filter_map(|one| one.split_once(' '));
        let found = each.find(|(name, _)| *name == gateway);
        let Some((_, address)) = found else {
            panic!("no {transport} for {gateway} in `ready`: {text:?}");
        };
        address.parse().unwrap()
    }

    /// Its data folder.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Its process number.
    pub fn id(&self) -> i32 {
        self.process.id()
    }

    /// The first password of `admin`, from the file of the first start.
    pub fn admin_password(&self) -> String {
        let file = self.data.join("admin-password");
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        text.trim().to_owned()
    }

    /// The API as `admin`.
    pub fn api(&self) -> Api {
        Api::login(self.addresses.http, "admin", &self.admin_password())
    }

    /// Sends SIGTERM and waits for a clean end.
    ///
    /// # Panics
    /// When it does not end in time, or not with 0.
    pub fn stop(&mut self) {
        self.process.signal(Signal::TERM);
        let status = self.ended();
        assert!(status.success(), "a drained node ends with 0, not {status}");
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.ended();
    }

    /// Sends SIGHUP.
    pub fn hang_up(&mut self) {
        self.process.signal(Signal::HUP);
    }

    /// Sends SIGTERM and returns at once.
    pub fn begin_stop(&mut self) {
        self.process.signal(Signal::TERM);
    }

    /// How it ended.
    ///
    /// # Panics
    /// When it still runs after the time a drain may take.
    pub fn ended(&mut self) -> ExitStatus {
        self.process.exit_within(STOP_LIMIT).unwrap_or_else(|| {
            panic!("the node still runs {STOP_LIMIT:?} after it should have ended")
        })
    }

    /// True when the process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.exit_within(Duration::ZERO).is_some()
    }

    /// Starts again on the same data and the same ports; it must have ended before.
    pub fn restart(&mut self) {
        assert!(self.has_ended(), "stop or kill the node first");
        let (process, addresses) = launch(
            &self.start,
            self.folder.path(),
            &self.data,
            Some(self.addresses),
        );
        assert_eq!(addresses, self.addresses, "a restart keeps its ports");
        self.process = process;
    }

    /// Waits for a log line in which `find` finds something.
    pub fn wait_log<T>(&self, within: Duration, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.process.stdout.wait(0, within, find)
    }

    /// Everything it wrote to both outputs since its last start.
    pub fn output(&self) -> String {
        let mut lines = self.process.stdout.all();
        lines.extend(self.process.stderr.all());
        lines.join("\n")
    }
}

/// Runs the binary to its end with `arguments`; for commands and for starts that must fail.
///
/// # Panics
/// When it still runs after the time a start may take.
pub fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Finished {
    let mut command = Command::new(repository::server());
    command.args(arguments).envs(environment.iter().copied());
    let mut process = Process::start("anabranch", &mut command);
    process.close_stdin();
    let status = process
        .exit_within(START_LIMIT)
        .unwrap_or_else(|| panic!("anabranch {arguments:?} does not end"));
    // The readers end with the process; an impossible line waits for exactly that.
    process.stdout.wait(0, START_LIMIT, |_| None::<()>);
    process.stderr.wait(0, START_LIMIT, |_| None::<()>);
    Finished {
        code: status.code(),
        stdout: process.stdout.all().join("\n"),
        stderr: process.stderr.all().join("\n"),
    }
}

/// A command that has run to its end.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// Both outputs.
    pub fn output(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }
}

fn launch(
    start: &Start,
    folder: &Path,
    data: &Path,
    ports: Option<Addresses>,
) -> (Process, Addresses) {
    let any = || "127.0.0.1:0".to_owned();
    let mut command = Command::new(repository::server());
    command.arg("serve").arg("--data").arg(data);
    command.args(["--log", "json"]);
    command
        .arg("--mqtt")
        .arg(ports.map_or_else(any, |ports| ports.mqtt.to_string()));
    command
        .arg("--amqp")
        .arg(ports.map_or_else(any, |ports| ports.amqp.to_string()));
    command
        .arg("--http")
        .arg(ports.map_or_else(any, |ports| ports.http.to_string()));
    if start.dev {
        command.arg("--dev");
    }
    if let Some(text) = &start.config {
        let file = folder.join("anabranch.toml");
        std::fs::write(&file, text).unwrap();
        command.arg("--config").arg(file);
    }
    command.args(&start.arguments);
    command.envs(start.environment.iter().map(|(name, value)| (name, value)));
    command.current_dir(folder);
    let process = Process::start("node", &mut command);
    match process.stdout.wait(0, START_LIMIT, ready) {
        Some(addresses) => (process, addresses),
        None => panic!("the node did not become ready\n{}", process.story()),
    }
}

/// The addresses in a `ready` line, or `None` for any other line.
fn ready(line: &str) -> Option<Addresses> {
    let line: Value = serde_json::from_str(line).ok()?;
    // A structured log may nest what belongs to an event under `fields`.
    let event = line.get("fields").unwrap_or(&line);
    if event.get("message")? != "ready" {
        return None;
    }
    let address = |name: &str| {
        let text = event.get(name).and_then(Value::as_str);
        let text = text.unwrap_or_else(|| panic!("`ready` without `{name}`: {event}"));
        text.parse()
            .unwrap_or_else(|error| panic!("`{name}` in `ready`: {text}: {error}"))
    };
    Some(Addresses {
        mqtt: address("mqtt"),
        amqp: address("amqp"),
        http: address("http"),
    })
}
