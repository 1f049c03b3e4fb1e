//! The command line over the API: what each noun does, what it prints, and its exit codes, which
//! scripts rely on.

use anabranch_tests::node::{self, Finished};
use anabranch_tests::{Agent, Node};
use serde_json::{Value, json};

/// Done.
const DONE: Option<i32> = Some(0);
/// Refused or failed.
const REFUSED: Option<i32> = Some(1);
/// The command line is wrong.
const USAGE: Option<i32> = Some(2);
/// No server answers.
const UNREACHABLE: Option<i32> = Some(3);

/// Runs a command as `admin`, whose password it reads from the data folder.
fn run(node: &Node, arguments: &[&str]) -> Finished {
    let url = format!("http://{}", node.addresses().http);
    let data = node.data().to_str().unwrap();
    node::run(&[arguments, &["--url", &url, "--data", data]].concat(), &[])
}

/// Runs a command that succeeds and gives what it printed.
fn done(node: &Node, arguments: &[&str]) -> String {
    let finished = run(node, arguments);
    assert_eq!(finished.code, DONE, "{arguments:?}: {}", finished.output());
    finished.stdout
}

/// Runs a command with `-o json` and gives its value.
fn json_of(node: &Node, arguments: &[&str]) -> Value {
    let text = done(node, &[arguments, &["-o", "json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
}

#[test]
fn version_and_help_need_no_server() {
    let version = node::run(&["version"], &[]);
    assert_eq!(version.code, DONE);
    assert!(
        version.stdout.starts_with("anabranch "),
        "{}",
        version.stdout
    );
    let version = node::run(&["version", "-o", "json"], &[]);
    let version: Value = serde_json::from_str(&version.stdout).unwrap();
    assert_eq!(version["name"], "anabranch");
    let help = node::run(&["--help"], &[]);
    assert_eq!(help.code, DONE);
    assert!(help.stdout.contains("Exit codes"), "{}", help.stdout);
    assert_eq!(node::run(&["nonsense"], &[]).code, USAGE);
    assert_eq!(node::run(&["user", "nonsense"], &[]).code, USAGE);
}

#[test]
fn no_server_has_an_exit_code_of_its_own() {
    let mut node = Node::secured();
    node.stop();
    let finished = run(&node, &["user", "list"]);
    assert_eq!(finished.code, UNREACHABLE, "{}", finished.output());
    assert!(
        finished.stderr.contains("no server answers"),
        "{}",
        finished.stderr
    );
}

#[test]
fn users_are_added_changed_and_deleted() {
    let node = Node::secured();
    let add = [
        "user",
        "add",
        "anna",
        "--new-password",
        "secret of anna",
        "--role",
        "monitoring",
    ];
    done(&node, &add);
    let again = run(&node, &add);
    assert_eq!(again.code, REFUSED, "{}", again.output());
    let users = json_of(&node, &["user", "list"]);
    let anna = users
        .as_array()
        .unwrap()
        .iter()
        .find(|user| user["name"] == "anna")
        .unwrap();
    assert_eq!(anna["roles"], json!(["monitoring"]));
    assert!(
        done(&node, &["user", "list"])
            .lines()
            .any(|line| line.starts_with("anna"))
    );

    let url = format!("http://{}", node.addresses().http);
    let as_anna = |password: &str| {
        node::run(
            &["stream", "list", "--url", &url, "--user", "anna"],
            &[("ANABRANCH_PASSWORD", password)],
        )
    };
    assert_eq!(as_anna("secret of anna").code, DONE);
    assert_eq!(as_anna("wrong").code, REFUSED);
    done(
        &node,
        &["user", "set", "anna", "--new-password", "another secret"],
    );
    assert_eq!(as_anna("secret of anna").code, REFUSED);
    assert_eq!(as_anna("another secret").code, DONE);
    done(&node, &["user", "delete", "anna"]);
    assert_eq!(as_anna("another secret").code, REFUSED);
    assert_eq!(run(&node, &["user", "delete", "anna"]).code, REFUSED);
}

#[test]
fn rules_are_added_explained_and_deleted() {
    let node = Node::secured();
    done(
        &node,
        &["user", "add", "anna", "--new-password", "secret of anna"],
    );
    let explain = [
        "rule",
        "explain",
        "--who",
        "anna",
        "--action",
        "publish",
        "--name",
        "plant/7/temp",
    ];
    assert_eq!(json_of(&node, &explain)["allowed"], false);
    let add = [
        "rule",
        "add",
        "--subject",
        "user:anna",
        "--action",
        "publish",
        "--resource",
        "topic:filter:plant/#",
    ];
    let rule = json_of(&node, &add);
    let id = rule["id"].as_str().expect("a rule has a name");
    let answer = json_of(&node, &explain);
    assert_eq!(
        (&answer["allowed"], &answer["rule"]),
        (&json!(true), &json!(id))
    );
    assert!(done(&node, &explain).starts_with("allowed"));
    // As `rule add` takes it.
    assert!(done(&node, &["rule", "list"]).contains(" topic:filter:plant/# "));
    done(&node, &["rule", "delete", id]);
    assert!(done(&node, &explain).starts_with("denied"));
    // One that makes no sense is refused with the reason.
    let wrong = [
        "rule",
        "add",
        "--subject",
        "user:anna",
        "--action",
        "fly",
        "--resource",
        "topic:filter:#",
    ];
    let finished = run(&node, &wrong);
    assert_eq!(finished.code, REFUSED);
    assert!(finished.stderr.contains("fly"), "{}", finished.stderr);
    for (resource, known) in [
        ("topic:filtr:#", "regex-search"),
        ("topik:filter:#", "session"),
        ("topic:filter:a+/b", "filter"),
    ] {
        let wrong = [
            "rule",
            "add",
            "--subject",
            "user:anna",
            "--action",
            "publish",
            "--resource",
            resource,
        ];
        let finished = run(&node, &wrong);
        assert_eq!(finished.code, REFUSED, "{resource}");
        assert!(finished.stderr.contains(known), "{}", finished.stderr);
    }
    // The name of a deleted rule is not given to another one.
    let next = json_of(&node, &add);
    assert_ne!(next["id"], json!(id));
}

#[test]
fn streams_are_added_filled_looked_into_and_deleted() {
    let node = Node::secured();
    let added = json_of(&node, &["stream", "add", "jobs"]);
    assert!(added.is_object(), "{added}");
    assert_eq!(run(&node, &["stream", "add", ""]).code, USAGE);
    let mut admin = Agent::pika().connected(
        node.addresses().amqp,
        json!({ "user": "admin", "password": node.admin_password() }),
    );
    let binding = json!({ "queue": "jobs", "exchange": "amq.topic", "key": "jobs.#" });
    admin.must("queue_bind", binding);
    for body in ["first", "second"] {
        let routed = json_of(
            &node,
            &[
                "pub",
                "jobs.new",
                body,
                "--content-type",
                "text/plain",
                "--header",
                "k=v",
            ],
        );
        assert_eq!(routed["routed"], 1);
    }
    assert_eq!(json_of(&node, &["pub", "nobody.wants", "it"])["routed"], 0);
    let shown = json_of(&node, &["stream", "show", "jobs"]);
    assert_eq!(
        (&shown["ready"], &shown["kind"]),
        (&json!(2), &json!("queue")),
        "{shown:#}"
    );
    let peeked = done(&node, &["stream", "peek", "jobs"]);
    assert!(
        peeked.contains("first") && peeked.contains("second"),
        "{peeked}"
    );
    let followed = done(&node, &["sub", "jobs", "--count", "2"]);
    assert_eq!(followed, "jobs/new first\njobs/new second");

    // Nothing of that took a message; the application gets both, with their properties.
    admin.must("consume", json!({ "queue": "jobs", "no_ack": false }));
    let messages = admin.take(2);
    assert_eq!(messages[0]["body"], "first");
    assert_eq!(messages[0]["redelivered"], false);
    assert_eq!(messages[0]["key"], "jobs.new");
    assert_eq!(messages[0]["properties"]["content_type"], "text/plain");
    assert_eq!(messages[0]["properties"]["headers"]["k"], "v");

    assert_eq!(
        run(&node, &["stream", "delete", "jobs", "--if-unused"]).code,
        REFUSED
    );
    admin.ask("close", json!({}));
    done(&node, &["pub", "jobs.new", "third"]);
    assert!(done(&node, &["stream", "purge", "jobs"]).contains('3'));
    done(&node, &["stream", "delete", "jobs"]);
    assert_eq!(run(&node, &["stream", "show", "jobs"]).code, REFUSED);
}

/// A queue declared with limits is the one that an application with the same arguments declares.
#[test]
fn a_queues_limits_are_those_of_an_applications_arguments() {
    let node = Node::secured();
    let flags = [
        "stream",
        "add",
        "bounded",
        "--mode",
        "failover",
        "--message-ttl-ms",
        "60000",
        "--messages-max",
        "3",
        "--overflow",
        "reject",
        "--argument",
        "x-delivery-limit=2",
    ];
    done(&node, &flags);
    let shown = json_of(&node, &["stream", "show", "bounded"]);
    assert_eq!(shown["mode"], "failover");
    assert_eq!(
        shown["limits"],
        json!({"message_ttl_ms": 60000, "messages_max": 3, "overflow": "reject", "delivery_limit": 2})
    );
    let mut admin = Agent::pika().connected(
        node.addresses().amqp,
        json!({ "user": "admin", "password": node.admin_password() }),
    );
    let arguments = json!({
        "x-subscription-mode": "failover",
        "x-message-ttl": 60000,
        "x-max-length": 3,
        "x-overflow": "reject-publish",
        "x-delivery-limit": 2,
    });
    admin.must(
        "queue_declare",
        json!({ "queue": "bounded", "durable": true, "arguments": arguments }),
    );
    let other = ["stream", "add", "bounded", "--message-ttl-ms", "1"];
    let refused = run(&node, &other);
    assert_eq!(refused.code, REFUSED, "{}", refused.output());
    let wrong = [
        "stream",
        "add",
        "x",
        "--argument",
        "x-message-deduplication=true",
    ];
    let refused = run(&node, &wrong);
    assert_eq!(refused.code, REFUSED);
    assert!(
        refused.stderr.contains("x-message-deduplication"),
        "{}",
        refused.stderr
    );
    assert_eq!(
        run(&node, &["stream", "add", "x", "--argument", "x-max-length"]).code,
        USAGE
    );
    let insists = ["policy", "set", "sure", "--pattern", "^none$"];
    let strategy = ["--dead-letter-strategy", "at_least_once"];
    done(&node, &[&insists[..], &strategy].concat());
    let listed = json_of(&node, &["policy", "list"]);
    let settings = json!({ "dead_letter_strategy": "at_least_once" });
    assert_eq!(listed[0]["settings"], settings);
    done(&node, &["policy", "delete", "sure"]);
    done(&node, &["stream", "add", "urgent", "--priority-max", "10"]);
    let shown = json_of(&node, &["stream", "show", "urgent"]);
    assert_eq!(shown["limits"], json!({ "priority_max": 10 }));
    assert_eq!(shown["arguments"], json!({ "x-max-priority": 10 }));

    done(
        &node,
        &[
            "policy",
            "set",
            "all",
            "--pattern",
            "^bou",
            "--messages-max",
            "2",
        ],
    );
    let shown = json_of(&node, &["stream", "show", "bounded"]);
    assert_eq!(shown["policies"], json!(["all"]));
    assert_eq!(shown["limits"]["messages_max"], 2, "the lower bound counts");
    let listed = json_of(&node, &["policy", "list"]);
    assert_eq!(listed[0]["pattern"], "^bou");
    done(&node, &["policy", "delete", "all"]);
    let shown = json_of(&node, &["stream", "show", "bounded"]);
    assert_eq!(shown["limits"]["messages_max"], 3, "{shown:#}");
}

#[test]
fn a_subscription_is_moved_by_offset_time_and_end() {
    let node = Node::secured();
    done(&node, &["stream", "add", "jobs"]);
    for body in ["0", "1", "2", "3"] {
        done(&node, &["pub", "jobs", body, "--exchange", ""]);
    }
    let seek = |flags: &[&str]| {
        json_of(&node, &[&["stream", "seek", "jobs"][..], flags].concat())["left"].clone()
    };
    assert_eq!(seek(&["--start"]), 0);
    let peeked = json_of(&node, &["stream", "peek", "jobs"]);
    let second = peeked[1]["offset"].to_string();
    assert_eq!(seek(&["--offset", &second]), 1);
    assert_eq!(seek(&["--time", "2000-01-01T00:00:00Z"]), 0);
    assert_eq!(seek(&["--time", "4000000000000"]), 3);
    done(&node, &["pub", "jobs", "4", "--exchange", ""]);
    assert_eq!(seek(&["--end"]), 1);
    assert_eq!(json_of(&node, &["stream", "show", "jobs"])["ready"], 0);
    for wrong in [
        &["--time", "yesterday"][..],
        &["--offset", "x"][..],
        &[][..],
    ] {
        let finished = run(&node, &[&["stream", "seek", "jobs"][..], wrong].concat());
        assert_ne!(finished.code, DONE, "{wrong:?}");
    }
}

#[test]
fn last_values_are_listed_printed_and_cleared() {
    let node = Node::secured();
    let login =
        json!({ "user": "admin", "password": node.admin_password(), "client_id": "sensor" });
    let mut device = Agent::paho().connected(node.addresses().mqtt, login);
    for number in 0..120 {
        let topic = format!("plant/{number:03}/temp");
        let value = json!({ "topic": topic, "body": number.to_string(), "qos": 1, "retain": true });
        device.must("publish", value);
    }
    let all = json_of(&node, &["retained", "list", "plant/#"]);
    let addresses: Vec<&str> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|value| value["address"].as_str().unwrap())
        .collect();
    assert_eq!(
        addresses.len(),
        120,
        "from all shards, over more than one page"
    );
    assert!(addresses.is_sorted(), "{addresses:?}");
    let some = json_of(&node, &["retained", "list", "plant/+/temp", "--count", "7"]);
    assert_eq!(some.as_array().unwrap().len(), 7);
    assert_eq!(done(&node, &["retained", "get", "plant/042/temp"]), "42");
    done(&node, &["retained", "clear", "plant/042/temp"]);
    for gone in ["get", "clear"] {
        let finished = run(&node, &["retained", gone, "plant/042/temp"]);
        assert_eq!(finished.code, REFUSED, "{}", finished.output());
    }
}

/// Rules on topics and queues hold here too: what somebody may not receive is not shown, what they may not retain
/// is not cleared, and a subscription is moved by those who may consume and purge.
#[test]
fn last_values_and_seek_obey_the_rules() {
    let node = Node::secured();
    for key in ["open.1", "secret.1"] {
        done(&node, &["pub", key, "x", "--retain"]);
    }
    done(&node, &["stream", "add", "jobs"]);
    let add = [
        "user",
        "add",
        "anna",
        "--new-password",
        "secret of anna",
        "--role",
        "management",
    ];
    done(&node, &add);
    let allow = |action: &str, resource: &str| {
        let rule = ["rule", "add", "--subject", "user:anna", "--action", action];
        done(&node, &[&rule[..], &["--resource", resource]].concat());
    };
    allow("receive", "topic:filter:open/#");
    allow("consume", "queue:literal:jobs");
    let url = format!("http://{}", node.addresses().http);
    let as_anna = |arguments: &[&str]| {
        let flags = ["--url", &*url, "--user", "anna", "-o", "json"];
        let password = [("ANABRANCH_PASSWORD", "secret of anna")];
        node::run(&[arguments, &flags].concat(), &password)
    };
    let seen: Value = serde_json::from_str(&as_anna(&["retained", "list"]).stdout).unwrap();
    let addresses: Vec<&Value> = seen
        .as_array()
        .unwrap()
        .iter()
        .map(|value| &value["address"])
        .collect();
    assert_eq!(addresses, [&json!("open/1")]);
    for refused in [
        &["retained", "clear", "open/1"][..],
        &["stream", "seek", "jobs", "--end"][..],
        &["policy", "set", "p", "--pattern", "a"][..],
    ] {
        let finished = as_anna(refused);
        assert_eq!(finished.code, REFUSED, "{refused:?}: {}", finished.output());
    }
    allow("purge", "queue:literal:jobs");
    allow("publish", "topic:filter:open/#");
    allow("retain", "topic:filter:open/#");
    assert_eq!(as_anna(&["stream", "seek", "jobs", "--end"]).code, DONE);
    assert_eq!(as_anna(&["retained", "clear", "open/1"]).code, DONE);
    assert_eq!(as_anna(&["retained", "get", "open/1"]).code, REFUSED);
}

#[test]
fn exchanges_and_bindings_are_added_listed_and_deleted() {
    let node = Node::secured();
    done(&node, &["exchange", "add", "orders", "--alternate", "rest"]);
    done(&node, &["exchange", "add", "rest", "--kind", "fanout"]);
    done(&node, &["exchange", "add", "orders-eu"]);
    for queue in ["eu", "lost"] {
        done(&node, &["stream", "add", queue]);
    }
    done(
        &node,
        &[
            "binding",
            "add",
            "orders",
            "orders-eu",
            "eu.#",
            "--to-exchange",
        ],
    );
    done(&node, &["binding", "add", "orders-eu", "eu", "*.new"]);
    done(&node, &["binding", "add", "rest", "lost"]);
    let published =
        |key: &str| json_of(&node, &["pub", key, "x", "--exchange", "orders"])["routed"].clone();
    assert_eq!(
        (published("eu.new"), published("us.new")),
        (json!(1), json!(1))
    );
    for queue in ["eu", "lost"] {
        assert_eq!(
            json_of(&node, &["stream", "show", queue])["ready"],
            1,
            "{queue}"
        );
    }
    // To an application it is the exchange that it would declare.
    let mut admin = Agent::pika().connected(
        node.addresses().amqp,
        json!({ "user": "admin", "password": node.admin_password() }),
    );
    admin.must(
        "exchange_declare",
        json!({ "exchange": "orders", "exchange_type": "topic", "durable": true, "arguments": { "alternate-exchange": "rest" } }),
    );
    let listed = json_of(&node, &["exchange", "list"]);
    let orders = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == "orders");
    assert_eq!(orders.unwrap()["alternate"], "rest");
    let onwards = json_of(&node, &["binding", "list", "--exchange", "orders"]);
    assert_eq!(onwards[0]["destination_kind"], "exchange", "{onwards:#}");
    let delete = [
        "binding",
        "delete",
        "orders",
        "orders-eu",
        "eu.#",
        "--to-exchange",
    ];
    done(&node, &delete);
    assert_eq!(
        json_of(&node, &["binding", "list", "--exchange", "orders"]),
        json!([])
    );
    let used = ["exchange", "delete", "rest", "--if-unused"];
    assert_eq!(run(&node, &used).code, REFUSED);
    done(&node, &["exchange", "delete", "rest"]);
    assert_eq!(run(&node, &["exchange", "delete", "rest"]).code, REFUSED);
}

/// What devices subscribe to is in the list of bindings, and a group in that of streams.
#[test]
fn live_subscriptions_and_groups_are_listed() {
    let node = Node::secured();
    let login = json!({ "user": "admin", "password": node.admin_password(), "client_id": "panel" });
    let mut device = Agent::paho().connected(node.addresses().mqtt, login);
    device.must("subscribe", json!({ "filters": [["plant/+/temp", 1]] }));
    device.must(
        "subscribe",
        json!({ "filters": [["$share/workers/jobs/#", 1]] }),
    );
    let bound = json_of(&node, &["binding", "list", "--to", "panel"]);
    assert_eq!(bound[0]["destination_kind"], "session", "{bound:#}");
    assert_eq!(
        (&bound[0]["exchange"], &bound[0]["pattern"]),
        (&json!("amq.topic"), &json!("plant.*.temp"))
    );
    let group = json_of(&node, &["stream", "show", "$share/workers/jobs/#"]);
    assert_eq!(group["kind"], "group", "{group:#}");
    assert_eq!(
        (&group["group"], &group["filter"], &group["mode"]),
        (&json!("workers"), &json!("jobs/#"), &json!("shared"))
    );
    assert_eq!(group["members"][0]["client_id"], "panel");
    let bound = json_of(&node, &["binding", "list", "--to", "$share/workers/jobs/#"]);
    assert_eq!(bound[0]["destination_kind"], "group", "{bound:#}");
}

#[test]
fn connections_are_listed_and_closed() {
    let node = Node::secured();
    let password = node.admin_password();
    let login = json!({ "user": "admin", "password": password, "client_id": "sensor-7" });
    let mut device = Agent::paho().connected(node.addresses().mqtt, login);
    let mut application = Agent::pika().connected(
        node.addresses().amqp,
        json!({ "user": "admin", "password": password }),
    );
    application.must("queue_declare", json!({ "queue": "q" }));
    let list = json_of(&node, &["connection", "list"]);
    let rows = list.as_array().unwrap();
    let of = |protocol: &str| {
        let mut rows = rows.iter().filter(|row| {
            let shown = row["protocol"].as_str().unwrap_or_default();
            shown.to_lowercase().starts_with(protocol)
        });
        rows.next()
            .unwrap_or_else(|| panic!("{protocol} in {list:#}"))
    };
    assert_eq!(of("mqtt")["client_id"], "sensor-7");
    assert_eq!(of("amqp")["user"], "admin");

    // An administrator's close has each protocol's own reason: 0x98 and 320.
    application.begin("wait_lost", json!({}));
    for protocol in ["mqtt", "amqp"] {
        done(
            &node,
            &["connection", "close", of(protocol)["id"].as_str().unwrap()],
        );
    }
    let closed = device.ask("wait_closed", json!({}));
    assert_eq!(closed["closed"]["reason"], 0x98, "{closed}");
    let lost = application.finish("wait_lost");
    assert_eq!(lost["connection_closed"]["code"], 320, "{lost}");
    assert_eq!(
        run(&node, &["connection", "close", "no-such-id"]).code,
        REFUSED
    );
}

#[test]
fn configuration_is_shown_with_its_sources() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("anabranch.toml");
    std::fs::write(&file, "[log]\nlevel = \"debug\"\n").unwrap();
    let path = file.to_str().unwrap();
    let shown = node::run(
        &[
            "config",
            "show",
            "--sources",
            "--config",
            path,
            "--http",
            "127.0.0.1:9999",
        ],
        &[("ANABRANCH_STORE__DATA_SHARDS", "3")],
    );
    assert_eq!(shown.code, DONE, "{}", shown.output());
    let line = |key: &str| {
        let mut lines = shown.stdout.lines().filter(|line| line.starts_with(key));
        lines
            .next()
            .unwrap_or_else(|| panic!("{key} in {}", shown.stdout))
            .to_owned()
    };
    for (key, value, source) in [
        ("log.level", "debug", "anabranch.toml"),
        ("store.data_shards", "3", "ANABRANCH_STORE__DATA_SHARDS"),
        ("http.address", "127.0.0.1:9999", "--http"),
        ("gateway.mqtt.address", "0.0.0.0:1883", "default"),
    ] {
        let line = line(key);
        assert!(line.contains(value) && line.contains(source), "{line}");
    }
}

/// A wrong configuration has one exit code, whoever reads it, and says where the wrong value stands.
#[test]
fn a_wrong_configuration_is_a_wrong_command_line() {
    let limit = "ANABRANCH_GATEWAY__MQTT__RECEIVE_MAX";
    let cases: [(&[&str], &str, &str, &str); 4] = [
        (&[], limit, "70000", "1 to 65535, not 70000"),
        (&[], "ANABRANCH_LOG__LEVEL", "a=b=c", "log.level"),
        (&[], "ANABRANCH_NODE_DATA", "x", "ANABRANCH_NODE__DATA"),
        (&["--dev"], "ANABRANCH_HTTP__ADDRESS", "0.0.0.0:0", "--dev"),
    ];
    for (flags, variable, value, said) in cases {
        for command in [&["config", "check"][..], &["serve"][..]] {
            let arguments = [command, flags].concat();
            let finished = node::run(&arguments, &[(variable, value)]);
            assert_eq!(finished.code, USAGE, "{arguments:?} {variable}={value}");
            assert!(finished.stderr.contains(said), "{}", finished.stderr);
        }
    }
    assert_eq!(node::run(&["config", "check", "--dev"], &[]).code, DONE);
}

/// What the store needs can be looked at without a server that asks for it.
#[test]
fn keys_and_object_store_are_checked_with_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    let line = |name: &str| format!("{name}:{}A=\n", "B".repeat(42));
    let path = keys.display().to_string();
    let missing = folder.path().join("none").display().to_string();
    const FILE: &str = "ANABRANCH_STORE__ENCRYPTION__KEY_FILE";
    let url = ("ANABRANCH_STORE__TIER__URL", "s3://bucket");
    let check = |variables: &[(&str, &str)]| node::run(&["config", "check"], variables);
    std::fs::write(&keys, line("first") + &line("second")).unwrap();
    let sound = check(&[(FILE, &path), url]);
    assert_eq!(sound.code, DONE, "{}", sound.output());
    for (text, word) in [
        (line("first") + &line("first"), "a second time"),
        ("first:short\n".to_owned(), "line 1"),
    ] {
        std::fs::write(&keys, text).unwrap();
        let told = check(&[(FILE, &path)]);
        assert_eq!(told.code, USAGE, "{}", told.output());
        assert!(told.stderr.contains(word), "{}", told.stderr);
    }
    for (variables, word) in [
        (vec![(FILE, missing.as_str())], missing.as_str()),
        (
            vec![("ANABRANCH_STORE__TIER__URL", "gs://b")],
            "store.tier.url",
        ),
        (
            vec![url, ("ANABRANCH_STORE__TIER__ENDPOINT", "http://h:9")],
            "allow_http",
        ),
        (
            vec![url, ("ANABRANCH_STORE__TIER__ACCESS_KEY_ID", "id")],
            "secret_access_key_file",
        ),
    ] {
        let told = check(&variables);
        assert_eq!(told.code, USAGE, "{}", told.output());
        assert!(told.stderr.contains(word), "{word}: {}", told.stderr);
    }
}

/// An unknown key is refused and the nearest known one is named.
#[test]
fn unknown_keys_are_refused_with_the_nearest() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("anabranch.toml");
    std::fs::write(&file, "[log]\nlevle = \"debug\"\n").unwrap();
    let shown = node::run(&["config", "show", "--config", file.to_str().unwrap()], &[]);
    assert!(shown.code != DONE, "{}", shown.output());
    for word in ["log.levle", "log.level", "anabranch.toml"] {
        assert!(shown.stderr.contains(word), "{word} in {}", shown.stderr);
    }
    for (variable, value, word) in [
        ("ANABRANCH_LOG__LEVLE", "debug", "ANABRANCH_LOG__LEVEL"),
        ("ANABRANCH_STORE__DATA_SHARDS", "many", "store.data_shards"),
        ("ANABRANCH_STORE__DATA_SHARDS", "0", "store.data_shards"),
        ("ANABRANCH_HTTP__ADDRESS", "nowhere", "http.address"),
    ] {
        let shown = node::run(&["config", "show"], &[(variable, value)]);
        assert!(shown.code != DONE, "{variable}={value}: {}", shown.output());
        assert!(shown.stderr.contains(word), "{word} in {}", shown.stderr);
    }
}
