//! One data shard beside its journal, without workers: what a test of checkpoints writes goes straight into records.
//!
//! Owns: records that are made and applied at once. Never: a test. Next: `kept.rs` (what a store keeps of it).

use super::{Journal, shard};
use anabranch_core::authority::{AllowAll, Authority};
use anabranch_core::id::*;
use anabranch_core::limits::{Mode, StreamLimits};
use anabranch_core::message::{Message, Quality};
use anabranch_core::record::{AsJson, Change, Mark, PayloadBuilder};
use anabranch_core::router::Fabric;
use anabranch_core::shard::Shard;
use bytes::Bytes;
use std::sync::Arc;

/// A shard that has nothing yet.
pub fn fresh() -> Shard<Position> {
    let authority: Arc<dyn Authority> = Arc::new(AllowAll);
    shard(1, 9, &Arc::new(Fabric::default()), &authority)
}

/// See the module's text.
#[derive(Default)]
pub struct World {
    pub journal: Journal,
    /// Of the last message that was published.
    sequence: u64,
}

impl World {
    fn apply(&mut self, shard: &mut Shard<Position>, mut frame: PayloadBuilder) {
        let (base, payload) = (self.journal.bytes.len() as u64, frame.take());
        self.journal.bytes.extend_from_slice(&payload);
        let clock = UnixMs(1_000_000 + self.sequence);
        shard.apply(clock, Position(base), &payload, false).unwrap();
    }

    pub fn change(&mut self, shard: &mut Shard<Position>, change: &Change) {
        let mut frame = PayloadBuilder::default();
        frame.change(Mark::default(), change);
        self.apply(shard, frame);
    }

    pub fn create(&mut self, shard: &mut Shard<Position>, stream: StreamId, mode: Mode) {
        let limits = StreamLimits {
            mode,
            ..StreamLimits::default()
        };
        let change = Change::CreateStreamWith {
            stream,
            vhost: VhostId(1),
            name: format!("q{}", stream.0 & 0xF).into(),
            limits: AsJson(limits),
        };
        self.change(shard, &change);
    }

    /// Messages in one frame, each with the body that is made of its number.
    pub fn publish(
        &mut self,
        shard: &mut Shard<Position>,
        stream: StreamId,
        count: u64,
        body: impl Fn(u64) -> Bytes,
    ) {
        let mut frame = PayloadBuilder::default();
        for _ in 0..count {
            self.sequence += 1;
            let mark = Mark {
                lane: Lane(5 << 16),
                sequence: Sequence(self.sequence),
            };
            let message = Message {
                body: body(self.sequence),
                quality: Quality::AtLeastOnce,
                ..Message::default()
            };
            frame.publish(mark, &[stream], None, None, &message);
        }
        self.apply(shard, frame);
    }
}
