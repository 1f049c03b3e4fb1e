//! The rules made ready, and the verdicts they give.
//!
//! Owns the order of decision: priority descending, deny before allow at equal priority, then the
//! rule's place in the list; the first that matches decides, and when none does the answer is no.
//! [`Engine::explain`] walks the same comparison as [`Engine::decide`], so the two cannot disagree.
//! Never stores rules: whoever holds the metadata calls [`Engine::replace`] at each change. Read next:
//! `README.md` of this crate for the questions that are asked.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use anabranch_core::authority::{Action, Authority, Question, Resource, Verdict};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub use crate::ready::Outcome;
use crate::ready::{Ready, bit};
use crate::roles::{console_role_rules, group_name, is_role_rule};
use crate::rule::{Effect, Rule, RuleError, Subject, action_name};

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

/// Whether a rule can be put in force, to be asked before it is stored.
///
/// # Errors
/// What is wrong with it; [`RuleError::Name`] also when its name is one of a console role's rules.
pub fn check_rule(rule: &Rule) -> Result<(), RuleError> {
    if is_role_rule(&rule.id) {
        return Err(RuleError::Name);
    }
    Ready::new(rule.clone()).map(drop)
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

/// The rules in force.
pub struct Engine {
    compiled: RwLock<Arc<Compiled>>,
    /// Of `compiled`, beside it so that asking takes no lock.
    circumstantial: AtomicU32,
    generation: AtomicU64,
}

impl Engine {
    /// An engine with these rules and those of the console roles.
    ///
    /// # Errors
    /// See [`Engine::replace`].
    pub fn new(rules: &[Rule]) -> Result<Engine, RulesError> {
        let compiled = Compiled::new(rules)?;
        Ok(Engine {
            circumstantial: AtomicU32::new(compiled.circumstantial),
            compiled: RwLock::new(Arc::new(compiled)),
            generation: AtomicU64::new(1),
        })
    }

    /// Puts these rules in force instead of those before, from the next question on.
    ///
    /// # Errors
    /// When one cannot be made ready, or two have one name; the rules before stay in force then.
    pub fn replace(&self, rules: &[Rule]) -> Result<(), RulesError> {
        let compiled = Arc::new(Compiled::new(rules)?);
        let circumstantial = compiled.circumstantial;
        *self
            .compiled
            .write()
            .unwrap_or_else(PoisonError::into_inner) = compiled;
        self.circumstantial.store(circumstantial, Ordering::Release);
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
        self.circumstantial.load(Ordering::Acquire) & bit(action) != 0
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

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
