//! Streams that policies bind: what is published to certain addresses is kept in them.
//!
//! A policy's `capture` is a list of filters of the vhost's topic exchange. Every stream that keeps its messages and
//! whose name matches is bound to them for as long as the policy counts. Such a binding carries an argument of its own,
//! so that it is never taken for one that a client made.
//!
//! Owns: keeping those bindings in step with policies and streams.
//! Never: makes a stream; which policy counts (`policy.rs`).

use super::arguments::Arguments;
use super::{BINDINGS_MAX, Binding, BindingId, Meta, Target};
use crate::address::TopicFilter;
use crate::id::{StreamId, VhostId};
use crate::limits::Mode;
use crate::properties::Value;
use bytes::Bytes;

/// The argument of a binding that a policy made.
pub const BY_POLICY: &[u8] = b"x-by-policy";

impl Meta {
    /// Policies of a vhost changed.
    pub(super) fn capture_all(&mut self, vhost: VhostId) {
        let streams = self.streams(vhost);
        let kept = streams.filter(|stream| stream.limits.mode == Mode::Replay);
        let kept: Vec<StreamId> = kept.map(|stream| stream.id).collect();
        for stream in kept {
            self.capture(stream);
        }
    }

    /// A stream came, or policies changed. When there are as many bindings as there may be, some are missing.
    pub(super) fn capture(&mut self, id: StreamId) {
        let Some(stream) = self.stream_by_id(id) else {
            return;
        };
        if stream.limits.mode != Mode::Replay {
            return;
        }
        let Some(exchange) = self
            .vhost_by_id(stream.vhost)
            .map(|vhost| vhost.topic_exchange)
        else {
            return;
        };
        let mut wanted: Vec<TopicFilter> = self.captured_by(id);
        wanted.sort();
        wanted.dedup();
        let mut gone = Vec::new();
        for binding in self.bindings_of_stream(id) {
            if binding.arguments.named(BY_POLICY).is_none() {
                continue;
            }
            match wanted.iter().position(|filter| *filter == binding.filter) {
                Some(at) => drop(wanted.remove(at)),
                None => gone.push(binding.id),
            }
        }
        for binding in gone {
            self.unlink_binding_and_unused(binding);
        }
        for filter in wanted {
            let mark = vec![(Bytes::from_static(BY_POLICY), Value::Bool(true))];
            let arguments = Arguments::new(mark).unwrap_or_default();
            if self.bindings.len() >= BINDINGS_MAX {
                return;
            }
            self.last.binding += 1;
            // A topic exchange takes any binding.
            let _ = self.link_binding(Binding {
                id: BindingId(self.last.binding),
                exchange,
                target: Target::Stream(id),
                filter,
                arguments,
            });
        }
    }
}
