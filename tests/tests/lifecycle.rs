//! Starting and stopping: what is printed and opened, what `--dev` adds, how a drain says goodbye,
//! and what makes a start fail with a clear message.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use anabranch_tests::node::{self, Start};
use anabranch_tests::{Agent, Api, Node};
use serde_json::json;

fn start_config(text: &str) -> (tempfile::TempDir, node::Finished) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("anabranch.toml");
    std::fs::write(&file, text).unwrap();
    let data = folder.path().join("data");
    let finished = serve(&[
        "--data",
        data.to_str().unwrap(),
        "--config",
        file.to_str().unwrap(),
    ]);
    (folder, finished)
}

/// `serve` on free ports, which must fail.
fn serve(more: &[&str]) -> node::Finished {
    let mut arguments = vec!["serve"];
    for flag in ["--mqtt", "--amqp", "--http"] {
        if !more.contains(&flag) {
            arguments.extend([flag, "127.0.0.1:0"]);
        }
    }
    arguments.extend(more);
    let finished = node::run(&arguments, &[]);
    assert_ne!(finished.code, Some(0), "{}", finished.output());
    assert!(
        finished.code.is_some(),
        "it exits by itself: {}",
        finished.output()
    );
    assert!(
        !finished.output().contains("panicked"),
        "{}",
        finished.output()
    );
    finished
}

fn says(finished: &node::Finished, words: &[&str]) {
    for word in words {
        assert!(
            finished.output().contains(word),
            "`{word}` in {}",
            finished.output()
        );
    }
}

#[test]
fn the_first_start_makes_one_administrator() {
    let mut node = Node::secured();
    let file = node.data().join("admin-password");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "{}", file.display());
    let folder = std::fs::metadata(node.data()).unwrap().permissions();
    assert_eq!(folder.mode() & 0o777, 0o700, "{}", node.data().display());
    let password = node.admin_password();
    assert!(
        !node.output().contains(&password),
        "logs that a program reads are collected"
    );
    assert!(
        password.len() >= 12,
        "a password of {} characters",
        password.len()
    );
    assert_eq!(node.api().get("/whoami").expect(200)["user"], "admin");

    node.stop();
    node.restart();
    assert_eq!(node.admin_password(), password, "created once");
    assert!(
        !node.output().contains(&password),
        "a later start does not print it"
    );
    assert!(
        node.output().contains("admin-password"),
        "but says where it stands"
    );
    assert_eq!(node.api().get("/whoami").expect(200)["user"], "admin");
}

/// Promise 5: nothing is open by default.
#[test]
fn nobody_comes_in_without_a_user() {
    let node = Node::secured();
    let answer = Agent::paho().connect(node.addresses().mqtt, json!({ "client_id": "a" }));
    assert_eq!(answer["reason"], 0x87, "anonymous: {answer}");
    let answer = Agent::paho().connect(
        node.addresses().mqtt,
        json!({ "client_id": "a", "user": "guest", "password": "guest" }),
    );
    assert!(
        answer["reason"] == 0x86 || answer["reason"] == 0x87,
        "{answer}"
    );
    let answer = Agent::pika().connect(node.addresses().amqp, json!({}));
    assert_eq!(answer["refused"]["code"], 403, "guest/guest: {answer}");
    let api = Api::anonymous(node.addresses().http);
    assert_eq!(api.get("/overview").status, 401);
    let guest = json!({ "user": "guest", "password": "guest", "token": true });
    assert_eq!(api.post("/login", guest).status, 401);
}

#[test]
fn dev_adds_a_guest_with_all_rights_and_says_so() {
    let node = Node::dev();
    Agent::paho().connected(node.addresses().mqtt, json!({ "client_id": "a" }));
    let mut guest = Agent::pika().connected(node.addresses().amqp, json!({}));
    guest.must("queue_declare", json!({ "queue": "q", "durable": true }));
    let api = Api::login(node.addresses().http, "guest", "guest");
    api.get("/users").expect(200);
    assert_eq!(
        node.api().get("/whoami").expect(200)["user"],
        "admin",
        "admin exists as well"
    );
    assert!(
        node.output().to_lowercase().contains("dev"),
        "{}",
        node.output()
    );
}

#[test]
fn dev_refuses_an_address_beyond_loopback() {
    let folder = tempfile::tempdir().unwrap();
    for flag in ["--mqtt", "--amqp", "--http"] {
        let data = folder.path().join("data");
        let finished = serve(&["--dev", "--data", data.to_str().unwrap(), flag, "0.0.0.0:0"]);
        says(&finished, &["--dev", "0.0.0.0"]);
    }
}

#[test]
fn only_the_three_ports_are_opened() {
    let node = Node::secured();
    let mut listening = Vec::new();
    let inodes: Vec<String> = std::fs::read_dir(format!("/proc/{}/fd", node.id()))
        .unwrap()
        .filter_map(|entry| {
            let target = std::fs::read_link(entry.ok()?.path()).ok()?;
            let target = target.to_str()?.to_owned();
            Some(
                target
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .to_owned(),
            )
        })
        .collect();
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let Ok(text) = std::fs::read_to_string(format!("/proc/net/{table}")) else {
            continue;
        };
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let listens = fields[3] == "0A" || table.starts_with("udp");
            if listens && inodes.iter().any(|inode| inode == fields[9]) {
                let (_, port) = fields[1].split_once(':').expect("address:port");
                listening.push(u16::from_str_radix(port, 16).expect("hex"));
            }
        }
    }
    listening.sort_unstable();
    let addresses = node.addresses();
    let mut expected = vec![
        addresses.mqtt.port(),
        addresses.amqp.port(),
        addresses.http.port(),
    ];
    expected.sort_unstable();
    assert_eq!(listening, expected);
}

/// SIGTERM: AMQP 320, MQTT 5 0x8B, and an end with 0.
#[test]
fn a_drain_says_goodbye_in_each_protocol() {
    let mut node = Node::dev();
    let mut device =
        Agent::paho().connected(node.addresses().mqtt, json!({ "client_id": "device" }));
    let mut application = Agent::pika().connected(node.addresses().amqp, json!({}));
    application.must("queue_declare", json!({ "queue": "q" }));
    application.begin("wait_lost", json!({}));
    node.begin_stop();
    let lost = application.finish("wait_lost");
    assert_eq!(lost["connection_closed"]["code"], 320, "{lost}");
    let closed = device.ask("wait_closed", json!({}));
    assert_eq!(closed["closed"]["reason"], 0x8B, "{closed}");
    assert!(node.ended().success());
}

#[test]
fn a_second_server_on_the_same_data_is_refused() {
    let node = Node::secured();
    let data = node.data().to_str().unwrap().to_owned();
    let finished = serve(&["--data", &data]);
    says(&finished, &[&data]);
    node.api().get("/whoami").expect(200);
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    for flag in ["--mqtt", "--amqp", "--http"] {
        let data = folder.path().join("data");
        let finished = serve(&["--data", data.to_str().unwrap(), flag, &address]);
        says(&finished, &[&address]);
    }
}

#[test]
fn a_data_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a-file");
    std::fs::write(&file, "").unwrap();
    let finished = serve(&["--data", file.to_str().unwrap()]);
    says(&finished, &[file.to_str().unwrap()]);
}

#[test]
fn a_configuration_that_is_wrong_is_refused_with_the_place() {
    let (_folder, finished) = start_config("[mqtt\n");
    says(&finished, &["anabranch.toml", "line 1"]);
    let missing = serve(&["--config", "/nonexistent/anabranch.toml"]);
    says(&missing, &["/nonexistent/anabranch.toml"]);
}

#[test]
fn an_unknown_environment_key_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let finished = node::run(
        &["serve", "--data", data.to_str().unwrap()],
        &[("ANABRANCH_NO_SUCH_SECTION__KEY", "1")],
    );
    assert_ne!(finished.code, Some(0));
    says(&finished, &["ANABRANCH_NO_SUCH_SECTION__KEY"]);
}

/// Bytes that rot below what was committed are never cut away silently.
#[test]
fn a_rotten_journal_is_refused_not_shortened() {
    let mut node = Node::start(Start {
        dev: true,
        ..Start::default()
    });
    let mut application = Agent::pika().connected(node.addresses().amqp, json!({}));
    application.must("queue_declare", json!({ "queue": "q", "durable": true }));
    application.must("confirm", json!({}));
    let marker = "a body that is easy to find in a file ".repeat(8);
    for _ in 0..50 {
        application.must(
            "publish",
            json!({ "key": "q", "body": marker, "properties": { "delivery_mode": 2 } }),
        );
    }
    node.kill();
    let rotten = rot_first(node.data(), marker.as_bytes()).expect("the body is in a file");
    let finished = serve(&["--dev", "--data", node.data().to_str().unwrap()]);
    says(&finished, &["corrupt"]);
    assert!(
        finished
            .output()
            .contains(rotten.file_name().unwrap().to_str().unwrap())
            || finished.output().contains(node.data().to_str().unwrap()),
        "says where: {}",
        finished.output()
    );
}

/// Flips one byte in the first place below `folder` that holds `marker`; gives the file.
fn rot_first(folder: &std::path::Path, marker: &[u8]) -> Option<std::path::PathBuf> {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if let Some(found) = rot_first(&path, marker) {
                return Some(found);
            }
            continue;
        }
        let Ok(mut bytes) = std::fs::read(&path) else {
            continue;
        };
        if let Some(at) = bytes
            .windows(marker.len())
            .position(|window| window == marker)
        {
            bytes[at] ^= 0x55;
            std::fs::write(&path, bytes).unwrap();
            return Some(path);
        }
    }
    None
}

/// A part of the data folder that is gone (a disk that is not mounted) used to be made anew, silently.
#[test]
fn a_data_folder_that_is_not_whole_is_refused() {
    let mut node = Node::secured();
    node.stop();
    for part in ["shard-1", "meta"] {
        let (there, aside) = (node.data().join(part), node.data().join("aside"));
        std::fs::rename(&there, &aside).unwrap();
        let finished = serve(&["--data", node.data().to_str().unwrap()]);
        says(&finished, &["not whole", part]);
        std::fs::rename(&aside, &there).unwrap();
    }
    node.restart();
}
