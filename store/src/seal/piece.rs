//! A sealed piece: ciphertext as long as what was sealed, and 32 bytes behind it.
//!
//! Owns: the cipher (AES-256-GCM under a derived key) and the trailer. Never reuses a nonce: see [`super`].
//!
//! Little-endian, persisted. Trailer, 32 bytes:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 12 | salt: HKDF-Expand with SHA-256 of the file's data key, info `anabranch piece` and these bytes, is the piece's AES-256 key |
//! | 12 | 4 | counter: the nonce is 8 zeros and these bytes |
//! | 16 | 16 | tag of AES-256-GCM |

use super::random::Random;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

/// Bytes that sealing adds to a piece.
pub const TRAILER_BYTES: usize = 32;
/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

const SALT_BYTES: usize = 12;
const TAG_AT: usize = 16;
const INFO: &[u8] = b"anabranch piece";

type Salt = [u8; SALT_BYTES];

/// The key of one file.
pub struct DataKey {
    prk: Prk,
    /// The key of the salt met last: neighbours were mostly sealed by one sealer.
    last: Mutex<Option<(Salt, Arc<LessSafeKey>)>>,
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataKey").finish_non_exhaustive()
    }
}

impl DataKey {
    /// A key of these bytes.
    pub(super) fn new(bytes: &Zeroizing<[u8; KEY_BYTES]>) -> DataKey {
        DataKey {
            prk: Prk::new_less_safe(HKDF_SHA256, &bytes[..]),
            last: Mutex::default(),
        }
    }

    /// The key of a salt.
    fn derived(&self, salt: Salt) -> Option<Arc<LessSafeKey>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, key)) = last.as_ref().filter(|(of, _)| *of == salt) {
            return Some(key.clone());
        }
        let info = [INFO, &salt];
        let okm = self.prk.expand(&info, &AES_256_GCM).ok()?;
        let key = Arc::new(LessSafeKey::new(UnboundKey::from(okm)));
        *last = Some((salt, key.clone()));
        Some(key)
    }

    /// Opens a sealed piece in place; `bound` is what it was bound to. `None` when it is not what was sealed, or
    /// not with this key.
    pub fn open<'a>(&self, bound: &[u8], piece: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let body = piece.len().checked_sub(TRAILER_BYTES)?;
        let (body, trailer) = piece.split_at_mut(body);
        let mut salt = Salt::default();
        salt.copy_from_slice(&trailer[..SALT_BYTES]);
        let mut counter = [0; 4];
        counter.copy_from_slice(&trailer[SALT_BYTES..TAG_AT]);
        let tag = ring::aead::Tag::try_from(&trailer[TAG_AT..]).ok()?;
        let key = self.derived(salt)?;
        key.open_in_place_separate_tag(
            nonce(u32::from_le_bytes(counter)),
            Aad::from(bound),
            tag,
            body,
            0..,
        )
        .ok()
    }
}

fn nonce(counter: u32) -> Nonce {
    let mut nonce = [0; 12];
    nonce[8..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// Seals pieces of one file, each under another nonce.
pub struct Sealer {
    data_key: Arc<DataKey>,
    random: Arc<dyn Random>,
    key: Arc<LessSafeKey>,
    salt: Salt,
    next: u32,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").finish_non_exhaustive()
    }
}

impl Sealer {
    /// One that nobody was before.
    pub(super) fn new(data_key: Arc<DataKey>, random: Arc<dyn Random>) -> io::Result<Sealer> {
        let mut salt = Salt::default();
        random.fill(&mut salt)?;
        let key = data_key.derived(salt).ok_or_else(cannot_seal)?;
        Ok(Sealer {
            data_key,
            random,
            key,
            salt,
            next: 0,
        })
    }

    /// Seals `piece` from byte `from` on, in place, and puts the trailer behind it. It opens only together with the
    /// same `bound`, which is not stored.
    pub fn seal(&mut self, bound: &[u8], piece: &mut Vec<u8>, from: usize) -> io::Result<()> {
        if self.next == u32::MAX {
            *self = Sealer::new(self.data_key.clone(), self.random.clone())?;
        }
        let counter = self.next;
        self.next += 1;
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(counter), Aad::from(bound), &mut piece[from..])
            .map_err(|_| cannot_seal())?;
        piece.extend_from_slice(&self.salt);
        piece.extend_from_slice(&counter.to_le_bytes());
        piece.extend_from_slice(tag.as_ref());
        Ok(())
    }
}

fn cannot_seal() -> io::Error {
    io::Error::other("the cipher refuses to seal")
}

#[cfg(test)]
mod tests {
    use super::super::SeededRandom;
    use super::*;
    use proptest::prelude::*;

    fn sealer(seed: u64) -> Sealer {
        let key = Arc::new(DataKey::new(&Zeroizing::new([7; KEY_BYTES])));
        Sealer::new(key, Arc::new(SeededRandom::new(seed))).unwrap()
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_and_nothing_else_does(text in proptest::collection::vec(any::<u8>(), 0..200),
                                                      bound in proptest::collection::vec(any::<u8>(), 0..20),
                                                      front in 0..5_usize, bit in any::<usize>()) {
            let mut sealer = sealer(1);
            let mut piece = vec![9; front];
            piece.extend_from_slice(&text);
            sealer.seal(&bound, &mut piece, front).unwrap();
            let sealed = piece.split_off(front);
            prop_assert_eq!(sealed.len(), text.len() + TRAILER_BYTES);
            let key = DataKey::new(&Zeroizing::new([7; KEY_BYTES]));
            prop_assert_eq!(key.open(&bound, &mut sealed.clone()).map(|open| open.to_vec()), Some(text));
            let mut broken = sealed.clone();
            let bit = bit % (broken.len() * 8);
            broken[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(key.open(&bound, &mut broken).is_none());
            let other = [&bound[..], b"x"].concat();
            prop_assert!(key.open(&other, &mut sealed.clone()).is_none());
            let wrong = DataKey::new(&Zeroizing::new([8; KEY_BYTES]));
            prop_assert!(wrong.open(&bound, &mut sealed.clone()).is_none());
            prop_assert!(key.open(&bound, &mut sealed[..sealed.len() - 1].to_vec()).is_none());
        }
    }

    #[test]
    fn no_two_pieces_share_key_and_nonce() {
        let random: Arc<dyn Random> = Arc::new(SeededRandom::new(3));
        let key = Arc::new(DataKey::new(&Zeroizing::new([7; KEY_BYTES])));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..20 {
            let mut sealer = Sealer::new(key.clone(), random.clone()).unwrap();
            // The last counters too, and beyond.
            for next in [0, u32::MAX - 2] {
                sealer.next = next;
                for _ in 0..5 {
                    let mut piece = Vec::new();
                    sealer.seal(b"", &mut piece, 0).unwrap();
                    assert!(seen.insert(piece[..TAG_AT].to_vec()));
                }
            }
        }
        assert_eq!(seen.len(), 200);
    }
}
