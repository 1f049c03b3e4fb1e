//! Passwords: argon2id hashes, and a bounded memory of logins that were verified lately.
//!
//! Owns the cost parameters and the format of a stored password (a PHC string, so that a hash made
//! with other parameters stays valid). Never reads a clock, draws randomness or starts a thread:
//! salts, keys and times come in as arguments. Hashing takes tens of milliseconds of processor time
//! and tens of MiB; whoever calls [`hash`] or [`verify`] does so off the data path and behind a gate
//! that bounds how many run at once.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

use argon2::password_hash::phc::{Output, PasswordHash, Salt};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use blake2::Blake2sMac256;
use blake2::digest::{FixedOutput, KeyInit, Mac};

/// Longest password in bytes that is hashed; a longer one is refused rather than cut.
pub const PASSWORD_LIMIT_BYTES: usize = 1024;
/// Bytes of salt that [`hash`] takes.
pub const SALT_BYTES: usize = 16;
/// Memory above which a stored hash is not worked on, in KiB: an imported hash must not be able to
/// take the machine's memory.
pub const HASH_MEMORY_LIMIT_KIB: u32 = 256 * 1024;
/// Passes above which a stored hash is not worked on.
pub const HASH_PASSES_LIMIT: u32 = 64;

/// What a new hash costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Memory in KiB, 8 to [`HASH_MEMORY_LIMIT_KIB`].
    pub memory_kib: u32,
    /// Passes over the memory, 1 to [`HASH_PASSES_LIMIT`].
    pub passes: u32,
    /// Lanes, 1 or more.
    pub lanes: u32,
}

impl Default for Cost {
    /// 19 MiB, two passes, one lane: about 30 ms of one core.
    fn default() -> Self {
        Cost {
            memory_kib: 19 * 1024,
            passes: 2,
            lanes: 1,
        }
    }
}

/// Why a password could not be hashed or compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// Longer than [`PASSWORD_LIMIT_BYTES`].
    #[error("the password is longer than {PASSWORD_LIMIT_BYTES} bytes")]
    TooLong,
    /// Parameters outside what this build works with.
    #[error("the cost of the password hash is out of range: {0}")]
    Cost(String),
    /// The stored text is not a PHC string of argon2.
    #[error("the stored password hash cannot be read: {0}")]
    Stored(String),
}

/// Hashes `password` with argon2id and gives the PHC string to store.
///
/// # Errors
/// [`PasswordError::TooLong`], or [`PasswordError::Cost`] when `cost` is out of range.
pub fn hash(password: &[u8], salt: &[u8; SALT_BYTES], cost: Cost) -> Result<String, PasswordError> {
    if password.len() > PASSWORD_LIMIT_BYTES {
        return Err(PasswordError::TooLong);
    }
    if cost.memory_kib > HASH_MEMORY_LIMIT_KIB || cost.passes > HASH_PASSES_LIMIT {
        return Err(PasswordError::Cost(format!(
            "{} KiB and {} passes are above the limits of {HASH_MEMORY_LIMIT_KIB} KiB and {HASH_PASSES_LIMIT} passes",
            cost.memory_kib, cost.passes
        )));
    }
    let params = Params::new(cost.memory_kib, cost.passes, cost.lanes, None).map_err(cost_error)?;
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let mut digest = [0; Params::DEFAULT_OUTPUT_LEN];
    with_memory(&argon2, |memory| {
        argon2.hash_password_into_with_memory(password, salt, &mut digest, memory)
    })
    .map_err(cost_error)?;
    let hashed = PasswordHash {
        algorithm: Algorithm::Argon2id.ident(),
        version: Some(Version::V0x13.into()),
        params: argon2.params().try_into().map_err(cost_error)?,
        salt: Some(Salt::new(salt).map_err(cost_error)?),
        hash: Some(Output::new(&digest).map_err(cost_error)?),
    };
    Ok(hashed.to_string())
}

fn cost_error(error: impl ToString) -> PasswordError {
    PasswordError::Cost(error.to_string())
}

thread_local! {
    /// Working memory of the hashes of this thread, kept for the next one: allocating tens of MiB each
    /// time leaves them behind in the allocator's arenas.
    static MEMORY: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

/// Lends the thread's working memory; what a dearer hash needed beyond the usual cost is given back.
fn with_memory<T>(argon2: &Argon2<'_>, work: impl FnOnce(&mut [Block]) -> T) -> T {
    MEMORY.with_borrow_mut(|memory| {
        let blocks = argon2.params().block_count();
        if memory.len() < blocks {
            *memory = vec![Block::default(); blocks];
        }
        let result = work(&mut memory[..blocks]);
        if blocks > Cost::default().memory_kib as usize {
            *memory = Vec::new();
        }
        result
    })
}

/// Whether `password` is the one that `stored` was made from. The cost is the stored hash's own.
///
/// # Errors
/// [`PasswordError::Stored`] when `stored` cannot be read, [`PasswordError::Cost`] when working on it
/// would cost more than the limits of this module.
pub fn verify(password: &[u8], stored: &str) -> Result<bool, PasswordError> {
    let parsed =
        PasswordHash::new(stored).map_err(|error| PasswordError::Stored(error.to_string()))?;
    let params =
        Params::try_from(&parsed).map_err(|error| PasswordError::Stored(error.to_string()))?;
    if params.m_cost() > HASH_MEMORY_LIMIT_KIB || params.t_cost() > HASH_PASSES_LIMIT {
        return Err(PasswordError::Cost(format!(
            "the stored hash asks for {} KiB and {} passes",
            params.m_cost(),
            params.t_cost()
        )));
    }
    if password.len() > PASSWORD_LIMIT_BYTES {
        return Ok(false);
    }
    let stored = |what: &str| PasswordError::Stored(what.to_owned());
    let algorithm = Algorithm::try_from(parsed.algorithm.as_str())
        .map_err(|_| stored("it is not of argon2"))?;
    let version = parsed
        .version
        .map_or(Ok(Version::default()), Version::try_from);
    let version = version.map_err(|_| stored("its version is not known"))?;
    let (Some(salt), Some(expected)) = (parsed.salt, parsed.hash) else {
        return Err(stored("it has no salt or no digest"));
    };
    let argon2 = Argon2::new(algorithm, version, params);
    let mut digest = vec![0; expected.len()];
    with_memory(&argon2, |memory| {
        argon2.hash_password_into_with_memory(password, &salt, &mut digest, memory)
    })
    .map_err(cost_error)?;
    // Compared in constant time.
    Ok(Output::new(&digest).is_ok_and(|computed| computed == expected))
}

/// Logins that were verified lately, so that thousands of reconnecting clients do not cost one
/// argon2 run each.
///
/// Holds a keyed digest of each password, never the password. The key lives in memory only and is
/// drawn at start. Bounded: the oldest entry leaves when the cache is full.
pub struct LoginCache {
    key: [u8; 32],
    limit: usize,
    keep_ms: u64,
    entries: HashMap<String, Entry>,
    /// Insertion order with the stamp of the entry, so that a name entered again is not dropped early.
    order: VecDeque<(u64, String)>,
    next_stamp: u64,
}

struct Entry {
    digest: [u8; 32],
    until_ms: u64,
    stamp: u64,
}

impl LoginCache {
    /// A cache of at most `limit` users (at least 1) that remembers a login for `keep_ms`
    /// milliseconds; `key` is random and secret.
    #[must_use]
    pub fn new(key: [u8; 32], limit: usize, keep_ms: u64) -> Self {
        LoginCache {
            key,
            limit: limit.max(1),
            keep_ms,
            entries: HashMap::new(),
            order: VecDeque::new(),
            next_stamp: 0,
        }
    }

    /// Whether this user proved this password within the last `keep_ms`.
    #[must_use]
    pub fn knows(&self, user: &str, password: &[u8], now_ms: u64) -> bool {
        self.entries.get(user).is_some_and(|entry| {
            now_ms < entry.until_ms && self.mac(user, password).verify_slice(&entry.digest).is_ok()
        })
    }

    /// Remembers that this user has just proved this password.
    pub fn remember(&mut self, user: &str, password: &[u8], now_ms: u64) {
        let digest = self.mac(user, password).finalize_fixed().into();
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        let until_ms = now_ms.saturating_add(self.keep_ms);
        self.entries.insert(
            user.to_owned(),
            Entry {
                digest,
                until_ms,
                stamp,
            },
        );
        self.order.push_back((stamp, user.to_owned()));
        self.shrink(now_ms);
    }

    /// Forgets a user: the password was changed, or the user deleted.
    pub fn forget(&mut self, user: &str) {
        self.entries.remove(user);
    }

    /// Forgets everyone.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.order.clear();
    }

    /// How many logins are remembered, the expired ones that were not yet dropped included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no login is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn mac(&self, user: &str, password: &[u8]) -> Blake2sMac256 {
        let mut mac = Blake2sMac256::new(&self.key.into());
        // The length keeps ("ab", "c") and ("a", "bc") apart.
        Mac::update(&mut mac, &(user.len() as u64).to_le_bytes());
        Mac::update(&mut mac, user.as_bytes());
        Mac::update(&mut mac, password);
        mac
    }

    /// Drops what is stale or expired at the front, and the oldest while there are too many. Every
    /// live entry stands in `order` once with its own stamp, so the queue is at most twice the limit:
    /// stale stamps are swept when it gets there.
    fn shrink(&mut self, now_ms: u64) {
        while let Some((stamp, user)) = self.order.front() {
            match self.entries.get(user) {
                Some(entry) if entry.stamp == *stamp => {
                    if entry.until_ms > now_ms && self.entries.len() <= self.limit {
                        break;
                    }
                    self.entries.remove(user);
                }
                _ => {}
            }
            self.order.pop_front();
        }
        if self.order.len() > self.limit * 2 {
            let entries = &self.entries;
            self.order.retain(|(stamp, user)| {
                entries.get(user).is_some_and(|entry| entry.stamp == *stamp)
            });
        }
    }
}

impl std::fmt::Debug for LoginCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginCache")
            .field("entries", &self.entries.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP: Cost = Cost {
        memory_kib: 8,
        passes: 1,
        lanes: 1,
    };

    #[test]
    fn a_hash_is_argon2id_with_its_parameters_and_verifies_its_own_password_only() {
        let stored = hash(b"river", &[7; SALT_BYTES], CHEAP).unwrap();
        assert!(
            stored.starts_with("$argon2id$v=19$m=8,t=1,p=1$"),
            "{stored}"
        );
        assert_eq!(verify(b"river", &stored), Ok(true));
        assert_eq!(verify(b"River", &stored), Ok(false));
        assert_eq!(verify(b"", &stored), Ok(false));
    }

    #[test]
    fn the_same_password_under_another_salt_is_another_hash() {
        let first = hash(b"river", &[1; SALT_BYTES], CHEAP).unwrap();
        let second = hash(b"river", &[2; SALT_BYTES], CHEAP).unwrap();
        assert_ne!(first, second);
    }

    #[test]
    fn a_stored_hash_that_is_broken_or_too_dear_is_refused() {
        assert!(matches!(
            verify(b"x", "plain"),
            Err(PasswordError::Stored(_))
        ));
        let dear = "$argon2id$v=19$m=4194304,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA";
        assert!(matches!(verify(b"x", dear), Err(PasswordError::Cost(_))));
        assert_eq!(
            hash(&[b'a'; PASSWORD_LIMIT_BYTES + 1], &[0; SALT_BYTES], CHEAP),
            Err(PasswordError::TooLong)
        );
    }

    #[test]
    fn the_cache_knows_a_login_until_it_expires_or_is_forgotten() {
        let mut cache = LoginCache::new([9; 32], 10, 1000);
        assert!(!cache.knows("anna", b"pw", 0));
        cache.remember("anna", b"pw", 0);
        assert!(cache.knows("anna", b"pw", 999));
        assert!(!cache.knows("anna", b"pw", 1000));
        assert!(!cache.knows("anna", b"other", 10));
        assert!(!cache.knows("bert", b"pw", 10));
        cache.forget("anna");
        assert!(!cache.knows("anna", b"pw", 10));
    }

    #[test]
    fn the_cache_is_bounded_and_drops_the_oldest() {
        let mut cache = LoginCache::new([9; 32], 3, 1000);
        for user in ["a", "b", "c"] {
            cache.remember(user, b"pw", 0);
        }
        cache.remember("a", b"pw", 1);
        cache.remember("d", b"pw", 2);
        assert_eq!(cache.len(), 3);
        assert!(
            cache.knows("a", b"pw", 3),
            "entered again, so not the oldest"
        );
        assert!(!cache.knows("b", b"pw", 3));
        for _ in 0..1000 {
            cache.remember("a", b"pw", 4);
        }
        assert!(cache.order.len() <= 6, "{}", cache.order.len());
    }
}
