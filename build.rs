//! Tells the program which commit it was built from, where that is known.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=migrations");
    println!("cargo::rerun-if-changed=.git/HEAD");
    println!("cargo::rerun-if-changed=.git/logs/HEAD");
    let commit = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    if let Some(commit) = commit.ok().filter(|out| out.status.success()).and_then(|out| String::from_utf8(out.stdout).ok()) {
        println!("cargo::rustc-env=LLMPROF_GIT_COMMIT={}", commit.trim());
    }
}
