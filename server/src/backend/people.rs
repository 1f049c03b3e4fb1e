//! Users and rules for the API.
//!
//! Owns: their translation, and that one administrator always remains.
//! Never: keeps a password or decides by a rule.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use anabranch_admin::backend::{BackendError, Identity};
use anabranch_admin::model::{
    ExplainStep, Explanation, NewUser, Question, Rule, RuleOrigin, User, UserChange,
};
use anabranch_auth::engine::Engine;
use anabranch_auth::roles::{ADMINISTRATOR, held_names, is_role_rule};
use anabranch_auth::rule::{Rule as StoredRule, action_of};
use anabranch_core::address::{Address, TopicFilter};
use anabranch_core::authority::{
    Action, Authority, Circumstances, Principal, Question as RuleQuestion, Resource,
};
use anabranch_core::meta::{self, MetaCommand, PasswordHash};
use bytes::Bytes;
use serde_json::Value;

use super::{Done, NodeBackend, PROTOCOL};
use crate::node::is_guest;

/// Kinds of things that rules are about, as they are written.
const RESOURCE_KINDS: [&str; 7] = [
    "topic", "exchange", "queue", "session", "stream", "admin", "*",
];
/// Ways to read a rule's pattern, as they are written.
const MATCH_KINDS: [&str; 5] = ["literal", "prefix", "filter", "regex", "regex-search"];
/// Kinds of subjects of rules, as they are written.
const SUBJECT_KINDS: [&str; 9] = [
    "user",
    "role",
    "group",
    "client_id",
    "cidr",
    "certificate",
    "protocol",
    "anonymous",
    "everyone",
];
/// Longest name of a user.
const NAME_BYTES_MAX: usize = 128;

/// What the API knows of a user.
pub(super) fn identity(user: &meta::User) -> Identity {
    let (roles, groups) = roles_and_groups(user);
    let mut version = DefaultHasher::new();
    user.password
        .as_ref()
        .map(|hash| &hash.0)
        .hash(&mut version);
    Identity {
        user: user.name.to_string(),
        roles,
        groups,
        credential_version: version.finish(),
    }
}

/// Stored together, a group with `@` before its name.
fn roles_and_groups(user: &meta::User) -> (Vec<String>, Vec<String>) {
    let (groups, roles): (Vec<&Arc<str>>, Vec<&Arc<str>>) =
        user.roles.iter().partition(|name| name.starts_with('@'));
    let group = |name: &&Arc<str>| name.trim_start_matches('@').to_owned();
    (
        roles.iter().map(|name| name.to_string()).collect(),
        groups.iter().map(group).collect(),
    )
}

impl NodeBackend {
    pub(super) async fn sign_in(&self, user: &str, password: &str) -> Done<Option<Identity>> {
        match self.parts.logins.check(user, password.as_bytes()).await {
            Ok(user) => Ok(Some(identity(&user))),
            Err(why) if why.kind == anabranch_core::error::ErrorKind::Busy => {
                Err(BackendError::Unavailable(why.text))
            }
            Err(_) => Ok(None),
        }
    }

    pub(super) fn list_users(&self) -> Vec<User> {
        let meta = self.parts.fabric.meta();
        let mut list: Vec<User> = meta.users().map(row).collect();
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list
    }

    pub(super) async fn add_user(&self, user: NewUser) -> Done<()> {
        let name = user.name;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
            let why =
                format!("a user's name has 1 to {NAME_BYTES_MAX} bytes and no control characters");
            return Err(BackendError::Invalid(why));
        }
        let hash = self.hash(user.password).await?;
        let _one = self.changing_people.lock().await;
        if self.parts.fabric.meta().user(&name).is_some() {
            return Err(BackendError::Conflict(format!(
                "there is a user {name:?} already"
            )));
        }
        let user = meta::User {
            name: Arc::from(name),
            password: Some(hash),
            roles: checked_names(&user.roles, &user.groups)?,
            tags: Vec::new(),
        };
        self.put(MetaCommand::PutUser(user)).await
    }

    pub(super) async fn edit_user(&self, name: &str, change: UserChange) -> Done<()> {
        let hash = match change.password {
            Some(password) => Some(self.hash(password).await?),
            None => None,
        };
        let _one = self.changing_people.lock().await;
        let mut user = self.changeable(name)?;
        let (roles, groups) = roles_and_groups(&user);
        user.roles = checked_names(
            &change.roles.unwrap_or(roles),
            &change.groups.unwrap_or(groups),
        )?;
        if !is_administrator(&user) {
            self.another_administrator(name)?;
        }
        if hash.is_some() {
            user.password = hash;
        }
        self.put(MetaCommand::PutUser(user)).await
    }

    pub(super) async fn drop_user(&self, name: &str) -> Done<()> {
        let _one = self.changing_people.lock().await;
        self.changeable(name)?;
        self.another_administrator(name)?;
        let name = Arc::from(name);
        self.put(MetaCommand::DeleteUser { name }).await
    }

    fn changeable(&self, name: &str) -> Done<meta::User> {
        let found = self.parts.fabric.meta().user(name).cloned();
        let user =
            found.ok_or_else(|| BackendError::NotFound(format!("there is no user {name:?}")))?;
        if is_guest(&user) {
            let why = "the guest of development mode cannot be changed";
            return Err(BackendError::Conflict(why.to_owned()));
        }
        Ok(user)
    }

    /// Refuses to leave the node without anyone who may administer it.
    fn another_administrator(&self, but: &str) -> Done<()> {
        let meta = self.parts.fabric.meta();
        let was = meta.user(but).is_some_and(is_administrator);
        let other = meta
            .users()
            .any(|user| *user.name != *but && is_administrator(user) && !is_guest(user));
        if was && !other {
            let why = format!("{but} is the last administrator");
            return Err(BackendError::Conflict(why));
        }
        Ok(())
    }

    async fn hash(&self, password: String) -> Done<PasswordHash> {
        if password.is_empty() {
            return Err(BackendError::Invalid(
                "a password must not be empty".to_owned(),
            ));
        }
        let hash = self
            .parts
            .logins
            .hash(password)
            .await
            .map_err(BackendError::Invalid)?;
        Ok(PasswordHash(Arc::from(hash)))
    }

    /// Stores a change of users or rules; when this returns, it is in force.
    pub(super) async fn put(&self, command: MetaCommand) -> Done<()> {
        self.propose(command).await?;
        self.parts.keeper.sync();
        Ok(())
    }

    pub(super) fn list_rules(&self) -> Done<Vec<Rule>> {
        self.parts
            .keeper
            .engine()
            .rules()
            .into_iter()
            .map(|rule| self.rule_row(rule))
            .collect()
    }

    fn rule_row(&self, rule: StoredRule) -> Done<Rule> {
        let origin = if is_role_rule(&rule.id) {
            RuleOrigin::Role
        } else if self.parts.keeper.is_added(&rule.id) {
            RuleOrigin::Config
        } else {
            RuleOrigin::Stored
        };
        // Both are the same JSON by the API's description; the origin is ours to say.
        let written = serde_json::to_value(&rule).and_then(serde_json::from_value::<Rule>);
        let row = written
            .map_err(|error| BackendError::Unavailable(format!("rule {}: {error}", rule.id)))?;
        Ok(Rule { origin, ..row })
    }

    pub(super) async fn add_rule(&self, rule: Rule) -> Done<Rule> {
        let _one = self.changing_people.lock().await;
        let number = {
            let meta = self.parts.fabric.meta();
            let numbers = meta
                .rules()
                .into_iter()
                .filter_map(|rule| rule.id.parse::<u64>().ok());
            // Every change counts, so that a deleted rule's name in a log never means another one.
            numbers.max().unwrap_or(0).max(meta.rules_generation()) + 1
        };
        self.store_rule(
            number.to_string(),
            i64::try_from(number).unwrap_or(i64::MAX),
            rule,
        )
        .await
    }

    pub(super) async fn edit_rule(&self, id: &str, rule: Rule) -> Done<Rule> {
        let _one = self.changing_people.lock().await;
        let order = self.changeable_rule(id)?;
        self.store_rule(id.to_owned(), order, rule).await
    }

    pub(super) async fn drop_rule(&self, id: &str) -> Done<()> {
        let _one = self.changing_people.lock().await;
        self.changeable_rule(id)?;
        self.put(MetaCommand::DeleteRule { id: Arc::from(id) })
            .await
    }

    /// A stored rule's place in the list.
    fn changeable_rule(&self, id: &str) -> Done<i64> {
        let stored = self.parts.fabric.meta().rule(id).map(|rule| rule.order);
        match stored {
            Some(order) => Ok(order),
            None if is_role_rule(id) || self.parts.keeper.is_added(id) => {
                let why = format!("rule {id} is not stored and cannot be changed here");
                Err(BackendError::Conflict(why))
            }
            None => Err(BackendError::NotFound(format!("there is no rule {id:?}"))),
        }
    }

    async fn store_rule(&self, id: String, order: i64, rule: Rule) -> Done<Rule> {
        let invalid = |why: String| BackendError::Invalid(why);
        let resource = &rule.resource;
        known("kind of resource", &resource.kind, &RESOURCE_KINDS)?;
        known("way to match", &resource.match_kind, &MATCH_KINDS)?;
        for subject in &rule.subjects {
            known("kind of subject", &subject.kind, &SUBJECT_KINDS)?;
        }
        let mut written =
            serde_json::to_value(&rule).map_err(|error| invalid(error.to_string()))?;
        if let Value::Object(fields) = &mut written {
            fields.remove("origin");
            fields.insert("id".to_owned(), Value::String(id.clone()));
        }
        let stored: StoredRule =
            serde_json::from_value(written).map_err(|error| invalid(error.to_string()))?;
        stored.check().map_err(|error| invalid(error.to_string()))?;
        // An engine of this rule alone: what it refuses is refused before it is stored.
        Engine::new(std::slice::from_ref(&stored)).map_err(|error| invalid(error.to_string()))?;
        let body = serde_json::to_value(&stored).map_err(|error| invalid(error.to_string()))?;
        let id = Arc::from(id);
        self.put(MetaCommand::PutRule(meta::Rule { id, order, body }))
            .await?;
        self.rule_row(stored)
    }

    pub(super) fn explain_rules(&self, question: &Question) -> Done<Explanation> {
        let invalid = |why: String| BackendError::Invalid(why);
        let action = action_of(&question.action)
            .ok_or_else(|| invalid(format!("there is no action {:?}", question.action)))?;
        let principal = self.principal_of(question)?;
        let name = question.name.as_str();
        let text = Bytes::copy_from_slice(name.as_bytes());
        let address = Address::new(text.clone());
        let filter = TopicFilter::new(text);
        let resource = match question.kind.as_str() {
            _ if action == Action::Connect => Resource::Vhost,
            "topic" if matches!(action, Action::Subscribe | Action::Share) => Resource::Filter(
                filter
                    .as_ref()
                    .map_err(|error| invalid(format!("name: {error}")))?,
            ),
            "topic" => Resource::Topic(
                address
                    .as_ref()
                    .map_err(|error| invalid(format!("name: {error}")))?,
            ),
            "exchange" => Resource::Exchange(name),
            "queue" | "stream" => Resource::Queue(name),
            "session" => Resource::Session(name),
            "admin" => Resource::Admin,
            other => return Err(invalid(format!("there is no kind of resource {other:?}"))),
        };
        let circumstances = Circumstances {
            quality: question.qos.unwrap_or(0),
            retain: question.retain.unwrap_or(false),
            body_bytes: usize::try_from(question.body_bytes.unwrap_or(0)).unwrap_or(usize::MAX),
        };
        let asked = RuleQuestion {
            principal: &principal,
            action,
            vhost: &question.vhost,
            resource,
            circumstances,
        };
        let engine = self.parts.keeper.engine();
        let explained = engine.explain(&asked);
        debug_assert_eq!(explained.verdict, engine.decide(&asked));
        let steps = explained.steps.into_iter().map(|step| ExplainStep {
            rule: step.rule.to_string(),
            outcome: step.outcome.name().to_owned(),
            text: step.text,
        });
        Ok(Explanation {
            allowed: explained.verdict.allowed,
            rule: explained.verdict.rule.map(|rule| rule.to_string()),
            reason: explained.reason,
            steps: steps.collect(),
        })
    }

    fn principal_of(&self, question: &Question) -> Done<Principal> {
        let invalid = |why: String| BackendError::Invalid(why);
        let anonymous = question.user.is_empty();
        let roles = match self.parts.fabric.meta().user(&question.user) {
            Some(user) => user.roles.clone(),
            None if anonymous => Vec::new(),
            None => {
                return Err(BackendError::NotFound(format!(
                    "there is no user {:?}",
                    question.user
                )));
            }
        };
        let protocol = match question.protocol.as_str() {
            "" => "",
            PROTOCOL => PROTOCOL,
            wanted => {
                let known = self.parts.protocols.iter().find(|name| **name == wanted);
                known.ok_or_else(|| invalid(format!("there is no protocol {wanted:?}")))?
            }
        };
        let address = match question.peer.as_str() {
            "" => None,
            text => Some(
                text.parse()
                    .map_err(|_| invalid(format!("{text:?} is no IP address")))?,
            ),
        };
        Ok(Principal {
            id: 0,
            user: Arc::from(question.user.as_str()),
            anonymous,
            client_id: Arc::from(question.client_id.as_str()),
            protocol,
            address,
            roles,
        })
    }
}

fn row(user: &meta::User) -> User {
    let (roles, groups) = roles_and_groups(user);
    User {
        name: user.name.to_string(),
        roles,
        groups,
        protected: is_guest(user),
    }
}

/// Refuses a word that is none of a list, and says which there are.
fn known(what: &str, word: &str, list: &[&str]) -> Done<()> {
    if list.contains(&word) {
        return Ok(());
    }
    let why = format!("there is no {what} {word:?}; there are {}", list.join(", "));
    Err(BackendError::Invalid(why))
}

fn is_administrator(user: &meta::User) -> bool {
    user.roles.iter().any(|role| **role == *ADMINISTRATOR)
}

fn checked_names(roles: &[String], groups: &[String]) -> Done<Vec<Arc<str>>> {
    for name in roles.iter().chain(groups) {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('@') {
            let why = format!(
                "roles and groups have 1 to {NAME_BYTES_MAX} bytes and do not begin with @"
            );
            return Err(BackendError::Invalid(why));
        }
    }
    Ok(held_names(roles, groups))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_auth::rule::{MatchKind, ResourceKind, Subject};
    use serde_json::json;

    /// The lists that a refusal prints are those of the crate that decides.
    #[test]
    fn every_listed_word_is_one_that_rules_know() {
        for kind in RESOURCE_KINDS {
            assert!(serde_json::from_value::<ResourceKind>(json!(kind)).is_ok());
        }
        for kind in MATCH_KINDS {
            assert!(serde_json::from_value::<MatchKind>(json!(kind)).is_ok());
        }
        for kind in SUBJECT_KINDS {
            let value = match kind {
                "anonymous" | "everyone" => "",
                "cidr" => "10.0.0.0/8",
                _ => "x",
            };
            let subject = json!({"kind": kind, "value": value});
            assert!(serde_json::from_value::<Subject>(subject).is_ok(), "{kind}");
        }
        let refused = known("way to match", "filtr", &MATCH_KINDS).unwrap_err();
        let BackendError::Invalid(why) = refused else {
            panic!("{refused:?}");
        };
        assert!(
            why.contains("\"filtr\"") && why.contains("regex-search"),
            "{why}"
        );
    }
}
