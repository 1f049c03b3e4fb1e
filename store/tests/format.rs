//! `docs/format.md` has the tables of the source, row by row.

use std::path::Path;

#[test]
fn the_document_has_every_row_of_every_format() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(here.join("../docs/format.md")).unwrap();
    let rows: Vec<&str> = document
        .lines()
        .filter(|line| line.starts_with('|'))
        .collect();
    let mut count = 0;
    let mut compare = |source: &str| {
        let text = std::fs::read_to_string(here.join("src").join(source)).unwrap();
        let docs = text.lines().take_while(|line| line.starts_with("//!"));
        for row in docs.filter_map(|line| line.strip_prefix("//! ")) {
            if row.starts_with('|') {
                assert!(rows.contains(&row), "{source}: docs/format.md lacks {row}");
                count += 1;
            }
        }
    };
    for source in [
        "journal/meta.rs",
        "journal/segment/header.rs",
        "journal/frame.rs",
        "journal/table.rs",
        "journal/released.rs",
        "journal/tiered.rs",
        "checkpoint/manifest.rs",
        "checkpoint/run.rs",
        "checkpoint/slots.rs",
        "checkpoint/whole.rs",
        "seal/keys.rs",
        "seal/piece.rs",
    ] {
        compare(source);
    }
    assert_eq!(count, rows.len(), "rows of the document that no source has");
}
