//! Console roles, groups, and the rules a node starts with.
//!
//! Owns the four roles of the console as sets of `admin.*` allows, and how a group stands among the
//! names a principal holds. Never stores anything.

use std::sync::Arc;

use anabranch_core::authority::Action;

use crate::rule::{
    ActionPattern, Conditions, Effect, MatchKind, ResourceKind, ResourcePattern, Rule, Subject,
};

/// Sign in and look after what rules let one look after.
pub const MANAGEMENT: &str = "management";
/// The same, and policies.
pub const POLICYMAKER: &str = "policymaker";
/// The same as management, and see everyone's connections and the metrics.
pub const MONITORING: &str = "monitoring";
/// Everything on the console: users, rules, connections, vhosts.
pub const ADMINISTRATOR: &str = "administrator";

/// The console's roles.
pub const CONSOLE_ROLES: [&str; 4] = [MANAGEMENT, POLICYMAKER, MONITORING, ADMINISTRATOR];

/// How a group stands among the names a principal holds: apart from roles of the same name.
#[must_use]
pub fn group_name(group: &str) -> String {
    format!("@{group}")
}

/// The names that a principal of these roles and groups holds. A role that looks like a group is left
/// out, so that nobody enters a group by a role's name.
#[must_use]
pub fn held_names(roles: &[String], groups: &[String]) -> Vec<Arc<str>> {
    let roles = roles.iter().filter(|role| !role.starts_with('@'));
    roles
        .map(|role| Arc::from(role.as_str()))
        .chain(groups.iter().map(|group| Arc::from(group_name(group))))
        .collect()
}

/// Whether a rule comes with a console role and cannot be changed.
#[must_use]
pub fn is_role_rule(id: &str) -> bool {
    id.starts_with("role:")
}

/// The rules that make the console's roles.
#[must_use]
pub fn console_role_rules() -> Vec<Rule> {
    let role = |name: &str, actions: &[Action]| Rule {
        id: format!("role:{name}"),
        comment: format!("what the console role {name} may do"),
        effect: Effect::Allow,
        priority: 0,
        subjects: vec![Subject::Role(name.to_owned())],
        actions: actions.iter().copied().map(ActionPattern::One).collect(),
        resource: everything(ResourceKind::Admin),
        conditions: Conditions::default(),
    };
    vec![
        role(MANAGEMENT, &[Action::AdminManagement]),
        role(POLICYMAKER, &[Action::AdminManagement, Action::AdminPolicy]),
        role(
            MONITORING,
            &[Action::AdminManagement, Action::AdminMonitoring],
        ),
        role(ADMINISTRATOR, &[Action::AdminAll]),
    ]
}

/// The rules a new node stores at its first start: administrators may do everything with data, too.
/// They are ordinary rules; an administrator may change or delete them.
#[must_use]
pub fn first_rules() -> Vec<Rule> {
    vec![data_rule(
        "administrators",
        "administrators may do everything",
        Subject::Role(ADMINISTRATOR.to_owned()),
    )]
}

/// What `--dev` adds: everyone may do everything with data, with and without credentials.
#[must_use]
pub fn dev_rules() -> Vec<Rule> {
    vec![data_rule(
        "dev",
        "development mode: everyone may do everything",
        Subject::Everyone,
    )]
}

fn data_rule(id: &str, comment: &str, subject: Subject) -> Rule {
    Rule {
        id: id.to_owned(),
        comment: comment.to_owned(),
        effect: Effect::Allow,
        priority: 0,
        subjects: vec![subject],
        actions: vec![ActionPattern::Data],
        resource: everything(ResourceKind::Any),
        conditions: Conditions::default(),
    }
}

fn everything(kind: ResourceKind) -> ResourcePattern {
    ResourcePattern {
        vhost: "*".to_owned(),
        kind,
        match_kind: MatchKind::Prefix,
        pattern: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_cannot_pose_as_a_group() {
        let names = held_names(
            &["ops".to_owned(), "@admins".to_owned()],
            &["night".to_owned()],
        );
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        assert_eq!(names, ["ops", "@night"]);
    }
}
