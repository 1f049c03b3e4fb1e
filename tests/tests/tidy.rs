//! The rules of the house that no compiler checks: arrows between crates, words that stay where they
//! belong, and habits of the source. Reads files and manifests only; runs nothing of the server.
//!
//! A rule that must be broken is changed here, in the same commit, with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anabranch_tests::repository;
use serde_json::Value;

/// Longest source file, its unit tests not counted.
const SOURCE_LINES_MAX: usize = 650;

/// One file of the repository: tracked, or new and not ignored.
struct File {
    path: String,
    bytes: Vec<u8>,
}

impl File {
    /// Its text, or `None` for a binary file.
    fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok()
    }

    fn stem(&self) -> &str {
        Path::new(&self.path)
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or("")
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Lines with their numbers from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text()
            .unwrap_or("")
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
    }

    /// The number of the first line of its unit tests, or one past the end.
    fn tests_begin(&self) -> usize {
        let end = self.lines().count() + 1;
        self.lines()
            .find(|(_, line)| line.trim() == "#[cfg(test)]")
            .map_or(end, |(n, _)| n)
    }

    /// Whether a line belongs to a test.
    fn is_test_line(&self, number: usize) -> bool {
        let mut folders = self.path.rsplit('/').skip(1);
        let in_test_folder = folders.any(|folder| folder == "tests");
        let test_module = self.stem() == "tests" || self.stem().ends_with("_tests");
        in_test_folder || test_module || number >= self.tests_begin()
    }
}

fn files() -> Vec<File> {
    let listed = Command::new("git")
        .current_dir(repository::root())
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .output()
        .expect("git runs");
    assert!(listed.status.success(), "the source is a git checkout");
    let names = String::from_utf8(listed.stdout).expect("paths are UTF-8");
    let files: Vec<File> = names
        .split_terminator('\0')
        .filter_map(|path| {
            // A path that git still lists may be deleted in the working tree.
            let bytes = std::fs::read(repository::root().join(path)).ok()?;
            Some(File {
                path: path.to_owned(),
                bytes,
            })
        })
        .collect();
    assert!(files.len() > 20, "the listing is whole");
    files
}

/// Fails with every line that `find` gives a reason for.
fn no_line(rule: &str, find: impl Fn(&File, usize, &str) -> bool) {
    let mut broken = String::new();
    for file in files() {
        for (number, line) in file.lines() {
            if find(&file, number, line) {
                writeln!(broken, "  {}:{number}: {}", file.path, line.trim()).unwrap();
            }
        }
    }
    assert!(broken.is_empty(), "{rule}\n{broken}");
}

/// Fails with every file that `find` complains about.
fn no_file(rule: &str, find: impl Fn(&File) -> Option<String>) {
    let broken: String = files()
        .iter()
        .filter_map(|file| find(file).map(|why| format!("  {}: {why}\n", file.path)))
        .collect();
    assert!(broken.is_empty(), "{rule}\n{broken}");
}

#[test]
fn core_and_store_name_no_protocol() {
    no_line(
        "core/ and store/ know no protocol; the number of leaks is 0",
        |file, _, line| {
            let line = line.to_ascii_lowercase();
            (file.path.starts_with("core/") || file.path.starts_with("store/"))
                && ["mqtt", "amqp", "rabbit"]
                    .iter()
                    .any(|word| line.contains(word))
        },
    );
    no_file(
        "core/ and store/ know no protocol; file names count",
        |file| {
            let path = file.path.to_ascii_lowercase();
            let leak = (path.starts_with("core/") || path.starts_with("store/"))
                && ["mqtt", "amqp", "rabbit"]
                    .iter()
                    .any(|word| path.contains(word));
            leak.then(|| "names a protocol".to_owned())
        },
    );
}

/// The dependencies of each package of the workspace: name -> (kind, names).
fn dependencies() -> BTreeMap<String, Vec<(String, String)>> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(repository::root())
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().expect("dependencies");
            let dependencies = dependencies.iter().map(|dependency| {
                let kind = dependency["kind"].as_str().unwrap_or("normal").to_owned();
                (kind, dependency["name"].as_str().expect("name").to_owned())
            });
            (
                package["name"].as_str().expect("name").to_owned(),
                dependencies.collect(),
            )
        })
        .collect()
}

#[test]
fn arrows_between_crates_point_to_core() {
    let core = &["anabranch-core"][..];
    let everything = &[
        "anabranch-admin",
        "anabranch-amqp",
        "anabranch-auth",
        "anabranch-core",
        "anabranch-driver",
        "anabranch-mqtt",
        "anabranch-store",
    ][..];
    // Package -> what it may use of the workspace, in the program and in its tests.
    let allowed: BTreeMap<&str, (&[&str], &[&str])> = BTreeMap::from([
        ("anabranch-core", (&[][..], &[][..])),
        ("anabranch-store", (core, core)),
        ("anabranch-auth", (core, core)),
        ("anabranch-driver", (core, core)),
        ("anabranch-mqtt", (core, core)),
        ("anabranch-amqp", (core, core)),
        ("anabranch-admin", (core, core)),
        ("anabranch", (everything, everything)),
        ("anabranch-bench", (&[][..], &[][..])),
        ("anabranch-examples", (&[][..], &[][..])),
        ("anabranch-tests", (&[][..], everything)),
    ]);
    let found = dependencies();
    let names: BTreeSet<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        allowed.keys().copied().collect(),
        "a new crate gets its line here"
    );
    for (package, dependencies) in &found {
        let (program, tests) = allowed[package.as_str()];
        for (kind, name) in dependencies {
            let may = if kind == "normal" { program } else { tests };
            assert!(
                !name.starts_with("anabranch") || may.contains(&name.as_str()),
                "{package} must not depend on {name} ({kind})"
            );
        }
    }
}

#[test]
fn pure_crates_have_no_runtime_and_no_randomness() {
    let impure = [
        "tokio",
        "mio",
        "rand",
        "socket2",
        "rustix",
        "libc",
        "axum",
        "ureq",
        "getrandom",
    ];
    let found = dependencies();
    for package in ["anabranch-core", "anabranch-mqtt", "anabranch-amqp"] {
        for (kind, name) in &found[package] {
            assert!(
                kind != "normal" || !impure.contains(&name.as_str()),
                "{package} is pure and must not depend on {name}"
            );
        }
    }
}

#[test]
fn pure_crates_share_one_list_of_banned_calls() {
    let read = |path: &str| std::fs::read_to_string(repository::root().join(path)).unwrap();
    let core = read("core/clippy.toml");
    assert_eq!(core, read("gateways/mqtt/clippy.toml"));
    assert_eq!(core, read("gateways/amqp/clippy.toml"));
}

/// Only the composition root joins a gateway to the rest: one line in its manifest, and in its
/// source at most two lines that name the crate (one that imports it, one that registers it).
#[test]
fn a_protocol_touches_the_server_in_two_lines() {
    let manifest = std::fs::read_to_string(repository::root().join("server/Cargo.toml")).unwrap();
    for (package, path) in [
        ("anabranch-mqtt", "anabranch_mqtt"),
        ("anabranch-amqp", "anabranch_amqp"),
    ] {
        let lines = manifest
            .lines()
            .filter(|line| line.contains(package))
            .count();
        assert_eq!(lines, 1, "server/Cargo.toml names {package} once");
        let named: Vec<String> = files()
            .iter()
            .filter(|file| file.path.starts_with("server/src/"))
            .flat_map(|file| {
                file.lines()
                    .filter(|(number, line)| line.contains(path) && !file.is_test_line(*number))
                    .map(|(number, line)| format!("{}:{number}: {}", file.path, line.trim()))
                    .collect::<Vec<_>>()
            })
            .collect();
        assert!(
            (1..=2).contains(&named.len()),
            "server/src names {path} in one or two lines, not in\n{}",
            named.join("\n")
        );
    }
}

#[test]
fn no_enum_of_protocols_exists() {
    no_line(
        "there is no enum of protocols anywhere",
        |file, number, line| {
            let name = line.trim().trim_start_matches("pub ").strip_prefix("enum ");
            // The load generator and the tests are no part of the server.
            name.is_some_and(|name| name.starts_with("Protocol "))
                && file.is_rust()
                && !file.path.starts_with("bench/")
                && !file.is_test_line(number)
        },
    );
}

#[test]
fn every_source_file_says_what_it_owns() {
    no_file("a source file opens with `//!`", |file| {
        let first = file.text().unwrap_or("").lines().next().unwrap_or("");
        (file.is_rust() && !first.starts_with("//! ")).then(|| first.to_owned())
    });
}

#[test]
fn no_file_is_a_drawer_for_everything() {
    no_file("name a file after what it owns", |file| {
        let drawer = ["utils", "util", "common", "helpers", "misc"];
        let folder = file.path.split('/').any(|part| drawer.contains(&part));
        (folder || drawer.contains(&file.stem())).then(|| "says nothing".to_owned())
    });
}

#[test]
fn source_files_stay_readable() {
    no_file("split the file by what it owns", |file| {
        let lines = file.tests_begin() - 1;
        let counted = file.is_rust() && !file.is_test_line(1) && lines > SOURCE_LINES_MAX;
        counted.then(|| format!("{lines} lines, at most {SOURCE_LINES_MAX}"))
    });
}

#[test]
fn nothing_is_left_for_later() {
    let marks = [
        concat!("to", "do!("),
        concat!("unimpl", "emented!("),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
    ];
    no_line("finish it, or refuse it by name", |file, _, line| {
        file.is_rust() && marks.iter().any(|mark| line.contains(mark))
    });
}

#[test]
fn tests_neither_sleep_nor_hide() {
    let rust = [
        concat!("#[ign", "ore"),
        concat!("thread::", "sleep"),
        concat!("time::", "sleep"),
        concat!("#[should_", "panic"),
    ];
    let scripts = [concat!("time.", "sleep("), concat!("waitFor", "Timeout(")];
    no_line(
        "wait for a condition, with a deadline",
        |file, number, line| {
            // Where the clock is the test's own, waiting takes no time and hides no race.
            let own_clock = || {
                line.contains(concat!("tokio::time::", "sleep"))
                    && file
                        .text()
                        .is_some_and(|text| text.contains("start_paused"))
            };
            let in_script = file.path.starts_with("tests/")
                && [".py", ".mjs", ".sh"]
                    .iter()
                    .any(|suffix| file.path.ends_with(suffix));
            // Whether a line is a test's is the longest of the questions.
            rust.iter().any(|word| line.contains(word))
                && file.is_rust()
                && file.is_test_line(number)
                && !own_clock()
                || in_script && scripts.iter().any(|word| line.contains(word))
        },
    );
}

#[test]
fn there_is_no_unsafe_code() {
    let forms = [
        "unsafe {",
        "unsafe fn",
        "unsafe impl",
        "unsafe trait",
        "unsafe extern",
    ];
    no_line("nothing here needs unsafe code", |file, _, line| {
        let code = line.split("//").next().unwrap_or("");
        let quoted = file.path == "tests/tests/tidy.rs";
        file.is_rust() && !quoted && forms.iter().any(|form| code.contains(form))
    });
}

#[test]
fn no_file_names_this_machine_or_a_registry() {
    let words = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("registry.", "npmjs"),
        concat!("crates", ".io"),
        concat!("pypi", ".org"),
        concat!("pythonhosted", ".org"),
        concat!("deb.", "debian.org"),
        concat!("proxy.", "golang"),
    ];
    no_line(
        "no path of a developer's machine, no registry host",
        |file, _, line| {
            // Cargo writes where a package comes from into its lock file, the same words everywhere.
            let cargo_lock = file.stem() == "Cargo" && line.starts_with("source = \"registry+");
            !cargo_lock && words.iter().any(|word| line.contains(word))
        },
    );
}

#[test]
fn the_node_lock_file_names_no_place() {
    no_line("keep `omit-lockfile-registry-resolved`", |file, _, line| {
        file.path.ends_with("package-lock.json") && line.contains("\"resolved\"")
    });
}

/// `a/{b,c}/d` -> `a/b/d`, `a/c/d`; anything else is itself.
fn expand(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else {
        return vec![path.to_owned()];
    };
    let Some((inside, after)) = rest.split_once('}') else {
        return vec![path.to_owned()];
    };
    inside
        .split(',')
        .flat_map(|one| expand(&format!("{before}{one}{after}")))
        .collect()
}

/// Words in backquotes that begin with a folder of the repository's root are paths.
#[test]
fn documents_name_only_paths_that_exist() {
    let root = repository::root();
    let folders: BTreeSet<String> = files()
        .iter()
        .filter_map(|file| {
            file.path
                .split_once('/')
                .map(|(folder, _)| format!("{folder}/"))
        })
        .collect();
    let mut missing = String::new();
    let mut named = 0;
    for file in files().iter().filter(|file| file.path.ends_with(".md")) {
        for (number, line) in file.lines() {
            for word in line.split('`').skip(1).step_by(2) {
                let word = word.split([':', '#', ' ']).next().unwrap_or("");
                if !folders
                    .iter()
                    .any(|folder| word.starts_with(folder.as_str()))
                {
                    continue;
                }
                for path in expand(word).iter().filter(|path| !path.contains('*')) {
                    named += 1;
                    // From the root, or from where the document stands.
                    let beside = root.join(&file.path).with_file_name(path);
                    if !root.join(path).exists() && !beside.exists() {
                        writeln!(missing, "  {}:{number}: {path}", file.path).unwrap();
                    }
                }
            }
        }
    }
    assert!(
        missing.is_empty(),
        "documents name paths that do not exist\n{missing}"
    );
    assert!(named > 10, "the documents have a code map");
}

/// A fuzz crate's targets each have seeds, and its `cargo test` replays them.
#[test]
fn every_fuzz_target_has_a_corpus() {
    let files = files();
    let targets: Vec<&File> = files
        .iter()
        .filter(|file| file.is_rust() && file.path.contains("/fuzz_targets/"))
        .collect();
    assert!(!targets.is_empty(), "there is a fuzz target per decoder");
    for target in targets {
        let (folder, _) = target.path.split_once("fuzz_targets/").expect("just found");
        let corpus = format!("{folder}corpus/{}/", target.stem());
        assert!(
            files.iter().any(|file| file.path.starts_with(&corpus)),
            "{} has no seeds in {corpus}",
            target.path
        );
    }
}

#[test]
fn third_party_licences_are_permissive() {
    let allowed = [
        "MIT",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "Zlib",
        "0BSD",
        "CC0-1.0",
        "MIT-0",
        "Unlicense",
        "Unicode-3.0",
        "BSL-1.0",
        "CDLA-Permissive-2.0",
    ];
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(repository::root())
        .args([
            "metadata",
            "--format-version",
            "1",
            "--offline",
            "--filter-platform",
        ])
        .arg("x86_64-unknown-linux-gnu")
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    for package in metadata["packages"].as_array().expect("packages") {
        let licence = package["license"].as_str().unwrap_or("none");
        let name = &package["name"];
        assert!(
            may_use(licence, &allowed),
            "{name} has the licence {licence}"
        );
    }
}

/// Whether one choice of a licence expression is among `allowed`. `/` is an old way to write `OR`.
fn may_use(expression: &str, allowed: &[&str]) -> bool {
    fn split<'a>(expression: &'a str, operator: &str) -> Vec<&'a str> {
        let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0);
        for (at, character) in expression.char_indices() {
            match character {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ if depth == 0 && at >= start && expression[at..].starts_with(operator) => {
                    parts.push(&expression[start..at]);
                    start = at + operator.len();
                }
                _ => {}
            }
        }
        parts.push(&expression[start..]);
        parts
    }
    let expression = expression.trim();
    for operator in [" OR ", "/"] {
        let choices = split(expression, operator);
        if choices.len() > 1 {
            return choices.iter().any(|choice| may_use(choice, allowed));
        }
    }
    let parts = split(expression, " AND ");
    if parts.len() > 1 {
        return parts.iter().all(|part| may_use(part, allowed));
    }
    match expression
        .strip_prefix('(')
        .and_then(|inner| inner.strip_suffix(')'))
    {
        Some(inner) => may_use(inner, allowed),
        None => allowed.contains(&expression),
    }
}
