//! The binary: configuration, command line and wiring.
fn main() {}
