//! The build of this program. Only the package of the program knows its commit, so that a commit
//! compiles nothing else again.

use std::sync::OnceLock;

static COMMIT: OnceLock<&str> = OnceLock::new();

/// Records the commit that the program was built from. The first call counts.
pub fn set_commit(commit: Option<&'static str>) {
    if let Some(commit) = commit {
        _ = COMMIT.set(commit);
    }
}

/// The commit that the program was built from, if it is known: 12 hexadecimal digits.
pub fn commit() -> Option<String> {
    COMMIT.get().map(|it| (*it).to_owned())
}
