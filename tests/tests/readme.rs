//! What the README tells a newcomer to type is run here as it stands, on the ports of a test's node.

use std::process::Command;
use std::time::Duration;

use anabranch_tests::process::Process;
use anabranch_tests::{Node, mosquitto, repository};

const LIMIT: Duration = Duration::from_secs(30);

/// The code blocks of the README in one language.
fn blocks(language: &str) -> Vec<String> {
    let readme = std::fs::read_to_string(repository::root().join("README.md")).unwrap();
    readme
        .split(&format!("```{language}\n"))
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or("").to_owned())
        .collect()
}

fn block(language: &str, begin: &str) -> String {
    let found = blocks(language)
        .into_iter()
        .find(|text| text.starts_with(begin));
    found.unwrap_or_else(|| panic!("no block of {language} begins with `{begin}`"))
}

/// Runs a shell block where `data/` is the node's.
fn shell(name: &str, node: &Node, script: &str) -> Process {
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .current_dir(node.data().parent().expect("data stands in a folder"));
    Process::start(name, &mut command)
}

fn device_reports(node: &Node) {
    let ports = format!("mosquitto_pub -p {}", node.addresses().mqtt.port());
    let script = block("sh", "mosquitto_pub").replacen("mosquitto_pub", &ports, 1);
    let mut device = shell("mosquitto_pub", node, &script);
    let status = device.exit_within(LIMIT).expect("mosquitto_pub ends");
    assert!(status.success(), "{}", device.story());
}

#[test]
fn the_two_commands_to_try_work() {
    let node = Node::secured();
    let ports = format!(
        "amqp-consume --count 1 --port {}",
        node.addresses().amqp.port()
    );
    let script = block("sh", "amqp-consume").replacen("amqp-consume", &ports, 1);
    let mut application = shell("amqp-consume", &node, &script);
    let bound = application
        .stderr
        .wait(0, LIMIT, |line| line.contains("queue name").then_some(()));
    assert!(bound.is_some(), "{}", application.story());
    // It names its queue before it has bound it: report until the reading arrives.
    let mut ended = None;
    for _ in 0..20 {
        device_reports(&node);
        ended = application.exit_within(Duration::from_millis(200));
        if ended.is_some() {
            break;
        }
    }
    assert!(
        ended.is_some_and(|status| status.success()),
        "{}",
        application.story()
    );
    application.stdout.wait(0, LIMIT, |_| None::<()>);
    assert_eq!(application.stdout.all().join("\n"), "21.5");
}

#[test]
fn the_python_application_works() {
    let node = Node::secured();
    let port = format!(
        "ConnectionParameters(\"127.0.0.1\", {},",
        node.addresses().amqp.port()
    );
    let script = block("python", "import pika");
    let at_port = script.replacen("ConnectionParameters(\"127.0.0.1\",", &port, 1);
    assert_ne!(script, at_port, "the address stands in the script");
    let mut command = Command::new(repository::python());
    command
        .args(["-u", "-c", &at_port])
        .current_dir(node.data().parent().unwrap());
    let application = Process::start("README.md", &mut command);
    // The queue is durable, but it must be there before the reading.
    let password = node.admin_password();
    let mut arrived = None;
    for _ in 0..100 {
        let (code, output) = mosquitto::publish(
            node.addresses().mqtt,
            &[
                "-u",
                "admin",
                "-P",
                &password,
                "-q",
                "1",
                "-t",
                "plant/7/temp",
                "-m",
                "21.5",
            ],
        );
        assert_eq!(code, 0, "{output}");
        arrived = application
            .stdout
            .wait(0, Duration::from_millis(200), |line| {
                (line == "plant.7.temp b'21.5'").then_some(())
            });
        if arrived.is_some() {
            break;
        }
    }
    assert!(arrived.is_some(), "{}", application.story());
}
