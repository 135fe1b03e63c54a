//! The subcommands that talk to a service: the real program against a real service, and against
//! servers and proxies that fail in each way.

mod agents;
mod closed_output;
mod commands;
mod failures;
mod local_inputs;
mod quickstart;
mod repeated;
mod servers;
mod sweeps;

use std::{
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::support::service::LLMPROF;

/// Result of a subcommand.
#[derive(Debug)]
struct CommandResult {
    code: i32,
    stdout: String,
    stderr: String,
}

impl CommandResult {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts exit code 3 with one line that contains each text.
    #[track_caller]
    fn assert_refused(&self, texts: &[&str]) {
        assert_eq!((self.code, self.stderr.lines().count()), (3, 1), "{self:?}");
        assert!(self.stderr.starts_with("llmprof: ") && self.stdout.is_empty(), "{self:?}");
        for text in texts {
            assert!(self.stderr.contains(text), "{text}: {}", self.stderr);
        }
    }
}

/// A subcommand without variables of this process, in another folder.
fn command(folder: &Path, url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(LLMPROF);
    command
        .args(arguments)
        .current_dir(folder)
        .env_remove("LLMPROF_TOKEN")
        .env("LLMPROF_SERVER", url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a subcommand to its end.
fn run(command: &mut Command) -> CommandResult {
    let output = command.output().unwrap();
    CommandResult {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
