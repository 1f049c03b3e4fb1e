//! Messages that came back and wait before they can go out again: the leader's memory, they are ready to everybody else.
//!
//! Owns: which they are. Never: for how long (`shard/retry.rs`).

use super::{Place, Stream};

impl<B: Place> Stream<B> {
    /// Back to its place, where nobody gets it until it is resumed; says whether it waits. What is only owed does not.
    /// Where keys are kept in order all of its key waits with it.
    pub fn postpone(&mut self, offset: u64) -> bool {
        self.release(offset);
        if let Some(keyed) = self.keyed.as_deref_mut() {
            keyed.pause(offset);
            return keyed.is_paused(offset);
        }
        let waits = self.returned.remove(offset);
        if waits {
            self.postponed.get_or_insert_default().insert(offset);
        }
        waits
    }

    /// It can go out again; says whether it waited.
    pub fn resume(&mut self, offset: u64) -> bool {
        if let Some(keyed) = self.keyed.as_deref_mut()
            && keyed.resume(offset)
        {
            return true;
        }
        // Also where keys are kept in order only since it came back.
        let waited = self.unpostpone(offset);
        if waited {
            self.returned.insert(offset);
        }
        waited
    }

    /// It waits no more: it is handed out, or gone.
    pub(super) fn unpostpone(&mut self, offset: u64) -> bool {
        let Some(postponed) = &mut self.postponed else {
            return false;
        };
        let waited = postponed.remove(offset);
        if postponed.is_empty() {
            self.postponed = None;
        }
        waited
    }

    /// The lowest of them.
    pub(super) fn first_postponed(&self) -> Option<u64> {
        self.postponed.as_ref()?.first()
    }

    /// How many wait.
    pub(super) fn postponed_count(&self) -> u64 {
        let postponed = self.postponed.as_ref();
        postponed.map_or(0, |postponed| postponed.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::stream;

    #[test]
    fn what_is_postponed_is_ready_and_is_passed_by_until_it_is_resumed() {
        let mut stream = stream(3);
        stream.hold(0, 1);
        assert!(stream.postpone(0));
        assert_eq!((stream.next(), stream.oldest_ready()), (Some(1), Some(0)));
        assert_eq!((stream.ready(), stream.held()), (3, 0));
        assert_eq!(stream.ready_bytes(), 15);
        assert!(stream.resume(0) && !stream.resume(0));
        assert_eq!(stream.next(), Some(0));
    }

    #[test]
    fn what_is_postponed_can_leave() {
        let mut stream = stream(2);
        stream.hold(0, 1);
        stream.postpone(0);
        assert_eq!(stream.leave_ready().len(), 1);
        assert!(!stream.resume(0));
        assert_eq!((stream.ready(), stream.next()), (0, None));
    }
}
