//! Runs every file of the fuzz corpus through its target.

#[path = "../fuzz/targets.rs"]
mod targets;

use std::path::Path;

fn replay(name: &str, target: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(name);
    let mut count = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        target(&bytes);
        count += 1;
    }
    assert!(count >= 4, "{count} files for {name}");
}

#[test]
fn frames() {
    replay("frame", targets::frame);
}

#[test]
fn checkpoints() {
    replay("checkpoint", targets::checkpoint);
}

#[test]
fn manifests() {
    replay("manifest", targets::manifest);
}

#[test]
fn runs() {
    replay("run", targets::run);
}

#[test]
fn recovery() {
    replay("recovery", targets::recovery);
}
