//! Starting and stopping brokers for a comparison: each on free loopback ports, in a temporary
//! folder, in a process group of its own.
//!
//! Owns the life of those processes. Never sends a message through them. Next: `mosquitto.rs`,
//! `rabbitmq.rs`, `anabranch.rs`, `probe.rs`, and `guard.rs` for what happens when we die first.

pub mod anabranch;
pub mod guard;
pub mod mosquitto;
mod probe;
pub mod rabbitmq;

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::row::Feature;
use crate::target::Target;
use guard::Guard;

/// How long a broker may take to be ready.
const START_LIMIT: Duration = Duration::from_secs(90);
/// How long a broker may take to stop before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// Pause between two looks at something that is awaited.
const POLL: Duration = Duration::from_millis(25);
/// Lines of a broker's log shown when it does not start.
const LOG_LINES_SHOWN: usize = 8;

/// Why a broker does not run.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// A file, a process or a port was refused by the system.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The program is not installed.
    #[error("{0} is not installed")]
    NotInstalled(String),
    /// The broker ended before it was ready.
    #[error("{name} ended before it was ready; its last words:\n{log}")]
    Ended {
        /// Which.
        name: String,
        /// The end of its log.
        log: String,
    },
    /// The broker was not ready in time.
    #[error("{name} was not ready within {} s; its last words:\n{log}", START_LIMIT.as_secs())]
    Late {
        /// Which.
        name: String,
        /// The end of its log.
        log: String,
    },
}

fn io_error(doing: impl Into<String>) -> impl FnOnce(io::Error) -> BrokerError {
    let doing = doing.into();
    move |source| BrokerError::Io { doing, source }
}

/// A broker that can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broker {
    /// The server of this repository, by the path of its binary.
    Anabranch(PathBuf),
    /// The same as it was before some change, by the path of an older binary.
    Earlier(PathBuf),
    /// Eclipse Mosquitto as Debian ships it.
    Mosquitto,
    /// RabbitMQ as Debian ships it.
    RabbitMq,
}

impl Broker {
    /// Its name in the report.
    pub fn name(&self) -> &'static str {
        match self {
            Broker::Anabranch(_) => "anabranch",
            Broker::Earlier(_) => "earlier",
            Broker::Mosquitto => "mosquitto",
            Broker::RabbitMq => "rabbitmq",
        }
    }

    /// What it is known to lack; rows that need it are left out.
    pub fn lacks(&self) -> &'static [Feature] {
        match self {
            Broker::Anabranch(_) | Broker::Earlier(_) => &[],
            Broker::Mosquitto => mosquitto::LACKS,
            Broker::RabbitMq => rabbitmq::LACKS,
        }
    }

    /// Starts it and waits until it takes clients.
    ///
    /// # Errors
    /// See [`BrokerError`].
    pub fn start(&self, place: &Place) -> Result<Running, BrokerError> {
        let mut running = match self {
            Broker::Anabranch(binary) | Broker::Earlier(binary) => {
                anabranch::start(place, self.name(), binary)
            }
            Broker::Mosquitto => mosquitto::start(place),
            Broker::RabbitMq => rabbitmq::start(place),
        }?;
        running.target.lacks = self.lacks().to_vec();
        Ok(running)
    }

    /// Its version, as it tells it.
    pub fn version(&self) -> Option<String> {
        match self {
            Broker::Anabranch(binary) | Broker::Earlier(binary) => anabranch::version(binary),
            Broker::Mosquitto => mosquitto::version(),
            Broker::RabbitMq => rabbitmq::version(),
        }
    }

    /// How it is configured where that differs from its own defaults.
    pub fn configuration(&self) -> &'static str {
        match self {
            Broker::Anabranch(_) | Broker::Earlier(_) => anabranch::CONFIGURATION,
            Broker::Mosquitto => mosquitto::CONFIGURATION,
            Broker::RabbitMq => rabbitmq::CONFIGURATION,
        }
    }
}

/// Where brokers may put their files, and who cleans up if we cannot.
#[derive(Clone)]
pub struct Place {
    /// Folder in which each broker gets one of its own.
    pub folder: PathBuf,
    /// Ends brokers and removes folders when this process is gone.
    pub guard: Rc<Guard>,
}

/// A broker that was started here; stopped and removed when dropped.
pub struct Running {
    /// Where it listens.
    pub target: Target,
    name: &'static str,
    // Stopped in this order, then the folder goes.
    processes: Vec<Process>,
    folder: TempDir,
    guard: Rc<Guard>,
}

struct Process {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn new(place: &Place, name: &'static str) -> Result<Self, BrokerError> {
        let folder = tempfile::Builder::new()
            .prefix(&format!("anabranch-bench-{name}-"))
            .tempdir_in(&place.folder)
            .map_err(io_error(format!(
                "making a folder in {}",
                place.folder.display()
            )))?;
        place.guard.watch_folder(folder.path());
        let target = Target {
            name: name.to_owned(),
            ..Target::default()
        };
        Ok(Self {
            target,
            name,
            processes: Vec::new(),
            folder,
            guard: Rc::clone(&place.guard),
        })
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn write(&self, file: &str, text: &str) -> Result<PathBuf, BrokerError> {
        let path = self.path(file);
        std::fs::write(&path, text).map_err(io_error(format!("writing {}", path.display())))?;
        Ok(path)
    }

    /// Starts a process of this broker in a process group of its own; what it prints goes to
    /// `log` in the folder.
    fn spawn(&mut self, command: &mut Command, log: &str) -> Result<u32, BrokerError> {
        let log = self.path(log);
        let file = File::create(&log).map_err(io_error(format!("creating {}", log.display())))?;
        let again = file.try_clone().map_err(io_error("sharing the log"))?;
        let child = command
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(again)
            .process_group(0)
            .spawn()
            .map_err(io_error(format!(
                "starting {}",
                command.get_program().display()
            )))?;
        let pid = child.id();
        self.guard.watch_group(pid);
        // The newest first: it stops before what it stands on.
        self.processes.insert(0, Process { child, log });
        Ok(pid)
    }

    /// Looks again and again until `ready` gives something, and gives it.
    fn await_ready<T>(
        &mut self,
        mut ready: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T, BrokerError> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            if let Some(found) = ready(self) {
                return Ok(found);
            }
            let log = self.last_words();
            let name = self.name.to_owned();
            if !self.is_alive() {
                return Err(BrokerError::Ended { name, log });
            }
            if Instant::now() > deadline {
                return Err(BrokerError::Late { name, log });
            }
            std::thread::sleep(POLL);
        }
    }

    /// The last lines it printed.
    pub fn last_words(&self) -> String {
        self.processes
            .first()
            .map_or_else(String::new, |process| tail(&process.log))
    }

    /// Whether all its processes still run.
    pub fn is_alive(&mut self) -> bool {
        self.processes
            .iter_mut()
            .all(|process| matches!(process.child.try_wait(), Ok(None)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for Process { child, .. } in &mut self.processes {
            let group = Pid::from_child(child);
            let deadline = Instant::now() + STOP_LIMIT;
            // The group may be gone already, which is what is wanted.
            let _ = kill_process_group(group, Signal::TERM);
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(POLL);
            }
            let _ = kill_process_group(group, Signal::KILL);
            let _ = child.wait();
            self.guard.forget_group(child.id());
        }
        // The folder itself goes when `folder` is dropped after this.
    }
}

/// The end of a log, for an error.
fn tail(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_ends_at_once_is_reported_with_its_words() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place {
            folder: folder.path().to_owned(),
            guard: Rc::new(Guard::absent()),
        };
        let mut running = Running::new(&place, "mosquitto").unwrap();
        let mut command = Command::new("/bin/sh");
        running
            .spawn(command.args(["-c", "echo no such luck; exit 3"]), "log")
            .unwrap();
        let error = running.await_ready(|_| None::<()>).unwrap_err();
        assert!(
            matches!(&error, BrokerError::Ended { log, .. } if log == "no such luck"),
            "{error}"
        );
        let path = running.folder.path().to_owned();
        drop(running);
        assert!(!path.exists());
    }

    #[test]
    fn dropping_ends_the_whole_process_group() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place {
            folder: folder.path().to_owned(),
            guard: Rc::new(Guard::absent()),
        };
        let mut running = Running::new(&place, "rabbitmq").unwrap();
        let mut command = Command::new("/bin/sh");
        running
            .spawn(
                command.args(["-c", "sleep 1000 & echo $! > child; wait"]),
                "log",
            )
            .unwrap();
        let child: i32 = running
            .await_ready(|running| {
                std::fs::read_to_string(running.path("child"))
                    .ok()?
                    .trim()
                    .parse()
                    .ok()
            })
            .unwrap();
        drop(running);
        let gone = || match std::fs::read_to_string(format!("/proc/{child}/stat")) {
            // A zombie that its new parent has not waited for is as good as gone.
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        while !gone() {
            assert!(Instant::now() < deadline, "process {child} still runs");
            std::thread::yield_now();
        }
    }
}
