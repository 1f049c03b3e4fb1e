//! The methods of class tx (AMQP 0-9-1 section 1.10 of the XML grammar), and what they change.
//!
//! A transaction is atomic in each shard: of what it does there all or nothing takes effect. Owns when a
//! transaction may be begun, committed and rolled back and what is told of it. Next: `transaction`.

use anabranch_core::error::{ErrorKind, Refusal};
use anabranch_core::gateway::Command;

use super::outcomes::publish_refused;
use super::publish::no_exchange;
use super::{AmqpConnection, Cx, Phase};
use crate::error::{AmqpError, ReplyCode};
use crate::reason;
use crate::token::ChannelLife;
use crate::transaction::{TooMuch, Transaction};
use crate::wire::batch::Batch;
use crate::wire::method::{TxCommit, TxCommitOk, TxRollbackOk, TxSelectOk, Wire};

fn precondition(text: &'static str) -> AmqpError {
    AmqpError::channel(ReplyCode::PRECONDITION_FAILED, text)
}

fn not_transactional() -> AmqpError {
    precondition("channel is not transactional")
}

/// The error for a transaction that holds too much.
pub(super) fn too_much(error: TooMuch) -> AmqpError {
    AmqpError::connection(ReplyCode::RESOURCE_ERROR, error.to_string())
}

/// The error for a method while a commit is being answered.
pub(super) fn committing() -> AmqpError {
    AmqpError::connection(
        ReplyCode::CHANNEL_ERROR,
        "unexpected method while a transaction is being committed",
    )
}

impl AmqpConnection {
    pub(super) fn tx_select(&mut self, number: u16, cx: &mut Cx<'_>) -> Result<(), AmqpError> {
        let unfinished = self.unfinished.clone();
        if let Some(channel) = self.channel_mut(number) {
            if channel.confirms.is_some() {
                return Err(precondition("cannot switch from confirm to tx mode"));
            }
            channel
                .tx
                .get_or_insert_with(|| Box::new(Transaction::new(&unfinished)));
        }
        cx.out.send.method(number, &TxSelectOk {});
        Ok(())
    }

    pub(super) fn tx_commit(&mut self, number: u16, cx: &mut Cx<'_>) -> Result<(), AmqpError> {
        let Some(channel) = self.channel_mut(number) else {
            return Ok(());
        };
        let published = channel.published;
        let tx = channel.tx.as_mut().ok_or_else(not_transactional)?;
        let (commands, counted) = tx.commit(published);
        let waits = tx.is_committing();
        channel.waiting = waits;
        channel.in_window -= counted.min(channel.in_window);
        self.settles.flush(&mut cx.out.commands);
        if !commands.is_empty() {
            cx.out.commands.push(Command::Atomic { commands });
        }
        if !waits {
            cx.out.send.method(number, &TxCommitOk {});
        }
        self.send_held(number, cx);
        Ok(())
    }

    /// Publishes of a channel in a transaction were answered: tells the end of the commit, if it is that.
    pub(super) fn commit_answered(
        &mut self,
        of: ChannelLife,
        (first, last): (u64, u64),
        refused: Option<ErrorKind>,
        cx: &mut Cx<'_>,
    ) {
        let Some(channel) = self.open_channel(of) else {
            return;
        };
        let Some(ended) = channel
            .tx
            .as_mut()
            .and_then(|tx| tx.answered(first, last, refused))
        else {
            return;
        };
        channel.waiting = false;
        let Some((number, kind)) = ended else {
            if self.phase == Phase::Running {
                cx.out.send.method(of.channel, &TxCommitOk {});
            }
            self.tell_ended(of, cx);
            return self.drain_backlog(of, cx);
        };
        let known = number >= channel.exchange.1;
        let exchange = channel.exchange.0.clone();
        let error = match kind {
            ErrorKind::NotFound if known => no_exchange(&exchange, &self.vhost),
            kind if reason::is_nacked(kind) => precondition("partial tx completion"),
            kind => reason::refused(&Refusal::new(kind, publish_refused(kind)), TxCommit::ID),
        };
        self.fail(of.channel, super::at(error, TxCommit::ID), cx);
    }

    pub(super) fn tx_rollback(&mut self, number: u16, cx: &mut Cx<'_>) -> Result<(), AmqpError> {
        if let Some(channel) = self.channel_mut(number) {
            let tx = channel.tx.as_mut().ok_or_else(not_transactional)?;
            // Neither acknowledged nor given back: its tag can be acknowledged again.
            channel.unacked.put_back(tx.roll_back());
        }
        cx.out.send.method(number, &TxRollbackOk {});
        Ok(())
    }
}
