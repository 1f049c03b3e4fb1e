//! Clocks, counters of the system, and what is made of many samples.

use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What was asked for on the command line.
pub struct Arguments {
    pub what: String,
    pub dir: PathBuf,
    numbers: BTreeMap<String, f64>,
}

impl Arguments {
    pub fn read() -> Option<Self> {
        let mut words = std::env::args().skip(1);
        let (what, dir) = (words.next()?, PathBuf::from(words.next()?));
        let mut numbers = BTreeMap::new();
        for word in words {
            let (name, number) = word.split_once('=')?;
            numbers.insert(name.to_owned(), number.parse().ok()?);
        }
        Some(Self { what, dir, numbers })
    }

    pub fn number(&self, name: &str, otherwise: f64) -> f64 {
        self.numbers.get(name).copied().unwrap_or(otherwise)
    }
}

/// User and system time of all threads of this process, ended ones included, in microseconds.
pub fn cpu_us() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec as f64 * 1e6 + spent.tv_nsec as f64 / 1e3
}

/// User and system time of each thread of this process by its name, in microseconds (ticks of 10 ms).
pub fn cpu_us_by_thread() -> BTreeMap<String, (f64, f64)> {
    const TICK_US: f64 = 10_000.0;
    let mut by_name = BTreeMap::new();
    let tasks = std::fs::read_dir("/proc/self/task").expect("this process");
    for task in tasks.flatten() {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let Some((name, fields)) = stat.rsplit_once(')') else {
            continue;
        };
        let name = name.split_once('(').map_or("", |(_, name)| name);
        let fields: Vec<f64> = fields
            .split_whitespace()
            .map(|field| field.parse().unwrap_or(0.0))
            .collect();
        let ticks = |at: usize| fields.get(at).copied().unwrap_or(0.0) * TICK_US;
        let sum: &mut (f64, f64) = by_name.entry(name.to_owned()).or_default();
        sum.0 += ticks(11);
        sum.1 += ticks(12);
    }
    by_name
}

/// A number of a `/proc/self` file, in the unit that stands there.
fn of_proc(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Bytes that this process sent to block devices.
pub fn device_bytes() -> u64 {
    of_proc("io", "write_bytes:")
}

/// Memory of this process that no file stands behind, in bytes.
pub fn anonymous_bytes() -> u64 {
    of_proc("status", "RssAnon:") * 1024
}

/// Memory of mapped files, in bytes.
pub fn file_bytes() -> u64 {
    of_proc("status", "RssFile:") * 1024
}

/// The sample below which this part of all samples lies.
pub fn percentile(samples: &mut [u64], part: f64) -> u64 {
    samples.sort_unstable();
    let last = samples.len().saturating_sub(1);
    let nth = (last as f64 * part) as usize;
    samples.get(nth).copied().unwrap_or(0)
}

/// The middle one.
pub fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(0.0)
}
