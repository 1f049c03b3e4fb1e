//! One rule made ready, and whether it decides a question.
//!
//! Owns what of a question each part of a rule is compared with. Never orders rules: `engine.rs` does.

use std::net::IpAddr;
use std::sync::Arc;

use anabranch_core::authority::{Action, Principal, Question, Resource, Verdict};

use crate::pattern::Pattern;
use crate::roles::group_name;
use crate::rule::{
    ACTION_NAMES, ActionPattern, Conditions, Effect, ResourceKind, Rule, RuleError, Subject,
};
use crate::template::{Named, Values};

/// What came of asking one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is about somebody else.
    OtherSubject,
    /// It is about doing something else.
    OtherAction,
    /// It is about something else.
    OtherResource,
    /// A condition does not hold.
    OtherCondition,
    /// It matched and decided.
    Decides,
}

impl Outcome {
    /// How the API writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::OtherSubject => "other_subject",
            Outcome::OtherAction => "other_action",
            Outcome::OtherResource => "other_resource",
            Outcome::OtherCondition => "other_condition",
            Outcome::Decides => "decides",
        }
    }
}

/// A rule as it is asked.
pub(crate) struct Ready {
    pub(crate) rule: Rule,
    pub(crate) id: Arc<str>,
    /// Actions it is about.
    pub(crate) actions: u32,
    /// Whether `connect` stands in it by name.
    names_connect: bool,
    pattern: Pattern,
}

/// An action's place in a set of actions.
pub(crate) const fn bit(action: Action) -> u32 {
    1 << action as u32
}

pub(crate) const ADMIN: [Action; 4] = [
    Action::AdminManagement,
    Action::AdminPolicy,
    Action::AdminMonitoring,
    Action::AdminAll,
];

fn admin_bits() -> u32 {
    ADMIN.into_iter().map(bit).sum()
}

fn data_bits() -> u32 {
    ACTION_NAMES
        .iter()
        .map(|(action, _)| bit(*action))
        .sum::<u32>()
        & !admin_bits()
}

impl Ready {
    pub(crate) fn new(rule: Rule) -> Result<Ready, RuleError> {
        rule.check()?;
        let pattern = Pattern::new(rule.resource.match_kind, &rule.resource.pattern)?;
        let allow = rule.effect == Effect::Allow;
        let mut actions = 0;
        for action in &rule.actions {
            actions |= match action {
                ActionPattern::Data => data_bits(),
                ActionPattern::Admin => admin_bits(),
                // Who may do everything may do each thing; a deny means what it says.
                ActionPattern::One(Action::AdminAll) if allow => admin_bits(),
                ActionPattern::One(action) => bit(*action),
            };
        }
        Ok(Ready {
            id: rule.id.as_str().into(),
            actions,
            names_connect: rule.actions.contains(&ActionPattern::One(Action::Connect)),
            pattern,
            rule,
        })
    }

    pub(crate) fn verdict(&self) -> Verdict {
        Verdict {
            allowed: self.rule.effect == Effect::Allow,
            rule: Some(self.id.clone()),
        }
    }

    /// Whether this rule decides the question, and if not, why.
    pub(crate) fn ask(&self, question: &Question<'_>) -> Outcome {
        if self.actions & bit(question.action) == 0 {
            return Outcome::OtherAction;
        }
        let principal = question.principal;
        if !self.rule.subjects.iter().any(|one| is(one, principal)) {
            return Outcome::OtherSubject;
        }
        if !self.is_about(question) {
            return Outcome::OtherResource;
        }
        if !self.holds(question) {
            return Outcome::OtherCondition;
        }
        Outcome::Decides
    }

    fn is_about(&self, question: &Question<'_>) -> bool {
        let resource = &self.rule.resource;
        // Rights on the console are the node's, not a vhost's.
        if question.resource == Resource::Admin {
            return matches!(resource.kind, ResourceKind::Admin | ResourceKind::Any);
        }
        if resource.vhost != "*" && resource.vhost != question.vhost {
            return false;
        }
        let (kind, named) = match question.resource {
            Resource::Vhost if self.names_connect => return true,
            Resource::Vhost => (None, Named::Name(question.vhost)),
            Resource::Topic(address) => {
                (Some(ResourceKind::Topic), Named::Address(address.as_str()))
            }
            Resource::Filter(filter) => (Some(ResourceKind::Topic), Named::Filter(filter.as_str())),
            Resource::Exchange(name) => (Some(ResourceKind::Exchange), Named::Name(name)),
            Resource::Queue(name) => (Some(ResourceKind::Queue), Named::Name(name)),
            Resource::Session(name) => (Some(ResourceKind::Session), Named::Name(name)),
            Resource::Admin => return false,
        };
        let kind_fits = match resource.kind {
            ResourceKind::Any => true,
            ResourceKind::Stream => kind == Some(ResourceKind::Queue),
            own => kind == Some(own),
        };
        let principal = question.principal;
        let values = Values {
            user: &principal.user,
            client_id: &principal.client_id,
            vhost: question.vhost,
        };
        if !kind_fits {
            return false;
        }
        match named {
            // Asked before messages are handed over unasked: one that a deny is about must not slip
            // through under an allow of the whole.
            Named::Filter(filter)
                if question.action == Action::Receive && self.rule.effect == Effect::Deny =>
            {
                self.pattern.overlaps(filter, values)
            }
            named => self.pattern.matches(named, values),
        }
    }

    fn holds(&self, question: &Question<'_>) -> bool {
        let Conditions {
            max_qos,
            retain,
            max_body_bytes,
        } = self.rule.conditions;
        let how = question.circumstances;
        max_qos.is_none_or(|most| how.quality <= most)
            && retain.is_none_or(|wanted| how.retain == wanted)
            && max_body_bytes.is_none_or(|most| how.body_bytes as u64 <= most)
    }

    pub(crate) fn words(&self, outcome: Outcome) -> String {
        let rule = &self.rule;
        match outcome {
            Outcome::OtherSubject => {
                let subjects: Vec<String> = rule
                    .subjects
                    .iter()
                    .take(4)
                    .map(Subject::to_string)
                    .collect();
                let more = if rule.subjects.len() > 4 { ", ..." } else { "" };
                format!("is about {}{more}", subjects.join(", "))
            }
            Outcome::OtherAction => {
                let actions: Vec<String> = rule
                    .actions
                    .iter()
                    .map(|action| String::from(*action))
                    .collect();
                format!("is about {}", actions.join(", "))
            }
            Outcome::OtherResource => format!(
                "is about {} {} in vhost {}",
                rule.resource.kind.name(),
                rule.resource.pattern,
                rule.resource.vhost
            ),
            Outcome::OtherCondition => "its conditions do not hold".to_owned(),
            Outcome::Decides => match rule.effect {
                Effect::Allow => "matches and allows".to_owned(),
                Effect::Deny => "matches and denies".to_owned(),
            },
        }
    }
}

fn is(subject: &Subject, principal: &Principal) -> bool {
    let holds = |name: &str| principal.roles.iter().any(|role| **role == *name);
    match subject {
        Subject::User(name) => !principal.anonymous && *principal.user == **name,
        Subject::Role(name) => holds(name),
        Subject::Group(name) => holds(&group_name(name)),
        Subject::ClientId(name) => *principal.client_id == **name,
        Subject::Cidr(network) => principal
            .address
            .is_some_and(|address: IpAddr| network.contains(address)),
        Subject::Certificate(_) => false,
        Subject::Protocol(name) => principal.protocol == name,
        Subject::Anonymous => principal.anonymous,
        Subject::Everyone => true,
    }
}
