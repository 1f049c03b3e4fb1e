//! Commands whose answer has several parts: a session's own filters, and each membership.
//!
//! Owns: which parts are known; the answer when the last one is.
//! Never: how a part comes about (`worker/groups/join.rs`, `worker/groups/leave.rs`, `worker/sessions.rs`).
//! Next: `worker/sessions.rs`, where such commands begin.

use super::gone;
use crate::address::TopicFilter;
use crate::error::Refusal;
use crate::gateway::{FilterName, FilterSpec, Reply};
use crate::id::{ConnectionId, Now, Token};
use crate::message::Quality;
use crate::port::{GroupKey, ShardReply};
use crate::worker::commands::{Checked, Here};
use crate::worker::steps::Step;
use crate::worker::values::Reading;
use crate::worker::{Connected, Worker};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A part of an answer: of this gathering, at this place.
#[derive(Clone, Copy, Debug)]
pub(in crate::worker) struct Part {
    pub(super) gathering: u64,
    pub(super) place: usize,
}

/// Answers that are put together.
#[derive(Default)]
pub(in crate::worker) struct Gatherings {
    open: FxHashMap<u64, Gathering>,
    last: u64,
}

pub(super) struct Gathering {
    pub(super) connection: ConnectionId,
    pub(super) token: Token,
    pub(super) parts: Parts,
    pub(super) left: usize,
    pub(super) readings: Vec<Reading>,
}

pub(super) enum Parts {
    Granted(Vec<Option<Result<Quality, Refusal>>>),
    Existed(Vec<bool>),
}

/// What is asked of a session beside its own filters.
pub(in crate::worker) struct WithGroups {
    /// Per filter, where it is known already.
    pub(in crate::worker) results: Vec<Option<Result<Quality, Refusal>>>,
    /// The places of the session's own filters.
    pub(in crate::worker) plain: Vec<usize>,
    /// The others, with their places.
    pub(in crate::worker) groups: Vec<(usize, Arc<str>, FilterSpec)>,
    pub(in crate::worker) readings: Vec<Reading>,
}

impl WithGroups {
    /// Of what was refused already, in the order of the filters, and what is asked of groups.
    pub(in crate::worker) fn new(
        refused: Vec<Option<Refusal>>,
        groups: Vec<(usize, Arc<str>, FilterSpec)>,
        readings: Vec<Reading>,
    ) -> WithGroups {
        let results: Vec<_> = refused.into_iter().map(|why| why.map(Err)).collect();
        let of_group = |place: &usize| groups.iter().any(|(of, ..)| of == place);
        let open = results.iter().enumerate();
        let open = open.filter(|(_, result)| result.is_none());
        let plain = open
            .map(|(place, _)| place)
            .filter(|place| !of_group(place));
        WithGroups {
            plain: plain.collect(),
            results,
            groups,
            readings,
        }
    }
}

impl Worker {
    fn gather(&mut self, connection: ConnectionId, token: Token, parts: Parts, left: usize) -> u64 {
        self.gatherings.last += 1;
        let gathering = Gathering {
            connection,
            token,
            parts,
            left,
            readings: Vec::new(),
        };
        self.gatherings.open.insert(self.gatherings.last, gathering);
        self.gatherings.last
    }

    /// Some parts are known; with the last one the command is answered.
    pub(super) fn gathered(&mut self, now: Now, number: u64, fill: impl FnOnce(&mut Gathering)) {
        let Some(gathering) = self.gatherings.open.get_mut(&number) else {
            return;
        };
        fill(gathering);
        gathering.left = gathering.left.saturating_sub(1);
        if gathering.left > 0 {
            return;
        }
        let Some(gathering) = self.gatherings.open.remove(&number) else {
            return;
        };
        let reply = match gathering.parts {
            Parts::Granted(parts) => {
                let parts = parts
                    .into_iter()
                    .map(|part| part.unwrap_or_else(|| Err(gone())));
                Reply::Subscribed(parts.collect())
            }
            Parts::Existed(parts) => Reply::Unsubscribed(parts),
        };
        self.done(gathering.connection, gathering.token, Ok(reply));
        if self.connections.contains_key(&gathering.connection) {
            self.begin_readings(now, gathering.readings);
        }
    }

    pub(super) fn granted(
        &mut self,
        now: Now,
        part: Option<Part>,
        result: Result<Quality, Refusal>,
    ) {
        let Some(Part { gathering, place }) = part else {
            return;
        };
        self.gathered(now, gathering, |gathering| {
            if let Parts::Granted(parts) = &mut gathering.parts
                && let Some(part) = parts.get_mut(place)
            {
                *part = Some(result);
            }
        });
    }

    /// Subscribes, also as a member of groups. Gives the step of the session's own part, if there is one.
    pub(in crate::worker) fn subscribe_with_groups(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        (token, here): (Token, &Here),
        asked: WithGroups,
    ) -> Option<Step> {
        let own = usize::from(!asked.plain.is_empty());
        let left = own + asked.groups.len();
        let parts = Parts::Granted(asked.results);
        let gathering = self.gather(connection, token, parts, left);
        for (place, name, spec) in asked.groups {
            let group = GroupKey {
                vhost: here.vhost,
                name,
                filter: spec.filter.clone(),
            };
            let part = Some(Part { gathering, place });
            self.join(now, connection, state, &here.name, (group, spec, part));
        }
        (own > 0).then_some(Step::SubscribedPart {
            gathering,
            places: asked.plain,
            readings: asked.readings,
        })
    }

    pub(in crate::worker) fn subscribed_part(
        &mut self,
        now: Now,
        gathering: u64,
        places: &[usize],
        readings: Vec<Reading>,
        result: Checked<ShardReply>,
    ) {
        let all = match result {
            Ok(ShardReply::Subscribed(all)) => all,
            Ok(_) => Vec::new(),
            Err(why) => places.iter().map(|_| Err(why.clone())).collect(),
        };
        self.gathered(now, gathering, |gathering| {
            gathering.readings = readings;
            if let Parts::Granted(parts) = &mut gathering.parts {
                for (place, result) in places.iter().zip(all) {
                    parts[*place] = Some(result);
                }
            }
        });
    }

    /// Unsubscribes, also from groups. Gives the session's own filters and the step of that part.
    pub(in crate::worker) fn unsubscribe_with_groups(
        &mut self,
        now: Now,
        connection: ConnectionId,
        state: &mut Connected,
        token: Token,
        names: Vec<FilterName>,
    ) -> (Vec<TopicFilter>, Step) {
        let groups = names.iter().filter(|name| name.group.is_some()).count();
        let parts = Parts::Existed(vec![false; names.len()]);
        let gathering = self.gather(connection, token, parts, 1 + groups);
        let (mut places, mut filters) = (Vec::new(), Vec::new());
        for (place, FilterName { group, filter }) in names.into_iter().enumerate() {
            match group {
                Some(name) => {
                    let part = Some(Part { gathering, place });
                    self.leave(now, connection, state, (name, filter), part);
                }
                None => {
                    places.push(place);
                    filters.push(filter);
                }
            }
        }
        (filters, Step::UnsubscribedPart { gathering, places })
    }

    pub(in crate::worker) fn unsubscribed_part(
        &mut self,
        now: Now,
        gathering: u64,
        places: &[usize],
        result: Checked<ShardReply>,
    ) {
        let all = match result {
            Ok(ShardReply::Unsubscribed(all)) => all,
            _ => Vec::new(),
        };
        self.gathered(now, gathering, |gathering| {
            if let Parts::Existed(parts) = &mut gathering.parts {
                for (place, existed) in places.iter().zip(all) {
                    parts[*place] = existed;
                }
            }
        });
    }
}
