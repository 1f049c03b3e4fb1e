//! Messages that are not at hand: what waits until they are.
//!
//! Where a message lies is the host's affair; it may say of one that it is on its way. Then a stream pauses, in front of
//! it and for as long as it takes, while others go on; an errand keeps its place among those of its stream; a question
//! is asked again, for a while. The host says when something has arrived, not what: everything that waits is tried
//! again, and waits again where it has to. All of this is the leader's memory.
//!
//! Owns: what waits, trying it again, giving up on a question.
//! Never: fetching (`store/`), the order of errands (`forward.rs`).
//! Next: `shard/setup.rs` for [`Bodies`].

use super::{Bodies, Place, Shard, Store};
use crate::error::{ErrorKind, Refusal};
use crate::id::{ConnectionId, MonotonicMs, Now, StreamId, WorkerId};
use crate::port::{Question, ShardReply, Ticket};
use std::collections::BTreeSet;

/// How long a question waits for messages, in milliseconds: whoever asked may ask again.
const QUESTION_MS: u64 = 4000;

/// What waits for messages.
#[derive(Default)]
pub(crate) struct Away {
    streams: BTreeSet<StreamId>,
    /// The one that was tried first when something had arrived. The host brings for so many at a time, and they are to
    /// take turns.
    tried_first: Option<StreamId>,
    questions: Vec<Waiting>,
}

struct Waiting {
    from: WorkerId,
    ticket: Ticket,
    question: Question,
    until: MonotonicMs,
}

impl Away {
    /// When the first question has waited long enough.
    pub(super) fn wake_at(&self) -> Option<MonotonicMs> {
        self.questions.iter().map(|waiting| waiting.until).min()
    }
}

impl<B: Place> Shard<B> {
    /// The next message of a stream is on its way.
    pub(super) fn pause(&mut self, stream: StreamId) {
        self.away.streams.insert(stream);
    }

    /// Whether a stream waits for its next message.
    pub(super) fn is_paused(&self, stream: StreamId) -> bool {
        self.away.streams.contains(&stream)
    }

    /// A stream is tried again.
    pub(super) fn unpause(&mut self, stream: StreamId) {
        self.away.streams.remove(&stream);
    }

    /// The answer has to wait for a message.
    pub(super) fn ask_later(
        &mut self,
        now: Now,
        from: WorkerId,
        ticket: Ticket,
        question: Question,
    ) {
        let until = now.monotonic.after(QUESTION_MS);
        self.away.questions.push(Waiting {
            from,
            ticket,
            question,
            until,
        });
    }

    /// Messages that were not at hand are, or it is time to ask for them once more. To be followed by
    /// [`Shard::dispatch`].
    pub fn arrived(&mut self, now: Now, bodies: &mut dyn Bodies<B>)
    where
        Self: Store<B>,
    {
        self.now = now;
        let waiting = std::mem::take(&mut self.away.streams);
        let (behind, before): (Vec<StreamId>, Vec<StreamId>) = waiting
            .into_iter()
            .partition(|stream| Some(*stream) > self.away.tried_first);
        self.away.tried_first = behind.first().or(before.first()).copied();
        for stream in behind.into_iter().chain(before) {
            if let Some(&place) = self.by_id.get(&stream) {
                self.list(place);
            }
        }
        self.forwards.recall();
        let asked = std::mem::take(&mut self.away.questions);
        for Waiting {
            from,
            ticket,
            question,
            until,
        } in asked
        {
            let before = self.away.questions.len();
            self.ask(now, from, ticket, question, bodies);
            // One that waits on has not begun to wait now.
            if let Some(again) = self.away.questions.get_mut(before) {
                again.until = until;
            }
        }
    }

    /// Who asked is gone.
    pub(super) fn forget_questions(&mut self, connection: ConnectionId) {
        self.away
            .questions
            .retain(|waiting| match &waiting.question {
                Question::Get { consumer, .. } => consumer.connection != connection,
                _ => true,
            });
    }

    /// Answers those that have waited long enough.
    pub(super) fn give_up_questions(&mut self, now: MonotonicMs) {
        let asked = std::mem::take(&mut self.away.questions);
        let (over, waiting) = asked.into_iter().partition(|one| one.until <= now);
        self.away.questions = waiting;
        for Waiting {
            from,
            ticket,
            question,
            ..
        } in over
        {
            let answer = match question {
                // As good as empty, for now: a refusal would cost whoever takes single messages its connection.
                Question::Get { stream, .. } => {
                    let ready = self.stream_mut(stream).map_or(0, |stream| stream.ready());
                    let ready = ready + self.ready_below(stream).entries;
                    Ok(ShardReply::Got(None, ready))
                }
                _ => Err(Refusal::new(
                    ErrorKind::Unavailable,
                    "the messages are not at hand and have not come yet: try again",
                )),
            };
            self.reply(from, ticket, answer);
        }
    }
}
