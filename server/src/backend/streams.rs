//! Queues, streams and sessions for the API: listing, declaring, deleting, emptying.
//!
//! A queue's name comes from metadata and its depth from its shard; a session has no name in metadata: its
//! shard tells its client.
//!
//! Owns: joining the two.
//! Never: changes a stream but by commands under the rules (a session, by the rights on the console).

use std::collections::HashMap;
use std::sync::Arc;

use anabranch_admin::backend::{BackendError, Identity};
use anabranch_admin::model::{DeclareStream, Kept, Member, Stream, Subscription};
use anabranch_core::address::{Address, TopicFilter};
use anabranch_core::authority::{Action, Resource};
use anabranch_core::gateway::{BindTo, BindingSpec, Command, Reply, StreamDeclare};
use anabranch_core::id::{ShardId, StreamId};
use anabranch_core::limits::Mode;
use anabranch_core::meta::{Meta, Stream as Registered, StreamState};
use anabranch_core::port::{GroupStat, Question, ShardReply, StreamStat};
use anabranch_core::properties::Value as Neutral;
use anabranch_driver::Call;
use bytes::Bytes;

use super::policies::{limit_words, mode_word, topic_filter};
use super::value::{table_from_json, table_to_json};
use super::{Done, NodeBackend, refused};
use crate::gateways;

/// The argument by which applications declare a stream that keeps its messages.
const QUEUE_TYPE: &str = "x-queue-type";

/// Where a stream is: what is asked about it goes there.
pub(super) struct Place {
    pub(super) stream: StreamId,
    pub(super) shard: ShardId,
    /// A session, by its client.
    pub(super) session: bool,
}

impl NodeBackend {
    /// Counts of all streams of all shards, with their shard.
    pub(super) async fn stats(&self) -> Vec<(ShardId, StreamStat)> {
        let mut all = Vec::new();
        for shard in self.parts.asker.shards() {
            match self.parts.asker.ask(shard, Question::StatAll).await {
                Ok(ShardReply::Stats(stats)) => {
                    all.extend(stats.into_iter().map(|stat| (shard, stat)));
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(%shard, %error, "a shard was not counted"),
            }
        }
        all
    }

    /// Groups of shared subscriptions of all shards, with their shard.
    pub(super) async fn groups(&self) -> Vec<(ShardId, GroupStat)> {
        let mut all = Vec::new();
        for shard in self.parts.asker.shards() {
            match self.parts.asker.ask(shard, Question::Groups).await {
                Ok(ShardReply::Groups(groups)) => {
                    all.extend(groups.into_iter().map(|group| (shard, group)));
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(%shard, %error, "a shard's groups were not counted"),
            }
        }
        all
    }

    pub(super) async fn list_streams(&self, vhost: Option<&str>) -> Done<Vec<Stream>> {
        let stats = self.stats().await;
        let groups = self.groups().await;
        let mut by_id: HashMap<StreamId, StreamStat> = HashMap::new();
        let mut sessions = Vec::new();
        for (shard, stat) in stats {
            if stat.session.is_some() {
                sessions.push((shard, stat));
            } else {
                by_id.insert(stat.stream, stat);
            }
        }
        let mut list = Vec::new();
        for (id, name) in self.vhosts(vhost) {
            let meta = self.parts.fabric.meta();
            for stream in meta.streams(id) {
                let stat = by_id.remove(&stream.id).unwrap_or_default();
                list.push(row_of_queue(&name, &meta, stream, &stat));
            }
            drop(meta);
            let here = sessions.iter().filter(|(_, stat)| stat.vhost == id);
            list.extend(here.map(|(shard, stat)| row_of_session(&name, *shard, stat)));
            let here = groups.iter().filter(|(_, group)| group.stat.vhost == id);
            list.extend(here.filter_map(|(shard, group)| row_of_group(&name, *shard, group)));
        }
        list.sort_by(|a, b| (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name)));
        Ok(list)
    }

    pub(super) async fn one_stream(&self, vhost: &str, name: &str) -> Done<Stream> {
        let place = match self.place(vhost, name).await {
            Ok(place) if place.session => return self.row_named(vhost, "session", name).await,
            Ok(place) => place,
            Err(BackendError::NotFound(_)) => return self.row_named(vhost, "group", name).await,
            Err(other) => return Err(other),
        };
        let question = Question::Stat {
            stream: place.stream,
        };
        let stat = match self.parts.asker.ask(place.shard, question).await {
            Ok(ShardReply::Stat(stat)) => *stat,
            // It is being made or deleted.
            Ok(_) | Err(_) => StreamStat::default(),
        };
        let meta = self.parts.fabric.meta();
        let stream = meta
            .stream_by_id(place.stream)
            .ok_or_else(|| no_stream(vhost, name))?;
        Ok(row_of_queue(vhost, &meta, stream, &stat))
    }

    /// The row of a thing that clients made.
    async fn row_named(&self, vhost: &str, kind: &str, name: &str) -> Done<Stream> {
        let all = self.list_streams(Some(vhost)).await?;
        let mut found = all.into_iter().filter(|row| row.kind == kind);
        found
            .find(|row| row.name == name)
            .ok_or_else(|| no_stream(vhost, name))
    }

    /// Where a queue is, or else a client's session.
    pub(super) async fn place(&self, vhost: &str, name: &str) -> Done<Place> {
        let id = self.vhost(vhost)?;
        let queue = self
            .parts
            .fabric
            .meta()
            .stream(id, name)
            .map(|stream| Place {
                stream: stream.id,
                shard: stream.shard,
                session: false,
            });
        if let Some(place) = queue {
            return Ok(place);
        }
        let stats = self.stats().await;
        let mut found = stats.into_iter().filter(|(_, stat)| {
            stat.vhost == id
                && stat
                    .session
                    .as_ref()
                    .is_some_and(|client| **client == *name)
        });
        let (shard, stat) = found.next().ok_or_else(|| no_stream(vhost, name))?;
        Ok(Place {
            stream: stat.stream,
            shard,
            session: true,
        })
    }

    pub(super) async fn add_stream(
        &self,
        who: &Identity,
        vhost: &str,
        name: &str,
        declare: DeclareStream,
    ) -> Done<bool> {
        let keeps = match declare.kind.as_str() {
            "queue" => false,
            "stream" => true,
            other => {
                return Err(BackendError::Invalid(format!(
                    "kind must be queue or stream, not {other:?}"
                )));
            }
        };
        if !keeps && !declare.capture.is_empty() {
            let why = "capture is for streams; bind a queue instead";
            return Err(BackendError::Invalid(why.to_owned()));
        }
        let captured: Vec<TopicFilter> = {
            let read = declare.capture.iter().map(|text| topic_filter(text));
            read.collect::<Done<_>>()?
        };
        if name.is_empty() || name.len() > 255 || name.starts_with("amq.") {
            let why = "a queue's name has 1 to 255 bytes and does not begin with amq.";
            return Err(BackendError::Invalid(why.to_owned()));
        }
        let mut given = table_from_json(&declare.arguments);
        if keeps && !declare.arguments.contains_key(QUEUE_TYPE) {
            let name = Bytes::from_static(QUEUE_TYPE.as_bytes());
            given.push((name, Neutral::Text(Bytes::from_static(b"stream"))));
        }
        let (limits, arguments) =
            gateways::queue_arguments(&given, declare.durable, declare.auto_delete)
                .map_err(BackendError::Invalid)?;
        let (key, _) = gateways::key_address(name)
            .map_err(|error| BackendError::Invalid(format!("name: {error}")))?;
        let id = self.vhost(vhost)?;
        let there = self.parts.fabric.meta().stream(id, name).is_some();
        let declare = StreamDeclare {
            name: Arc::from(name),
            key,
            passive: false,
            durable: declare.durable,
            exclusive: false,
            auto_delete: declare.auto_delete,
            private: false,
            limits,
            arguments,
        };
        let token = Call::TOKEN;
        self.ask(
            who,
            vhost,
            Command::DeclareStream {
                token,
                declare: Box::new(declare),
            },
        )
        .await?;
        for filter in captured {
            let binding = BindingSpec {
                exchange: Arc::from(gateways::TOPIC_EXCHANGE),
                to: BindTo::Stream(Arc::from(name)),
                key: Address::default(),
                filter,
                retained: false,
                arguments: Vec::new(),
            };
            self.ask(
                who,
                vhost,
                Command::Bind {
                    token,
                    binding: Box::new(binding),
                },
            )
            .await?;
        }
        Ok(!there)
    }

    pub(super) async fn drop_stream(
        &self,
        who: &Identity,
        vhost: &str,
        name: &str,
        if_empty: bool,
        if_unused: bool,
    ) -> Done<()> {
        let place = self.place(vhost, name).await?;
        if place.session {
            return self.forget_session(who, vhost, name, &place).await;
        }
        let command = Command::DeleteStream {
            token: Call::TOKEN,
            name: Arc::from(name),
            if_unused,
            if_empty,
        };
        self.ask(who, vhost, command).await?;
        Ok(())
    }

    /// Forgets a session whose client is away.
    async fn forget_session(
        &self,
        who: &Identity,
        vhost: &str,
        name: &str,
        at: &Place,
    ) -> Done<()> {
        self.allow(who, Action::Configure, vhost, Resource::Session(name))?;
        let question = Question::DeleteSession {
            vhost: self.vhost(vhost)?,
            client_id: Arc::from(name),
        };
        match self
            .parts
            .asker
            .ask(at.shard, question)
            .await
            .map_err(refused)?
        {
            ShardReply::Count(0) => {
                let why = "the session's client is connected; close its connection first";
                Err(BackendError::Conflict(why.to_owned()))
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn empty_stream(&self, who: &Identity, vhost: &str, name: &str) -> Done<u64> {
        let place = self.place(vhost, name).await?;
        if place.session {
            self.allow(who, Action::Purge, vhost, Resource::Session(name))?;
            let question = Question::Purge {
                stream: place.stream,
            };
            return match self
                .parts
                .asker
                .ask(place.shard, question)
                .await
                .map_err(refused)?
            {
                ShardReply::Count(count) => Ok(count),
                _ => Ok(0),
            };
        }
        let command = Command::Purge {
            token: Call::TOKEN,
            stream: Arc::from(name),
        };
        match self.ask(who, vhost, command).await? {
            Reply::Count(count) => Ok(count),
            _ => Ok(0),
        }
    }
}

pub(super) fn no_stream(vhost: &str, name: &str) -> BackendError {
    BackendError::NotFound(format!(
        "there is no queue, stream, session or group {name:?} in vhost {vhost:?}"
    ))
}

fn row_of_queue(vhost: &str, meta: &Meta, stream: &Registered, stat: &StreamStat) -> Stream {
    let state = match stream.state {
        StreamState::Creating => "creating",
        StreamState::Active => "running",
    };
    let limits = meta.effective_limits(stream.id);
    let policies = meta.policies_of_stream(stream.id);
    Stream {
        name: stream.name.to_string(),
        kind: match limits.mode {
            Mode::Replay => "stream",
            Mode::Shared | Mode::Exclusive | Mode::Failover | Mode::KeyShared => "queue",
        }
        .to_owned(),
        durable: stream.durable,
        exclusive: stream.owner.is_some(),
        auto_delete: stream.auto_delete,
        state: state.to_owned(),
        owner: stream
            .owner
            .map(|connection| format!("connection {connection}")),
        arguments: table_to_json(stream.arguments.as_slice()),
        limits: limit_words(&limits),
        policies: policies.iter().map(|name| name.to_string()).collect(),
        ..row(vhost, mode_word(limits.mode), stat)
    }
}

fn row_of_session(vhost: &str, shard: ShardId, stat: &StreamStat) -> Stream {
    let client = stat.session.as_deref().unwrap_or_default();
    Stream {
        name: client.to_owned(),
        kind: "session".to_owned(),
        durable: !shard.is_volatile(),
        exclusive: true,
        state: if stat.live { "running" } else { "away" }.to_owned(),
        live: Some(stat.live),
        owner: Some(client.to_owned()),
        ..row(vhost, "exclusive", stat)
    }
}

fn row_of_group(vhost: &str, shard: ShardId, of: &GroupStat) -> Option<Stream> {
    let (group, filter) = of.stat.group.as_ref()?;
    let members = of.members.iter().map(|(client, durable)| Member {
        client_id: client.to_string(),
        durable: *durable,
    });
    Some(Stream {
        name: gateways::group_name(group, filter),
        kind: "group".to_owned(),
        durable: !shard.is_volatile(),
        state: "running".to_owned(),
        group: Some(group.to_string()),
        filter: Some(filter.as_str().to_owned()),
        members: members.collect(),
        ..row(vhost, mode_word(of.stat.mode), &of.stat)
    })
}

/// What a shard's counts say.
fn row(vhost: &str, mode: &str, stat: &StreamStat) -> Stream {
    Stream {
        vhost: vhost.to_owned(),
        ready: stat.ready,
        unacknowledged: stat.unsettled,
        bytes: stat.bytes,
        consumers: u64::from(stat.consumers),
        published: stat.published,
        delivered: stat.delivered,
        acknowledged: stat.settled,
        dropped: stat.dropped,
        dead_lettered: stat.dead_lettered,
        rejected: stat.rejected,
        dead_letters_waiting: stat.dead_letters_waiting,
        mode: mode.to_owned(),
        active: stat.active.map(|reader| reader.connection.to_string()),
        kept: stat.kept.map(|range| Kept {
            first_offset: range.first.0,
            first_at_ms: range.first_at.0,
            last_offset: range.last.0,
            last_at_ms: range.last_at.0,
        }),
        subscriptions: vec![Subscription {
            name: String::new(),
            mode: mode.to_owned(),
            ready: stat.ready,
            unacknowledged: stat.unsettled,
            consumers: u64::from(stat.consumers),
        }],
        ..Stream::default()
    }
}
