//! What happens to one connection: read, fed, served with mail, written, ended.
//!
//! Owns: these steps. Each takes a slot's index and copes with a slot that is gone.
//! Never: lets one connection's fault reach another: a panic of a gateway ends its connection only.
//! Next: `slot.rs` (writing), `desk.rs` (the order of the steps).

use anabranch_core::gateway::{Close, ClosedBy, Input, StopReason};
use anabranch_core::id::ConnectionId;
use std::borrow::Cow;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;

use crate::desk::Desk;
use crate::farewell::Ended;
use crate::reader::Got;
use crate::slot::Written;

impl Desk {
    /// Reads a socket once and feeds what came.
    pub(crate) fn read(&mut self, index: usize) {
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        if slot.close.is_none() && !self.worker.may_read(slot.id) {
            slot.paused = true;
            return;
        }
        let got = match self.reader.read(&mut slot.transport) {
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return self.read_later(index);
            }
            Err(error) => {
                return self.lost(index, Cow::Owned(format!("the socket failed: {error}")));
            }
        };
        if slot.transport.wants_write() {
            slot.full = false;
            self.write_later(index);
        }
        let (bytes, more) = match got {
            Got::Bytes { bytes, more } => (bytes, more),
            Got::End => {
                return self.lost(
                    index,
                    Cow::Borrowed("it closed its socket without a goodbye"),
                );
            }
            Got::Goodbye => {
                let why = Cow::Borrowed("it closed its WebSocket");
                let by = ClosedBy::Peer;
                return self.part(index, Close { by, why });
            }
            Got::Fault(why) => {
                let by = ClosedBy::PeerFault;
                return self.part(index, Close { by, why });
            }
        };
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        slot.received_bytes += bytes.len() as u64;
        self.received_bytes += bytes.len() as u64;
        // After an end of the peer's side no further event comes: only reading finds it.
        let more = more || slot.read_closed;
        if slot.close.is_none() && !bytes.is_empty() {
            self.feed(index, Input::Bytes(bytes));
        }
        if more {
            self.read_later(index);
        }
    }

    /// Lists a slot for reading in the next turn.
    pub(crate) fn read_later(&mut self, index: usize) {
        if let Some(slot) = self.slots.at(index)
            && !slot.reading
        {
            slot.reading = true;
            self.to_read.push_back(index);
        }
    }

    /// Lists a slot for writing in this turn.
    pub(crate) fn write_later(&mut self, index: usize) {
        if let Some(slot) = self.slots.at(index)
            && !slot.dirty
        {
            slot.dirty = true;
            self.to_write.push(index);
        }
    }

    /// Feeds an input to a connection and submits what it asks.
    fn feed(&mut self, index: usize, input: Input<'_>) {
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        let held = slot.out.take();
        let mut out = held.unwrap_or_else(|| self.blank());
        let now = self.now;
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        let Some(connection) = slot.connection.as_mut() else {
            slot.out = (!out.send.is_empty()).then_some(out);
            return;
        };
        let handled = catch_unwind(AssertUnwindSafe(|| connection.handle(now, input, &mut out)));
        if handled.is_err() {
            out.commands.clear();
            out.close = Some(Close {
                by: ClosedBy::Us,
                why: Cow::Borrowed("its gateway failed; this is a bug of the broker"),
            });
        }
        if !out.commands.is_empty() {
            self.worker.submit(now, slot.id, &mut out.commands);
        }
        let close = out.close.take();
        if out.send.is_empty() {
            self.give_back(out);
        } else {
            slot.out = Some(out);
            self.write_later(index);
        }
        match close {
            Some(close) => self.close(index, close),
            None => self.rest(index),
        }
    }

    /// Makes the timers know when the slot wants attention next.
    pub(crate) fn rest(&mut self, index: usize) {
        if let Some(slot) = self.slots.at(index) {
            let wanted = slot.wanted();
            self.timers.want(index, &mut slot.due, wanted);
        }
    }

    /// Feeds a connection its mail, unless too much of it is unsent.
    pub(crate) fn serve(&mut self, id: ConnectionId) {
        let Some(index) = self.slots.find(id) else {
            return self.serve_call(id);
        };
        let hold = self.around.limits.unsent_hold_bytes;
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        if slot.connection.is_none() {
            return;
        }
        if slot.paused && self.worker.may_read(id) {
            slot.paused = false;
            self.read_later(index);
        }
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        if slot.unsent_bytes > hold {
            slot.mail_held = true;
            return;
        }
        let mut mail = std::mem::take(&mut self.mail);
        self.worker.take_mail(self.now, id, &mut mail);
        if !mail.answers.is_empty() {
            self.feed(index, Input::Answers(&mut mail.answers));
            mail.answers.clear();
        }
        if !mail.deliveries.is_empty() {
            self.feed(index, Input::Deliveries(&mut mail.deliveries));
            mail.deliveries.clear();
        }
        if !mail.late.is_empty() {
            self.feed(index, Input::Answers(&mut mail.late));
            mail.late.clear();
        }
        if let Some(reason) = mail.stop.take() {
            self.stop(index, reason);
        }
        self.mail = mail;
    }

    /// Ends a connection in its protocol's words.
    pub(crate) fn stop(&mut self, index: usize, reason: StopReason) {
        self.feed(index, Input::Stop(reason));
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        if slot.close.is_none() {
            let why = Cow::Borrowed("its gateway did not end it when told to");
            self.close(
                index,
                Close {
                    by: ClosedBy::Us,
                    why,
                },
            );
        }
    }

    /// A timer of the slot has fired.
    pub(crate) fn due(&mut self, index: usize) {
        let (now, mono) = (self.now, self.now.monotonic);
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        slot.due = None;
        if slot.linger_until.is_some_and(|until| until <= mono) {
            return self.remove(index);
        }
        let own = slot.connection.as_ref().and_then(|c| c.poll_timeout());
        if slot.stall_by.is_some_and(|by| by <= mono) {
            slot.stall_by = None;
            self.stop(index, StopReason::SlowReader);
        } else if slot.login_overdue(now) {
            if let Some(handshake) = slot.transport.missing() {
                // Nothing of its protocol can reach it.
                let why = Cow::Owned(format!("its {handshake} was not complete in time"));
                let by = ClosedBy::PeerFault;
                return self.part(index, Close { by, why });
            }
            self.stop(index, StopReason::LoginTimeout);
        } else if own.is_some_and(|due| due <= mono) {
            self.feed(index, Input::Timeout);
        }
        self.rest(index);
    }

    /// Writes what a slot has; its share of the turn.
    pub(crate) fn write(&mut self, index: usize) {
        let limits = self.around.limits;
        let stall_by = self.now.monotonic.after(limits.stall_ms);
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        slot.dirty = false;
        let (sent, unsent) = (slot.sent_bytes, slot.unsent_bytes);
        let written = slot.write(stall_by);
        let moved = slot.sent_bytes - sent;
        // Only growth under a hold counts: one large message may be larger than any limit here.
        if unsent > limits.unsent_hold_bytes && slot.unsent_bytes > unsent {
            slot.grown_bytes += slot.unsent_bytes - unsent;
        }
        let free = slot.unsent_bytes <= limits.unsent_hold_bytes;
        if free {
            slot.grown_bytes = 0;
        }
        let served_again = free && std::mem::take(&mut slot.mail_held);
        let too_slow = slot.grown_bytes > limits.unsent_stop_bytes && slot.close.is_none();
        let (id, closing) = (slot.id, slot.close.is_some());
        // After a failed write the buffer still holds bytes: it is not used again.
        let out = slot.out.take().filter(|_| written.is_ok());
        self.sent_bytes += moved;
        if let Some(out) = out {
            self.give_back(out);
        }
        if served_again {
            self.to_serve.push(id);
        }
        match written {
            Err(error) => {
                return self.lost(index, Cow::Owned(format!("the socket failed: {error}")));
            }
            Ok(Written::All) if closing => return self.sent_all(index),
            Ok(Written::Share) => self.write_later(index),
            Ok(Written::All | Written::Full) => {}
        }
        if too_slow {
            return self.stop(index, StopReason::SlowReader);
        }
        self.rest(index);
    }

    /// Ends a connection: nothing is fed to it any more, its last bytes leave.
    fn close(&mut self, index: usize, close: Close) {
        let linger_until = self.now.monotonic.after(self.around.limits.linger_ms);
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        let Some(connection) = slot.connection.take() else {
            return;
        };
        // It may be here because it panicked, and then its view may panic, too.
        let view = catch_unwind(AssertUnwindSafe(|| connection.view())).unwrap_or_default();
        self.farewell.log(
            self.now.monotonic,
            &Ended {
                id: slot.id,
                gateway: slot.gateway_name,
                peer: slot.peer,
                view: &view,
                close: &close,
            },
        );
        self.worker.disconnected(self.now, slot.id);
        if slot.was_shut_out() {
            slot.forget_unsent();
        }
        slot.close = Some(close);
        slot.login_by = None;
        slot.stall_by = None;
        slot.linger_until = Some(linger_until);
        self.write_later(index);
        self.rest(index);
    }

    /// The peer cannot be reached in its protocol's words any more, but in the transport's.
    fn part(&mut self, index: usize, close: Close) {
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        if slot.connection.is_none() {
            return match close.by {
                ClosedBy::Peer => self.remove(index),
                // Its last bytes are leaving, and what comes is not looked at.
                ClosedBy::PeerFault | ClosedBy::Refused | ClosedBy::Us => self.read_later(index),
            };
        }
        if slot.was_shut_out() && close.by == ClosedBy::PeerFault {
            self.counters.handshakes_failed.fetch_add(1, Relaxed);
        }
        self.feed(index, Input::Closed);
        if let Some(slot) = self.slots.at(index) {
            slot.forget_unsent();
        }
        self.close(index, close);
    }

    /// The last byte of an ended connection has left.
    fn sent_all(&mut self, index: usize) {
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        let by_peer = slot
            .close
            .as_ref()
            .is_some_and(|close| close.by == ClosedBy::Peer);
        if slot.read_closed || (by_peer && !slot.transport.has_words()) {
            return self.remove(index);
        }
        // Closing a socket with unread bytes resets it, and the peer may never see why it was closed:
        // we say that we are done and wait (no longer than the linger time) until it is, too.
        if !slot.transport.finish() {
            slot.full = true;
            return;
        }
        self.read_later(index);
    }

    /// The socket is gone.
    fn lost(&mut self, index: usize, why: Cow<'static, str>) {
        let Some(slot) = self.slots.at(index) else {
            return;
        };
        if slot.connection.is_some() {
            self.feed(index, Input::Closed);
            self.close(
                index,
                Close {
                    by: ClosedBy::Peer,
                    why,
                },
            );
        }
        if let Some(slot) = self.slots.at(index)
            && slot.transport.has_words()
        {
            // An answer to the peer's goodbye, if it leaves at once.
            slot.transport.finish();
        }
        self.remove(index);
    }

    fn remove(&mut self, index: usize) {
        let Some(mut slot) = self.slots.vacate(index) else {
            return;
        };
        self.timers.forget(index, &mut slot.due);
        self.counters.open.fetch_sub(1, Relaxed);
        self.counters.open_of[slot.gateway].fetch_sub(1, Relaxed);
    }
}
