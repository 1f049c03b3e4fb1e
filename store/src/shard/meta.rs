//! The host of the metadata shard.
//!
//! Owns: the thread, the batching of commands into frames, their answers. Never decides what a
//! command means: that is [`anabranch_core::meta`], whose state lives in the node's
//! [`Fabric`]. Read next: [`anabranch_core::meta::command`].
//!
//! A frame's payload, little-endian, persisted: one version byte (1), then for each command its
//! length in 4 bytes and the command as JSON.

use super::inbox::Inbox;
use super::thread::{self, ShardStartError};
use super::{FRAME_BYTES, shutting_down};
use crate::checkpoint::{WHOLE_KEY, whole_delta};
use crate::clock::Clock;
use crate::disk::Disk;
use crate::group::{Committed, Group, GroupOptions, GroupStats, ProposeError};
use crate::raft::{Applied, StateMachine};
use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::id::{LogIndex, Position, UnixMs};
use anabranch_core::index::{Blocks, Delta};
use anabranch_core::meta::{Meta, MetaCommand, MetaReply};
use anabranch_core::port::{MetaDone, MetaPort};
use anabranch_core::router::Fabric;
use bytes::{BufMut, Bytes, BytesMut};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

const PAYLOAD_VERSION: u8 = 1;

/// A checkpoint is written when the journal has grown by this many bytes.
const CHECKPOINT_BYTES: u64 = 16 * 1024 * 1024;

/// What the metadata shard is made with.
pub struct MetaShardSetup {
    /// Directory of its group.
    pub dir: PathBuf,
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// How its group is kept.
    pub options: GroupOptions,
    /// Where the state lives.
    pub fabric: Arc<Fabric>,
}

type Asked = (MetaCommand, MetaDone);
type Outcome = Result<MetaReply, Refusal>;
type Outcomes = Arc<Mutex<Option<(LogIndex, Vec<Outcome>)>>>;

/// The running metadata shard; the thread ends with [`MetaShard::shutdown`].
pub struct MetaShard {
    inbox: Arc<Inbox<Asked>>,
    group: Group<Machine>,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

impl std::fmt::Debug for MetaShard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetaShard").finish_non_exhaustive()
    }
}

impl MetaShard {
    /// Opens the shard on a thread of its own; returns once the fabric has all its metadata.
    pub fn start(setup: MetaShardSetup) -> Result<MetaShard, ShardStartError> {
        let (shard, thread) = thread::start("shard-meta".to_owned(), |report| async move {
            match Actor::open(setup).await {
                Ok((actor, handle)) => {
                    let _ = report.send(Ok(handle));
                    actor.run().await;
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            }
        })?;
        *shard.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(shard)
    }

    /// Opens the shard as a task of the current runtime: for simulations.
    pub async fn start_local(setup: MetaShardSetup) -> Result<MetaShard, ShardStartError> {
        let (actor, handle) = Actor::open(setup).await?;
        let (send, receive) = oneshot::channel();
        *handle.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(receive);
        tokio::spawn(async move {
            actor.run().await;
            let _ = send.send(());
        });
        Ok(handle)
    }

    /// Counters of its group.
    pub fn stats(&self) -> GroupStats {
        self.group.stats()
    }

    /// Why it stopped, if it did.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        self.group.poisoned()
    }

    /// Finishes what waits, writes a checkpoint and ends; blocks until then. For a shard on a thread.
    pub fn shutdown(&self) {
        self.inbox.stop();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the metadata shard's thread panicked");
        }
    }

    /// The same for [`MetaShard::start_local`].
    pub async fn shutdown_local(&self) {
        self.inbox.stop();
        let ended = self
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(ended) = ended {
            let _ = ended.await;
        }
    }
}

impl MetaPort for MetaShard {
    /// `now` is not used: the leader's stamp of the frame is the time that decides.
    fn propose(&self, command: MetaCommand, _now: UnixMs, done: MetaDone) {
        if let Err((_, done)) = self.inbox.push((command, done)) {
            done(Err(shutting_down()));
        }
    }
}

/// The fabric's metadata as the group's state machine.
struct Machine {
    fabric: Arc<Fabric>,
    /// The checkpoint begun and not yet copied.
    frozen: Option<Vec<u8>>,
    /// What the last frame's commands answered, until its proposer takes it.
    outcomes: Outcomes,
}

impl StateMachine for Machine {
    fn apply(
        &mut self,
        index: LogIndex,
        clock: UnixMs,
        _position: Position,
        payload: &Bytes,
    ) -> Result<Applied, String> {
        let commands = decode(payload)?;
        let outcomes = commands
            .iter()
            .map(|command| self.fabric.apply(clock, command))
            .collect();
        *self.outcomes.lock().unwrap_or_else(PoisonError::into_inner) = Some((index, outcomes));
        Ok(Applied::default())
    }

    fn freeze(&mut self) {
        self.frozen = Some(self.fabric.meta().encode());
    }

    /// In one piece: metadata is small, and other shards' answers depend on none of it.
    fn copy(&mut self, _bytes: usize) -> Option<Delta> {
        Some(whole_delta(self.frozen.take().unwrap_or_default()))
    }

    fn written(&mut self) {}

    fn restore(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
        _blocks: Arc<dyn Blocks>,
    ) -> Result<(), String> {
        restore(&self.fabric, pairs)
    }
}

/// Takes the pairs of a checkpoint as a node's metadata.
pub(crate) fn restore(
    fabric: &Fabric,
    pairs: &mut dyn Iterator<Item = (Bytes, Bytes)>,
) -> Result<(), String> {
    for (key, state) in pairs {
        if key != WHOLE_KEY {
            return Err("a pair of metadata that this server does not know".to_owned());
        }
        let meta = Meta::decode(&state).map_err(|error| error.to_string())?;
        fabric.install(meta);
    }
    Ok(())
}

fn encode(commands: &[MetaCommand]) -> Result<Bytes, serde_json::Error> {
    let mut payload = BytesMut::new();
    payload.put_u8(PAYLOAD_VERSION);
    for command in commands {
        let json = serde_json::to_vec(command)?;
        payload.put_u32_le(json.len() as u32);
        payload.put_slice(&json);
    }
    Ok(payload.freeze())
}

/// The commands of a frame.
pub(crate) fn decode(payload: &[u8]) -> Result<Vec<MetaCommand>, String> {
    let Some((&PAYLOAD_VERSION, mut rest)) = payload.split_first() else {
        return Err("metadata of a version that this server does not know".to_owned());
    };
    let mut commands = Vec::new();
    while !rest.is_empty() {
        let (length, after) = rest
            .split_first_chunk::<4>()
            .ok_or("a command is cut short")?;
        let length = u32::from_le_bytes(*length) as usize;
        let (json, after) = after
            .split_at_checked(length)
            .ok_or("a command is cut short")?;
        commands.push(serde_json::from_slice(json).map_err(|error| error.to_string())?);
        rest = after;
    }
    Ok(commands)
}

struct Actor {
    inbox: Arc<Inbox<Asked>>,
    group: Group<Machine>,
    outcomes: Outcomes,
    checkpoint_at: u64,
}

impl Actor {
    async fn open(setup: MetaShardSetup) -> Result<(Actor, MetaShard), ShardStartError> {
        let inbox = Arc::new(Inbox::default());
        let outcomes = Outcomes::default();
        let machine = Machine {
            fabric: setup.fabric,
            frozen: None,
            outcomes: outcomes.clone(),
        };
        let opened = Group::open(&setup.dir, setup.disk, setup.clock, setup.options, machine);
        let group = opened.await?;
        let handle = MetaShard {
            inbox: inbox.clone(),
            group: group.clone(),
            thread: Mutex::new(None),
            ended: Mutex::new(None),
        };
        let checkpoint_at = group.journal().stats().bytes + CHECKPOINT_BYTES;
        Ok((
            Actor {
                inbox,
                group,
                outcomes,
                checkpoint_at,
            },
            handle,
        ))
    }

    async fn run(mut self) {
        let mut asked = Vec::new();
        loop {
            let stopping = self.inbox.take(&mut asked);
            if asked.is_empty() {
                if stopping {
                    break;
                }
                self.inbox.woken().await;
                continue;
            }
            let mut waiting = std::mem::take(&mut asked).into_iter().peekable();
            while waiting.peek().is_some() {
                self.propose(&mut waiting).await;
            }
            self.checkpoint_when_due().await;
        }
        // Answers come in the order of proposals: after this one nothing is open.
        let settled = self
            .group
            .propose_and_wait(Bytes::from_static(&[PAYLOAD_VERSION]))
            .await;
        if settled.is_ok()
            && let Err(error) = self.group.checkpoint_now().await
        {
            tracing::warn!(%error, "no checkpoint of the metadata at the end");
        }
        self.group.shutdown().await;
    }

    /// Proposes one frame of what waits.
    async fn propose(&self, waiting: &mut impl Iterator<Item = Asked>) {
        let mut payload = BytesMut::new();
        payload.put_u8(PAYLOAD_VERSION);
        let mut dones = Vec::new();
        for (command, done) in waiting {
            match encode(std::slice::from_ref(&command)) {
                Ok(one) => {
                    payload.put_slice(&one[1..]);
                    dones.push(done);
                }
                Err(error) => {
                    done(Err(Refusal::new(ErrorKind::BadRequest, error.to_string())));
                }
            }
            if payload.len() >= FRAME_BYTES {
                break;
            }
        }
        if dones.is_empty() {
            return;
        }
        let outcomes = self.outcomes.clone();
        let answer = move |result: Result<Committed, ProposeError>| {
            let mut applied = Vec::new();
            if let Ok(committed) = &result {
                let taken = outcomes
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
                applied = taken
                    .filter(|(index, _)| *index == committed.index)
                    .map_or(applied, |(_, all)| all);
            }
            let mut applied = applied.into_iter();
            for done in dones {
                done(applied.next().unwrap_or_else(|| Err(refusal_of(&result))));
            }
        };
        self.group.propose(payload.freeze(), answer).await;
    }

    async fn checkpoint_when_due(&mut self) {
        let bytes = self.group.journal().stats().bytes;
        if bytes < self.checkpoint_at {
            return;
        }
        self.checkpoint_at = bytes + CHECKPOINT_BYTES;
        if let Err(error) = self.group.checkpoint_now().await {
            tracing::warn!(%error, "no checkpoint of the metadata was written");
        }
    }
}

fn refusal_of(result: &Result<Committed, ProposeError>) -> Refusal {
    match result {
        Err(ProposeError::NotLeader) => Refusal::new(
            ErrorKind::Unavailable,
            "the metadata shard has no leader here",
        ),
        Err(ProposeError::Stopped) => shutting_down(),
        Err(ProposeError::TooLarge(_)) => {
            Refusal::new(ErrorKind::BadRequest, "the command is too large")
        }
        Err(ProposeError::Poisoned(_)) | Ok(_) => Refusal::new(
            ErrorKind::StorageFailed,
            "the journal of the metadata shard failed",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_back_and_damage_is_an_error() {
        let commands = [
            MetaCommand::NodeStarted { incarnation: 7 },
            MetaCommand::DeleteUser {
                name: Arc::from("ada"),
            },
        ];
        let payload = encode(&commands).unwrap();
        assert_eq!(decode(&payload).unwrap(), commands);
        for len in 0..payload.len() {
            let cut = decode(&payload[..len]);
            assert!(
                cut.is_err() || cut.is_ok_and(|read| read.len() < 2),
                "{len} bytes"
            );
        }
        assert!(decode(b"\x02").is_err());
    }
}
