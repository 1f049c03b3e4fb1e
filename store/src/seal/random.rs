//! Where keys and nonces come from.
//!
//! Owns: the trait, the operating system's source and a seeded one. Never used for anything but [`super`].

use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of random bytes.
pub trait Random: Send + Sync + fmt::Debug + 'static {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()>;
}

/// The operating system's source.
#[derive(Debug, Clone)]
pub struct OsRandom(SystemRandom);

impl Default for OsRandom {
    fn default() -> Self {
        Self(SystemRandom::new())
    }
}

impl Random for OsRandom {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        let none = |_| io::Error::other("the operating system gives no random bytes");
        self.0.fill(bytes).map_err(none)
    }
}

/// The same bytes every time, for simulations: keys from it protect nothing.
#[derive(Debug)]
pub struct SeededRandom(AtomicU64);

impl SeededRandom {
    /// Begins at `seed`.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Random for SeededRandom {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        for eight in bytes.chunks_mut(8) {
            let state = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            let mut mixed = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
            eight.copy_from_slice(&mixed.to_le_bytes()[..eight.len()]);
        }
        Ok(())
    }
}
