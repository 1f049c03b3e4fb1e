//! Where things stand in the repository: its root, the foreign clients, the server's binary.
//!
//! Never: builds anything but the server, and that once per process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The repository's root folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ stands in the repository")
}

/// The Python interpreter that has the foreign clients; `tests/setup.sh` makes it.
pub fn python() -> PathBuf {
    let python = root().join(".venv/bin/python");
    assert!(
        python.exists(),
        "the Python clients are not installed: run tests/setup.sh"
    );
    python
}

/// The server's binary, of the same source as the test that asks.
///
/// `ANABRANCH_BIN` names it where the caller has just built it, as `tests/run.sh` does; otherwise
/// cargo builds it here, in the profile of the running test.
pub fn server() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("ANABRANCH_BIN") {
        Some(path) => PathBuf::from(path),
        None => build_server(),
    })
}

fn build_server() -> PathBuf {
    // target/<profile>/deps/<test> -> target/<profile>
    let test = std::env::current_exe().expect("the running test has a path");
    let profile = test
        .ancestors()
        .nth(2)
        .expect("a test stands in target/<profile>/deps");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build
        .current_dir(root())
        .args(["build", "--quiet", "--locked", "-p", "anabranch"]);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let status = build.status().expect("cargo runs");
    assert!(status.success(), "the server does not build");
    profile.join("anabranch")
}
