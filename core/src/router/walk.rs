//! One message's way through the exchanges of its vhost.
//!
//! Every exchange is gone through once, so that circles end. An exchange that takes a message by no binding hands it
//! to its alternate exchange.
//!
//! Owns: [`Walk`]. Never: remembers anything (`router.rs`).
//! Next: `exchange.rs`, how one exchange picks its ends.

use super::Interest;
use crate::exchange::Wanted;
use crate::gateway::ExchangeKind;
use crate::id::{ExchangeId, StreamId, VhostId};
use crate::message::Message;
use crate::meta::{Exchange, Meta, Target};
use crate::properties::{Codecs, Properties};
use smallvec::SmallVec;
use std::sync::Arc;

/// What going through the exchanges found.
pub(super) struct Walk<'a> {
    meta: &'a Meta,
    interest: &'a Interest,
    codecs: &'a Codecs,
    vhost: VhostId,
    message: &'a Message,
    properties: Option<Properties>,
    visited: SmallVec<[ExchangeId; 4]>,
    todo: SmallVec<[ExchangeId; 4]>,
    /// Streams, perhaps repeatedly.
    pub(super) streams: SmallVec<[StreamId; 8]>,
    /// The exchange that sessions are bound to was gone through.
    pub(super) reached_sessions: bool,
    /// A headers exchange was gone through: another message may go elsewhere.
    pub(super) depends_on_headers: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        meta: &'a Meta,
        interest: &'a Interest,
        codecs: &'a Codecs,
        vhost: VhostId,
        message: &'a Message,
    ) -> Walk<'a> {
        Walk {
            meta,
            interest,
            codecs,
            vhost,
            message,
            properties: None,
            visited: SmallVec::new(),
            todo: SmallVec::new(),
            streams: SmallVec::new(),
            reached_sessions: false,
            depends_on_headers: false,
        }
    }

    /// Goes through an exchange and all it leads to.
    pub(super) fn run(&mut self, first: ExchangeId) {
        self.todo.push(first);
        while let Some(id) = self.todo.pop() {
            if self.visited.contains(&id) {
                continue;
            }
            self.visited.push(id);
            if let Some(exchange) = self.meta.exchange_by_id(id) {
                self.visit(exchange);
            }
        }
    }

    fn visit(&mut self, exchange: &'a Exchange) {
        let mut taken = false;
        let mut asked: SmallVec<[(Target, &'a Arc<Wanted>); 4]> = SmallVec::new();
        if let Some(table) = self.meta.table(exchange.id) {
            table.visit(&self.message.address, |target, wanted| match wanted {
                Some(wanted) => asked.push((target, wanted)),
                None => {
                    taken = true;
                    end(target, &mut self.streams, &mut self.todo);
                }
            });
        }
        if exchange.kind == ExchangeKind::Headers {
            self.depends_on_headers = true;
        }
        if !asked.is_empty() {
            let (codecs, message) = (self.codecs, self.message);
            let properties = self
                .properties
                .get_or_insert_with(|| codecs.neutral(message));
            for (target, wanted) in asked {
                if wanted.matches(properties) {
                    taken = true;
                    end(target, &mut self.streams, &mut self.todo);
                }
            }
        }
        let of_sessions = self.meta.vhost_by_id(self.vhost);
        if of_sessions.is_some_and(|vhost| vhost.topic_exchange == exchange.id) {
            self.reached_sessions = true;
            let interest = self.interest;
            interest.visit(self.vhost, &self.message.address, |_| taken = true);
        }
        if !taken
            && let Some(name) = &exchange.alternate
            && let Some(alternate) = self.meta.exchange(self.vhost, name)
        {
            self.todo.push(alternate.id);
        }
    }
}

fn end(
    target: Target,
    streams: &mut SmallVec<[StreamId; 8]>,
    todo: &mut SmallVec<[ExchangeId; 4]>,
) {
    match target {
        Target::Stream(stream) => streams.push(stream),
        Target::Exchange(exchange) => todo.push(exchange),
    }
}
