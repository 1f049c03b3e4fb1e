//! Foreign clients as processes that do one operation per line: paho-mqtt and pika (Python),
//! mqtt.js and amqplib (Node). The verbs stand in `py/*_agent.py` and `node/*_agent.mjs`.
//!
//! Never: speaks a protocol itself, or takes what a broker refuses for a failure.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::process::Process;
use crate::repository;

/// How long an operation of a client may take before the test fails.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// One foreign client.
pub struct Agent {
    process: Process,
    answers: usize,
}

impl Agent {
    /// paho-mqtt: MQTT 3.1.1 and 5.0.
    pub fn paho() -> Self {
        Self::python("mqtt_agent.py")
    }

    /// pika: AMQP 0-9-1.
    pub fn pika() -> Self {
        Self::python("amqp_agent.py")
    }

    /// mqtt.js: MQTT 3.1.1 and 5.0.
    pub fn mqtt_js() -> Self {
        Self::node("mqtt_agent.mjs")
    }

    /// amqplib: AMQP 0-9-1 with publisher confirms.
    pub fn amqplib() -> Self {
        Self::node("amqp_agent.mjs")
    }

    fn python(script: &str) -> Self {
        let mut command = Command::new(repository::python());
        command
            .arg("-u")
            .arg(repository::root().join("tests/py").join(script));
        Self {
            process: Process::start(script, &mut command),
            answers: 0,
        }
    }

    fn node(script: &str) -> Self {
        let mut command = Command::new("node");
        command.arg(repository::root().join("tests/node").join(script));
        Self {
            process: Process::start(script, &mut command),
            answers: 0,
        }
    }

    /// Asks for an operation and gives its answer.
    ///
    /// # Panics
    /// When the client itself failed: an exception, or no answer in time.
    pub fn ask(&mut self, operation: &str, arguments: Value) -> Value {
        self.begin(operation, arguments);
        self.finish(operation)
    }

    /// Asks for an operation without waiting for its answer; [`Agent::finish`] does.
    pub fn begin(&mut self, operation: &str, arguments: Value) {
        let mut request = json!({ "do": operation });
        merge(&mut request, arguments);
        self.process.say(&request.to_string());
    }

    /// The answer to the operation that was begun.
    ///
    /// # Panics
    /// As [`Agent::ask`].
    pub fn finish(&mut self, operation: &str) -> Value {
        let line = self
            .process
            .stdout
            .wait(self.answers, ANSWER_LIMIT, |line| {
                serde_json::from_str::<Value>(line).ok()
            });
        let Some(mut answer) = line else {
            panic!("no answer to `{operation}`\n{}", self.process.story());
        };
        self.answers += 1;
        match answer.get_mut("ok") {
            Some(ok) => ok.take(),
            None => panic!("`{operation}` failed: {answer}\n{}", self.process.story()),
        }
    }

    /// Connects to `to`; `more` holds the other arguments.
    pub fn connect(&mut self, to: SocketAddr, more: Value) -> Value {
        let mut arguments = json!({ "host": to.ip().to_string(), "port": to.port() });
        merge(&mut arguments, more);
        self.ask("connect", arguments)
    }

    /// Connects, which must succeed.
    ///
    /// # Panics
    /// When the broker refuses.
    pub fn connected(mut self, to: SocketAddr, more: Value) -> Self {
        let answer = self.connect(to, more);
        let refused = answer.get("refused").or(answer.get("closed"));
        let reason = answer.get("reason").and_then(Value::as_i64).unwrap_or(0);
        assert!(
            refused.is_none() && reason == 0,
            "refused: {answer}\n{}",
            self.process.story()
        );
        self
    }

    /// Asks for an operation that the broker must not answer with a close, a return or a negative
    /// acknowledgement, nor with a reason code of 0x80 or above.
    ///
    /// # Panics
    /// When it does, or the client fails.
    pub fn must(&mut self, operation: &str, arguments: Value) -> Value {
        let answer = self.ask(operation, arguments.clone());
        let bad = [
            "closed",
            "channel_closed",
            "connection_closed",
            "returned",
            "nacked",
        ];
        let refused = bad.iter().any(|name| answer.get(name).is_some())
            || answer["reasons"].as_array().is_some_and(|reasons| {
                reasons
                    .iter()
                    .any(|reason| reason.as_i64().is_some_and(|code| code >= 0x80))
            });
        assert!(
            !refused,
            "{operation} {arguments}: {answer}\n{}",
            self.process.story()
        );
        answer
    }

    /// Exactly `count` messages.
    ///
    /// # Panics
    /// When fewer came within the client's time.
    pub fn take(&mut self, count: usize) -> Vec<Value> {
        let mut answer = self.ask("take", json!({ "count": count, "within_ms": 20_000 }));
        let Value::Array(messages) = answer["messages"].take() else {
            panic!("no list of messages: {answer}");
        };
        assert_eq!(
            messages.len(),
            count,
            "{count} messages wanted, got {messages:#?} {answer}\n{}",
            self.process.story()
        );
        messages
    }

    /// Exactly one message.
    pub fn take_one(&mut self) -> Value {
        self.take(1).remove(0)
    }

    /// Ends the client without a word to the broker, as a lost device does.
    pub fn vanish(mut self) {
        self.process.signal(rustix::process::Signal::KILL);
        self.process.exit_within(ANSWER_LIMIT);
    }
}

/// Adds the members of `more` to the object `into`.
fn merge(into: &mut Value, more: Value) {
    let (Value::Object(into), Value::Object(more)) = (into, more) else {
        panic!("arguments are objects");
    };
    into.extend(more);
}
