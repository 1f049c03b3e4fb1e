//! The ring of master keys, and data keys wrapped by them.
//!
//! Owns: the text that keys are told in, which key wraps what is new, the form of a wrapped key. Never says or shows
//! the bytes of a key, and overwrites what it read of them.
//!
//! Little-endian, persisted. Wrapped key, 96 bytes:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 1 | form: 1, AES-256-GCM |
//! | 1 | 1 | length of the master key's name |
//! | 2 | 2 | 0 |
//! | 4 | 32 | name of the master key, zeros behind it |
//! | 36 | 12 | nonce, random |
//! | 48 | 32 | the data key, encrypted; bound to bytes 0..36 and to what the file says of itself |
//! | 80 | 16 | tag of AES-256-GCM |

use super::piece::{DataKey, KEY_BYTES, Sealer};
use super::random::{OsRandom, Random};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use std::fmt;
use std::io;
use std::sync::Arc;
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a wrapped key.
pub const WRAPPED_BYTES: usize = 96;

const FORM: u8 = 1;
const NAME_AT: usize = 4;
const NAME_BYTES: usize = 32;
const NONCE_AT: usize = 36;
const KEY_AT: usize = 48;
const TAG_AT: usize = 80;

/// Name of a master key: 1 to 32 letters, digits, `.`, `_` or `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyId(String);

impl KeyId {
    fn new(name: &str) -> Option<KeyId> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let sound = (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(allowed);
        sound.then(|| KeyId(name.to_owned()))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why text is not a ring of keys. Never tells what stands in a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyRingError {
    /// There is no key.
    #[error("there is no key in it; a line is `name:key`, the key 32 bytes in base64")]
    Empty,
    /// A line is not a name and a key.
    #[error("line {0} is not `name:key`, the name 1 to 32 letters, digits, `.`, `_` or `-`")]
    Line(usize),
    /// A key is not 32 bytes in base64.
    #[error("the key in line {0} is not 32 bytes in base64 (44 characters)")]
    Key(usize),
    /// A name stands there twice.
    #[error("line {line} names the key `{id}` a second time")]
    Twice {
        /// The later line.
        line: usize,
        /// The name.
        id: KeyId,
    },
}

/// Why what a file holds cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The key is not in the ring.
    #[error(
        "it is encrypted with the key `{0}`, which was not given: add the line of that key, below the current one, to what store.encryption.key_file or store.encryption.key_command names"
    )]
    Missing(KeyId),
    /// The key does not open it.
    #[error(
        "the key `{0}` does not open it: another key was given under that name, or the file is damaged"
    )]
    Wrong(KeyId),
    /// The wrapped key makes no sense.
    #[error("it is encrypted in a form that this server does not know")]
    Form,
}

impl From<KeyError> for io::Error {
    fn from(error: KeyError) -> Self {
        io::Error::other(error)
    }
}

struct MasterKey {
    id: KeyId,
    key: LessSafeKey,
}

/// Master keys: the first wraps what is new, all of them open.
pub struct KeyRing(Vec<MasterKey>);

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|key| &key.id))
            .finish()
    }
}

impl KeyRing {
    /// Reads lines `name:key`; empty lines and those that begin with `#` count for nothing.
    ///
    /// # Errors
    /// The text is not a ring, by its line.
    pub fn parse(text: &str) -> Result<KeyRing, KeyRingError> {
        let mut ring: Vec<MasterKey> = Vec::new();
        for (line, text) in text.lines().enumerate() {
            let (line, text) = (line + 1, text.trim());
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (name, key) = text.split_once(':').ok_or(KeyRingError::Line(line))?;
            let id = KeyId::new(name.trim()).ok_or(KeyRingError::Line(line))?;
            let key = STANDARD.decode(key.trim()).map(Zeroizing::new);
            let key = key.map_err(|_| KeyRingError::Key(line))?;
            let key = UnboundKey::new(&AES_256_GCM, &key).map_err(|_| KeyRingError::Key(line))?;
            if ring.iter().any(|other| other.id == id) {
                return Err(KeyRingError::Twice { line, id });
            }
            let key = LessSafeKey::new(key);
            ring.push(MasterKey { id, key });
        }
        if ring.is_empty() {
            return Err(KeyRingError::Empty);
        }
        Ok(KeyRing(ring))
    }

    /// The name of the key that wraps what is new.
    pub fn current(&self) -> Option<&KeyId> {
        self.0.first().map(|key| &key.id)
    }
}

/// A data key as it lies in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrappedKey(pub [u8; WRAPPED_BYTES]);

impl WrappedKey {
    /// The name of the master key that opens it; `None` when it makes no sense.
    pub fn id(&self) -> Option<KeyId> {
        let len = usize::from(self.0[1]);
        let name = &self.0[NAME_AT..NONCE_AT];
        let (name, rest) = name.split_at_checked(len)?;
        let sound =
            self.0[0] == FORM && self.0[2..4] == [0; 2] && rest.iter().all(|byte| *byte == 0);
        KeyId::new(std::str::from_utf8(name).ok().filter(|_| sound)?)
    }
}

/// What files are sealed and opened with; clones share it. The default opens and seals nothing.
#[derive(Debug, Clone)]
pub struct Sealing {
    ring: Arc<KeyRing>,
    /// New files are sealed.
    seals: bool,
    random: Arc<dyn Random>,
}

impl Default for Sealing {
    fn default() -> Self {
        Self {
            ring: Arc::new(KeyRing(Vec::new())),
            seals: false,
            random: Arc::new(OsRandom::default()),
        }
    }
}

impl Sealing {
    /// Seals what is new with the first key of `ring`.
    pub fn new(ring: KeyRing, random: Arc<dyn Random>) -> Sealing {
        Sealing {
            seals: ring.current().is_some(),
            ring: Arc::new(ring),
            random,
        }
    }

    /// The same keys, for what is sealed already: what is new is not.
    pub fn opening_only(self) -> Sealing {
        Sealing {
            seals: false,
            ..self
        }
    }

    /// The name of the key that wraps what is new; `None` when that is not sealed.
    pub fn current(&self) -> Option<&KeyId> {
        self.ring.current().filter(|_| self.seals)
    }

    /// Whether some file may be sealed with one of its keys.
    pub(crate) fn has_keys(&self) -> bool {
        !self.ring.0.is_empty()
    }

    /// Whether what lies under `wrapped` (or plain) is as it would be were it made now.
    pub fn is_current(&self, wrapped: Option<&WrappedKey>) -> bool {
        self.current() == wrapped.and_then(WrappedKey::id).as_ref()
    }

    /// A new data key for a file, bound to `context`; `None` when new files are plain.
    pub(crate) fn new_key(&self, context: &[u8]) -> io::Result<Option<(Arc<DataKey>, WrappedKey)>> {
        if !self.seals {
            return Ok(None);
        }
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        self.random.fill(&mut key[..])?;
        let wrapped = self.wrap(&key, context)?;
        Ok(Some((Arc::new(DataKey::new(&key)), wrapped)))
    }

    fn wrap(&self, key: &Zeroizing<[u8; KEY_BYTES]>, context: &[u8]) -> io::Result<WrappedKey> {
        let refused = || io::Error::other("the cipher refuses to wrap a key");
        let master = self.ring.0.first().ok_or_else(refused)?;
        let name = master.id.0.as_bytes();
        let mut bytes = [0; WRAPPED_BYTES];
        bytes[0] = FORM;
        bytes[1] = name.len() as u8;
        bytes[NAME_AT..NAME_AT + name.len()].copy_from_slice(name);
        self.random.fill(&mut bytes[NONCE_AT..KEY_AT])?;
        let (head, rest) = bytes.split_at_mut(KEY_AT);
        let nonce = Nonce::try_assume_unique_for_key(&head[NONCE_AT..]).map_err(|_| refused())?;
        let bound = [&head[..NONCE_AT], context].concat();
        rest[..KEY_BYTES].copy_from_slice(&key[..]);
        let sealed = &mut rest[..KEY_BYTES];
        let tag = master
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(bound), sealed)
            .map_err(|_| {
                sealed.zeroize();
                refused()
            })?;
        rest[KEY_BYTES..].copy_from_slice(tag.as_ref());
        Ok(WrappedKey(bytes))
    }

    fn unwrap_bytes(
        &self,
        wrapped: &WrappedKey,
        context: &[u8],
    ) -> Result<Zeroizing<[u8; KEY_BYTES]>, KeyError> {
        let id = wrapped.id().ok_or(KeyError::Form)?;
        let master = self.ring.0.iter().find(|key| key.id == id);
        let master = master.ok_or_else(|| KeyError::Missing(id.clone()))?;
        let bytes = &wrapped.0;
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        key.copy_from_slice(&bytes[KEY_AT..TAG_AT]);
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&bytes[NONCE_AT..KEY_AT]);
        let bound = [&bytes[..NONCE_AT], context].concat();
        let opened = Tag::try_from(&bytes[TAG_AT..]).is_ok_and(|tag| {
            let nonce = Nonce::assume_unique_for_key(nonce);
            let opened = master.key.open_in_place_separate_tag(
                nonce,
                Aad::from(bound),
                tag,
                &mut key[..],
                0..,
            );
            opened.is_ok()
        });
        if opened {
            Ok(key)
        } else {
            Err(KeyError::Wrong(id))
        }
    }

    /// The data key of a file.
    pub(crate) fn unwrap(
        &self,
        wrapped: &WrappedKey,
        context: &[u8],
    ) -> Result<Arc<DataKey>, KeyError> {
        let key = self.unwrap_bytes(wrapped, context)?;
        Ok(Arc::new(DataKey::new(&key)))
    }

    /// The same data key, wrapped with the current master key.
    pub(crate) fn rewrap(&self, wrapped: &WrappedKey, context: &[u8]) -> io::Result<WrappedKey> {
        let key = self.unwrap_bytes(wrapped, context)?;
        self.wrap(&key, context)
    }

    /// Somebody who seals pieces of the file with that key.
    pub(crate) fn sealer(&self, key: Arc<DataKey>) -> io::Result<Sealer> {
        Sealer::new(key, self.random.clone())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::SeededRandom;
    use super::*;

    /// A ring of keys of these names.
    pub(crate) fn sealing(names: &[&str], seed: u64) -> Sealing {
        let line = |name: &&str| {
            let byte = name.bytes().fold(1u8, u8::wrapping_add);
            format!("{name}:{}\n", STANDARD.encode([byte; KEY_BYTES]))
        };
        let ring = KeyRing::parse(&names.iter().map(line).collect::<String>()).unwrap();
        Sealing::new(ring, Arc::new(SeededRandom::new(seed)))
    }

    #[test]
    fn a_ring_is_read_and_what_is_wrong_is_told_by_its_line() {
        let key = STANDARD.encode([5; 32]);
        let ring = KeyRing::parse(&format!("# keys\n\n 2026-11 : {key}\nold:{key}\n")).unwrap();
        assert_eq!(ring.current().unwrap().to_string(), "2026-11");
        assert_eq!(format!("{ring:?}"), r#"[KeyId("2026-11"), KeyId("old")]"#);
        let wrong = |text: &str| KeyRing::parse(text).unwrap_err();
        assert_eq!(wrong("# none\n"), KeyRingError::Empty);
        assert_eq!(wrong("\nnothing"), KeyRingError::Line(2));
        assert_eq!(wrong(&format!("a b:{key}")), KeyRingError::Line(1));
        assert_eq!(
            wrong(&format!("{}:{key}", "n".repeat(33))),
            KeyRingError::Line(1)
        );
        assert_eq!(wrong(&format!("a:{}", &key[4..])), KeyRingError::Key(1));
        assert_eq!(wrong("a:!"), KeyRingError::Key(1));
        let twice = wrong(&format!("a:{key}\na:{key}"));
        assert_eq!(twice.to_string(), "line 2 names the key `a` a second time");
    }

    #[test]
    fn a_data_key_opens_with_its_master_key_and_nothing_else() {
        let old = sealing(&["old"], 1);
        let (key, wrapped) = old.new_key(b"file").unwrap().unwrap();
        let mut piece = b"text".to_vec();
        old.sealer(key).unwrap().seal(b"", &mut piece, 0).unwrap();
        let rotated = sealing(&["new", "old"], 2);
        let opened = rotated.unwrap(&wrapped, b"file").unwrap();
        assert_eq!(opened.open(b"", &mut piece.clone()).unwrap(), b"text");
        assert!(old.is_current(Some(&wrapped)) && !rotated.is_current(Some(&wrapped)));
        assert!(!old.is_current(None) && Sealing::default().is_current(None));

        let again = rotated.rewrap(&wrapped, b"file").unwrap();
        assert!(rotated.is_current(Some(&again)));
        let opened = sealing(&["new"], 3).unwrap(&again, b"file").unwrap();
        assert_eq!(opened.open(b"", &mut piece.clone()).unwrap(), b"text");

        let id = KeyId("old".to_owned());
        let missing = sealing(&["new"], 3).unwrap(&wrapped, b"file").unwrap_err();
        assert_eq!(missing, KeyError::Missing(id.clone()));
        let elsewhere = old.unwrap(&wrapped, b"other file").unwrap_err();
        assert_eq!(elsewhere, KeyError::Wrong(id));
        for bit in 0..WRAPPED_BYTES * 8 {
            let mut broken = wrapped;
            broken.0[bit / 8] ^= 1 << (bit % 8);
            assert!(old.unwrap(&broken, b"file").is_err(), "bit {bit}");
        }
    }

    #[test]
    fn who_only_opens_makes_no_key() {
        let both = sealing(&["a"], 1);
        let (_, wrapped) = both.new_key(b"").unwrap().unwrap();
        let opens = both.opening_only();
        assert!(opens.new_key(b"").unwrap().is_none() && opens.current().is_none());
        assert!(opens.unwrap(&wrapped, b"").is_ok());
        assert!(Sealing::default().new_key(b"").unwrap().is_none());
    }
}
