//! Memory of messages that wait: of 128 bytes each, on one stream, through a data shard. Mapped files do not count.

use crate::measure::{Arguments, anonymous_bytes, file_bytes};
use crate::worker::start;
use anabranch_core::id::StreamId;
use bytes::Bytes;
use std::path::Path;

const STREAM: StreamId = StreamId(1);
const WARM: StreamId = StreamId(2);
const BODY_BYTES: usize = 128;
/// Messages that come and go first, so that buffers and the tail of the journal, which do not grow with what waits,
/// have their size before it is measured.
const WARM_MESSAGES: u64 = 200_000;
const MIB: f64 = 1024.0 * 1024.0;

pub fn run(dir: &Path, arguments: &Arguments) {
    let messages = arguments.number("messages", 1_000_000.0) as u64;
    let warm = WARM_MESSAGES.min(messages);
    let (shard, mut workers) = start(dir, 1);
    let worker = &mut workers[0];
    worker.create(STREAM, false);
    worker.create(WARM, false);
    let body = Bytes::from(vec![7; BODY_BYTES]);
    let empty = anonymous_bytes();
    worker.attach(WARM, false);
    worker.publish_all(&[WARM], &body, warm, true);
    worker.detach(WARM);
    let before = anonymous_bytes();
    worker.publish_all(&[STREAM], &body, messages, false);
    let after = anonymous_bytes();
    let stats = shard.stats();
    println!(
        "anonymous memory: {:.1} MiB empty, {:.1} MiB when {warm} messages had passed, {:.1} MiB with {messages} of {BODY_BYTES} B waiting; {:.1} MiB of it the journal's tail; mapped files {:.1} MiB",
        empty as f64 / MIB,
        before as f64 / MIB,
        after as f64 / MIB,
        stats.tail_bytes as f64 / MIB,
        file_bytes() as f64 / MIB,
    );
    println!(
        "  => {:.1} MiB for 1,000,000 messages (at most 32)",
        after.saturating_sub(before) as f64 / MIB / (messages as f64 / 1e6)
    );
    shard.shutdown();
}
