//! Wills: messages that sessions leave behind, published when a connection ended out of order.
//!
//! A will is due when its delay after the end of the connection is over, when the session ends, or when another
//! connection takes the session over and nothing was to be waited for. Resuming the session before cancels it. A
//! will that is due does not depend on its session any more: the shard keeps it until it is stored wherever it goes.
//!
//! Owns: when a will is due, and keeping it until it was published.
//! Never: publishing (`forward.rs`).

use super::checkpoint::{Changes, encoded};
use super::forward::Errand;
use super::{Place, Shard};
use crate::authority::{Action, Circumstances, Principal, Question, Resource};
use crate::id::{Epoch, Now, StreamId, UnixMs, VhostId};
use crate::message::Message;
use crate::port::Once;
use crate::record::{Change, Mark};
use crate::stream::{Session, Stream};
use crate::will::SavedWill;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The wills of a shard beside those that sessions still have.
#[derive(Debug, Default)]
pub(crate) struct Wills {
    /// When the wills of sessions without a connection are due.
    times: BTreeSet<(UnixMs, StreamId)>,
    due: Due,
    /// For checkpoints.
    changes: Changes<u64>,
}

/// Wills that are due, until they are stored elsewhere. Persisted (version of the checkpoint).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Due {
    last: u64,
    wills: BTreeMap<u64, (VhostId, SavedWill)>,
}

/// When a session's will is due, if it has one and its connection is gone.
pub(super) fn due(session: &Session) -> Option<UnixMs> {
    let will = session.will.as_ref()?;
    let wait_s = will.delay_s.min(session.expiry_s);
    Some(session.closed?.after(u64::from(wait_s) * 1000))
}

impl<B: Place> Shard<B> {
    /// Another time, or none, at which a session's will is due.
    pub(super) fn will_moves(&mut self, id: StreamId, now: Option<UnixMs>, before: Option<UnixMs>) {
        if now == before {
            return;
        }
        if let Some(before) = before {
            self.wills.times.remove(&(before, id));
        }
        if let Some(now) = now {
            self.wills.times.insert((now, id));
        }
    }

    /// Records that wills are due now.
    pub(super) fn look_for_wills(&mut self, now: Now) {
        while let Some(&(time, id)) = self.wills.times.first() {
            if time > now.unix {
                break;
            }
            self.wills.times.pop_first();
            let session = self.stream_mut(id).and_then(|stream| stream.session());
            let due = session.filter(|session| due(session).is_some_and(|due| due <= now.unix));
            if let Some(epoch) = due.map(|session| session.epoch) {
                let change = Change::WillDue { stream: id, epoch };
                self.change(now.unix, Mark::default(), change);
            }
        }
    }

    pub(super) fn apply_will_due(&mut self, id: StreamId, epoch: Epoch) {
        let session = self.stream_mut(id).and_then(|stream| stream.session());
        // Resumed meanwhile: it has another will, or none.
        if session.is_some_and(|session| session.epoch == epoch && session.closed.is_some()) {
            self.publish_will(id);
        }
    }

    /// A session's connection ended: its will is due at once when there is nothing to wait for.
    pub(super) fn will_of_closed(&mut self, clock: UnixMs, id: StreamId) {
        let session = self.stream_mut(id).and_then(|stream| stream.session());
        if session.and_then(due).is_some_and(|due| due <= clock) {
            self.publish_will(id);
        }
    }

    /// A session is resumed: its earlier will is due when its time had come, or when it is taken from a live
    /// connection and there was nothing to wait for; else it is void.
    pub(super) fn will_of_resumed(&mut self, clock: UnixMs, id: StreamId) {
        let Some(session) = self.stream_mut(id).and_then(|stream| stream.session()) else {
            return;
        };
        let at_once = session.will.as_ref().is_some_and(|will| {
            session.closed.is_none() && will.delay_s.min(session.expiry_s) == 0
        });
        if at_once || due(session).is_some_and(|due| due <= clock) {
            self.publish_will(id);
        } else {
            self.drop_will(id);
        }
    }

    /// A session's will is void.
    pub(super) fn drop_will(&mut self, id: StreamId) {
        self.change_session(id, |session| session.will = None);
    }

    /// A session's will, if it has one, is due now.
    pub(super) fn publish_will(&mut self, id: StreamId) {
        let mut taken = None;
        self.change_session(id, |session| taken = session.will.take());
        if let Some((vhost, will)) = self.stream_mut(id).map(|stream| stream.vhost).zip(taken) {
            self.will_left(vhost, *will);
        }
    }

    /// A session is gone and leaves its will.
    pub(super) fn will_left(&mut self, vhost: VhostId, will: SavedWill) {
        self.wills.due.last += 1;
        let number = self.wills.due.last;
        self.wills.changes.touch(&number, || None);
        self.wills.due.wills.insert(number, (vhost, will));
        self.forwards.push(Errand::Will { number });
    }

    /// A will that is due, as it is published now; none when its user is gone, or a rule denies it meanwhile.
    pub(super) fn due_will(
        &self,
        now: UnixMs,
        number: u64,
    ) -> Option<(VhostId, Arc<Message>, Once)> {
        let wills = &self.wills.due.wills;
        let (vhost, will) = wills.get(&number)?;
        if !self.may_still_leave(*vhost, will) {
            return None;
        }
        // No session has the number 0: the wills of a shard are counted like one session's messages.
        let once = Once::Numbered {
            session: StreamId::of_session(self.id, 0),
            number,
            floor: wills.first_key_value().map_or(number, |(first, _)| *first),
        };
        Some((*vhost, will.message_at(now), once))
    }

    /// Whether a will may still be published. It was allowed when it was left, by a connection that is gone now, so
    /// only what speaks against it counts.
    fn may_still_leave(&self, vhost: VhostId, will: &SavedWill) -> bool {
        let meta = self.fabric.meta();
        let mut principal = Principal {
            anonymous: will.user.is_none(),
            ..Principal::default()
        };
        if let Some(name) = &will.user {
            let Some(user) = meta.user(name) else {
                return false;
            };
            principal.user = name.clone();
            principal.roles.clone_from(&user.roles);
        }
        let Some(vhost) = meta.vhost_by_id(vhost).map(|vhost| vhost.name.clone()) else {
            return false;
        };
        drop(meta);
        let message = &will.message;
        let actions = [Action::Publish, Action::Retain];
        let asked = &actions[..1 + usize::from(message.retain)];
        asked.iter().all(|action| {
            let verdict = self.authority.decide(&Question {
                principal: &principal,
                action: *action,
                vhost: &vhost,
                resource: Resource::Topic(&message.address),
                circumstances: Circumstances {
                    quality: message.quality as u8,
                    retain: message.retain,
                    body_bytes: message.body.len(),
                },
            });
            verdict.allowed || verdict.rule.is_none()
        })
    }

    /// It is stored wherever it goes.
    pub(super) fn will_arrived(&mut self, number: u64) {
        if self.wills.due.wills.contains_key(&number) {
            let change = Change::WillDone { number };
            self.change(UnixMs::default(), Mark::default(), change);
        }
    }

    pub(super) fn apply_will_done(&mut self, number: u64) {
        let wills = &self.wills.due.wills;
        let now = || wills.get(&number).map(encoded);
        self.wills.changes.touch(&number, now);
        self.wills.due.wills.remove(&number);
    }

    pub(super) fn will_changes(&mut self) -> &mut Changes<u64> {
        &mut self.wills.changes
    }

    /// The next will that is to be copied into a checkpoint, absent when it is published.
    pub(super) fn next_will_change(&mut self) -> Option<(u64, Option<Bytes>)> {
        let wills = &self.wills.due.wills;
        self.wills
            .changes
            .next(|number| wills.get(number).map(encoded))
    }

    /// The number of the will that was due last.
    pub(super) fn last_will(&self) -> u64 {
        self.wills.due.last
    }

    pub(super) fn set_last_will(&mut self, last: u64) {
        self.wills.due.last = last;
    }

    /// It is published as if it had just become due.
    pub(super) fn restore_will(&mut self, number: u64, vhost: VhostId, will: SavedWill) {
        self.forwards.push(Errand::Will { number });
        self.wills.due.wills.insert(number, (vhost, will));
    }

    /// Those of a whole checkpoint: all of them are new to the next one.
    pub(super) fn replace_wills(&mut self, due: Due) {
        self.wills.due.last = due.last;
        for (number, (vhost, will)) in due.wills {
            self.wills.changes.touch(&number, || None);
            self.restore_will(number, vhost, will);
        }
    }
}

impl<B: Place> Stream<B> {
    /// Takes the will of a session that ends.
    pub(super) fn take_will(&mut self) -> Option<SavedWill> {
        self.session_mut()?.will.take().map(|will| *will)
    }
}
