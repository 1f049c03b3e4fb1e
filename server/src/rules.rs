//! Keeps the engine that decides in step with the rules that are stored.
//!
//! Owns: when the engine's rules are replaced: at once after a change made here, and within
//! [`CHECK_EVERY`] after any other.
//! Never: decides.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_auth::engine::Engine;
use anabranch_auth::roles::dev_rules;
use anabranch_auth::rule::Rule;
use anabranch_core::router::Fabric;

/// How often changes that were made elsewhere are looked for.
pub const CHECK_EVERY: Duration = Duration::from_millis(100);

/// The engine with its source.
pub struct RuleKeeper {
    fabric: Arc<Fabric>,
    engine: Arc<Engine>,
    /// Rules that are not stored and hold while this process lives.
    added: Vec<Rule>,
    /// Of the fabric, as of the engine's rules.
    generation: AtomicU64,
    replacing: Mutex<()>,
}

impl RuleKeeper {
    /// A keeper whose engine has the rules of now; `dev` adds that everyone may do everything.
    pub fn new(fabric: Arc<Fabric>, dev: bool) -> Arc<RuleKeeper> {
        // Without stored rules there is nothing that could be refused.
        let engine = Engine::new(&[]).unwrap_or_else(|_| unreachable!("the role rules are sound"));
        let keeper = Arc::new(RuleKeeper {
            fabric,
            engine: Arc::new(engine),
            added: if dev { dev_rules() } else { Vec::new() },
            generation: AtomicU64::new(u64::MAX),
            replacing: Mutex::new(()),
        });
        keeper.sync();
        keeper
    }

    /// What decides.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Whether a rule holds only while this process lives.
    pub fn is_added(&self, id: &str) -> bool {
        self.added.iter().any(|rule| rule.id == id)
    }

    /// Gives the engine the rules of now, if they changed.
    pub fn sync(&self) {
        let _one = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let generation = self.fabric.rules_generation();
        if self.generation.swap(generation, Ordering::AcqRel) == generation {
            return;
        }
        let mut rules = self.added.clone();
        for stored in self.fabric.meta().rules() {
            match serde_json::from_value::<Rule>(stored.body.clone()) {
                Ok(rule) => rules.push(Rule {
                    id: stored.id.to_string(),
                    ..rule
                }),
                Err(error) => {
                    tracing::error!(rule = &*stored.id, %error, "a stored rule cannot be read; it is not in force");
                }
            }
        }
        if let Err(error) = self.engine.replace(&rules) {
            tracing::error!(%error, "the stored rules cannot be used; those before stay in force");
        }
    }

    /// Follows changes that were made elsewhere, for ever.
    pub async fn follow(self: Arc<Self>) {
        let mut tick = tokio::time::interval(CHECK_EVERY);
        loop {
            tick.tick().await;
            self.sync();
        }
    }
}
