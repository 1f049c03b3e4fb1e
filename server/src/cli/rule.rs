//! `anabranch rule`.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::{Client, Failure, encode, query};
use super::{Output, ServerFlags, output};

const COLUMNS: &[&str] = &[
    "id",
    "effect",
    "priority",
    "subjects",
    "actions",
    "resource.vhost",
    "resource",
    "origin",
    "comment",
];

/// What to do with rules.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// All rules in the order they are asked
    List,
    /// Add a rule
    Add(Box<RuleFlags>),
    /// Delete a rule
    Delete {
        /// Its name
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        id: String,
    },
    /// Say whether somebody may do something, and which rule decides
    Explain(Box<QuestionFlags>),
}

/// A rule in words.
#[derive(Debug, Args)]
pub struct RuleFlags {
    /// Deny instead of allow
    #[arg(long)]
    deny: bool,
    /// Higher is asked first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Whom: KIND:VALUE, such as user:anna, role:sensor, cidr:10.0.0.0/8, or everyone, anonymous; may be
    /// given several times
    #[arg(long = "subject", value_name = "KIND:VALUE", required = true)]
    subjects: Vec<String>,
    /// What they do, such as publish; may be given several times
    #[arg(long = "action", value_name = "ACTION", required = true)]
    actions: Vec<String>,
    /// On what: KIND:MATCH:PATTERN, such as topic:filter:plant/# or queue:literal:jobs; KIND is topic,
    /// exchange, queue, stream, session, admin or *; MATCH is literal, prefix, filter (+ is one level, # any
    /// number of them, at any place), regex or regex-search
    #[arg(long, value_name = "KIND:MATCH:PATTERN", default_value = "*:prefix:")]
    resource: String,
    /// In which vhost; * is any
    #[arg(long, default_value = "/")]
    vhost: String,
    /// Only up to this quality of service
    #[arg(long)]
    max_qos: Option<u8>,
    /// Only messages that are, or are not, to be retained
    #[arg(long)]
    retain: Option<bool>,
    /// Only bodies up to this length
    #[arg(long, value_name = "BYTES")]
    max_body_bytes: Option<u64>,
    /// What it is for
    #[arg(long, default_value = "")]
    comment: String,
}

/// A question to the rules.
#[derive(Debug, Args)]
pub struct QuestionFlags {
    /// Whom it is about; absent: an anonymous one
    #[arg(long, value_name = "USER")]
    who: Option<String>,
    /// The client identifier
    #[arg(long)]
    client_id: Option<String>,
    /// Short name of the protocol
    #[arg(long)]
    protocol: Option<String>,
    /// Address of the client
    #[arg(long)]
    peer: Option<String>,
    /// What is done, such as publish
    #[arg(long)]
    action: String,
    /// In which vhost
    #[arg(long, default_value = "/")]
    vhost: String,
    /// On what kind of thing
    #[arg(long, default_value = "topic")]
    kind: String,
    /// Its name; a topic with / between levels
    #[arg(long)]
    name: String,
    /// Quality of service of the message
    #[arg(long)]
    qos: Option<u8>,
    /// Whether it is to be retained
    #[arg(long)]
    retain: Option<bool>,
    /// Length of its body
    #[arg(long, value_name = "BYTES")]
    body_bytes: Option<u64>,
}

impl RuleFlags {
    fn rule(&self) -> Result<Value, Failure> {
        let mut parts = self.resource.splitn(3, ':');
        let (Some(kind), Some(how), Some(pattern)) = (parts.next(), parts.next(), parts.next())
        else {
            let why = "--resource is KIND:MATCH:PATTERN, such as topic:filter:plant/#";
            return Err(Failure::Usage(why.to_owned()));
        };
        let subject = |text: &String| {
            let (kind, value) = text.split_once(':').unwrap_or((text, ""));
            json!({"kind": kind, "value": value})
        };
        let mut conditions = serde_json::Map::new();
        let given = [
            ("max_qos", self.max_qos.map(Value::from)),
            ("retain", self.retain.map(Value::from)),
            ("max_body_bytes", self.max_body_bytes.map(Value::from)),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                conditions.insert(name.to_owned(), value);
            }
        }
        Ok(json!({
            "comment": self.comment,
            "effect": if self.deny { "deny" } else { "allow" },
            "priority": self.priority,
            "subjects": self.subjects.iter().map(subject).collect::<Vec<_>>(),
            "actions": self.actions,
            "resource": {"vhost": self.vhost, "kind": kind, "match": how, "pattern": pattern},
            "conditions": conditions,
        }))
    }
}

pub(super) fn run(server: &ServerFlags, verb: Verb) -> Result<(), Failure> {
    let client = Client::new(server)?;
    let shape = server.output;
    match verb {
        Verb::List => output::items(shape, &client.get("/rules")?, COLUMNS),
        Verb::Add(flags) => {
            let answer = client.post("/rules", &flags.rule()?)?;
            output::done(
                shape,
                &answer,
                &format!("rule {} added", answer["id"].as_str().unwrap_or_default()),
            );
        }
        Verb::Delete { id } => {
            let answer = client.delete(&format!("/rules/{}", encode(&id)))?;
            output::done(shape, &answer, &format!("rule {id} deleted"));
        }
        Verb::Explain(flags) => {
            let answer = client.get(&format!("/rules/explain{}", flags.query()))?;
            match shape {
                Output::Json => output::json(&answer),
                Output::Table => {
                    let verdict = if answer["allowed"] == true {
                        "allowed"
                    } else {
                        "denied"
                    };
                    let reason = answer["reason"].as_str().unwrap_or_default();
                    output::line(&format!("{verdict}: {reason}"));
                    output::items(shape, &answer["steps"], &["rule", "outcome", "text"]);
                }
            }
        }
    }
    Ok(())
}

impl QuestionFlags {
    fn query(&self) -> String {
        query(&[
            ("user", self.who.clone()),
            ("client_id", self.client_id.clone()),
            ("protocol", self.protocol.clone()),
            ("peer", self.peer.clone()),
            ("action", Some(self.action.clone())),
            ("vhost", Some(self.vhost.clone())),
            ("kind", Some(self.kind.clone())),
            ("name", Some(self.name.clone())),
            ("qos", self.qos.map(|qos| qos.to_string())),
            ("retain", self.retain.map(|retain| retain.to_string())),
            ("body_bytes", self.body_bytes.map(|bytes| bytes.to_string())),
        ])
    }
}
