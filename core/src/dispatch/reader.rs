//! A reader of a stream and its two windows.
//!
//! Owns: [`Reader`], how much it can be handed now, and what a message takes of the travel window.
//! Never: the choice among readers (`dispatch.rs`).
//! Next: `shard/questions/attach.rs`, which makes most of them.

use super::Cursor;
use super::Unsettled;
use crate::authority::Principal;
use crate::gateway::FilterSpec;
use crate::message::Message;
use crate::port::ConsumerKey;
use std::sync::Arc;

/// Travel units a reader may have on the way; see [`travel_units`].
pub const TRAVEL_UNITS_MAX: u32 = 2048;

/// Bytes that one travel unit stands for, beside one for each message.
const TRAVEL_UNIT_BYTES: usize = 4096;

/// What a message of this cost takes of the travel window.
pub fn travel_units(cost_bytes: usize) -> u32 {
    1 + (cost_bytes / TRAVEL_UNIT_BYTES) as u32
}

/// A reader of a stream.
#[derive(Clone, Debug)]
pub struct Reader {
    /// Names it in the stream's slots; never reused in one stream.
    pub number: u32,
    /// Who it is.
    pub key: ConsumerKey,
    /// For the right to receive.
    pub principal: Arc<Principal>,
    /// The vhost by name, for the rules.
    pub vhost: Arc<str>,
    /// Settled by being handed out.
    pub presettled: bool,
    /// No one beside it.
    pub exclusive: bool,
    /// Not what its own connection published.
    pub no_local: bool,
    /// Higher is served first.
    pub priority: i32,
    /// Limit of unsettled deliveries.
    pub credit: u32,
    /// Unsettled deliveries.
    pub held: u32,
    /// Travel units on the way.
    pub travelling: u32,
    /// Gets deliveries; else it only holds some.
    pub attached: bool,
    /// May receive every address, so that no message need be asked about.
    pub receives_all: bool,
    /// A session's membership in a group: what its filter grants and asks. Absent for a queue's consumers.
    pub member: Option<Box<FilterSpec>>,
    /// Its own place, where messages stay.
    pub cursor: Option<Box<Cursor>>,
    /// Passed by: it did not settle what it held in time, and gets nothing until it settles something.
    pub silent: bool,
    /// How long it has held what; only where that is bounded.
    pub unsettled: Option<Box<Unsettled>>,
}

impl Reader {
    /// One that gets nothing by itself: it holds what it was handed singly, until somebody says more of it.
    pub fn new(key: ConsumerKey, principal: Arc<Principal>, vhost: Arc<str>) -> Reader {
        Reader {
            number: 0,
            key,
            principal,
            vhost,
            presettled: false,
            exclusive: false,
            no_local: false,
            priority: 0,
            credit: 0,
            held: 0,
            travelling: 0,
            attached: false,
            receives_all: false,
            member: None,
            cursor: None,
            silent: false,
            unsettled: None,
        }
    }

    /// Whether it comes into question for new deliveries.
    pub fn serves(&self) -> bool {
        self.attached && !self.silent
    }

    /// Whether it can be handed a delivery that must be settled.
    pub fn has_room(&self) -> bool {
        self.can_travel() && (self.presettled || self.held < self.credit)
    }

    /// How many deliveries it can be handed now, at most.
    pub(super) fn room(&self) -> u64 {
        if !self.serves() {
            return 0;
        }
        let travel = TRAVEL_UNITS_MAX.saturating_sub(self.travelling);
        let credit = match self.presettled {
            true => u32::MAX,
            false => self.credit.saturating_sub(self.held),
        };
        u64::from(travel.min(credit))
    }

    /// Whether it published this message itself and does not want it back.
    pub fn is_own(&self, message: &Message) -> bool {
        let asked = self.no_local || self.member.as_ref().is_some_and(|member| member.no_local);
        asked && message.publisher == self.key.connection
    }

    /// Whether it can be handed a delivery that is settled by being handed out.
    pub fn can_travel(&self) -> bool {
        self.serves() && self.travelling < TRAVEL_UNITS_MAX
    }
}
