//! How each life of a simulated seed packs what it writes.

use anabranch_store::journal::{Compression, Packing};
use anabranch_store::seal::{KeyRing, Sealing, SeededRandom};
use std::sync::Arc;

/// Keys that rotate from life to life: names and bytes by number.
fn sealing(life: u64, random: u64) -> Sealing {
    let line = |number: u64| {
        let letter = char::from(b'A' + number as u8);
        format!("k{number}:{}A=\n", letter.to_string().repeat(42))
    };
    let ring: String = (0..=life / 2).rev().map(line).collect();
    let random = Arc::new(SeededRandom::new(random));
    Sealing::new(KeyRing::parse(&ring).unwrap(), random)
}

/// One seed in three is plain; of the others one keeps every life sealed, the other changes its mind.
pub fn of(seed: u64, life: u64) -> Packing {
    let random = seed * 1000 + life;
    let sealing = match seed % 3 {
        0 => return Packing::default(),
        1 => sealing(life, random),
        _ if life.is_multiple_of(2) => sealing(life, random).opening_only(),
        _ => sealing(life, random),
    };
    let compressions = [Compression::None, Compression::Lz4, Compression::Zstd];
    let compression = compressions[(seed / 3 + life) as usize % 3];
    Packing {
        compression,
        sealing,
    }
}
