//! The figures that the journal is held to, each beside what it is a ratio of, in one run.
//!
//! `cargo run --release -p anabranch-store --example figures -- WHAT DIR [NAME=NUMBER ...]`
//!
//! | what | measures | numbers and what they are otherwise |
//! |---|---|---|
//! | `append` | records through a group of one, synced, beside a bare loop of the same writes and syncs | `seconds=3` of a round, `rounds=5`, `segment_mib=64` |
//! | `written` | bytes written for each byte of payload, syncs for each message | `messages=200000` |
//! | `read` | catching up, beside reading the same files from front to back | `mib=1024`, `rounds=3` |
//! | `pressure` | what consumers at the end notice of one that walks through history | `mib=4096` of history, `rate=2000` messages a second, `seconds=20` of a round, `rounds=3`, `walk_mb` a second at most |
//! | `shards` | messages through 1, 2 and 4 whole shards on one disk, and what one costs | `seconds=2` of a case |
//! | `memory` | memory of queued messages of 128 bytes | `messages=1000000` |
//!
//! `DIR` should lie on the kind of disk that one cares about; a folder is made in it and removed at the end.

mod append;
mod measure;
mod memory;
mod pressure;
mod read;
mod shards;
mod worker;
mod written;

use measure::Arguments;

/// The server's, which is what is to be measured.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const USAGE: &str = "figures append|written|read|pressure|shards|memory DIR [NAME=NUMBER ...]";

fn main() {
    let Some(arguments) = Arguments::read() else {
        eprintln!("{USAGE}");
        std::process::exit(1);
    };
    let dir = arguments
        .dir
        .join(format!("anabranch-figures-{}", std::process::id()));
    match arguments.what.as_str() {
        "append" => append::run(&dir, &arguments),
        "written" => written::run(&dir, &arguments),
        "read" => read::run(&dir, &arguments),
        "pressure" => pressure::run(&dir, &arguments),
        "shards" => shards::run(&dir, &arguments),
        "memory" => memory::run(&dir, &arguments),
        _ => eprintln!("{USAGE}"),
    }
    let _ = std::fs::remove_dir_all(&dir);
}
