//! How the store packs what it writes: compression, and the keys of encryption at rest.
//!
//! Owns: reading the keys from a file or a command, once, at the start.
//! Never: shows a byte of a key; keeps the text that it read.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anabranch_store::journal::Packing;
use anabranch_store::seal::{KeyRing, OsRandom, Sealing};
use zeroize::Zeroizing;

use crate::config::{Config, ConfigError};

/// How long the command may take.
const COMMAND_TIME: Duration = Duration::from_secs(60);
/// Bytes of keys that are read.
const KEYS_BYTES_MAX: u64 = 64 * 1024;

/// What the configuration says, with the keys that it names.
pub(super) fn packing(config: &Config) -> Result<Packing, ConfigError> {
    let store = &config.settings.store;
    let encryption = &store.encryption;
    let (file, command) = (&encryption.key_file, encryption.key_command.as_str());
    let (key, text) = match (file.as_os_str().is_empty(), command.is_empty()) {
        (true, true) => {
            return Ok(Packing {
                compression: store.compression.into(),
                sealing: Sealing::default(),
            });
        }
        (false, true) => ("store.encryption.key_file", read_file(file)),
        (true, false) => ("store.encryption.key_command", run(command)),
        (false, false) => {
            let wanted =
                "empty where store.encryption.key_file is not: the keys come from one of them";
            return Err(config.refuse("store.encryption.key_command", wanted));
        }
    };
    let wanted = |why: &dyn std::fmt::Display| {
        let what = if file.as_os_str().is_empty() {
            "a command that prints keys"
        } else {
            "a readable file of keys"
        };
        config.refuse(key, &format!("{what} ({why})"))
    };
    let text = text.map_err(|error| wanted(&error))?;
    let ring = KeyRing::parse(&text).map_err(|error| wanted(&error))?;
    let sealing = Sealing::new(ring, Arc::new(OsRandom::default()));
    let sealing = if encryption.encrypt {
        sealing
    } else {
        sealing.opening_only()
    };
    match sealing.current() {
        Some(key) => tracing::info!(%key, "what is new is encrypted"),
        None => tracing::info!("what is new is not encrypted; what is there is opened"),
    }
    Ok(Packing {
        compression: store.compression.into(),
        sealing,
    })
}

/// Whether the keys can be used, as far as that can be known without running a command.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let encryption = &config.settings.store.encryption;
    match encryption.key_file.as_os_str().is_empty() && !encryption.key_command.is_empty() {
        true => Ok(()),
        false => packing(config).map(drop),
    }
}

fn read_file(path: &Path) -> io::Result<Zeroizing<String>> {
    let mut file = std::fs::File::open(path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "others than the server's user may read its keys");
    }
    read(&mut file)
}

fn read(from: &mut dyn Read) -> io::Result<Zeroizing<String>> {
    // Room for all of it at once: growing would leave copies behind.
    let mut text = Zeroizing::new(String::with_capacity(KEYS_BYTES_MAX as usize));
    let read = from.take(KEYS_BYTES_MAX).read_to_string(&mut text)?;
    if read as u64 == KEYS_BYTES_MAX {
        return Err(io::Error::other("it is longer than 64 KiB"));
    }
    Ok(text)
}

/// What a command of the shell prints.
fn run(command: &str) -> io::Result<Zeroizing<String>> {
    let mut shell = Command::new("/bin/sh");
    let shell = shell.args(["-c", command]);
    let mut child = shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let (send, told) = channel();
    if let Some(mut out) = child.stdout.take() {
        std::thread::spawn(move || {
            let _ = send.send(read(&mut out));
        });
    }
    let text = told.recv_timeout(COMMAND_TIME);
    let Ok(text) = text else {
        return Err(end(&mut child));
    };
    let text = text?;
    let status = child.wait()?;
    if !status.success() {
        return Err(io::Error::other(format!("it ended with {status}")));
    }
    Ok(text)
}

fn end(child: &mut Child) -> io::Error {
    // Whether it still runs or not: nobody waits for it any more.
    let _ = child.kill();
    let _ = child.wait();
    io::Error::other("it printed no keys within a minute")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_a_file_or_from_a_command() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, "a:b\n").unwrap();
        assert_eq!(*read_file(&path).unwrap(), "a:b\n");
        assert_eq!(*run(&format!("cat {}", path.display())).unwrap(), "a:b\n");
        assert!(
            run("exit 3")
                .unwrap_err()
                .to_string()
                .contains("exit status: 3")
        );
        std::fs::write(&path, vec![b'a'; 70_000]).unwrap();
        assert!(read_file(&path).is_err());
    }
}
