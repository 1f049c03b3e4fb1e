//! The node's numbers and its live connections for the API.
//!
//! Owns: adding up what workers, shards and the system count. Depths of streams are asked of the shards,
//! the more seldom the more streams there are, so that looking does not cost what serving needs.
//! Never: makes a worker wait.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_admin::backend::BackendError;
use anabranch_admin::model::{
    Alarm, Connection, Gauges, Listener, Node, Overview, ProtocolCount, Totals,
};
use anabranch_core::gateway::StopReason;
use anabranch_core::id::ConnectionId;
use anabranch_core::port::{Question, ShardReply, StreamTotals};
use anabranch_core::worker::{ConnectionRow as WorkerRow, WorkerCounts};
use anabranch_driver::{ConnectionRow, TransportKind};
use anabranch_store::group::GroupStats;
use anabranch_store::shard::IndexStats;
use anabranch_store::tier::Tier;
use tokio::sync::oneshot;

use super::{Done, NodeBackend};

/// Between two looks at the depths of all streams: this long for each of them, so that a few are counted
/// whenever somebody asks.
const PER_STREAM: Duration = Duration::from_micros(200);
const DEPTHS_EVERY_MAX: Duration = Duration::from_secs(60);
/// Between two looks at how large the data folder is.
const DISK_EVERY: Duration = Duration::from_secs(10);

/// What is remembered between two questions.
pub(super) struct Numbers {
    started_at_ms: u64,
    depths: Mutex<Option<(Instant, Duration, Depths)>>,
    disk: Mutex<Option<(Instant, u64)>>,
    /// Since when an alarm stands.
    alarms: Mutex<HashMap<&'static str, u64>>,
}

/// Sums over all streams.
#[derive(Debug, Clone, Copy, Default)]
struct Depths {
    sessions: u64,
    consumers: u64,
    ready: u64,
    unsettled: u64,
    bytes: u64,
    settled: u64,
    dropped: u64,
    retained: u64,
    delayed: u64,
    dead_letters_waiting: u64,
}

impl Depths {
    fn add(&mut self, totals: StreamTotals) {
        self.sessions += totals.sessions;
        self.consumers += totals.consumers;
        self.ready += totals.ready;
        self.unsettled += totals.unsettled;
        self.bytes += totals.bytes;
        self.settled += totals.settled;
        self.dropped += totals.dropped;
        self.delayed += totals.delayed;
        self.dead_letters_waiting += totals.dead_letters_waiting;
    }
}

impl Numbers {
    pub(super) fn new() -> Numbers {
        Numbers {
            started_at_ms: wall_ms(),
            depths: Mutex::new(None),
            disk: Mutex::new(None),
            alarms: Mutex::new(HashMap::new()),
        }
    }
}

fn wall_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The node's name: its host's.
pub(super) fn node_name() -> String {
    let uname = rustix::system::uname();
    format!("anabranch@{}", uname.nodename().to_string_lossy())
}

impl NodeBackend {
    pub(super) async fn count_all(&self) -> Done<Overview> {
        let depths = self.depths().await;
        let counts = self.worker_counts().await;
        let driver = self.parts.driver.totals();
        let sum = |of: fn(&WorkerCounts) -> u64| counts.iter().map(of).sum::<u64>();
        let (exchanges, bindings, queues, users) = {
            let meta = self.parts.fabric.meta();
            let mut all = (0, 0, 0, meta.users().count() as u64);
            for vhost in meta.vhosts() {
                all.0 += meta.exchanges(vhost.id).count() as u64;
                all.1 += meta.bindings(vhost.id).count() as u64;
                all.2 += meta.streams(vhost.id).count() as u64;
            }
            all
        };
        let stores: Vec<GroupStats> = self.parts.shards.iter().map(|one| one.stats()).collect();
        let store = |of: fn(&GroupStats) -> u64| stores.iter().map(of).sum::<u64>();
        let indexes: Vec<IndexStats> = self.parts.shards.iter().map(|one| one.index()).collect();
        let index = |of: fn(&IndexStats) -> u64| indexes.iter().map(of).sum::<u64>();
        let tier = self.parts.tier.as_ref().map(Tier::stats);
        let tier = tier.unwrap_or_default();
        let slowest_us = stores.iter().map(|one| one.checkpoint.last_us).max();
        Ok(Overview {
            node: self.node().await,
            gauges: Gauges {
                connections: driver.open,
                sessions: depths.sessions,
                queues,
                consumers: depths.consumers,
                exchanges,
                bindings,
                users,
                ready: depths.ready,
                unacknowledged: depths.unsettled,
                stored_bytes: depths.bytes,
                retained: depths.retained,
                delayed: depths.delayed,
                dead_letters_waiting: depths.dead_letters_waiting,
                store_checkpoint_ms: slowest_us.unwrap_or(0) / 1000,
                store_run_bytes: store(|one| one.checkpoint.run_bytes),
                store_index_blocks: store(|one| one.checkpoint.index_blocks),
                store_index_cached_bytes: index(|one| one.cached_bytes),
                store_index_damaged: index(|one| one.damaged),
                store_local_segments: store(|one| one.tier.local_segments),
                store_local_bytes: store(|one| one.tier.local_bytes),
                store_tier_segments: store(|one| one.tier.tiered_segments),
                store_tier_bytes: store(|one| one.tier.tiered_bytes),
                store_tier_waiting: store(|one| one.tier.waiting),
                store_tier_doomed: store(|one| one.tier.doomed),
                store_tier_cache_bytes: tier.cache_bytes,
                ..Gauges::default()
            },
            totals: Totals {
                received: sum(|counts| counts.published),
                delivered: sum(|counts| counts.delivered),
                acknowledged: depths.settled,
                unroutable: sum(|counts| counts.unroutable),
                dropped: depths.dropped,
                refused: sum(|counts| counts.denied),
                bytes_in: driver.received_bytes,
                bytes_out: driver.sent_bytes,
                connections_opened: driver.accepted,
                logins_failed: self.parts.logins.failed_count(),
                handshakes_failed: driver.handshakes_failed,
                syncs: store(|one| one.journal.syncs),
                store_packed_from_bytes: store(|one| one.journal.packed_from),
                store_packed_to_bytes: store(|one| one.journal.packed_to),
                store_checkpoints: store(|one| one.checkpoint.written),
                store_checkpoints_failed: store(|one| one.checkpoint.failed),
                store_checkpoint_bytes: store(|one| {
                    one.checkpoint.bytes + one.checkpoint.folded_bytes
                }),
                store_blocks_read: store(|one| one.checkpoint.blocks_read),
                store_blocks_written: store(|one| one.checkpoint.blocks_written),
                store_index_evictions: index(|one| one.evicted),
                store_read_memory_bytes: store(|one| one.journal.read_memory_bytes),
                store_read_ahead_bytes: store(|one| one.journal.read_ahead_bytes),
                store_read_file_bytes: store(|one| one.journal.read_file_bytes),
                store_unreadable: store(|one| one.journal.unreadable),
                store_tier_uploads: tier.uploads,
                store_tier_uploaded_bytes: tier.uploaded_bytes,
                store_tier_removals: tier.removals,
                store_tier_failures: tier.failures,
                store_tier_range_reads: tier.range_reads,
                store_tier_range_bytes: tier.range_bytes,
                store_tier_cache_hits: tier.cache_hits,
                store_tier_cache_misses: tier.cache_misses,
            },
            protocols: self
                .parts
                .driver
                .open_by_gateway()
                .into_iter()
                .map(|(name, connections)| ProtocolCount {
                    protocol: name.to_owned(),
                    connections,
                })
                .collect(),
            listeners: self.listeners(),
            alarms: self.alarms(),
        })
    }

    fn listeners(&self) -> Vec<Listener> {
        let row = |protocol: &str, transport: TransportKind, address: SocketAddr| Listener {
            protocol: protocol.to_owned(),
            transport: transport.name().to_owned(),
            address: address.to_string(),
        };
        let listening = self.parts.driver.listening().iter();
        listening
            .map(|one| row(one.gateway, one.transport, one.address))
            .chain([row("http", TransportKind::Tcp, self.parts.http)])
            .collect()
    }

    /// Which shard stopped after a disk operation failed, and why.
    pub(super) fn stopped(&self) -> Option<String> {
        let data = || {
            let mut shards = self.parts.shards.iter();
            shards.find_map(|shard| {
                let why = shard.poisoned()?;
                Some(format!("shard {} stopped: {why}", shard.id()))
            })
        };
        let metadata = self.parts.meta.poisoned();
        metadata
            .map(|why| format!("the metadata shard stopped: {why}"))
            .or_else(data)
    }

    fn alarms(&self) -> Vec<Alarm> {
        let shortage = self.parts.shards.iter().find_map(|shard| shard.shortage());
        let damaged: u64 = self
            .parts
            .shards
            .iter()
            .map(|one| one.index().damaged)
            .sum();
        let shards = self.parts.shards.iter();
        let unreadable: u64 = shards.map(|one| one.stats().journal.unreadable).sum();
        let tier = self.parts.tier.as_ref();
        let tier = tier.and_then(|tier| Some((tier.url(), tier.stats().error?)));
        let standing = [
            (
                "disk",
                shortage.map(|why| format!("Publishing stops until there is room: {why}.")),
            ),
            (
                "index",
                (damaged > 0).then(|| {
                    format!(
                        "Messages of {damaged} chunks are set aside, for their entries cannot be read from the index \
                         file. The log names the first of them; look at the disk."
                    )
                }),
            ),
            (
                "messages",
                (unreadable > 0).then(|| {
                    format!(
                        "Messages are set aside, for they cannot be read from the journal ({unreadable} times since the \
                         start). The log names the first of each file or object; `anabranch store check` names all."
                    )
                }),
            ),
            (
                "journal",
                self.stopped()
                    .map(|what| format!("A disk operation failed: {what}. Look at the disk, then restart the node.")),
            ),
            (
                "tier",
                tier.map(|(url, why)| {
                    format!(
                        "The object store {url} does not do as it should: {why}. Nothing is lost, it is tried again."
                    )
                }),
            ),
        ];
        let mut since = self
            .numbers
            .alarms
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut alarms = Vec::new();
        for (name, text) in standing {
            match text {
                Some(text) => alarms.push(Alarm {
                    name: name.to_owned(),
                    since_ms: *since.entry(name).or_insert_with(wall_ms),
                    text,
                }),
                None => drop(since.remove(name)),
            }
        }
        alarms
    }

    async fn node(&self) -> Node {
        let disk_used_bytes = self.disk_used().await;
        let disk_free_bytes = rustix::fs::statvfs(&self.parts.data)
            .map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
        Node {
            name: node_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at_ms: self.numbers.started_at_ms,
            memory_bytes: resident_bytes(),
            disk_used_bytes,
            disk_free_bytes,
            tier_url: self.parts.tier.as_ref().map(|tier| tier.url().to_owned()),
        }
    }

    async fn disk_used(&self) -> u64 {
        let known = *self
            .numbers
            .disk
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((at, bytes)) = known
            && at.elapsed() < DISK_EVERY
        {
            return bytes;
        }
        let data = self.parts.data.clone();
        let bytes = tokio::task::spawn_blocking(move || folder_bytes(&data, 0))
            .await
            .unwrap_or(0);
        let mut disk = self
            .numbers
            .disk
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *disk = Some((Instant::now(), bytes));
        bytes
    }

    async fn depths(&self) -> Depths {
        let known = *self
            .numbers
            .depths
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((at, keep, depths)) = known
            && at.elapsed() < keep
        {
            return depths;
        }
        let mut depths = Depths::default();
        let mut streams = 0;
        for shard in self.parts.asker.shards() {
            match self.parts.asker.ask(shard, Question::Totals).await {
                Ok(ShardReply::Totals(totals)) => {
                    streams += totals.streams;
                    depths.add(*totals);
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(%shard, %error, "a shard was not counted"),
            }
        }
        depths.retained = self.value_count().await;
        let count = u32::try_from(streams).unwrap_or(u32::MAX);
        let keep = PER_STREAM.saturating_mul(count).min(DEPTHS_EVERY_MAX);
        let mut held = self
            .numbers
            .depths
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Totals only grow: what a deleted stream had counted stays counted.
        if let Some((_, _, before)) = *held {
            depths.settled = depths.settled.max(before.settled);
            depths.dropped = depths.dropped.max(before.dropped);
        }
        *held = Some((Instant::now(), keep, depths));
        depths
    }

    async fn worker_counts(&self) -> Vec<WorkerCounts> {
        let (tell, told) = oneshot::channel();
        self.parts.driver.inspect(
            |worker| worker.counts(),
            move |counts| drop(tell.send(counts)),
        );
        told.await.unwrap_or_default()
    }

    pub(super) async fn list_connections(
        &self,
        vhost: Option<&str>,
        user: Option<&str>,
    ) -> Done<Vec<Connection>> {
        let stopping = |_| BackendError::Unavailable("the node is stopping".to_owned());
        let (tell, told) = oneshot::channel();
        self.parts.driver.rows(move |rows| drop(tell.send(rows)));
        let rows = told.await.map_err(stopping)?;
        let (tell, told) = oneshot::channel();
        self.parts
            .driver
            .inspect(|worker| worker.rows(), move |rows| drop(tell.send(rows)));
        let of_workers = told.await.map_err(stopping)?;
        let by_id: HashMap<ConnectionId, WorkerRow> = of_workers
            .into_iter()
            .flatten()
            .map(|row| (row.id, row))
            .collect();
        let mut list: Vec<Connection> = rows
            .into_iter()
            .map(|row| {
                let known = by_id.get(&row.id);
                connection_row(row, known)
            })
            .filter(|row| vhost.is_none_or(|vhost| row.vhost == vhost))
            .filter(|row| user.is_none_or(|user| row.user == user))
            .collect();
        list.sort_by_key(|row| row.connected_at_ms);
        Ok(list)
    }

    pub(super) async fn kick(&self, id: &str) -> Done<()> {
        let missing = || BackendError::NotFound(format!("there is no connection {id:?}"));
        let number = id.parse().map_err(|_| missing())?;
        let (tell, told) = oneshot::channel();
        let done = move |found| {
            // Whoever asked may be gone by then.
            tell.send(found).ok();
        };
        self.parts
            .driver
            .stop(ConnectionId(number), StopReason::Kicked, done);
        if !told.await.unwrap_or(false) {
            return Err(missing());
        }
        Ok(())
    }
}

fn connection_row(row: ConnectionRow, known: Option<&WorkerRow>) -> Connection {
    let fact = |name: &str| {
        let found = row.view.facts.iter().find(|(known, _)| *known == name);
        found.and_then(|(_, text)| text.parse::<u64>().ok())
    };
    let blocked = known.is_some_and(|known| known.blocked);
    let details = std::iter::once(("protocol", row.view.protocol.clone()))
        .chain(row.view.facts.iter().cloned());
    Connection {
        id: row.id.to_string(),
        protocol: row.gateway.to_owned(),
        transport: row.transport.name().to_owned(),
        user: row.view.user.clone(),
        client_id: row.view.client.clone(),
        peer: row.peer.to_string(),
        vhost: row.view.vhost.clone(),
        connected_at_ms: row.accepted.0,
        state: if blocked { "blocked" } else { row.state.name() }.to_owned(),
        channels: fact("channels"),
        session: None,
        consumers: known.map_or(0, |known| u64::from(known.readers)),
        unacknowledged: fact("unacknowledged").unwrap_or(0),
        received: known.map_or(0, |known| known.published),
        delivered: known.map_or(0, |known| known.delivered),
        bytes_in: row.received_bytes,
        bytes_out: row.sent_bytes,
        details: details
            .map(|(name, text)| (name.to_owned(), text))
            .collect(),
    }
}

/// Resident memory of this process, 0 where the system does not say.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// What the files below a folder take; folders deeper than any of ours are not looked into.
fn folder_bytes(folder: &Path, depth: u32) -> u64 {
    use std::os::unix::fs::MetadataExt;
    const DEPTH_MAX: u32 = 4;
    const BLOCK_BYTES: u64 = 512;
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() && depth < DEPTH_MAX => folder_bytes(&entry.path(), depth + 1),
        Ok(meta) => meta.blocks() * BLOCK_BYTES,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}
