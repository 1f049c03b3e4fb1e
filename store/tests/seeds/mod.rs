//! Which seeds a simulation runs, and for how long.
//!
//! Some fixed seeds run always, and then more until the test's part of `ANABRANCH_SIM_SECONDS` (60, for all
//! simulations of the store together) is over. `ANABRANCH_SEED` runs one seed alone. `ANABRANCH_SEEDS` runs that
//! many, from `ANABRANCH_FROM` (0) on; with `ANABRANCH_SEED_PROGRESS`, a folder, what is done is noted there, and
//! the same run goes on where it was stopped. Each failure prints its seed.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

/// Seeds between two notes of what is done.
const BATCH: u64 = 20;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// Runs seeds with `run`, which panics when one fails: at least `least`, and as many as `seconds` of 60 allow. Says
/// how many there were.
pub fn each(test: &str, least: u64, seconds: f64, mut run: impl FnMut(u64)) {
    let mut run = |seed: u64| {
        let watched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        if let Err(panic) = watched {
            eprintln!("{test}: ANABRANCH_SEED={seed} repeats this failure");
            std::panic::resume_unwind(panic)
        }
    };
    let begun = Instant::now();
    let (ran, before) = match (number("ANABRANCH_SEED"), number("ANABRANCH_SEEDS")) {
        (Some(seed), _) => {
            run(seed);
            (seed..seed + 1, 0)
        }
        (None, Some(count)) => {
            let from = number("ANABRANCH_FROM").unwrap_or(0);
            let all = from..from + count;
            let note = Note::of(test, &all);
            let first = note.as_ref().map_or(from, Note::next);
            for seed in first..all.end {
                run(seed);
                let done = seed + 1;
                if done % BATCH == 0 || done == all.end {
                    println!("{test}: {} of {count} seeds", done - from);
                    if let Some(note) = &note {
                        note.write(done);
                    }
                }
            }
            (all, first - from)
        }
        (None, None) => {
            let share = number("ANABRANCH_SIM_SECONDS").unwrap_or(60) as f64 * seconds / 60.0;
            let mut next = 0;
            while next < least || begun.elapsed().as_secs_f64() < share {
                run(next);
                next += 1;
            }
            (0..next, 0)
        }
    };
    let count = ran.end - ran.start;
    let now = match before {
        0 => String::new(),
        before => format!(", {before} of them before"),
    };
    let took = begun.elapsed().as_secs_f64();
    println!(
        "{test}: {count} seeds from {} on{now}, in {took:.1} s",
        ran.start
    );
}

/// What is done of a run, in a file.
struct Note {
    file: PathBuf,
    all: Range<u64>,
}

impl Note {
    fn of(test: &str, all: &Range<u64>) -> Option<Note> {
        let folder = PathBuf::from(std::env::var_os("ANABRANCH_SEED_PROGRESS")?);
        std::fs::create_dir_all(&folder).unwrap();
        Some(Note {
            file: folder.join(test),
            all: all.clone(),
        })
    }

    /// The first seed that is not done; a note of another run does not count.
    fn next(&self) -> u64 {
        let Range { start, end } = self.all;
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let mut numbers = text.split_whitespace().map(str::parse);
        match [numbers.next(), numbers.next(), numbers.next()] {
            [Some(Ok(from)), Some(Ok(to)), Some(Ok(next))] if (from, to) == (start, end) => {
                u64::clamp(next, start, end)
            }
            _ => start,
        }
    }

    fn write(&self, next: u64) {
        let Range { start, end } = self.all;
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{start} {end} {next}\n")).unwrap();
        std::fs::rename(new, &self.file).unwrap();
    }
}
