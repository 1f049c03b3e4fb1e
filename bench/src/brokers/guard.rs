//! A second process that cleans up when the first one is gone, however it went.
//!
//! Owns a pipe. The bench tells the guard which process groups and folders it has made; when the
//! pipe closes (normal end, Ctrl-C, a crash or a kill) the guard kills the groups that are left
//! and removes the folders. Never starts anything. Next: `mod.rs`.
//!
//! Lines on the pipe: `+g PID`, `-g PID`, `+f PATH`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{BrokerError, io_error};

/// Name of the hidden command that runs [`run`].
pub const COMMAND: &str = "guard";

/// The bench's end of the pipe.
pub struct Guard {
    process: RefCell<Option<(Child, ChildStdin)>>,
}

impl Guard {
    /// Starts the guard: this same program with the command [`COMMAND`], in a process group of
    /// its own so that Ctrl-C does not reach it.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start() -> Result<Self, BrokerError> {
        let program = std::env::current_exe().map_err(io_error("finding this program"))?;
        let mut child = Command::new(program)
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(io_error("starting the guard"))?;
        let pipe = child.stdin.take();
        Ok(Self {
            process: RefCell::new(pipe.map(|pipe| (child, pipe))),
        })
    }

    /// A guard that does nothing.
    #[cfg(test)]
    pub fn absent() -> Self {
        Self {
            process: RefCell::new(None),
        }
    }

    /// Has the group killed if this process ends first.
    pub fn watch_group(&self, pid: u32) {
        self.tell(&format!("+g {pid}"));
    }

    /// The group is gone; its number may be used by others now.
    pub fn forget_group(&self, pid: u32) {
        self.tell(&format!("-g {pid}"));
    }

    /// Has the folder removed in the end, if it is still there.
    pub fn watch_folder(&self, path: &Path) {
        self.tell(&format!("+f {}", path.display()));
    }

    fn tell(&self, line: &str) {
        if let Some((_, pipe)) = self.process.borrow_mut().as_mut()
            && let Err(error) = writeln!(pipe, "{line}")
        {
            eprintln!(
                "the guard is gone ({error}); brokers are left behind if this is interrupted"
            );
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((mut child, pipe)) = self.process.take() {
            drop(pipe);
            // It has nothing left to do but to end.
            let _ = child.wait();
        }
    }
}

/// What is to be cleaned up.
#[derive(Debug, Default, PartialEq)]
struct Watched {
    groups: BTreeSet<i32>,
    folders: BTreeSet<PathBuf>,
}

impl Watched {
    fn note(&mut self, line: &str) {
        let Some((verb, rest)) = line.split_once(' ') else {
            return;
        };
        match (verb, rest.parse::<i32>()) {
            ("+g", Ok(pid)) => {
                self.groups.insert(pid);
            }
            ("-g", Ok(pid)) => {
                self.groups.remove(&pid);
            }
            ("+f", _) => {
                self.folders.insert(rest.into());
            }
            _ => {}
        }
    }

    fn clean(&self) {
        for group in self.groups.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            // Gone already is as good as killed.
            let _ = kill_process_group(group, Signal::KILL);
        }
        for folder in &self.folders {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// The guard's own life: reads lines until the pipe closes, then cleans up.
pub fn run(lines: impl BufRead) {
    let mut watched = Watched::default();
    for line in lines.lines().map_while(Result::ok) {
        watched.note(&line);
    }
    watched.clean();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_left_is_watched() {
        let mut watched = Watched::default();
        for line in ["+g 10", "+g 11", "+f /a b", "-g 10", "", "?? 4", "+g x"] {
            watched.note(line);
        }
        let expected = Watched {
            groups: [11].into(),
            folders: ["/a b".into()].into(),
        };
        assert_eq!(watched, expected);
    }

    #[test]
    fn when_the_pipe_closes_groups_are_killed_and_folders_removed() {
        let folder = tempfile::tempdir().unwrap().keep();
        std::fs::write(folder.join("file"), "x").unwrap();
        let mut child = Command::new("sleep")
            .arg("1000")
            .process_group(0)
            .spawn()
            .unwrap();
        run(format!("+g {}\n+f {}\n", child.id(), folder.display()).as_bytes());
        assert!(!child.wait().unwrap().success());
        assert!(!folder.exists());
    }
}
