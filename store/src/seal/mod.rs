//! Encryption at rest: the keys that a server is given, and pieces of files that only they open.
//!
//! Owns: master keys and how they are told, data keys and how master keys wrap them, sealing a piece and
//! opening it. Never touches a file and never knows what a piece holds: each format says where its wrapped key
//! and its pieces lie. Read next: [`keys`] (the ring of master keys), [`piece`] (the cipher), [`random`].
//!
//! **Two layers.** A piece is sealed with the data key of its file, 32 random bytes that no other file has; the
//! data key lies in that file, wrapped with a master key whose name stands beside it. A new master key is put first
//! in the ring and is used for the files made from then on; the old one stays in the ring, to open the files that it
//! wrapped, until the last of them is gone. Nothing is written again for that.
//!
//! **A nonce never repeats.** Whoever begins to seal pieces of a file takes 12 fresh random bytes, from which and
//! from the data key a key of its own is derived (HKDF); under that key the nonce is a counter. Whatever a crash left,
//! whatever a cut took away and whoever writes there again: it is another sealer, with another key. Two sealers of one
//! file meet when they draw the same 96 bits: for a million sealers in the life of one file the odds are 1 in 2^57.

pub mod keys;
pub mod piece;
pub mod random;

pub use keys::{KeyError, KeyId, KeyRing, KeyRingError, Sealing, WRAPPED_BYTES, WrappedKey};
pub use piece::{DataKey, Sealer, TRAILER_BYTES};
pub use random::{OsRandom, Random, SeededRandom};
