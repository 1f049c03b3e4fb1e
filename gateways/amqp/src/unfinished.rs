//! How many bytes of unfinished messages a connection, and the whole gateway, may hold.
//!
//! A body in several frames is gathered until it is whole, and a transaction until it is committed; without
//! a common limit one client could open every channel and stop one byte short on each.
//!
//! Owns: the counts, given back when a body or transaction is finished or dropped.
//! Never: bytes. Next: `connection/publish.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A limit, and what of it is used.
#[derive(Debug)]
pub struct Unfinished {
    used_bytes: AtomicU64,
    max_bytes: u64,
    /// Counts the same bytes for more than one connection.
    whole: Option<Arc<Unfinished>>,
}

impl Unfinished {
    /// At most `max_bytes` here, and no more than `whole` has left.
    pub fn new(max_bytes: u64, whole: Option<Arc<Unfinished>>) -> Arc<Unfinished> {
        Arc::new(Unfinished {
            used_bytes: AtomicU64::new(0),
            max_bytes,
            whole,
        })
    }

    fn take(&self, bytes: u64) -> bool {
        let before = self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before + bytes <= self.max_bytes;
        if fits && self.whole.as_ref().is_none_or(|whole| whole.take(bytes)) {
            return true;
        }
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        false
    }

    fn give_back(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.give_back(bytes);
        }
    }
}

/// What one unfinished body or transaction takes of it.
#[derive(Debug)]
pub struct Share {
    of: Arc<Unfinished>,
    bytes: u64,
}

impl Share {
    /// Nothing yet.
    pub fn new(of: &Arc<Unfinished>) -> Share {
        Share {
            of: of.clone(),
            bytes: 0,
        }
    }

    /// Takes more; false when there is no more.
    pub fn grow(&mut self, bytes: u64) -> bool {
        let taken = self.of.take(bytes);
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// Gives back all of it.
    pub fn release(&mut self) {
        self.of.give_back(std::mem::take(&mut self.bytes));
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_hold_and_what_is_dropped_is_given_back() {
        let whole = Unfinished::new(15, None);
        let first = Unfinished::new(10, Some(whole.clone()));
        let second = Unfinished::new(10, Some(whole.clone()));
        let mut share = Share::new(&first);
        assert!(share.grow(8) && !share.grow(3), "its own limit");
        let mut other = Share::new(&second);
        assert!(!other.grow(8), "the common limit");
        drop(share);
        assert!(other.grow(8));
        drop(other);
        assert_eq!(whole.used_bytes.load(Ordering::Relaxed), 0);
    }
}
