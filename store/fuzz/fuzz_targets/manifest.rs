//! A manifest of any bytes: `cargo +nightly fuzz run manifest`. Next: `targets.rs`.
#![no_main]
#[allow(dead_code)]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::manifest(bytes));
