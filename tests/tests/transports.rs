//! TLS and WebSocket listeners with clients nobody here wrote: paho, mqtt.js, mosquitto, pika, OpenSSL.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anabranch_tests::node::{self, Start};
use anabranch_tests::process::Process;
use anabranch_tests::wire::Wire;
use anabranch_tests::{Agent, Node, mosquitto, repository};
use serde_json::{Value, json};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(30);

/// An authority, and the certificate of a node with its key, as files.
struct Certificates {
    folder: TempDir,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Certificates {
    fn new() -> Certificates {
        let folder = tempfile::tempdir().unwrap();
        let (issuer, pem) = authority("the first");
        std::fs::write(folder.path().join("ca.pem"), pem).unwrap();
        let made = Certificates { folder, issuer };
        made.sign("node", "127.0.0.1");
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.pem"))
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Writes `<file>.pem` and `<file>-key.pem`, signed by the authority, for `name`.
    fn sign(&self, file: &str, name: &str) {
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.use_authority_key_identifier_extension = true;
        let key = rcgen::KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(file), signed.pem()).unwrap();
        std::fs::write(self.path(&format!("{file}-key")), key.serialize_pem()).unwrap();
    }

    /// What a node is started with: these certificates, and every listener there is.
    fn start(&self, more: &str) -> Start {
        let addresses = "tls_address = \"127.0.0.1:0\"\nws_address = \"127.0.0.1:0\"\n\
                         wss_address = \"127.0.0.1:0\"\n";
        let config = format!(
            "[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n{more}\n\
             [gateway.mqtt]\n{addresses}\n[gateway.amqp]\n{addresses}",
            self.text("node"),
            self.text("node-key"),
        );
        Start {
            dev: true,
            config: Some(config),
            ..Start::default()
        }
    }

    /// What a client is told: whom to trust.
    fn trust(&self) -> Value {
        json!({ "ca": self.text("ca") })
    }
}

fn authority(name: &str) -> (rcgen::Issuer<'static, rcgen::KeyPair>, String) {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    let common = rcgen::DnType::CommonName;
    params
        .distinguished_name
        .push(common, format!("{name} authority"));
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (rcgen::Issuer::new(params, key), pem)
}

/// The log's line in which all the words stand.
fn logged(node: &Node, words: &[&str]) -> String {
    let found = node.wait_log(LIMIT, |line| {
        let all = words.iter().all(|word| line.contains(word));
        all.then(|| line.to_owned())
    });
    found.unwrap_or_else(|| panic!("no line with {words:?}\n{}", node.output()))
}

/// What one subscribes to and the other publishes arrives.
fn exchange(from: &mut Agent, to: &mut Agent, topic: &str, body: &str) {
    to.must("subscribe", json!({ "filters": [[topic, 1]] }));
    from.must("publish", json!({ "topic": topic, "body": body, "qos": 1 }));
    assert_eq!(to.take_one()["body"], body);
}

#[test]
fn devices_and_applications_meet_whatever_carries_their_bytes() {
    let certificates = Certificates::new();
    let node = Node::start(certificates.start(""));
    let tls = certificates.trust();
    let amqp = node.listener("amqp", "tls");
    let mut application = Agent::pika().connected(amqp, json!({ "tls": tls }));
    application.must("queue_declare", json!({ "queue": "inbox" }));
    let bind = json!({ "queue": "inbox", "exchange": "amq.topic", "key": "from.#" });
    application.must("queue_bind", bind);
    let long = "long ".repeat(50_000);
    for (transport, over, tls) in [
        ("tls", "tcp", tls.clone()),
        ("ws", "websockets", Value::Null),
        ("wss", "websockets", tls.clone()),
    ] {
        for version in ["3.1.1", "5"] {
            let name = format!("{transport}-{version}");
            let arguments = json!({
                "client_id": name, "version": version, "transport": over, "tls": tls,
            });
            let mut device = Agent::paho().connected(node.listener("mqtt", transport), arguments);
            let topic = format!("from/{transport}");
            device.must("subscribe", json!({ "filters": [[topic, 1]] }));
            for body in ["short", &long] {
                device.must("publish", json!({ "topic": topic, "body": body, "qos": 1 }));
                assert_eq!(device.take_one()["body"], *body, "{name}");
                let got = application.ask("get", json!({ "queue": "inbox", "no_ack": true }));
                assert_eq!(got["body"], *body, "{name}: {got}");
            }
        }
    }
}

#[test]
fn mqtt_js_finds_its_subprotocol() {
    // [MQTT-6.0.0-4]: a client that offered `mqtt` fails when it is not answered.
    let certificates = Certificates::new();
    let node = Node::start(certificates.start(""));
    for (protocol, transport) in [("mqtts", "tls"), ("ws", "ws"), ("wss", "wss")] {
        for version in ["3.1.1", "5"] {
            let arguments = json!({
                "client_id": "page", "version": version, "protocol": protocol,
                "path": "/mqtt", "ca": certificates.text("ca"),
            });
            let mut page = Agent::mqtt_js().connected(node.listener("mqtt", transport), arguments);
            page.must("subscribe", json!({ "filters": [["a/b", 1]] }));
            page.must(
                "publish",
                json!({ "topic": "a/b", "body": protocol, "qos": 1 }),
            );
            assert_eq!(page.take_one()["body"], protocol);
            page.ask("disconnect", json!({}));
        }
    }
}

/// What a page from `host` in Chromium says after it has tried to speak MQTT.
fn page(node: &Node, host: &str) -> Value {
    let mut command = Command::new("node");
    command.arg(repository::root().join("tests/browser/page.mjs"));
    let url = format!("ws://{}/mqtt", node.listener("mqtt", "ws"));
    command.args(["--url", &url, "--from", host]);
    let process = Process::start("page.mjs", &mut command);
    let said = process.stdout.wait(0, Duration::from_secs(90), |line| {
        serde_json::from_str::<Value>(line).ok()
    });
    said.unwrap_or_else(|| panic!("the page says nothing\n{}", process.story()))
}

#[test]
fn a_page_in_a_browser_connects_and_with_dev_only_one_of_this_machine() {
    let certificates = Certificates::new();
    let node = Node::start(certificates.start(""));
    let own = page(&node, "127.0.0.1");
    assert_eq!(own["received"], json!([5, 300_000]), "{own}");
    let strange = page(&node, "elsewhere.example");
    assert_eq!(strange["step"], "refused", "{strange}");
    logged(&node, &["pages of its origin may not connect"]);
}

#[test]
fn mosquittos_clients_trust_the_certificate() {
    let certificates = Certificates::new();
    let node = Node::start(certificates.start(""));
    let to = node.listener("mqtt", "tls");
    let ca = certificates.text("ca");
    let mut subscriber =
        mosquitto::Subscriber::start(to, &["--cafile", &ca, "-t", "plant/#", "-q", "1"], "%t %p");
    let arguments = ["--cafile", &ca, "-t", "plant/7", "-m", "21.5", "-q", "1"];
    assert_eq!(mosquitto::publish(to, &arguments).0, 0);
    assert_eq!(subscriber.take_one(), "plant/7 21.5");
    subscriber.stop();
}

#[test]
fn a_renewed_certificate_drops_nobody_and_a_broken_one_changes_nothing() {
    let mut certificates = Certificates::new();
    let mut node = Node::start(certificates.start(""));
    let (mqtt, wss, amqp) = (
        node.listener("mqtt", "tls"),
        node.listener("mqtt", "wss"),
        node.listener("amqp", "tls"),
    );
    let device = |certificates: &Certificates, id: &str| {
        let arguments = json!({ "client_id": id, "tls": certificates.trust() });
        Agent::paho().connected(mqtt, arguments)
    };
    let mut first = device(&certificates, "first");
    let arguments = json!({
        "client_id": "page", "transport": "websockets", "tls": certificates.trust(),
    });
    let mut page = Agent::paho().connected(wss, arguments);
    let mut application = Agent::pika().connected(amqp, json!({ "tls": certificates.trust() }));
    exchange(&mut first, &mut page, "a", "before");

    // The files change, and nobody says a word.
    let old = certificates.trust();
    let (issuer, pem) = authority("the second");
    certificates.issuer = issuer;
    std::fs::write(certificates.path("second-ca"), pem).unwrap();
    certificates.sign("node", "127.0.0.1");
    logged(&node, &["new connections see the new certificate"]);
    std::fs::copy(certificates.path("second-ca"), certificates.path("ca-now")).unwrap();
    let new = json!({ "ca": certificates.text("ca-now") });
    let mut second = Agent::paho();
    let refused = second.connect(mqtt, json!({ "client_id": "second", "tls": old }));
    let said = refused["refused"].as_str().unwrap_or_default();
    assert!(said.contains("CERTIFICATE_VERIFY_FAILED"), "{refused}");
    let mut second = Agent::paho().connected(mqtt, json!({ "client_id": "second", "tls": new }));
    exchange(&mut first, &mut second, "b", "to the new one");
    exchange(&mut second, &mut page, "c", "to the old one");
    application.must("queue_declare", json!({ "queue": "still-here" }));

    std::fs::write(certificates.path("node"), "no certificate").unwrap();
    node.hang_up();
    logged(&node, &["cannot be used; the old one stays", "node.pem"]);
    let mut third = Agent::paho().connected(mqtt, json!({ "client_id": "third", "tls": new }));
    exchange(&mut third, &mut first, "d", "as before");
}

#[test]
fn clients_need_a_certificate_where_it_is_required() {
    let certificates = Certificates::new();
    certificates.sign("device", "device-7");
    let more = format!("client_ca = \"{}\"", certificates.text("ca"));
    let node = Node::start(certificates.start(&more));
    let own = json!({
        "ca": certificates.text("ca"),
        "certificate": certificates.text("device"),
        "key": certificates.text("device-key"),
    });
    let mqtt = node.listener("mqtt", "tls");
    let mut device = Agent::paho().connected(mqtt, json!({ "client_id": "d", "tls": own }));
    device.must("publish", json!({ "topic": "a", "body": "b", "qos": 1 }));
    let mut application =
        Agent::pika().connected(node.listener("amqp", "tls"), json!({ "tls": own }));
    application.must("queue_declare", json!({ "queue": "mine" }));

    let arguments = json!({ "client_id": "e", "tls": certificates.trust() });
    let answer = Agent::paho().connect(mqtt, arguments);
    let refused = answer.get("refused").or(answer.get("closed"));
    assert!(refused.is_some(), "{answer}");
    logged(&node, &["TLS handshake failed", "sent no certificates"]);
}

#[test]
fn amqp_travels_in_a_websocket_whether_a_subprotocol_is_offered_or_not() {
    let certificates = Certificates::new();
    let node = Node::start(certificates.start(""));
    for offer in ["", "Sec-WebSocket-Protocol: amqp\r\n"] {
        let mut wire = Wire::connect(node.listener("amqp", "ws"));
        let request = format!(
            "GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{offer}Sec-WebSocket-Version: 13\r\n\r\n"
        );
        wire.send(request.as_bytes());
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.extend(wire.receive(1).unwrap());
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        assert_eq!(
            answer.contains("Protocol: amqp"),
            !offer.is_empty(),
            "{answer}"
        );
        // The protocol's header in a frame with a mask of zeros; connection.start comes back in one.
        wire.send(b"\x82\x88\0\0\0\0AMQP\0\0\x09\x01");
        let head = wire.receive(4).unwrap();
        assert_eq!(head[..2], [0x82, 126], "a binary frame of middle length");
        let frame = wire.receive(11).unwrap();
        assert_eq!(
            (&frame[..3], &frame[7..]),
            (&[1, 0, 0][..], &[0, 10, 0, 10][..])
        );
    }
}

#[test]
fn bytes_that_are_no_handshake_are_logged_with_their_peer_and_harm_nobody() {
    let certificates = Certificates::new();
    let node = Node::start(certificates.start(""));
    let connect = anabranch_tests::wire::hex("100f 0004 4d515454 04 02 003c 0003 616263");
    for (transport, handshake) in [("tls", "TLS handshake"), ("ws", "WebSocket opening")] {
        let mut wire = Wire::connect(node.listener("mqtt", transport));
        wire.send(&connect);
        wire.receive_to_end().unwrap();
        let line = logged(&node, &[&format!("its {handshake} failed")]);
        assert!(
            line.contains("127.0.0.1:") && line.contains("\"mqtt\""),
            "{line}"
        );
    }
    Agent::paho().connected(node.addresses().mqtt, json!({ "client_id": "still-there" }));
}

#[test]
fn openssl_agrees_on_both_versions_and_on_no_older_one() {
    let certificates = Certificates::new();
    let node = Node::start(certificates.start(""));
    let to = node.listener("amqp", "tls").to_string();
    for (version, agreed) in [("-tls1_3", true), ("-tls1_2", true), ("-tls1_1", false)] {
        let mut command = Command::new("openssl");
        command.args([
            "s_client",
            "-connect",
            &to,
            "-brief",
            "-verify_return_error",
        ]);
        command.args(["-CAfile", &certificates.text("ca"), version]);
        let mut process = Process::start("openssl", &mut command);
        process.close_stdin();
        let status = process.exit_within(LIMIT).expect("openssl ends");
        process.stderr.wait(0, LIMIT, |_| None::<()>);
        let said = process.stderr.all().join("\n");
        assert_eq!(status.success(), agreed, "{version}: {said}");
        assert_eq!(
            said.contains("Verification: OK"),
            agreed,
            "{version}: {said}"
        );
    }
}

/// `serve` with these flags, which must fail over the configuration.
fn refused(arguments: &[&str], words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    let anywhere = [
        "--mqtt",
        "127.0.0.1:0",
        "--amqp",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ];
    let all = [&["serve", "--data", data], &anywhere[..], arguments].concat();
    let finished = node::run(&all, &[]);
    assert_eq!(finished.code, Some(2), "{}", finished.output());
    for word in words {
        assert!(
            finished.stderr.contains(word),
            "{word} in {}",
            finished.stderr
        );
    }
    assert!(!Path::new(data).exists(), "nothing was begun");
}

#[test]
fn a_tls_listener_without_certificates_does_not_start_and_says_what_to_write() {
    let listener = ["--amqp-tls", "127.0.0.1:0"];
    refused(
        &listener,
        &["`gateway.amqp.tls_address`", "tls.certificate", "tls.key"],
    );
    let certificates = Certificates::new();
    let (node, key) = (certificates.text("node"), certificates.text("node-key"));
    let half = [&listener[..], &["--certificate", &node]].concat();
    refused(&half, &["`tls.key`"]);
    let swapped = [&listener[..], &["--certificate", &key, "--key", &node]].concat();
    refused(&swapped, &["[tls]", &key]);
    let beyond = ["--dev", "--mqtt-ws", "0.0.0.0:0"];
    refused(&beyond, &["--dev", "mqtt", "0.0.0.0:0"]);
}
