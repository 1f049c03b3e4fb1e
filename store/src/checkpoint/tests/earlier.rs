//! Files of earlier versions are read, and replaced by what is written next.
//!
//! Owns the samples' tests. Read next: `docs/format.md`, [`super::super::whole`].

use super::*;

#[test]
fn a_checkpoint_of_an_earlier_server_is_opened_and_replaced() {
    let disk = SimDisk::new(8);
    let put = |index: u64, state: &[u8]| {
        let bytes = encode_whole(&standing(index), state);
        let path = whole::whole_path(Path::new(GROUP), index);
        let file = disk.create_zeroed(&path, bytes.len() as u64).unwrap();
        write_all_at(&*file, &bytes, 0).unwrap();
    };
    put(4, b"four");
    put(9, b"nine");
    let pairs = |opened: &Checkpoints| {
        let mut all = Vec::new();
        opened
            .restore(|pairs, _| {
                all.extend(pairs);
                Ok(())
            })
            .unwrap();
        all
    };
    let whole = |state: &'static [u8]| (Bytes::new(), Bytes::from_static(state));
    let opened = open(&disk).unwrap();
    assert_eq!(opened.standing(), Some(standing(9)));
    assert_eq!(pairs(&opened), [whole(b"nine")]);
    disk.flip_bit(&whole::whole_path(Path::new(GROUP), 9), 57, 0);
    let opened = open(&disk).unwrap();
    assert_eq!(opened.standing(), Some(standing(4)));
    // What the first delta does not touch lies beneath it.
    let one = (Bytes::from_static(b"a"), Bytes::from_static(b"1"));
    let delta = |change: Change| Delta {
        blocks: Vec::new(),
        pairs: vec![change],
    };
    opened.hold(standing(20), delta((one.0.clone(), Some(one.1.clone()))));
    opened.write().unwrap();
    let opened = open(&disk).unwrap();
    assert_eq!(opened.standing(), Some(standing(20)));
    assert_eq!(pairs(&opened), [whole(b"four"), one.clone()]);
    // The file of the earlier server serves as the one before until there are two.
    assert!(
        disk.contents(&whole::whole_path(Path::new(GROUP), 4))
            .is_some()
    );
    opened.hold(standing(21), delta((Bytes::new(), None)));
    opened.write().unwrap();
    assert!(
        disk.contents(&whole::whole_path(Path::new(GROUP), 4))
            .is_none()
    );
    assert_eq!(pairs(&open(&disk).unwrap()), [one]);
}

/// Made from the tables of `docs/format.md` by another program.
#[test]
fn a_run_and_a_manifest_of_the_first_version_are_read() {
    let pairs = run::decode_untrusted(
        include_bytes!("../../../fuzz/corpus/run/two-sections"),
        &Sealing::default(),
    );
    let pair = |key: &'static str, value: Option<Vec<u8>>| {
        (Bytes::from_static(key.as_bytes()), value.map(Bytes::from))
    };
    let expected = [
        pair("", Some(b"first".to_vec())),
        pair("a", None),
        pair("b", Some(Vec::new())),
        pair("c", Some(vec![b'x'; 100])),
    ];
    assert_eq!(pairs.unwrap(), expected);
    let bytes = include_bytes!("../../../fuzz/corpus/manifest/three-runs");
    let manifest = Manifest::decode(bytes).unwrap();
    assert_eq!((manifest.sequence, manifest.standing.id.index.0), (7, 900));
    assert_eq!(manifest.standing.clock, UnixMs(1_234_567));
    let runs = manifest.runs.iter();
    let runs: Vec<_> = runs
        .map(|run| (run.sequence, run.bytes, run.pairs, run.crc))
        .collect();
    assert_eq!(runs, [(1, 5000, 10, 99), (3, 600, 4, 98), (5, 300, 2, 97)]);
}
