//! The objects of `API.md` about people: users, rules, and questions to the rules.
//!
//! Owns names and shapes only. What a rule means stands in the crate that decides.

use serde::{Deserialize, Serialize};

/// A user, never with a password.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct User {
    /// The name.
    pub name: String,
    /// Roles: console roles and others that rules speak of.
    pub roles: Vec<String>,
    /// Groups that rules speak of.
    pub groups: Vec<String>,
    /// Whether it comes from the configuration and cannot be changed here.
    pub protected: bool,
}

/// A user to create.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    /// The name, 1 to 128 bytes.
    pub name: String,
    /// The first password.
    pub password: String,
    /// Roles.
    #[serde(default)]
    pub roles: Vec<String>,
    /// Groups.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// A change to a user; what is absent stays.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserChange {
    /// The new password.
    #[serde(default)]
    pub password: Option<String>,
    /// All roles from now on.
    #[serde(default)]
    pub roles: Option<Vec<String>>,
    /// All groups from now on.
    #[serde(default)]
    pub groups: Option<Vec<String>>,
}

/// A rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name in verdicts; ignored in a request, where the path has it.
    #[serde(default)]
    pub id: String,
    /// What it is for, in the words of whoever wrote it.
    #[serde(default)]
    pub comment: String,
    /// Allow or deny.
    pub effect: Effect,
    /// Higher is asked first.
    #[serde(default)]
    pub priority: i32,
    /// Whom it is about; any one is enough.
    pub subjects: Vec<Subject>,
    /// What it is about; any one is enough. `*` is all, `admin.*` all of the console's.
    pub actions: Vec<String>,
    /// On what.
    pub resource: Resource,
    /// When else.
    #[serde(default)]
    pub conditions: Conditions,
    /// Where it comes from; ignored in a request.
    #[serde(default)]
    pub origin: RuleOrigin,
}

/// What a rule does when it matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// Lets it happen.
    Allow,
    /// Refuses it.
    #[default]
    Deny,
}

/// Whom a rule is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// `user`, `role`, `group`, `client_id`, `cidr`, `certificate`, `protocol`, `anonymous`, `everyone`.
    pub kind: String,
    /// Which one; empty for the last two kinds.
    #[serde(default)]
    pub value: String,
}

/// On what a rule is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// A vhost's name, or `*`.
    pub vhost: String,
    /// `topic`, `exchange`, `queue`, `session`, `stream`, `admin`, or `*`.
    pub kind: String,
    /// `literal`, `prefix`, `filter`, `regex` or `regex-search`.
    #[serde(rename = "match")]
    pub match_kind: String,
    /// The name, beginning, filter or expression.
    pub pattern: String,
}

/// When else a rule matches; absent ones always do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Delivery guarantee at most this, 0 to 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_qos: Option<u8>,
    /// Only messages that are (or are not) to be kept as last value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain: Option<bool>,
    /// Body at most this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_body_bytes: Option<u64>,
}

/// Where a rule comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleOrigin {
    /// Stored by an administrator; can be changed here.
    #[default]
    Stored,
    /// Comes with a console role.
    Role,
    /// Stands in the configuration file.
    Config,
}

/// May somebody do something on something?
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Question {
    /// Who; empty for anonymous.
    pub user: String,
    /// The client's name for itself.
    pub client_id: String,
    /// Short name of the protocol; empty for any.
    pub protocol: String,
    /// Address of the client, for rules about networks.
    pub peer: String,
    /// The action.
    pub action: String,
    /// The vhost.
    pub vhost: String,
    /// Kind of the resource.
    pub kind: String,
    /// Its name; for a topic with `/` between levels.
    pub name: String,
    /// Delivery guarantee of the message.
    pub qos: Option<u8>,
    /// Whether the message is to be kept as last value.
    pub retain: Option<bool>,
    /// Length of its body.
    pub body_bytes: Option<u64>,
}

/// The answer, and how it came about.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Yes or no.
    pub allowed: bool,
    /// The rule that decided; none when none matched, which means no.
    pub rule: Option<String>,
    /// One sentence.
    pub reason: String,
    /// The rules in the order they were asked.
    pub steps: Vec<ExplainStep>,
}

/// One rule that was asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExplainStep {
    /// Its name.
    pub rule: String,
    /// `other_subject`, `other_action`, `other_resource`, `other_condition` or `decides`.
    pub outcome: String,
    /// Why, in words.
    pub text: String,
}
