//! What processes cost, from `/proc`: processor time, memory, bytes written.
//!
//! Owns the reading of those files. Never starts or stops a process. Next: `flow.rs`.

use std::collections::HashMap;
use std::fs;

/// What a process and all its descendants have used so far, or hold now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system time of all threads, microseconds; resolution one clock tick (10 ms).
    pub cpu_us: u64,
    /// Resident memory, KiB.
    pub rss_kib: u64,
    /// Bytes handed to a block device; `None` where the system does not let us read it.
    pub written_bytes: Option<u64>,
}

/// Adds up the tree of processes under `root`; `None` when `root` is gone.
pub fn usage(root: u32) -> Option<Usage> {
    let stats = all_stats();
    stats.get(&root)?;
    let mut total = Usage {
        written_bytes: Some(0),
        ..Usage::default()
    };
    let mut waiting = vec![root];
    while let Some(pid) = waiting.pop() {
        if let Some(stat) = stats.get(&pid) {
            total.cpu_us += stat.cpu_ticks * tick_us();
            total.rss_kib += rss_kib(pid).unwrap_or(0);
            total.written_bytes = total
                .written_bytes
                .zip(written_bytes(pid))
                .map(|(a, b)| a + b);
        }
        waiting.extend(
            stats
                .iter()
                .filter(|(_, stat)| stat.parent == pid)
                .map(|(pid, _)| *pid),
        );
    }
    Some(total)
}

/// Processor time this process has used so far, microseconds.
pub fn own_cpu_us() -> Option<u64> {
    let stat = parse_stat(&fs::read_to_string("/proc/self/stat").ok()?)?;
    Some(stat.cpu_ticks * tick_us())
}

/// Processor time all of the machine has spent busy, microseconds.
pub fn machine_busy_us() -> Option<u64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let mut fields = text.lines().next()?.split_ascii_whitespace().skip(1);
    // user nice system idle iowait irq softirq steal
    let ticks: Vec<u64> = fields
        .by_ref()
        .take(8)
        .map_while(|field| field.parse().ok())
        .collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((ticks.iter().sum::<u64>() - idle) * tick_us())
}

/// The name of the file system that holds `path`, as far as `/proc/mounts` tells.
pub fn file_system(path: &std::path::Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(mount), Some(kind)) = (fields.next(), fields.next()) else {
            continue;
        };
        if path.starts_with(mount) && best.is_none_or(|(length, _)| mount.len() >= length) {
            best = Some((mount.len(), kind));
        }
    }
    best.map(|(_, kind)| kind.to_owned())
}

fn tick_us() -> u64 {
    1_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

#[derive(Debug, PartialEq)]
struct Stat {
    parent: u32,
    /// User and system time, own and of children already waited for.
    cpu_ticks: u64,
}

fn all_stats() -> HashMap<u32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return HashMap::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| {
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, parse_stat(&text)?))
        })
        .collect()
}

/// Fields of proc(5) after the command, which stands in parentheses and may hold any character:
/// state 0, parent 1, ..., utime 11, stime 12, cutime 13, cstime 14.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, after) = text.rsplit_once(')')?;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let cpu_ticks = number(11)? + number(12)? + number(13)? + number(14)?;
    Some(Stat {
        parent: number(1)? as u32,
        cpu_ticks,
    })
}

fn rss_kib(pid: u32) -> Option<u64> {
    labelled(
        &fs::read_to_string(format!("/proc/{pid}/status")).ok()?,
        "VmRSS:",
    )
}

fn written_bytes(pid: u32) -> Option<u64> {
    labelled(
        &fs::read_to_string(format!("/proc/{pid}/io")).ok()?,
        "write_bytes:",
    )
}

/// The number behind a label at the start of a line.
fn labelled(text: &str, label: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_hold_spaces_and_parentheses() {
        let text = "42 (a) b (c)) S 7 42 42 0 -1 4194560 1 0 0 0 100 20 3 4 20 0 9 0";
        assert_eq!(
            parse_stat(text),
            Some(Stat {
                parent: 7,
                cpu_ticks: 127
            })
        );
        assert_eq!(parse_stat("42 (a) S 7"), None);
    }

    #[test]
    fn labels_are_found_at_the_start_of_a_line() {
        assert_eq!(
            labelled("VmHWM: 1 kB\nVmRSS:\t  5120 kB\n", "VmRSS:"),
            Some(5120)
        );
        assert_eq!(
            labelled("cancelled_write_bytes: 9\nwrite_bytes: 3\n", "write_bytes:"),
            Some(3)
        );
        assert_eq!(labelled("", "VmRSS:"), None);
    }

    #[test]
    fn this_process_has_memory_and_a_missing_one_has_no_usage() {
        let own = usage(std::process::id()).unwrap();
        assert!(own.rss_kib > 0);
        assert_eq!(usage(u32::MAX), None);
    }
}
