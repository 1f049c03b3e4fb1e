//! Publishing for a shard: messages that a stream dropped, or that were left to be published later.
//!
//! Nobody's right is asked, for the message was allowed when it came in. It goes to all its destinations with the
//! durability each asks; a full one lets it wait. The shard is told when the last has it.
//!
//! Owns: routing and spreading of such messages, their circles.
//! Never: what the shard does with the answer (`shard/forward.rs`).

use super::Worker;
use super::publish::{Waiting, worse};
use super::values::extra;
use crate::gateway::PublishOutcome;
use crate::id::{ConnectionId, Now, Sequence, ShardId, StreamId, Token};
use crate::port::{Forward, ShardRequest};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Forwards whose destinations have not all answered, by token.
#[derive(Default)]
pub(super) struct Forwarding {
    under_way: FxHashMap<u64, (ShardId, u64)>,
    last: u64,
}

impl Worker {
    pub(super) fn forward(&mut self, now: Now, from: ShardId, forward: Forward) {
        let Forward {
            id,
            vhost,
            message,
            once,
            from: source,
            whole,
        } = forward;
        let mut route = self.router.route(vhost, &message);
        // What a stream dropped was kept when it came in; a newer value may have replaced it since.
        if message.retain && route.by_topic.is_some() && source.is_none() {
            route = Self::keeping(&route);
        }
        // One that was dropped may be sent where messages wait; one that has waited does not wait again.
        if source.is_some()
            && route.delays
            && let Ok(Some(waits)) = self.delaying(vhost, &route, (None, now.unix), &message)
        {
            route = waits;
        }
        let mut targets: SmallVec<[(ShardId, SmallVec<[StreamId; 2]>); 2]> = route.targets.clone();
        if let (Some(_), Some(deaths)) = (source, &message.deaths) {
            let meta = self.fabric.meta();
            for (_, streams) in &mut targets {
                streams.retain(|id| {
                    let known = meta.stream_by_id(*id);
                    !known.is_some_and(|known| deaths.cycles(&known.name))
                });
            }
            let matched = route.by_topic.is_some() || route.later.is_some();
            targets.retain(|(_, streams)| matched || !streams.is_empty());
        }
        let own = self.shard.id();
        let mut outcome = PublishOutcome::Unroutable;
        let mut awaited: SmallVec<[(ShardId, ShardRequest); 2]> = SmallVec::new();
        for (shard, streams) in targets {
            let mut extra = extra(&route, shard);
            if once.is_some() {
                extra.get_or_insert_default().once = once;
            }
            if route.holding {
                extra.get_or_insert_default().at_once = true;
            }
            if whole {
                extra.get_or_insert_default().whole = true;
            }
            // Another worker's memory says what it takes only when it is asked.
            let unasked = shard == own || !whole;
            let at_once = shard.is_volatile() && !self.blocked.contains(&shard) && unasked;
            if at_once && shard == own {
                let extra = extra.as_deref();
                let result = self
                    .shard
                    .take(&streams, route.by_topic, true, extra, &message);
                outcome = worse(outcome, result);
                continue;
            }
            let request = ShardRequest::Publish {
                sequence: Sequence(0),
                streams,
                by_topic: route.by_topic,
                patient: true,
                extra,
                message: message.clone(),
            };
            match at_once {
                true => {
                    self.send(shard, request);
                    outcome = worse(outcome, PublishOutcome::Routed);
                }
                false => awaited.push((shard, request)),
            }
        }
        if awaited.is_empty() {
            return self.request(now, from, ShardRequest::Forwarded { id, outcome });
        }
        self.forwarding.last += 1;
        let number = self.forwarding.last;
        self.forwarding.under_way.insert(number, (from, id));
        let group = self.groups.open(awaited.len() as u32, outcome, None);
        for (shard, mut request) in awaited {
            let waiting = Waiting::new(ConnectionId::NONE, Token(number), Some(group));
            let lane = self.lanes.entry(shard).or_default();
            let given = lane.push(waiting);
            if let ShardRequest::Publish { sequence, .. } = &mut request {
                *sequence = given;
            }
            match self.blocked.contains(&shard) {
                true => lane.park(request),
                false => self.send(shard, request),
            }
        }
    }

    /// All destinations have answered.
    pub(super) fn forward_finished(&mut self, now: Now, token: Token, outcome: PublishOutcome) {
        if let Some((shard, id)) = self.forwarding.under_way.remove(&token.0) {
            self.request(now, shard, ShardRequest::Forwarded { id, outcome });
        }
    }
}
