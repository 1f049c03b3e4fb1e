//! The examples, run as a user would: each ends by itself and says what it promises.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_tests::process::Process;
use anabranch_tests::{Api, Node, repository};
use serde_json::Value;

/// How long an example may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Stands in the expected lines for what a language adds to the names of queues and clients.
const LANGUAGE: &str = "{language}";

const DEVICE_TO_QUEUE: &[&str] = &[
    "application: 21.4 on plant.7.temp (text/plain)",
    "application: 21.6 on plant.7.temp (text/plain)",
    "application: 21.9 on plant.7.temp (text/plain)",
];

const COMMAND_TO_DEVICE: &[&str] = &[
    "application: the command has a taker",
    "device: {\"rpm\": 1200} on command/pump-7/start",
    "application: {\"running\": true} answers start-1",
];

const DEVICE_ASKS: &[&str] = &[
    "device: asks for its interval",
    "application: interval on settings.get",
    "application: reply to mqtt:settings/meter-7/answers",
    "device: 60 s answers question-1",
];

const FAN_OUT: &[&str] = &[
    "application: published one alarm",
    "queue example-alarms-log{language}: pressure is high (alarm.plant-7)",
    "queue example-alarms-mail{language}: pressure is high (alarm.plant-7)",
    "device example-siren{language}: pressure is high (alarm/plant-7)",
    "device example-display{language}: pressure is high (alarm/plant-7)",
];

const KEY_SHARED_WORKERS: &[&str] = &[
    "devices: 6 published 5 readings each",
    "pump-1: 1 2 3 4 5, one worker at a time",
    "pump-2: 1 2 3 4 5, one worker at a time",
    "pump-3: 1 2 3 4 5, one worker at a time",
    "pump-4: 1 2 3 4 5, one worker at a time",
    "pump-5: 1 2 3 4 5, one worker at a time",
    "pump-6: 1 2 3 4 5, one worker at a time",
];

const READ_AGAIN: &[&str] = &[
    "application: 21.4 is offset 0",
    "application: 21.6 is offset 1",
    "application: 21.9 is offset 2",
    "device: 21.6 is offset 1 on plant/8/temp",
    "device: 21.9 is offset 2 on plant/8/temp",
];

const RPC: &[&str] = &[
    "server: the square of 3 is 9",
    "client: 3 squared is 9",
    "client: 7 squared is 49",
    "client: 12 squared is 144",
];

/// Runs an example against a node of its own; its output holds these lines in this order, and it deletes
/// what it declared.
fn shows(mut example: Command, language: &str, lines: &[&str]) {
    let node = Node::dev();
    let addresses = node.addresses();
    example.env("ANABRANCH_MQTT", addresses.mqtt.to_string());
    let amqp = format!("amqp://guest:guest@{}/%2f", addresses.amqp);
    example.env("ANABRANCH_AMQP", amqp);
    let mut process = Process::start("example", &mut example);
    process.close_stdin();
    let mut from = 0;
    for line in lines {
        let line = line.replace(LANGUAGE, language);
        let found = process
            .stdout
            .wait(from, LIMIT, |said| (said == line).then_some(()));
        assert!(found.is_some(), "no line {line:?}\n{}", process.story());
        let all = process.stdout.all();
        from += 1 + all[from..].iter().position(|said| *said == line).unwrap();
    }
    let status = process.exit_within(LIMIT);
    let ended = status.is_some_and(|status| status.success());
    assert!(ended, "it ends with 0: {status:?}\n{}", process.story());
    let deadline = Instant::now() + LIMIT;
    let api = node.api();
    while let Some(left) = left_behind(&api) {
        assert!(Instant::now() < deadline, "it left {left}");
    }
}

/// A queue, session or exchange that was not there at first.
fn left_behind(api: &Api) -> Option<Value> {
    let items = |path| match api.get(path).expect(200)["items"].take() {
        Value::Array(items) => items,
        other => panic!("{path} gives a list: {other}"),
    };
    let mut all = items("/streams").into_iter().chain(items("/exchanges"));
    all.find(|item| item["predeclared"] != true)
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

/// A JavaScript example. Node looks for packages beside the file that imports them, so a copy of it runs
/// beside the packages of the tests.
fn javascript(name: &str) -> Command {
    let packages = repository::root().join("tests/node/node_modules");
    assert!(
        packages.exists(),
        "the Node clients are not installed: run tests/setup.sh"
    );
    let home = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("examples")
        .join(name);
    if home.exists() {
        fs::remove_dir_all(&home).expect("a former copy goes");
    }
    fs::create_dir_all(&home).expect("a folder for the copy");
    symlink(packages, home.join("node_modules")).expect("a link to the packages");
    let copy = home.join(name);
    fs::copy(javascript_folder().join(name), &copy).expect("the example is there");
    let mut command = Command::new("node");
    command.arg(copy);
    command
}

fn javascript_folder() -> PathBuf {
    repository::root().join("examples/javascript")
}

/// An example in its three languages.
macro_rules! examples {
    ($($name:ident: $lines:ident,)*) => {
        $(mod $name {
            use super::*;

            #[test]
            fn in_rust() {
                shows(rust(stringify!($name)), "", $lines);
            }

            #[test]
            fn in_python() {
                shows(python(concat!(stringify!($name), ".py")), "-py", $lines);
            }

            #[test]
            fn in_javascript() {
                shows(javascript(concat!(stringify!($name), ".mjs")), "-js", $lines);
            }
        })*

        /// The names of all examples that run here.
        const RUN: &[&str] = &[$(stringify!($name)),*];
    };
}

examples! {
    device_to_queue: DEVICE_TO_QUEUE,
    command_to_device: COMMAND_TO_DEVICE,
    device_asks: DEVICE_ASKS,
    fan_out: FAN_OUT,
    key_shared_workers: KEY_SHARED_WORKERS,
    read_again: READ_AGAIN,
    rpc: RPC,
}

/// The names of a folder's files with this ending, without it.
fn names(folder: &Path, ending: &str) -> BTreeSet<String> {
    let files = fs::read_dir(folder).expect("the folder is there");
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names
        .filter_map(|name| name.strip_suffix(ending).map(str::to_owned))
        .collect()
}

#[test]
fn every_example_runs_here_in_every_language_and_is_in_the_table() {
    let folder = repository::root().join("examples");
    let run: BTreeSet<String> = RUN.iter().map(|name| name.to_string()).collect();
    assert_eq!(names(&folder, ".rs"), run);
    assert_eq!(names(&folder.join("python"), ".py"), run);
    assert_eq!(names(&javascript_folder(), ".mjs"), run);
    let table = fs::read_to_string(folder.join("README.md")).expect("examples have a README");
    for name in RUN {
        assert!(
            table.contains(&format!("\n| `{name}` |")),
            "{name} is in the table"
        );
    }
}

#[test]
fn javascript_examples_ask_for_the_packages_they_are_tested_with() {
    let dependencies = |folder: PathBuf| {
        let package = fs::read(folder.join("package.json")).expect("a package.json");
        let package: Value = serde_json::from_slice(&package).expect("JSON");
        package["dependencies"].clone()
    };
    let tested = dependencies(repository::root().join("tests/node"));
    let asked = dependencies(javascript_folder());
    let asked = asked.as_object().expect("dependencies");
    assert!(!asked.is_empty());
    for (name, version) in asked {
        assert_eq!(&tested[name], version, "{name}");
    }
}
