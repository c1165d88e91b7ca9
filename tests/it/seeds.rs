//! The fuzz seeds as a regression test: every file through the checks of its target.

#[path = "../../fuzz/targets.rs"]
mod targets;

fn run(target: &str, check: fn(&[u8])) {
    let directory = format!("{}/fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
    let files: Vec<_> =
        std::fs::read_dir(&directory).expect(&directory).map(|entry| entry.expect("a file").path()).collect();
    assert!(!files.is_empty(), "{directory} is empty");
    for file in files {
        check(&std::fs::read(&file).expect("a readable file"));
    }
}

#[test]
fn the_seeds_of_every_target_pass() {
    run("envelope", targets::envelope);
    run("events", targets::events);
    run("lines", targets::lines);
    run("template", targets::template);
    run("configuration", targets::configuration);
}
