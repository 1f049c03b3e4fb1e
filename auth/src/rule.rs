//! The rule as an administrator writes it and the metadata stores it.
//!
//! Owns names, shapes and limits. Persisted as JSON by field and value names, which are therefore never
//! reused with another meaning. Never matches anything: `pattern.rs` and `ready.rs` do.

use anabranch_core::authority::Action;
use serde::{Deserialize, Serialize};

use crate::subject::SubjectText;
pub use crate::subject::{Cidr, Subject};

/// Bytes of a rule's name, and of each name a subject gives.
pub const NAME_LIMIT_BYTES: usize = 256;
/// Bytes of a resource's pattern.
pub const PATTERN_LIMIT_BYTES: usize = 1024;
/// Subjects of one rule.
pub const SUBJECTS_LIMIT: usize = 256;
/// Bytes of a rule's comment.
pub const COMMENT_LIMIT_BYTES: usize = 1024;

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Names the rule in verdicts and logs; unique.
    pub id: String,
    /// What it is for, in the words of whoever wrote it.
    #[serde(default)]
    pub comment: String,
    /// What it does when it matches.
    pub effect: Effect,
    /// Higher is asked first.
    #[serde(default)]
    pub priority: i32,
    /// Whom it is about: any one is enough.
    pub subjects: Vec<Subject>,
    /// What it is about: any one is enough.
    pub actions: Vec<ActionPattern>,
    /// On what.
    pub resource: ResourcePattern,
    /// When else: all that are given must hold.
    #[serde(default)]
    pub conditions: Conditions,
}

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Lets it happen.
    Allow,
    /// Refuses it.
    Deny,
}

/// Every action and how rules write it. Persisted.
pub const ACTION_NAMES: [(Action, &str); 15] = [
    (Action::Connect, "connect"),
    (Action::Publish, "publish"),
    (Action::Receive, "receive"),
    (Action::Subscribe, "subscribe"),
    (Action::Consume, "consume"),
    (Action::Configure, "configure"),
    (Action::Bind, "bind"),
    (Action::Purge, "purge"),
    (Action::Peek, "peek"),
    (Action::Retain, "retain"),
    (Action::Share, "share"),
    (Action::AdminManagement, "admin.management"),
    (Action::AdminPolicy, "admin.policy"),
    (Action::AdminMonitoring, "admin.monitoring"),
    (Action::AdminAll, "admin.all"),
];

/// How rules write an action.
#[must_use]
pub fn action_name(action: Action) -> &'static str {
    ACTION_NAMES
        .iter()
        .find(|(known, _)| *known == action)
        .map_or("", |(_, name)| name)
}

/// The action that rules write as `name`.
#[must_use]
pub fn action_of(name: &str) -> Option<Action> {
    ACTION_NAMES
        .iter()
        .find(|(_, known)| *known == name)
        .map(|(action, _)| *action)
}

/// Actions that a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ActionPattern {
    /// One.
    One(Action),
    /// `*`: all that concern data, that is all but the console's.
    Data,
    /// `admin.*`: all of the console's.
    Admin,
}

impl TryFrom<String> for ActionPattern {
    type Error = RuleError;

    fn try_from(text: String) -> Result<Self, RuleError> {
        match text.as_str() {
            "*" => Ok(ActionPattern::Data),
            "admin.*" => Ok(ActionPattern::Admin),
            name => action_of(name)
                .map(ActionPattern::One)
                .ok_or(RuleError::Action(text)),
        }
    }
}

impl From<ActionPattern> for String {
    fn from(pattern: ActionPattern) -> Self {
        match pattern {
            ActionPattern::One(action) => action_name(action),
            ActionPattern::Data => "*",
            ActionPattern::Admin => "admin.*",
        }
        .to_owned()
    }
}

/// On what a rule is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourcePattern {
    /// A vhost's name, or `*` for all.
    pub vhost: String,
    /// What kind of thing.
    pub kind: ResourceKind,
    /// How `pattern` is read.
    #[serde(rename = "match")]
    pub match_kind: MatchKind,
    /// The name, its beginning, a filter or an expression; may hold `${user}`, `${client_id}`, `${vhost}`.
    pub pattern: String,
}

/// Kinds of things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceKind {
    /// Addresses, whichever protocol speaks of them.
    Topic,
    /// Exchanges.
    Exchange,
    /// Queues and streams by name.
    Queue,
    /// Sessions by client identifier.
    Session,
    /// The same as `Queue`: a queue is a stream.
    Stream,
    /// The console and the API.
    Admin,
    /// All of them, and the vhost itself.
    #[serde(rename = "*")]
    Any,
}

impl ResourceKind {
    /// How rules write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ResourceKind::Topic => "topic",
            ResourceKind::Exchange => "exchange",
            ResourceKind::Queue => "queue",
            ResourceKind::Session => "session",
            ResourceKind::Stream => "stream",
            ResourceKind::Admin => "admin",
            ResourceKind::Any => "*",
        }
    }
}

/// How a pattern is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MatchKind {
    /// The whole name.
    Literal,
    /// Its beginning; an empty one is the beginning of every name.
    Prefix,
    /// Levels with `/` between, where `+` is one level and `#` any number.
    Filter,
    /// An expression that matches the whole name.
    Regex,
    /// An expression that matches somewhere in the name.
    RegexSearch,
}

/// When else a rule matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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

impl Conditions {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Conditions::default()
    }
}

/// Why a rule is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// No name, one too long, or one that is kept for the rules of console roles.
    #[error("a rule's name must have 1 to {NAME_LIMIT_BYTES} bytes and not begin with role:")]
    Name,
    /// Comment too long.
    #[error("a rule's comment can have {COMMENT_LIMIT_BYTES} bytes at most")]
    Comment,
    /// None, or too many.
    #[error("a rule needs 1 to {SUBJECTS_LIMIT} subjects")]
    Subjects,
    /// One that makes no sense.
    #[error("subject {kind:?} {problem}")]
    Subject {
        /// As written.
        kind: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// Not a network.
    #[error("{0:?} is not a network such as 10.1.0.0/16 or 2001:db8::/32")]
    Cidr(String),
    /// None.
    #[error("a rule needs an action")]
    Actions,
    /// One that does not exist.
    #[error(
        "{0:?} is not an action; there are connect, publish, receive, subscribe, consume, configure, bind, purge, peek, retain, share, admin.management, admin.policy, admin.monitoring, admin.all, * and admin.*"
    )]
    Action(String),
    /// Vhost missing.
    #[error("a rule needs a vhost: a name, or * for all")]
    Vhost,
    /// Pattern too long.
    #[error("a pattern can have {PATTERN_LIMIT_BYTES} bytes at most")]
    PatternLength,
    /// Unknown placeholder.
    #[error("there is no placeholder ${{{0}}}; there are ${{user}}, ${{client_id}} and ${{vhost}}")]
    Placeholder(String),
    /// A prefix that ends in a placeholder would let `an` into what is `anna`'s.
    #[error(
        "a prefix must not end in a placeholder: add what separates the name from what follows"
    )]
    OpenPrefix,
    /// A wildcard that is not a whole level.
    #[error("in a filter + and # stand alone in their level")]
    Filter,
    /// An expression that cannot be read.
    #[error("the expression cannot be read: {0}")]
    Regex(String),
    /// Filter on something that has no levels.
    #[error("only topics have levels: a filter cannot be about {0}s")]
    FilterKind(&'static str),
    /// Quality out of range.
    #[error("max_qos is 0, 1 or 2")]
    Quality,
}

impl Rule {
    /// Whether everything but the pattern's text is within its limits.
    ///
    /// # Errors
    /// The first thing that is not.
    pub fn check(&self) -> Result<(), RuleError> {
        if self.id.is_empty() || self.id.len() > NAME_LIMIT_BYTES {
            return Err(RuleError::Name);
        }
        if self.comment.len() > COMMENT_LIMIT_BYTES {
            return Err(RuleError::Comment);
        }
        if self.subjects.is_empty() || self.subjects.len() > SUBJECTS_LIMIT {
            return Err(RuleError::Subjects);
        }
        for subject in &self.subjects {
            let SubjectText { kind, value } = subject.clone().into();
            if value.len() > NAME_LIMIT_BYTES {
                return Err(RuleError::Subject {
                    kind,
                    problem: "is too long",
                });
            }
        }
        if self.actions.is_empty() {
            return Err(RuleError::Actions);
        }
        if self.resource.vhost.is_empty() {
            return Err(RuleError::Vhost);
        }
        if self.conditions.max_qos.is_some_and(|quality| quality > 2) {
            return Err(RuleError::Quality);
        }
        let kind = self.resource.kind;
        if self.resource.match_kind == MatchKind::Filter
            && !matches!(kind, ResourceKind::Topic | ResourceKind::Any)
        {
            return Err(RuleError::FilterKind(kind.name()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_stored_under_the_names_of_the_model() {
        let text = r#"{"id":"12","comment":"","effect":"allow","priority":3,
            "subjects":[{"kind":"role","value":"sensor"},{"kind":"cidr","value":"10.0.0.0/8"},{"kind":"everyone"}],
            "actions":["publish","admin.management","*","admin.*"],
            "resource":{"vhost":"/","kind":"topic","match":"regex-search","pattern":"a"},
            "conditions":{"max_qos":1}}"#;
        let rule: Rule = serde_json::from_str(text).unwrap();
        assert_eq!(
            serde_json::to_value(&rule).unwrap(),
            serde_json::from_str::<serde_json::Value>(text).unwrap()
        );
        assert_eq!(rule.check(), Ok(()));
    }

    #[test]
    fn every_action_has_its_own_name_and_is_found_by_it() {
        for (action, name) in ACTION_NAMES {
            assert_eq!(action_name(action), name);
            assert_eq!(action_of(name), Some(action));
        }
    }
}
