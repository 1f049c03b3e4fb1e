//! `anabranch store`: looking at a data folder, and mending one that no server has open.
//!
//! Owns: the grammar, how findings, frames and numbers are printed, the exit codes of a look.
//! Never: reads a file of a shard itself (`anabranch-store` does).
//! Next: `store/lines.rs` (frames and records), `store/numbers.rs`.

mod lines;
mod numbers;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_core::id::{LogIndex, Position};
use anabranch_store::disk::real::RealDisk;
use anabranch_store::finding::{Finding, FindingKind};
use anabranch_store::inspect::{
    Away, Checked, Consent, DumpFrom, Mended, Progress, ShardFolder, Source, Step, check, repair,
};
use anabranch_store::seal::{KeyRing, OsRandom, Sealing};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::{NodeFlags, ServeFlags, output};
use crate::node;
use lines::Lines;
use numbers::print_stats;

/// What the help of these commands ends with.
pub(super) const LOOK_CODES: &str = "\
Exit codes:
  0  done; nothing is wrong
  1  something is wrong, and it is said what
  2  the command line is wrong, or the folder could not be looked at";

/// What is said of a folder that is encrypted.
const KEYS_NEEDED: &str =
    "it is encrypted, and its keys were not given: --key-file or --config names them";

/// How often progress is told.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// What to do with a data folder.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Read everything and say what is wrong; also while a server uses the folder
    #[command(
        after_help = LOOK_CODES,
        long_about = "Read everything and say what is wrong: every frame and record, side files, checkpoints, blocks of \
                      the index, and that the message of every entry is there. Nothing is changed and no lock is taken, \
                      so a server may use the folder meanwhile; what it is just writing is no defect. Segments in an \
                      object store are counted; with --tier they are read too, each as a whole, and compared with what was \
                      sent. Of an encrypted folder whose keys are not given only checksums are verified, and it ends with 2."
    )]
    Check {
        #[command(flatten)]
        look: LookFlags,
        #[command(flatten)]
        tier: TierFlags,
    },
    /// Print frames and records, also while a server uses the folder
    #[command(after_help = LOOK_CODES)]
    Dump {
        #[command(flatten)]
        look: LookFlags,
        #[command(flatten)]
        tier: TierFlags,
        /// Where to begin: a log index, or with @ in front a position in the journal
        #[arg(long, value_name = "INDEX|@POSITION", value_parser = begin, default_value = "0")]
        from: DumpFrom,
        /// Print so many frames at most
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// Print the bodies of messages too
        #[arg(long)]
        bodies: bool,
    },
    /// Mend a folder that no server uses
    #[command(
        after_help = LOOK_CODES,
        long_about = "Mend a folder that no server uses. Makes side files again, writes rotten copies again, and \
                      blocks of the index where the journal tells all of a queue's messages, puts \
                      checkpoints aside that do not count or are not needed, cuts a tail that was never synced. Nothing is \
                      deleted: what goes is kept in the folder `quarantine` of the shard. What was confirmed is given up \
                      only with --lose-corrupt (frames that cannot be read and all later ones; what was in the damaged parts \
                      of a checkpoint that is needed); without --yes that is asked for. Copy the folder before, if there is room."
    )]
    Repair {
        #[command(flatten)]
        look: LookFlags,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
        /// Give up what was confirmed and cannot be read, so that the server starts
        #[arg(long)]
        lose_corrupt: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Count what is in it, also while a server uses the folder
    #[command(after_help = LOOK_CODES)]
    Stats {
        #[command(flatten)]
        look: LookFlags,
        #[command(flatten)]
        tier: TierFlags,
        /// Name so many streams of each shard, those with most messages
        #[arg(long, value_name = "N", default_value_t = 10)]
        top: usize,
    },
}

/// Which folder, and how to print.
#[derive(Debug, Args)]
pub struct LookFlags {
    /// The data folder
    #[arg(value_name = "DATA")]
    data: PathBuf,
    /// Only this shard: a number, or meta
    #[arg(long, value_name = "SHARD")]
    shard: Option<String>,
    /// The keys, when the folder is encrypted: the file that store.encryption.key_file names
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The server's configuration file: it names the keys, unless --key-file does, and the object store
    #[arg(long, value_name = "FILE", env = "ANABRANCH_CONFIG")]
    config: Option<PathBuf>,
    /// How to print: text, or a line of JSON for each thing
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// What of it to read.
#[derive(Debug, Args)]
pub struct TierFlags {
    /// Read the segments too that lie in the object store, which --config names; that may take long, and cost money
    #[arg(long)]
    tier: bool,
}

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// A line of JSON for each thing
    Json,
}

fn begin(text: &str) -> Result<DumpFrom, String> {
    let number = |text: &str| text.parse().map_err(|_| "not a number".to_owned());
    match text.strip_prefix('@') {
        Some(position) => number(position).map(|at| DumpFrom::Position(Position(at))),
        None => number(text).map(|at| DumpFrom::Index(LogIndex(at))),
    }
}

/// How a look ended.
enum Ended {
    Fine,
    /// Nothing is wrong with what could be looked at: the rest is sealed.
    Sealed,
    Defects,
}

/// Why it could not be done.
type CouldNot = String;

pub(super) fn run(verb: &Verb) -> ExitCode {
    let (look, with_tier) = match verb {
        Verb::Check { look, tier }
        | Verb::Dump { look, tier, .. }
        | Verb::Stats { look, tier, .. } => (look, tier.tier),
        Verb::Repair { look, .. } => (look, false),
    };
    let source = match look.source(with_tier) {
        Ok(source) => source,
        Err(error) => {
            eprintln!("anabranch: {error}");
            return ExitCode::from(2);
        }
    };
    let ended = match verb {
        Verb::Check { look, .. } => look.each(|folder| print_check(&source, folder, look.format)),
        Verb::Dump {
            look,
            from,
            limit,
            bodies,
            ..
        } => {
            let mut left = limit.unwrap_or(u64::MAX);
            look.each(|folder| {
                let lines = Lines {
                    format: look.format,
                    bodies: *bodies,
                    left: &mut left,
                };
                lines.dump(&source, folder, *from)
            })
        }
        Verb::Repair {
            look,
            dry_run,
            lose_corrupt,
            yes,
        } => {
            let consent = Consent {
                dry_run: *dry_run,
                lose_corrupt: *lose_corrupt,
            };
            match agreed(consent, *yes) {
                Ok(()) => look.each(|folder| print_repair(&source, folder, consent, look.format)),
                Err(error) => Err(error),
            }
        }
        Verb::Stats { look, top, .. } => print_stats(&source, look, *top),
    };
    match ended {
        Ok(Ended::Fine) => ExitCode::SUCCESS,
        Ok(Ended::Defects) => ExitCode::from(1),
        Ok(Ended::Sealed) => {
            eprintln!("anabranch: {KEYS_NEEDED}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("anabranch: {error}");
            ExitCode::from(2)
        }
    }
}

/// Asks before something that was confirmed may be given up.
fn agreed(consent: Consent, yes: bool) -> Result<(), CouldNot> {
    if !consent.lose_corrupt || consent.dry_run || yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err("--lose-corrupt gives up what was confirmed: say --yes too".to_owned());
    }
    eprint!("Give up what was confirmed and cannot be read? Type yes: ");
    std::io::stderr().flush().ok();
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    match (read, answer.trim()) {
        (Ok(_), "yes") => Ok(()),
        _ => Err("nothing was done".to_owned()),
    }
}

impl LookFlags {
    fn source(&self, with_tier: bool) -> Result<Source, CouldNot> {
        let mut sealing = Sealing::default();
        let mut tier = None;
        if self.config.is_some() || with_tier {
            let config = self.config.clone();
            let node = NodeFlags {
                config,
                ..NodeFlags::default()
            };
            let flags = ServeFlags { dev: false, node };
            let config = node::configuration(&flags).map_err(|error| error.to_string())?;
            if self.key_file.is_none() {
                sealing = node::sealing(&config).map_err(|error| error.to_string())?;
            }
            if with_tier {
                let started = config.settings.store.tier.start();
                tier = started.map_err(|error| error.to_string())?;
                if tier.is_none() {
                    return Err(
                        "store.tier.url is not set: name the configuration by --config".to_owned(),
                    );
                }
            }
        }
        if let Some(file) = &self.key_file {
            let named = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
            let text = std::fs::read_to_string(file).map_err(|error| named(&error))?;
            let text = zeroize::Zeroizing::new(text);
            let ring = KeyRing::parse(&text).map_err(|error| named(&error))?;
            sealing = Sealing::new(ring, Arc::new(OsRandom::default()));
        }
        Ok(Source {
            disk: Arc::new(RealDisk),
            sealing,
            tier,
        })
    }

    /// The folders of the shards asked for, metadata first.
    fn folders(&self) -> Result<Vec<ShardFolder>, CouldNot> {
        let named = |error| format!("{}: {error}", self.data.display());
        let mut folders = Vec::new();
        for entry in std::fs::read_dir(&self.data).map_err(named)? {
            let entry = entry.map_err(named)?;
            let name = entry.file_name();
            let folder = name
                .to_str()
                .and_then(|name| ShardFolder::named(&self.data, name));
            folders.extend(folder.filter(|folder| folder.dir.is_dir()));
        }
        folders.sort_by_key(|folder| {
            let number = folder.name.strip_prefix("shard-");
            number.and_then(|number| number.parse::<u16>().ok())
        });
        if let Some(shard) = &self.shard {
            let named = format!("shard-{shard}");
            folders.retain(|folder| folder.name == *shard || folder.name == named);
        }
        if folders.is_empty() {
            let data = self.data.display();
            return Err(match &self.shard {
                Some(shard) => format!("{data} has no shard {shard}"),
                None => format!("{data} is no data folder: it has no shards"),
            });
        }
        Ok(folders)
    }

    fn each(
        &self,
        mut look: impl FnMut(&ShardFolder) -> Result<Ended, CouldNot>,
    ) -> Result<Ended, CouldNot> {
        let mut all = Ended::Fine;
        for folder in self.folders()? {
            all = match (look(&folder)?, all) {
                (Ended::Defects, _) | (_, Ended::Defects) => Ended::Defects,
                (Ended::Sealed, _) | (_, Ended::Sealed) => Ended::Sealed,
                (Ended::Fine, Ended::Fine) => Ended::Fine,
            };
        }
        Ok(all)
    }
}

/// Tells progress on standard error, when it takes long.
fn progress(folder: &ShardFolder) -> impl FnMut(Progress) {
    let mut told = Instant::now();
    let mut calls = 0u32;
    move |progress| {
        calls = calls.wrapping_add(1);
        if calls.is_multiple_of(64) && told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            let percent = progress.done.min(progress.total) * 100 / progress.total.max(1);
            eprintln!("{}: {} {percent} %", folder.name, progress.doing);
        }
    }
}

fn print_check(source: &Source, folder: &ShardFolder, format: Format) -> Result<Ended, CouldNot> {
    let checked =
        check(source, folder, &mut progress(folder)).map_err(|error| error.to_string())?;
    print_checked(folder, &checked, format);
    let findings = &checked.findings;
    Ok(match (findings.defects_seen(), findings.defects) {
        (0, 0) => Ended::Fine,
        (0, _) => Ended::Sealed,
        _ => Ended::Defects,
    })
}

/// A line about segments in the object store, when there are some.
fn print_away(folder: &ShardFolder, away: &Away, print: fn(&str)) {
    if away.segments > 0 {
        let read = match away.read {
            true => "were read too",
            false => "were not read: --tier reads them",
        };
        print(&format!(
            "{}: {} segments of {} lie in the object store and {read}",
            folder.name,
            away.segments,
            bytes(away.bytes)
        ));
    }
}

fn print_checked(folder: &ShardFolder, checked: &Checked, format: Format) {
    let findings = &checked.findings;
    match format {
        Format::Json => {
            output::line(
                &json!({
                    "shard": folder.name,
                    "defects": findings.defects,
                    "segments": checked.segments,
                    "tier_segments": checked.away.segments,
                    "tier_bytes": checked.away.bytes,
                    "tier_read": checked.away.read,
                    "frames": checked.frames,
                    "records": checked.records,
                    "extents": checked.extents,
                    "logical_bytes": checked.logical_bytes,
                    "given_back_bytes": checked.given_back_bytes,
                    "last_index": checked.last.map(|index| index.0),
                    "checkpoint_index": checked.checkpoint.map(|index| index.0),
                    "checkpoints": checked.checkpoints,
                    "runs": checked.runs,
                    "pairs": checked.pairs,
                    "streams": checked.streams,
                    "entries": checked.entries,
                    "findings": findings.list.iter().map(finding_json).collect::<Vec<_>>(),
                })
                .to_string(),
            );
        }
        Format::Text => {
            let index = |index: Option<LogIndex>| {
                index.map_or_else(|| "none".to_owned(), |index| index.to_string())
            };
            output::line(&format!(
                "{}: {} segments, {} frames, {} records, last log index {}; checkpoint of {} ({} kept, {} runs, {} pairs); \
                 {} streams, {} entries; {} live extents, {} of {} given back",
                folder.name,
                checked.segments,
                checked.frames,
                checked.records,
                index(checked.last),
                index(checked.checkpoint),
                checked.checkpoints,
                checked.runs,
                checked.pairs,
                checked.streams,
                checked.entries,
                checked.extents,
                bytes(checked.given_back_bytes),
                bytes(checked.logical_bytes),
            ));
            print_away(folder, &checked.away, output::line);
            findings.list.iter().for_each(print_finding);
            let told = findings.list.iter();
            let told = told.filter(|finding| finding.kind.is_defect()).count() as u64;
            match findings.defects {
                0 => output::line(&format!("{}: nothing is wrong", folder.name)),
                _ if findings.defects_seen() == 0 => output::line(&format!(
                    "{}: nothing is wrong as far as it can be read; {KEYS_NEEDED}",
                    folder.name
                )),
                all if all > told => output::line(&format!(
                    "{}: {all} defects, of which {told} are listed",
                    folder.name
                )),
                all => output::line(&format!("{}: {all} defects", folder.name)),
            }
        }
    }
}

fn print_finding(finding: &Finding) {
    let place = match finding.offset {
        Some(offset) => format!("{} at offset {offset}", finding.path.display()),
        None => finding.path.display().to_string(),
    };
    let word = match finding.kind {
        FindingKind::Sealed => "SEALED",
        kind if kind.is_defect() => "DEFECT",
        _ => "note",
    };
    output::line(&format!("  {word} {place}: {}", finding.what));
    output::line(&format!("    it means: {}", finding.kind.means()));
    output::line(&format!("    to do: {}", finding.kind.advice()));
}

fn finding_json(finding: &Finding) -> Value {
    json!({
        "kind": finding.kind.name(),
        "defect": finding.kind.is_defect(),
        "file": finding.path.display().to_string(),
        "offset": finding.offset,
        "what": finding.what,
        "means": finding.kind.means(),
        "to_do": finding.kind.advice(),
    })
}

fn print_repair(
    source: &Source,
    folder: &ShardFolder,
    consent: Consent,
    format: Format,
) -> Result<Ended, CouldNot> {
    let mended = repair(source, folder, consent).map_err(|error| error.to_string())?;
    let Mended {
        steps,
        withheld,
        after,
    } = &mended;
    match format {
        Format::Json => {
            let step = |step: &Step| json!({"file": step.path.display().to_string(), "what": step.what, "loses": step.kind.loses()});
            output::line(
                &json!({
                    "shard": folder.name,
                    "dry_run": consent.dry_run,
                    "steps": steps.iter().map(step).collect::<Vec<_>>(),
                    "withheld": withheld.iter().map(step).collect::<Vec<_>>(),
                    "defects_left": after.findings.defects,
                    "findings": after.findings.list.iter().map(finding_json).collect::<Vec<_>>(),
                })
                .to_string(),
            );
        }
        Format::Text => {
            let word = match consent.dry_run {
                true => "would be",
                false => "was",
            };
            if steps.is_empty() && withheld.is_empty() {
                let what = match after.findings.defects {
                    0 => "there is nothing to mend",
                    _ => "nothing of what is wrong can be mended",
                };
                output::line(&format!("{}: {what}", folder.name));
            }
            for step in steps {
                let path = step.path.display();
                output::line(&format!("{}: {path} {word} {}", folder.name, step.what));
            }
            for step in withheld {
                output::line(&format!(
                    "{}: NOT DONE, needs --lose-corrupt: {} {}",
                    folder.name,
                    step.path.display(),
                    step.what
                ));
            }
            // Of a plan it is how the shard is now: with what would be mended, and what would stay.
            if consent.dry_run {
                output::line(&format!("{}: it is now as follows", folder.name));
            }
            print_checked(folder, after, format);
        }
    }
    Ok(match after.findings.defects {
        0 => Ended::Fine,
        _ => Ended::Defects,
    })
}

/// A number of bytes for people.
fn bytes(number: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = UNITS.into_iter().find(|(_, unit)| number >= *unit);
    match unit {
        Some((name, unit)) => format!("{:.1} {name}", number as f64 / unit as f64),
        None => format!("{number} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_begins_at_an_index_or_a_position() {
        assert_eq!(begin("7"), Ok(DumpFrom::Index(LogIndex(7))));
        assert_eq!(begin("@4096"), Ok(DumpFrom::Position(Position(4096))));
        assert!(begin("@").is_err() && begin("x").is_err());
    }

    #[test]
    fn what_is_no_data_folder_is_told() {
        let look = LookFlags {
            data: PathBuf::from("/nonexistent-data"),
            shard: None,
            key_file: None,
            config: None,
            format: Format::Text,
        };
        assert!(look.folders().unwrap_err().contains("/nonexistent-data"));
        let empty = tempfile::tempdir().unwrap();
        let look = LookFlags {
            data: empty.path().to_owned(),
            ..look
        };
        assert!(look.folders().unwrap_err().contains("no data folder"));
    }

    #[test]
    fn bytes_are_told_in_units() {
        let told = [0, 1023, 1024, 5 << 19].map(bytes);
        assert_eq!(told, ["0 bytes", "1023 bytes", "1.0 KiB", "2.5 MiB"]);
    }
}
