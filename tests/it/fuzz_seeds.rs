//! The fuzz seeds and the committed corpus as regression tests.
//!
//! Every file must pass the properties of its target, and every target must have seeds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[path = "../../fuzz/targets.rs"]
mod targets;

fn fuzz() -> PathBuf {
    Path::new(crate::harness::ROOT).join("fuzz")
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name")).collect()
}

/// Runs a check over every file of a directory. The name of the file is printed if the check fails.
fn run(directory: &Path, check: fn(&[u8])) {
    let names = names(directory);
    assert!(!names.is_empty(), "{} is empty", directory.display());
    for name in names {
        let file = directory.join(name);
        let input = std::fs::read(&file).expect("a readable file");
        if let Err(panic) = std::panic::catch_unwind(|| check(&input)) {
            eprintln!("the target fails on {}", file.display());
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn hard12_every_target_passes_its_seeds() {
    for (target, check) in targets::TARGETS {
        run(&fuzz().join("seeds").join(target), check);
    }
}

#[test]
fn hard12_every_target_passes_its_corpus() {
    for (target, check) in targets::TARGETS {
        run(&fuzz().join("corpus").join(target), check);
    }
}

#[test]
fn hard12_every_target_has_a_binary_and_seeds_and_figures() {
    let targets: BTreeSet<String> = targets::TARGETS.iter().map(|(target, _)| (*target).to_owned()).collect();
    let manifest = std::fs::read_to_string(fuzz().join("Cargo.toml")).expect("the manifest");
    let manifest: toml::Table = manifest.parse().expect("TOML");
    let binaries = manifest["bin"].as_array().expect("binaries");
    let binaries: BTreeSet<String> =
        binaries.iter().map(|binary| binary["name"].as_str().expect("a name").to_owned()).collect();
    assert_eq!(binaries, targets, "fuzz/Cargo.toml");
    assert_eq!(names(&fuzz().join("seeds")), targets, "fuzz/seeds");
    let figures = std::fs::read_to_string(fuzz().join("hours.json")).expect("the figures");
    let figures: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&figures).expect("JSON");
    assert_eq!(figures.keys().cloned().collect::<BTreeSet<_>>(), targets, "fuzz/hours.json");
}
