//! Golden files: blessed outputs under `tests/golden/`.

use std::{fs, path::Path};

/// Compares `text` with `tests/golden/PREFIX-NAME`; with `LLMPROF_BLESS` set, writes that file.
///
/// A CSV without rows has no golden file.
pub fn golden(prefix: &str, name: &str, text: &str) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{prefix}-{name}"));
    let empty = name.ends_with(".csv") && text.lines().count() <= 1;
    if std::env::var_os("LLMPROF_BLESS").is_some() {
        if empty {
            fs::remove_file(&path).ok()
        } else {
            fs::write(&path, text).ok()
        };
    }
    if empty {
        assert!(!path.exists(), "{name} has no rows now; {} has some", path.display());
        return;
    }
    let blessed = fs::read_to_string(&path).unwrap_or_default();
    let differs = blessed.lines().zip(text.lines()).position(|(a, b)| a != b);
    let line = differs.unwrap_or_else(|| blessed.lines().count().min(text.lines().count()));
    assert!(
        blessed == text,
        "{} line {}: blessed {:?}, now {:?}",
        path.display(),
        line + 1,
        blessed.lines().nth(line),
        text.lines().nth(line)
    );
}
