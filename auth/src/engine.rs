//! The rules made ready, and the verdicts they give.
//!
//! Owns the order of decision: priority descending, deny before allow at equal priority, then the
//! rule's place in the list; the first that matches decides, and when none does the answer is no.
//! [`Engine::explain`] walks the same comparison as [`Engine::decide`], so the two cannot disagree.
//! Never stores rules: whoever holds the metadata calls [`Engine::replace`] at each change. Read next:
//! `README.md` of this crate for the questions that are asked.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use anabranch_core::authority::{Action, Authority, Principal, Question, Resource, Verdict};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::pattern::{Pattern, Subject as Named, Values};
use crate::roles::{console_role_rules, group_name};
use crate::rule::{
    ACTION_NAMES, ActionPattern, Conditions, Effect, ResourceKind, Rule, RuleError, Subject,
    action_name,
};

/// Rules in one engine.
pub const RULES_LIMIT: usize = 100_000;
/// Steps that an explanation lists.
pub const STEPS_LIMIT: usize = 1000;

/// Why a list of rules is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// One of them is wrong.
    #[error("rule {id}: {error}")]
    Rule {
        /// Which.
        id: String,
        /// What is wrong.
        error: RuleError,
    },
    /// Two have one name.
    #[error("there are two rules named {0}")]
    Twice(String),
    /// More than [`RULES_LIMIT`].
    #[error("there are more than {RULES_LIMIT} rules")]
    TooMany,
}

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

/// One rule that was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Which rule.
    pub rule: Arc<str>,
    /// What came of it.
    pub outcome: Outcome,
    /// The same in words.
    pub text: String,
}

/// A verdict and how it came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The verdict.
    pub verdict: Verdict,
    /// One sentence that names the rule, the action and the thing.
    pub reason: String,
    /// The rules in the order they are asked, at most [`STEPS_LIMIT`], the deciding one last.
    pub steps: Vec<Step>,
}

struct Compiled {
    /// In the order they are asked.
    rules: Vec<Ready>,
    /// Places in `rules` by whom a rule is about; each list ascending.
    by_user: FxHashMap<Box<str>, Vec<u32>>,
    by_role: FxHashMap<Box<str>, Vec<u32>>,
    by_client: FxHashMap<Box<str>, Vec<u32>>,
    by_other: Vec<u32>,
    /// Actions of which a rule looks at circumstances.
    circumstantial: u32,
}

struct Ready {
    rule: Rule,
    id: Arc<str>,
    /// Actions it is about.
    actions: u32,
    /// Whether `connect` stands in it by name.
    names_connect: bool,
    pattern: Pattern,
}

/// The rules in force.
pub struct Engine {
    compiled: RwLock<Arc<Compiled>>,
    generation: AtomicU64,
}

impl Engine {
    /// An engine with these rules and those of the console roles.
    ///
    /// # Errors
    /// See [`Engine::replace`].
    pub fn new(rules: &[Rule]) -> Result<Engine, RulesError> {
        Ok(Engine {
            compiled: RwLock::new(Arc::new(Compiled::new(rules)?)),
            generation: AtomicU64::new(1),
        })
    }

    /// Puts these rules in force instead of those before, from the next question on.
    ///
    /// # Errors
    /// When one cannot be made ready, or two have one name; the rules before stay in force then.
    pub fn replace(&self, rules: &[Rule]) -> Result<(), RulesError> {
        let compiled = Arc::new(Compiled::new(rules)?);
        *self
            .compiled
            .write()
            .unwrap_or_else(PoisonError::into_inner) = compiled;
        // After the rules: a verdict cached under the generation before may already be of the new
        // rules, which does no harm; the other way round it would stay.
        self.changed();
        Ok(())
    }

    /// Voids cached verdicts: something they rest on changed, such as a user's roles.
    pub fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The rules in the order they are asked, those of the console roles included.
    #[must_use]
    pub fn rules(&self) -> Vec<Rule> {
        self.now()
            .rules
            .iter()
            .map(|ready| ready.rule.clone())
            .collect()
    }

    /// The verdict and how it came about.
    #[must_use]
    pub fn explain(&self, question: &Question<'_>) -> Explanation {
        let compiled = self.now();
        let mut steps = Vec::new();
        for ready in &compiled.rules {
            let outcome = ready.ask(question);
            let decides = outcome == Outcome::Decides;
            if decides || steps.len() + 1 < STEPS_LIMIT {
                steps.push(Step {
                    rule: ready.id.clone(),
                    outcome,
                    text: ready.words(outcome),
                });
            }
            if decides {
                let verdict = ready.verdict();
                let reason = reason(&verdict, question);
                return Explanation {
                    verdict,
                    reason,
                    steps,
                };
            }
        }
        let verdict = nobody();
        let reason = reason(&verdict, question);
        Explanation {
            verdict,
            reason,
            steps,
        }
    }

    fn now(&self) -> Arc<Compiled> {
        self.compiled
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Authority for Engine {
    fn decide(&self, question: &Question<'_>) -> Verdict {
        self.now().decide(question)
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn circumstantial(&self, action: Action) -> bool {
        self.now().circumstantial & bit(action) != 0
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("rules", &self.now().rules.len())
            .field("generation", &self.generation())
            .finish()
    }
}

/// A verdict in one sentence, for explain, logs and errors.
#[must_use]
pub fn reason(verdict: &Verdict, question: &Question<'_>) -> String {
    let action = action_name(question.action);
    let thing = match question.resource {
        Resource::Vhost => String::new(),
        Resource::Topic(address) => format!(" on topic {}", address.as_str()),
        Resource::Filter(filter) => format!(" on topic filter {}", filter.as_str()),
        Resource::Exchange(name) => format!(" on exchange {}", quoted(name)),
        Resource::Queue(name) => format!(" on queue {}", quoted(name)),
        Resource::Session(name) => format!(" on session {}", quoted(name)),
        Resource::Admin => String::new(),
    };
    let place = match question.resource {
        Resource::Admin => String::new(),
        _ => format!(" in vhost {}", question.vhost),
    };
    match &verdict.rule {
        Some(rule) if verdict.allowed => format!("rule {rule} allows {action}{thing}{place}"),
        Some(rule) => format!("rule {rule} denies {action}{thing}{place}"),
        None if verdict.allowed => format!("{action}{thing}{place} is allowed"),
        None => format!("no rule allows {action}{thing}{place}"),
    }
}

fn quoted(name: &str) -> String {
    if name.is_empty() {
        "(default)".to_owned()
    } else {
        name.to_owned()
    }
}

fn nobody() -> Verdict {
    Verdict {
        allowed: false,
        rule: None,
    }
}

fn bit(action: Action) -> u32 {
    ACTION_NAMES
        .iter()
        .position(|(known, _)| *known == action)
        .map_or(0, |place| 1 << place)
}

const ADMIN: [Action; 4] = [
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

impl Compiled {
    fn new(stored: &[Rule]) -> Result<Compiled, RulesError> {
        if stored.len() > RULES_LIMIT {
            return Err(RulesError::TooMany);
        }
        let mut rules = Vec::with_capacity(stored.len() + 4);
        let mut names = std::collections::HashSet::new();
        for rule in stored.iter().cloned().chain(console_role_rules()) {
            if !names.insert(rule.id.clone()) {
                return Err(RulesError::Twice(rule.id));
            }
            let id = rule.id.clone();
            rules.push(Ready::new(rule).map_err(|error| RulesError::Rule { id, error })?);
        }
        rules.sort_by_key(|ready| {
            let allows = ready.rule.effect == Effect::Allow;
            (std::cmp::Reverse(ready.rule.priority), allows)
        });
        let mut compiled = Compiled {
            rules: Vec::new(),
            by_user: FxHashMap::default(),
            by_role: FxHashMap::default(),
            by_client: FxHashMap::default(),
            by_other: Vec::new(),
            circumstantial: 0,
        };
        for (place, ready) in (0u32..).zip(&rules) {
            if !ready.rule.conditions.is_empty() {
                compiled.circumstantial |= ready.actions;
            }
            for subject in &ready.rule.subjects {
                let list = match subject {
                    Subject::User(name) => entry(&mut compiled.by_user, name),
                    Subject::Role(name) => entry(&mut compiled.by_role, name),
                    Subject::Group(name) => entry(&mut compiled.by_role, &group_name(name)),
                    Subject::ClientId(name) => entry(&mut compiled.by_client, name),
                    Subject::Cidr(_)
                    | Subject::Certificate(_)
                    | Subject::Protocol(_)
                    | Subject::Anonymous
                    | Subject::Everyone => &mut compiled.by_other,
                };
                if list.last() != Some(&place) {
                    list.push(place);
                }
            }
        }
        compiled.rules = rules;
        Ok(compiled)
    }

    /// Walks the lists that can be about this principal, merged into the order of decision, so that a
    /// rule for each of a hundred thousand users costs nobody else anything.
    fn decide(&self, question: &Question<'_>) -> Verdict {
        let principal = question.principal;
        let mut lists: SmallVec<[&[u32]; 8]> = SmallVec::new();
        lists.push(&self.by_other);
        if !principal.anonymous {
            lists.extend(self.by_user.get(&*principal.user).map(Vec::as_slice));
        }
        lists.extend(self.by_client.get(&*principal.client_id).map(Vec::as_slice));
        for role in &principal.roles {
            lists.extend(self.by_role.get(&**role).map(Vec::as_slice));
        }
        loop {
            let heads = lists.iter().filter_map(|list| list.first());
            let Some(next) = heads.min().copied() else {
                return nobody();
            };
            for list in &mut lists {
                if let Some((first, rest)) = list.split_first()
                    && *first == next
                {
                    *list = rest;
                }
            }
            if let Some(ready) = self.rules.get(next as usize)
                && ready.ask(question) == Outcome::Decides
            {
                return ready.verdict();
            }
        }
    }
}

fn entry<'a>(map: &'a mut FxHashMap<Box<str>, Vec<u32>>, name: &str) -> &'a mut Vec<u32> {
    map.entry(name.into()).or_default()
}

impl Ready {
    fn new(rule: Rule) -> Result<Ready, RuleError> {
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

    fn verdict(&self) -> Verdict {
        Verdict {
            allowed: self.rule.effect == Effect::Allow,
            rule: Some(self.id.clone()),
        }
    }

    /// Whether this rule decides the question, and if not, why.
    fn ask(&self, question: &Question<'_>) -> Outcome {
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

    fn words(&self, outcome: Outcome) -> String {
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

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
