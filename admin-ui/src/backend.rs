//! What the API needs of the server: one trait, implemented where core, store and auth meet.
//!
//! Owns the contract and its errors. Never decides who may do what on data: every call that touches
//! data carries the caller, and the backend asks the rules. Rights on the console itself are asked
//! by the routes through [`Backend::may`]. Read next: `routes.rs`.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use serde::{Deserialize, Serialize};

use crate::model::{
    About, Binding, Connection, DeclareStream, DelayedMessage, DelayedQuery, Exchange, Explanation,
    NewUser, Overview, PeekedMessage, Policy, Publish, Question, RetainedPage, RetainedQuery, Rule,
    SeekTo, Stream, User, UserChange,
};

/// What a backend's call gives, later.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send + 'a>>;

/// Who asks, as the backend knows them at this moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The user's name.
    pub user: String,
    /// Roles held now.
    pub roles: Vec<String>,
    /// Groups now.
    pub groups: Vec<String>,
    /// Changes whenever the password does; a session opened under another one has ended.
    pub credential_version: u64,
}

/// A right on the console itself. Each is the rule action of the same name, see [`Right::action`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Sign in, see what exists, and change exchanges, bindings and streams as far as rules on those
    /// allow.
    Management,
    /// Set policies.
    Policy,
    /// See everyone's connections and the metrics.
    Monitoring,
    /// Close connections; create, change and delete users and rules.
    All,
}

impl Right {
    /// Every right.
    pub const EACH: [Right; 4] = [
        Right::Management,
        Right::Policy,
        Right::Monitoring,
        Right::All,
    ];

    /// The rule action that grants it.
    #[must_use]
    pub const fn action(self) -> &'static str {
        match self {
            Right::Management => "admin.management",
            Right::Policy => "admin.policy",
            Right::Monitoring => "admin.monitoring",
            Right::All => "admin.all",
        }
    }
}

/// Which bindings are listed: those that fit everything given.
#[derive(Debug, Clone, Copy, Default)]
pub struct WhichBindings<'a> {
    /// In this vhost.
    pub vhost: Option<&'a str>,
    /// From this exchange.
    pub exchange: Option<&'a str>,
    /// To the destination of this name.
    pub destination: Option<&'a str>,
}

impl WhichBindings<'_> {
    /// Whether a binding between these is one.
    #[must_use]
    pub fn fits(&self, vhost: &str, exchange: &str, destination: &str) -> bool {
        let fits = |wanted: Option<&str>, name: &str| wanted.is_none_or(|wanted| wanted == name);
        fits(self.vhost, vhost)
            && fits(self.exchange, exchange)
            && fits(self.destination, destination)
    }
}

/// Why a backend did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The request makes no sense; says which field and why.
    #[error("{0}")]
    Invalid(String),
    /// A rule says no; names it.
    #[error("{0}")]
    Forbidden(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// It exists with other properties, is in use, or is not empty.
    #[error("{0}")]
    Conflict(String),
    /// Not now: starting, stopping, full, or without a leader.
    #[error("{0}")]
    Unavailable(String),
}

/// The server behind the API.
pub trait Backend: Send + Sync + 'static {
    /// Who this is, when the password is right; none when the user or the password is wrong (the two
    /// are not told apart, also not by the time taken).
    fn login<'a>(
        &'a self,
        user: &'a str,
        password: &'a str,
        peer: IpAddr,
    ) -> Answer<'a, Option<Identity>>;
    /// The user as of now, for a session that is already open; none when deleted.
    fn identity<'a>(&'a self, user: &'a str) -> Answer<'a, Option<Identity>>;
    /// Whether the rules give this right.
    fn may(&self, who: &Identity, right: Right) -> bool;

    /// Name, version, vhosts.
    fn about(&self) -> Answer<'_, About>;
    /// The node's numbers. Called once a second: only reads counters.
    fn overview(&self) -> Answer<'_, Overview>;
    /// Whether the node takes work.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] with the reason.
    fn ready(&self) -> Result<(), BackendError>;

    /// Live connections, of one vhost when given, of one user when given.
    fn connections<'a>(
        &'a self,
        vhost: Option<&'a str>,
        user: Option<&'a str>,
    ) -> Answer<'a, Vec<Connection>>;
    /// Closes one with its protocol's reason for an administrative close.
    fn close_connection<'a>(
        &'a self,
        who: &'a Identity,
        id: &'a str,
        reason: &'a str,
    ) -> Answer<'a, ()>;

    /// Exchanges, of one vhost when given.
    fn exchanges<'a>(&'a self, vhost: Option<&'a str>) -> Answer<'a, Vec<Exchange>>;
    /// Declares one; declaring the same again is no error.
    fn declare_exchange<'a>(&'a self, who: &'a Identity, exchange: Exchange) -> Answer<'a, ()>;
    /// Deletes one, with `if_unused` only when nothing is bound to it.
    fn delete_exchange<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        if_unused: bool,
    ) -> Answer<'a, ()>;
    /// The messages of an exchange that wait, by when they are due.
    fn delayed<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        which: DelayedQuery,
    ) -> Answer<'a, Vec<DelayedMessage>>;
    /// Drops all of them; returns how many.
    fn drop_delayed<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
    ) -> Answer<'a, u64>;
    /// Bindings, those of sessions and groups included as far as there are not too many.
    fn bindings<'a>(&'a self, which: WhichBindings<'a>) -> Answer<'a, Vec<Binding>>;
    /// Binds; the same again is no error.
    fn bind<'a>(&'a self, who: &'a Identity, binding: Binding) -> Answer<'a, ()>;
    /// Unbinds.
    fn unbind<'a>(&'a self, who: &'a Identity, binding: Binding) -> Answer<'a, ()>;

    /// Streams, queues, sessions and groups, of one vhost when given.
    fn streams<'a>(&'a self, vhost: Option<&'a str>) -> Answer<'a, Vec<Stream>>;
    /// One of them.
    fn stream<'a>(&'a self, vhost: &'a str, name: &'a str) -> Answer<'a, Stream>;
    /// Declares one; true when it was created, false when it was there.
    fn declare_stream<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        declare: DeclareStream,
    ) -> Answer<'a, bool>;
    /// Deletes one.
    fn delete_stream<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        if_empty: bool,
        if_unused: bool,
    ) -> Answer<'a, ()>;
    /// Drops what waits for delivery; says how many.
    fn purge<'a>(&'a self, who: &'a Identity, vhost: &'a str, name: &'a str) -> Answer<'a, u64>;
    /// Moves a queue's subscription; says how many messages left by that.
    fn seek<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        to: SeekTo,
    ) -> Answer<'a, u64>;
    /// Up to `count` messages from a place on; bodies cut at `body_limit_bytes`.
    /// Takes nothing and moves nothing.
    fn peek<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        from: SeekTo,
        count: usize,
        body_limit_bytes: usize,
    ) -> Answer<'a, Vec<PeekedMessage>>;
    /// Publishes, waits for the confirm, says how many streams the message went to.
    fn publish<'a>(&'a self, who: &'a Identity, message: Publish) -> Answer<'a, u64>;

    /// Last values that the caller may receive.
    fn retained<'a>(&'a self, who: &'a Identity, which: RetainedQuery) -> Answer<'a, RetainedPage>;
    /// Removes the last value of an address; not found when it has none.
    fn clear_retained<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        address: &'a str,
    ) -> Answer<'a, ()>;

    /// Policies, of one vhost when given.
    fn policies<'a>(&'a self, vhost: Option<&'a str>) -> Answer<'a, Vec<Policy>>;
    /// Makes or replaces one.
    fn put_policy<'a>(&'a self, who: &'a Identity, policy: Policy) -> Answer<'a, ()>;
    /// Deletes one.
    fn delete_policy<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
    ) -> Answer<'a, ()>;

    /// All users.
    fn users(&self) -> Answer<'_, Vec<User>>;
    /// Creates one.
    fn create_user<'a>(&'a self, who: &'a Identity, user: NewUser) -> Answer<'a, ()>;
    /// Changes one.
    fn change_user<'a>(
        &'a self,
        who: &'a Identity,
        name: &'a str,
        change: UserChange,
    ) -> Answer<'a, ()>;
    /// Deletes one and closes its connections.
    fn delete_user<'a>(&'a self, who: &'a Identity, name: &'a str) -> Answer<'a, ()>;

    /// All rules in the order they are asked.
    fn rules(&self) -> Answer<'_, Vec<Rule>>;
    /// Adds one and gives it back with its number.
    fn create_rule<'a>(&'a self, who: &'a Identity, rule: Rule) -> Answer<'a, Rule>;
    /// Replaces one.
    fn replace_rule<'a>(&'a self, who: &'a Identity, id: &'a str, rule: Rule) -> Answer<'a, Rule>;
    /// Deletes one.
    fn delete_rule<'a>(&'a self, who: &'a Identity, id: &'a str) -> Answer<'a, ()>;
    /// Asks the rules and says how they came to their answer.
    fn explain(&self, question: Question) -> Answer<'_, Explanation>;
}
