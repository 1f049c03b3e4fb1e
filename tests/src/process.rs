//! A child process whose output lines can be waited for, and that never outlives its owner.
//!
//! Owns: reaping, capturing output, waiting with a deadline. Never: sleeps.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How many of the last output lines a failed test shows.
const LINES_SHOWN_MAX: usize = 200;

/// The lines a process wrote so far, in the order they came.
#[derive(Clone, Default)]
pub struct Lines {
    shared: Arc<(Mutex<Captured>, Condvar)>,
}

#[derive(Default)]
struct Captured {
    lines: Vec<String>,
    readers_open: usize,
}

impl Lines {
    fn capture(&self, output: impl Read + Send + 'static) {
        self.shared.0.lock().unwrap().readers_open += 1;
        let lines = self.clone();
        thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut line = Vec::new();
            while reader
                .read_until(b'\n', &mut line)
                .is_ok_and(|length| length > 0)
            {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                lines.change(|captured| captured.lines.push(text));
                line.clear();
            }
            lines.change(|captured| captured.readers_open -= 1);
        });
    }

    fn change(&self, change: impl FnOnce(&mut Captured)) {
        let (captured, changed) = &*self.shared;
        change(&mut captured.lock().unwrap());
        changed.notify_all();
    }

    /// The first value that `find` gives for a line at or after `from`, or `None` when the time is
    /// over or the process has closed its output without such a line.
    pub fn wait<T>(
        &self,
        from: usize,
        within: Duration,
        mut find: impl FnMut(&str) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + within;
        let (captured, changed) = &*self.shared;
        let mut guard = captured.lock().unwrap();
        let mut seen = from;
        loop {
            while seen < guard.lines.len() {
                if let Some(found) = find(&guard.lines[seen]) {
                    return Some(found);
                }
                seen += 1;
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            if guard.readers_open == 0 {
                return None;
            }
            guard = changed.wait_timeout(guard, left).unwrap().0;
        }
    }

    /// A copy of every line so far.
    pub fn all(&self) -> Vec<String> {
        self.shared.0.lock().unwrap().lines.clone()
    }

    fn tail(&self) -> String {
        let lines = self.all();
        lines[lines.len().saturating_sub(LINES_SHOWN_MAX)..].join("\n")
    }
}

/// A running child; dropped, it is killed, and shows its output when the test is failing.
pub struct Process {
    name: String,
    pid: Pid,
    exited: Receiver<ExitStatus>,
    status: Option<ExitStatus>,
    stdin: Option<ChildStdin>,
    /// What it writes to standard output.
    pub stdout: Lines,
    /// What it writes to standard error.
    pub stderr: Lines,
}

impl Process {
    /// Starts `command` with all three standard streams piped.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn start(name: &str, command: &mut Command) -> Self {
        let mut child: Child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start ({command:?}): {error}"));
        let stdout = Lines::default();
        stdout.capture(child.stdout.take().expect("piped"));
        let stderr = Lines::default();
        stderr.capture(child.stderr.take().expect("piped"));
        let stdin = child.stdin.take();
        let pid = Pid::from_child(&child);
        let (tell, exited) = channel();
        thread::spawn(move || {
            if let Ok(status) = child.wait() {
                // The owner may be gone already; then nobody asks.
                tell.send(status).ok();
            }
        });
        Self {
            name: name.to_owned(),
            pid,
            exited,
            status: None,
            stdin,
            stdout,
            stderr,
        }
    }

    /// Writes one line to its standard input.
    ///
    /// # Panics
    /// When the process no longer reads.
    pub fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("standard input is open");
        let written = stdin
            .write_all(line.as_bytes())
            .and_then(|()| stdin.write_all(b"\n"))
            .and_then(|()| stdin.flush());
        if let Err(error) = written {
            panic!(
                "{} no longer reads ({error}):\n{}",
                self.name,
                self.stderr.tail()
            );
        }
    }

    /// Ends its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Sends a signal, unless it has exited already.
    pub fn signal(&mut self, signal: Signal) {
        if self.exit_within(Duration::ZERO).is_none() {
            kill_process(self.pid, signal).expect("a child that was not reaped can be signalled");
        }
    }

    /// How it ended, or `None` when it still runs after `within`.
    pub fn exit_within(&mut self, within: Duration) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = match self.exited.recv_timeout(within) {
                Ok(status) => Some(status),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => panic!("{} was lost", self.name),
            };
        }
        self.status
    }

    /// Its number.
    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// The last lines of both outputs, for a failed test.
    pub fn story(&self) -> String {
        format!(
            "--- {}: standard output\n{}\n--- {}: standard error\n{}\n---",
            self.name,
            self.stdout.tail(),
            self.name,
            self.stderr.tail()
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.story());
        }
        if self.status.is_none() && self.exited.recv_timeout(Duration::ZERO).is_err() {
            // It can only be gone in between, and then there is nothing left to kill.
            kill_process(self.pid, Signal::KILL).ok();
            self.exited.recv_timeout(Duration::from_secs(10)).ok();
        }
    }
}
