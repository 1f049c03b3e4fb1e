//! The examples, run as a user would: each ends by itself and says what it promises.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anabranch_tests::process::Process;
use anabranch_tests::{Node, repository};

/// How long an example may take.
const LIMIT: Duration = Duration::from_secs(60);

const DEVICE_TO_QUEUE: &[&str] = &[
    "application: 21.4 on plant.7.temp (text/plain)",
    "application: 21.6 on plant.7.temp (text/plain)",
    "application: 21.9 on plant.7.temp (text/plain)",
];

const COMMAND_TO_DEVICE: &[&str] = &[
    "application: the command has a taker",
    "device: {\"rpm\": 1200} on command/pump-7/start",
];

/// Runs an example against a node of its own; its output holds these lines in this order.
fn shows(mut example: Command, lines: &[&str]) {
    let node = Node::dev();
    let addresses = node.addresses();
    example.env("ANABRANCH_MQTT", addresses.mqtt.to_string());
    let amqp = format!("amqp://guest:guest@{}/%2f", addresses.amqp);
    example.env("ANABRANCH_AMQP", amqp);
    let mut process = Process::start("example", &mut example);
    process.close_stdin();
    let mut from = 0;
    for line in lines {
        let found = process
            .stdout
            .wait(from, LIMIT, |said| (said == *line).then_some(()));
        assert!(found.is_some(), "no line {line:?}\n{}", process.story());
        let all = process.stdout.all();
        from += 1 + all[from..].iter().position(|said| said == line).unwrap();
    }
    let status = process.exit_within(LIMIT);
    let ended = status.is_some_and(|status| status.success());
    assert!(ended, "it ends with 0: {status:?}\n{}", process.story());
}

/// A Rust example, built in the profile of the running test.
fn rust(name: &str) -> Command {
    let test = std::env::current_exe().expect("the running test has a path");
    let profile = test.ancestors().nth(2).map(Path::to_path_buf);
    let profile: PathBuf = profile.expect("a test stands in target/<profile>/deps");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.current_dir(repository::root());
    build.args(["build", "--quiet", "--locked"]);
    build.args(["-p", "anabranch-examples", "--example", name]);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(
        build.status().expect("cargo runs").success(),
        "{name} builds"
    );
    Command::new(profile.join("examples").join(name))
}

fn python(name: &str) -> Command {
    let file = repository::root().join("examples/python").join(name);
    let mut command = Command::new(repository::python());
    command.arg("-u").arg(file);
    command
}

#[test]
fn device_to_queue() {
    shows(rust("device_to_queue"), DEVICE_TO_QUEUE);
}

#[test]
fn device_to_queue_in_python() {
    shows(python("device_to_queue.py"), DEVICE_TO_QUEUE);
}

#[test]
fn command_to_device() {
    shows(rust("command_to_device"), COMMAND_TO_DEVICE);
}

#[test]
fn command_to_device_in_python() {
    shows(python("command_to_device.py"), COMMAND_TO_DEVICE);
}
