//! What a transaction of a channel gathers until it is committed or rolled back.
//!
//! Publishes and acknowledgements are kept here and not told to core; a commit hands all of them over as
//! one command, a rollback forgets them. Owns the bookkeeping and its limits. Never: which methods are
//! allowed when (`connection/transactions.rs`), what atomic means (core: all of it or nothing in each
//! shard).

use std::sync::Arc;

use anabranch_core::error::ErrorKind;
use anabranch_core::gateway::{Command, Outcome};
use anabranch_core::id::{ConsumerTag, Offset};

use crate::unacked::{SettleRun, Unsettled};
use crate::unfinished::{Share, Unfinished};

/// Most publishes and acknowledgements of a transaction.
pub const COMMANDS_MAX: usize = 65_536;
/// Most bytes of the messages of a transaction.
pub const BYTES_MAX: u64 = 32 << 20;

/// A limit of transactions is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooMuch {
    /// More than [`COMMANDS_MAX`].
    #[error("a transaction has more than {COMMANDS_MAX} publishes and acknowledgements")]
    Commands,
    /// More than [`BYTES_MAX`].
    #[error("the messages of a transaction have more than {BYTES_MAX} bytes")]
    Bytes,
    /// Nothing is left of what all connections may hold.
    #[error("messages that are not committed yet take all the memory set aside for them")]
    Shared,
}

/// A transaction, from `tx.select` on.
#[derive(Debug)]
pub struct Transaction {
    publishes: Vec<Command>,
    settles: Vec<(Unsettled, Outcome)>,
    bytes: u64,
    share: Share,
    committing: Option<Committing>,
}

/// A commit that core has not answered yet.
#[derive(Debug)]
struct Committing {
    /// Number of the first publish, and of the last.
    range: (u64, u64),
    /// Publishes not answered.
    left: u64,
    /// The first refused publish that was told of, and why it was.
    refused: Option<(u64, ErrorKind)>,
}

impl Transaction {
    /// An empty one; what it holds counts against `unfinished`.
    pub fn new(unfinished: &Arc<Unfinished>) -> Self {
        Self {
            publishes: Vec::new(),
            settles: Vec::new(),
            bytes: 0,
            share: Share::new(unfinished),
            committing: None,
        }
    }

    /// Whether a commit is under way.
    pub fn is_committing(&self) -> bool {
        self.committing.is_some()
    }

    fn has_room(&self) -> Result<(), TooMuch> {
        if self.publishes.len() + self.settles.len() < COMMANDS_MAX {
            Ok(())
        } else {
            Err(TooMuch::Commands)
        }
    }

    /// Keeps a publish of `bytes`.
    ///
    /// # Errors
    /// When a limit is reached; the channel is then to be closed.
    pub fn publish(&mut self, publish: Command, bytes: u64) -> Result<(), TooMuch> {
        self.has_room()?;
        self.bytes += bytes;
        if self.bytes > BYTES_MAX {
            return Err(TooMuch::Bytes);
        }
        if !self.share.grow(bytes) {
            return Err(TooMuch::Shared);
        }
        self.publishes.push(publish);
        Ok(())
    }

    /// Keeps the settlement of a delivery.
    pub fn settle(&mut self, delivery: Unsettled, outcome: Outcome) {
        self.settles.push((delivery, outcome));
    }

    /// Settled deliveries that still count against a window.
    pub fn in_window(&self) -> u32 {
        let counted = self.settles.iter().filter(|(entry, _)| !entry.got);
        u32::try_from(counted.count()).unwrap_or(u32::MAX)
    }

    /// What is settled of a consumer's deliveries.
    pub fn settled_of(&self, consumer: ConsumerTag) -> Vec<Offset> {
        let of_it = self.settles.iter();
        let of_it = of_it.filter(|(entry, _)| entry.consumer == consumer);
        of_it.map(|(entry, _)| entry.offset).collect()
    }

    /// Checks the limit after settlements were kept.
    ///
    /// # Errors
    /// When it is reached.
    pub fn check(&self) -> Result<(), TooMuch> {
        self.has_room()
    }

    /// Hands out everything in order as what one atomic command does, `published` being the number of the
    /// channel's last publish, and how many settled deliveries counted against a window.
    pub fn commit(&mut self, published: u64) -> (Vec<Command>, u32) {
        let mut commands = std::mem::take(&mut self.publishes);
        let count = commands.len() as u64;
        let mut run = SettleRun::default();
        let mut counted = 0;
        for (entry, outcome) in self.settles.drain(..) {
            counted += u32::from(!entry.got);
            run.add(entry.consumer, entry.offset, outcome, &mut commands);
        }
        run.flush(&mut commands);
        if count > 0 {
            self.committing = Some(Committing {
                range: (published - count + 1, published),
                left: count,
                refused: None,
            });
        }
        self.forget_bytes();
        (commands, counted)
    }

    /// Forgets the publishes and gives back what was settled, which is unsettled again.
    pub fn roll_back(&mut self) -> impl Iterator<Item = Unsettled> {
        self.publishes = Vec::new();
        self.forget_bytes();
        std::mem::take(&mut self.settles)
            .into_iter()
            .map(|(entry, _)| entry)
    }

    fn forget_bytes(&mut self) {
        self.bytes = 0;
        self.share.release();
    }

    /// Whether a commit under way has one of these publishes.
    pub fn commits(&self, first: u64, last: u64) -> bool {
        let commits =
            |committing: &Committing| first <= committing.range.1 && last >= committing.range.0;
        self.committing.as_ref().is_some_and(commits)
    }

    /// Takes in that publishes were answered. When they were the last of a commit, says how it ended:
    /// which publish was refused, and why, if one was.
    pub fn answered(
        &mut self,
        first: u64,
        last: u64,
        refused: Option<ErrorKind>,
    ) -> Option<Option<(u64, ErrorKind)>> {
        let committing = self.committing.as_mut()?;
        let (from, to) = (first.max(committing.range.0), last.min(committing.range.1));
        if from <= to {
            committing.left = committing.left.saturating_sub(to - from + 1);
            let refused = refused.map(|kind| (from, kind));
            committing.refused = committing.refused.or(refused);
        }
        if committing.left > 0 {
            return None;
        }
        self.committing.take().map(|ended| ended.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_core::gateway::OnceKey;
    use anabranch_core::id::{ConsumerTag, Offset, Token};

    fn any() -> Command {
        Command::Forget {
            token: Token::NONE,
            once: OnceKey(0),
        }
    }

    fn entry(tag: u64) -> Unsettled {
        Unsettled {
            tag,
            consumer: ConsumerTag(1),
            offset: Offset(tag),
            got: tag == 9,
        }
    }

    fn transaction() -> Transaction {
        Transaction::new(&Unfinished::new(u64::MAX, None))
    }

    #[test]
    fn a_commit_ends_when_each_of_its_publishes_is_answered() {
        let mut tx = transaction();
        for _ in 0..3 {
            tx.publish(any(), 1).unwrap();
        }
        tx.settle(entry(8), Outcome::Accepted);
        tx.settle(entry(9), Outcome::Accepted);
        assert_eq!(tx.in_window(), 1);
        let (commands, counted) = tx.commit(12);
        assert_eq!((commands.len(), counted), (4, 1), "a dense run is one");
        assert!(tx.is_committing());
        assert!(!tx.commits(5, 9) && tx.commits(9, 10) && !tx.commits(13, 13));
        assert_eq!(
            tx.answered(5, 9, Some(ErrorKind::Busy)),
            None,
            "from before"
        );
        assert_eq!(tx.answered(12, 12, Some(ErrorKind::NotFound)), None);
        assert_eq!(
            tx.answered(10, 11, None),
            Some(Some((12, ErrorKind::NotFound)))
        );
        assert!(!tx.is_committing());
        tx.publish(any(), 1).unwrap();
        tx.commit(13);
        assert_eq!(tx.answered(13, 13, None), Some(None));
    }

    #[test]
    fn a_commit_without_publishes_waits_for_nothing() {
        let mut tx = transaction();
        tx.settle(entry(1), Outcome::Rejected);
        assert_eq!(tx.commit(0).0.len(), 1);
        assert!(!tx.is_committing());
        assert_eq!(tx.commit(0), (vec![], 0));
    }

    #[test]
    fn what_is_rolled_back_is_unsettled_again() {
        let mut tx = transaction();
        tx.publish(any(), 1).unwrap();
        tx.settle(entry(2), Outcome::Accepted);
        let back: Vec<u64> = tx.roll_back().map(|entry| entry.tag).collect();
        assert_eq!(back, [2]);
        assert_eq!(tx.commit(1), (vec![], 0));
    }

    #[test]
    fn bytes_and_commands_are_limited() {
        let mut tx = transaction();
        assert_eq!(tx.publish(any(), BYTES_MAX + 1), Err(TooMuch::Bytes));
        let mut tx = transaction();
        for _ in 0..COMMANDS_MAX {
            tx.publish(any(), 1).unwrap();
        }
        assert_eq!(tx.publish(any(), 1), Err(TooMuch::Commands));
        assert_eq!(tx.check(), Err(TooMuch::Commands));
        let whole = Unfinished::new(10, None);
        let mut tx = Transaction::new(&whole);
        tx.publish(any(), 8).unwrap();
        assert_eq!(tx.publish(any(), 8), Err(TooMuch::Shared));
        tx.commit(1);
        let mut other = Transaction::new(&whole);
        assert_eq!(other.publish(any(), 10), Ok(()), "given back by the commit");
    }
}
