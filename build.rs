//! Records the commit of the build. It changes with every commit: the programs of this package,
//! which are small, are compiled again, the packages below them are not.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=.git/HEAD");
    println!("cargo::rerun-if-changed=.git/logs/HEAD");
    println!("cargo::rerun-if-changed=build.rs");
    let commit = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    if let Some(commit) = commit
        .ok()
        .filter(|out| out.status.success())
        .and_then(|out| String::from_utf8(out.stdout).ok())
    {
        println!("cargo::rustc-env=LLMPROF_GIT_COMMIT={}", commit.trim());
    }
}
