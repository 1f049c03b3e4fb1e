//! Replays the fuzz corpus, so that what a fuzzer once found stays fixed without a fuzzer.

use anabranch_mqtt::codec::fuzz_decode;

#[test]
fn the_fuzz_corpus_decodes_without_a_panic() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/decode");
    let mut files = 0;
    let mut packets = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus is committed") {
        let path = entry.expect("a readable folder").path();
        packets += fuzz_decode(&std::fs::read(&path).expect("a readable file"));
        files += 1;
    }
    assert!(files >= 20, "the corpus has {files} files");
    assert!(
        packets > 40,
        "its seeds are real conversations, but only {packets} packets came out"
    );
}
