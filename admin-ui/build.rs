//! Builds the crate again when a file of the console comes, changes or goes.

fn main() {
    println!("cargo::rerun-if-changed=assets");
}
