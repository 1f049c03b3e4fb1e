//! Policies that reach streams already made.
//!
//! Metadata knows the policies, a shard its streams: when policies changed, and once after a start (they may have
//! changed while this shard was not there), the leader compares and proposes what differs as a journalled change, so that
//! every replica has the same limits.
//!
//! Owns: when to look, and the comparison. Never: what a policy says (`meta/policy.rs`), what limits do (`limit.rs`).

use super::{Place, Shard};
use crate::id::UnixMs;
use crate::record::{AsJson, Change, Mark};
use crate::stream::Kind;

impl<B: Place> Shard<B> {
    pub(super) fn renew_policies(&mut self, now: UnixMs) {
        let fabric = self.fabric.clone();
        let meta = fabric.meta();
        let generation = Some(meta.policies().generation());
        if generation == self.policies_seen {
            return;
        }
        self.policies_seen = generation;
        let mut changed = Vec::new();
        for stream in self.streams.iter().flatten() {
            let wanted = match &stream.kind {
                Kind::Session(_) => continue,
                Kind::Group(group) => meta.group_limits(stream.vhost, &group.name),
                // One that metadata does not know is about to be deleted.
                Kind::Queue if meta.stream_by_id(stream.id).is_none() => continue,
                Kind::Queue => meta.effective_limits(stream.id),
            };
            if wanted != *stream.limits {
                changed.push((stream.id, wanted));
            }
        }
        drop(meta);
        for (stream, limits) in changed {
            let limits = AsJson(limits);
            let change = Change::SetLimits { stream, limits };
            self.change(now, Mark::default(), change);
        }
    }
}
