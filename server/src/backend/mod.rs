//! What the API sees of a node: the admin crate's `Backend` over metadata, shards, rules and connections.
//!
//! What changes data goes through [`anabranch_driver::Call`]s, so that it obeys the rules in the same code
//! as any protocol; what only looks reads metadata and asks shards.
//!
//! Owns: joining and translating; nothing of it is stored here.
//! Never: decides what a rule says.
//! Next: `exchanges.rs`, `streams.rs`, `messages.rs`, `people.rs`, `numbers.rs`, one for each page of the console.

mod ask;
mod delayed;
mod exchanges;
mod messages;
mod numbers;
mod people;
mod policies;
mod retained;
mod seek;
mod streams;
mod value;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anabranch_admin::backend::{Answer, Backend, BackendError, Identity, Right, WhichBindings};
use anabranch_admin::model::{
    About, Binding, Connection, DeclareStream, DelayedMessage, DelayedQuery, Exchange, Explanation,
    NewUser, Overview, PeekedMessage, Policy, Publish, Question, RetainedPage, RetainedQuery, Rule,
    SeekTo, Stream, User, UserChange,
};
use anabranch_auth::roles::held_names;
use anabranch_core::authority::{
    Action, Authority, Circumstances, Principal, Question as RuleQuestion, Resource,
};
use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::{Answer as CoreAnswer, Command, Reply};
use anabranch_core::id::VhostId;
use anabranch_core::meta::{MetaCommand, MetaReply};
use anabranch_core::properties::Codecs;
use anabranch_core::router::Fabric;
use anabranch_core::worker::Verified;
use anabranch_driver::{Call, Driver};
use anabranch_store::shard::{DataShard, MetaShard};
use anabranch_store::tier::Tier;
use tokio::sync::oneshot;

use crate::login::Logins;
use crate::node::propose;
use crate::rules::RuleKeeper;

pub use ask::Asker;

/// How rules call the way by which the API's users come.
const PROTOCOL: &str = "http";

/// What a backend joins.
pub struct NodeParts {
    /// Metadata and interest.
    pub fabric: Arc<Fabric>,
    /// Conversions of all gateways.
    pub codecs: Codecs,
    /// The rules in force.
    pub keeper: Arc<RuleKeeper>,
    /// The login service.
    pub logins: Arc<Logins>,
    /// Connections and calls.
    pub driver: Arc<Driver>,
    /// The way to shards.
    pub asker: Arc<Asker>,
    /// The way to metadata.
    pub meta: Arc<MetaShard>,
    /// The data shards.
    pub shards: Vec<Arc<DataShard>>,
    /// The object store for their segments.
    pub tier: Option<Tier>,
    /// Short names of the gateways.
    pub protocols: Vec<&'static str>,
    /// The data folder.
    pub data: PathBuf,
    /// Where the API listens.
    pub http: SocketAddr,
}

/// See the module's text.
pub struct NodeBackend {
    parts: NodeParts,
    numbers: numbers::Numbers,
    /// One change of users or rules at a time, so that names and numbers stay unique.
    changing_people: tokio::sync::Mutex<()>,
}

type Done<T> = Result<T, BackendError>;

impl NodeBackend {
    /// A backend of this node, which starts now.
    pub fn new(parts: NodeParts) -> NodeBackend {
        NodeBackend {
            parts,
            numbers: numbers::Numbers::new(),
            changing_people: tokio::sync::Mutex::new(()),
        }
    }

    /// A vhost by name.
    fn vhost(&self, name: &str) -> Done<VhostId> {
        let meta = self.parts.fabric.meta();
        let found = meta.vhost(name).map(|vhost| vhost.id);
        found.ok_or_else(|| BackendError::NotFound(format!("there is no vhost {name:?}")))
    }

    /// All vhosts with their names, or the one that is asked for.
    fn vhosts(&self, only: Option<&str>) -> Vec<(VhostId, Arc<str>)> {
        let meta = self.parts.fabric.meta();
        let wanted = meta
            .vhosts()
            .filter(|vhost| only.is_none_or(|only| *vhost.name == *only));
        wanted.map(|vhost| (vhost.id, vhost.name.clone())).collect()
    }

    /// Carries a command out as `who`, under the rules.
    async fn call(&self, who: &Identity, vhost: &str, command: Command) -> Done<Vec<CoreAnswer>> {
        let (tell, told) = oneshot::channel();
        self.parts.driver.call(Call {
            who: Verified {
                user: Arc::from(who.user.as_str()),
                anonymous: false,
                roles: held_names(&who.roles, &who.groups),
            },
            protocol: PROTOCOL,
            peer: self.parts.http,
            vhost: Arc::from(vhost),
            command,
            // The request may be gone by then.
            done: Box::new(move |answers| drop(tell.send(answers))),
        });
        match told.await {
            Ok(answers) => answers.map_err(refused),
            Err(_) => Err(BackendError::Unavailable("the node is stopping".to_owned())),
        }
    }

    /// As [`NodeBackend::call`], for a command with one answer.
    async fn ask(&self, who: &Identity, vhost: &str, command: Command) -> Done<Reply> {
        let answers = self.call(who, vhost, command).await?;
        match answers.into_iter().next() {
            Some(CoreAnswer::Done { result, .. }) => result.map_err(refused),
            _ => Err(BackendError::Unavailable(
                "the node gave no answer".to_owned(),
            )),
        }
    }

    /// Changes metadata.
    async fn propose(&self, command: MetaCommand) -> Done<MetaReply> {
        propose(&*self.parts.meta, command).await.map_err(refused)
    }

    fn principal(&self, who: &Identity) -> Principal {
        Principal {
            id: 0,
            user: Arc::from(who.user.as_str()),
            anonymous: false,
            client_id: Arc::from(""),
            protocol: PROTOCOL,
            address: None,
            roles: held_names(&who.roles, &who.groups),
        }
    }

    fn allow(
        &self,
        who: &Identity,
        action: Action,
        vhost: &str,
        resource: Resource<'_>,
    ) -> Done<()> {
        let principal = self.principal(who);
        let question = RuleQuestion {
            principal: &principal,
            action,
            vhost,
            resource,
            circumstances: Circumstances::default(),
        };
        let verdict = self.parts.keeper.engine().decide(&question);
        if verdict.allowed {
            return Ok(());
        }
        Err(BackendError::Forbidden(anabranch_auth::engine::reason(
            &verdict, &question,
        )))
    }
}

/// A refusal of core in the API's words.
fn refused(refusal: Refusal) -> BackendError {
    let text = refusal.text;
    match refusal.kind {
        ErrorKind::AccessRefused | ErrorKind::BadCredentials => BackendError::Forbidden(text),
        ErrorKind::NotFound => BackendError::NotFound(text),
        ErrorKind::Inequivalent
        | ErrorKind::InUse
        | ErrorKind::Locked
        | ErrorKind::NotEmpty
        | ErrorKind::SecondConsumer => BackendError::Conflict(text),
        ErrorKind::BadRequest | ErrorKind::MessageTooLarge | ErrorKind::NotSupported => {
            BackendError::Invalid(text)
        }
        ErrorKind::Busy
        | ErrorKind::QuotaExceeded
        | ErrorKind::ShuttingDown
        | ErrorKind::StorageFailed
        | ErrorKind::Unavailable => BackendError::Unavailable(text),
    }
}

impl Backend for NodeBackend {
    fn login<'a>(
        &'a self,
        user: &'a str,
        password: &'a str,
        _: IpAddr,
    ) -> Answer<'a, Option<Identity>> {
        Box::pin(self.sign_in(user, password))
    }

    fn identity<'a>(&'a self, user: &'a str) -> Answer<'a, Option<Identity>> {
        let found = self.parts.fabric.meta().user(user).map(people::identity);
        Box::pin(async move { Ok(found) })
    }

    fn may(&self, who: &Identity, right: Right) -> bool {
        let action = anabranch_auth::rule::action_of(right.action());
        action.is_some_and(|action| self.allow(who, action, "", Resource::Admin).is_ok())
    }

    fn about(&self) -> Answer<'_, About> {
        let about = About {
            node: numbers::node_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            vhosts: self
                .vhosts(None)
                .into_iter()
                .map(|(_, name)| name.to_string())
                .collect(),
        };
        Box::pin(async move { Ok(about) })
    }

    fn overview(&self) -> Answer<'_, Overview> {
        Box::pin(self.count_all())
    }

    fn ready(&self) -> Result<(), BackendError> {
        match self.stopped() {
            Some(what) => Err(BackendError::Unavailable(what)),
            None => Ok(()),
        }
    }

    fn connections<'a>(
        &'a self,
        vhost: Option<&'a str>,
        user: Option<&'a str>,
    ) -> Answer<'a, Vec<Connection>> {
        Box::pin(self.list_connections(vhost, user))
    }

    fn close_connection<'a>(
        &'a self,
        _who: &'a Identity,
        id: &'a str,
        // Both stand in the log of whoever asks here.
        _reason: &'a str,
    ) -> Answer<'a, ()> {
        Box::pin(self.kick(id))
    }

    fn exchanges<'a>(&'a self, vhost: Option<&'a str>) -> Answer<'a, Vec<Exchange>> {
        Box::pin(async move { Ok(self.list_exchanges(vhost).await) })
    }

    fn declare_exchange<'a>(&'a self, who: &'a Identity, exchange: Exchange) -> Answer<'a, ()> {
        Box::pin(self.add_exchange(who, exchange))
    }

    fn delete_exchange<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        if_unused: bool,
    ) -> Answer<'a, ()> {
        Box::pin(self.drop_exchange(who, vhost, name, if_unused))
    }

    fn delayed<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        which: DelayedQuery,
    ) -> Answer<'a, Vec<DelayedMessage>> {
        Box::pin(self.list_delayed(who, vhost, name, which))
    }

    fn drop_delayed<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
    ) -> Answer<'a, u64> {
        Box::pin(self.empty_delayed(who, vhost, name))
    }

    fn bindings<'a>(&'a self, which: WhichBindings<'a>) -> Answer<'a, Vec<Binding>> {
        Box::pin(async move { Ok(self.list_bindings(which).await) })
    }

    fn bind<'a>(&'a self, who: &'a Identity, binding: Binding) -> Answer<'a, ()> {
        Box::pin(self.change_binding(who, binding, true))
    }

    fn unbind<'a>(&'a self, who: &'a Identity, binding: Binding) -> Answer<'a, ()> {
        Box::pin(self.change_binding(who, binding, false))
    }

    fn streams<'a>(&'a self, vhost: Option<&'a str>) -> Answer<'a, Vec<Stream>> {
        Box::pin(self.list_streams(vhost))
    }

    fn stream<'a>(&'a self, vhost: &'a str, name: &'a str) -> Answer<'a, Stream> {
        Box::pin(self.one_stream(vhost, name))
    }

    fn declare_stream<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        declare: DeclareStream,
    ) -> Answer<'a, bool> {
        Box::pin(self.add_stream(who, vhost, name, declare))
    }

    fn delete_stream<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        if_empty: bool,
        if_unused: bool,
    ) -> Answer<'a, ()> {
        Box::pin(self.drop_stream(who, vhost, name, if_empty, if_unused))
    }

    fn purge<'a>(&'a self, who: &'a Identity, vhost: &'a str, name: &'a str) -> Answer<'a, u64> {
        Box::pin(self.empty_stream(who, vhost, name))
    }

    fn seek<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        to: SeekTo,
    ) -> Answer<'a, u64> {
        Box::pin(self.move_subscription(who, vhost, name, to))
    }

    fn peek<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        name: &'a str,
        from: SeekTo,
        count: usize,
        body_limit_bytes: usize,
    ) -> Answer<'a, Vec<PeekedMessage>> {
        Box::pin(self.look(who, vhost, name, (from, count), body_limit_bytes))
    }

    fn publish<'a>(&'a self, who: &'a Identity, message: Publish) -> Answer<'a, u64> {
        Box::pin(self.send(who, message))
    }

    fn retained<'a>(&'a self, who: &'a Identity, which: RetainedQuery) -> Answer<'a, RetainedPage> {
        Box::pin(self.page_of_values(who, which))
    }

    fn clear_retained<'a>(
        &'a self,
        who: &'a Identity,
        vhost: &'a str,
        address: &'a str,
    ) -> Answer<'a, ()> {
        Box::pin(self.drop_value(who, vhost, address))
    }

    fn policies<'a>(&'a self, vhost: Option<&'a str>) -> Answer<'a, Vec<Policy>> {
        let list = self.list_policies(vhost);
        Box::pin(async move { list })
    }

    fn put_policy<'a>(&'a self, who: &'a Identity, policy: Policy) -> Answer<'a, ()> {
        Box::pin(self.store_policy(who, policy))
    }

    fn delete_policy<'a>(
        &'a self,
        _: &'a Identity,
        vhost: &'a str,
        name: &'a str,
    ) -> Answer<'a, ()> {
        Box::pin(self.drop_policy(vhost, name))
    }

    fn users(&self) -> Answer<'_, Vec<User>> {
        let list = self.list_users();
        Box::pin(async move { Ok(list) })
    }

    fn create_user<'a>(&'a self, _: &'a Identity, user: NewUser) -> Answer<'a, ()> {
        Box::pin(self.add_user(user))
    }

    fn change_user<'a>(
        &'a self,
        _: &'a Identity,
        name: &'a str,
        change: UserChange,
    ) -> Answer<'a, ()> {
        Box::pin(self.edit_user(name, change))
    }

    fn delete_user<'a>(&'a self, _: &'a Identity, name: &'a str) -> Answer<'a, ()> {
        Box::pin(self.drop_user(name))
    }

    fn rules(&self) -> Answer<'_, Vec<Rule>> {
        let list = self.list_rules();
        Box::pin(async move { list })
    }

    fn create_rule<'a>(&'a self, _: &'a Identity, rule: Rule) -> Answer<'a, Rule> {
        Box::pin(self.add_rule(rule))
    }

    fn replace_rule<'a>(&'a self, _: &'a Identity, id: &'a str, rule: Rule) -> Answer<'a, Rule> {
        Box::pin(self.edit_rule(id, rule))
    }

    fn delete_rule<'a>(&'a self, _: &'a Identity, id: &'a str) -> Answer<'a, ()> {
        Box::pin(self.drop_rule(id))
    }

    fn explain(&self, question: Question) -> Answer<'_, Explanation> {
        let answer = self.explain_rules(&question);
        Box::pin(async move { answer })
    }
}
