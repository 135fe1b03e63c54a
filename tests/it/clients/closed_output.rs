//! Programs whose reader has left: the exit code is the same as with a reader.

use std::{
    io::pipe,
    process::{Command, Stdio},
};

use tempfile::tempdir;

use crate::support::service::{LLMPROF, RUNNER};

#[test]
fn a_reader_of_messages_that_left_does_not_change_the_exit_code() {
    let folder = tempdir().unwrap();
    for arguments in [
        &["align", "--mock", "absent", "--e2e", "absent"][..],
        &["analyze", "absent"],
        &["backup", "--data", "absent", "--to", "copy"],
        &["diff", "absent", "absent"],
        &["cost", "--model", "absent"],
        &["load", "http://127.0.0.1:9", "--requests", "1"],
        &["submit"],
        &["no-such-command"],
    ] {
        let command = || {
            let mut command = Command::new(LLMPROF);
            command.args(arguments).current_dir(folder.path()).env_remove("LLMPROF_TOKEN");
            command
        };
        let read = command().output().unwrap();
        assert!(!read.stderr.is_empty(), "{arguments:?}");
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let unread = command().stdout(Stdio::null()).stderr(writer).status().unwrap();
        assert_eq!(unread.code(), read.status.code(), "{arguments:?}");
    }
}

#[test]
fn a_reader_of_output_that_left_is_not_an_error_of_either_program() {
    let tiny = ["--model", "llama-tiny", "--prompt-tokens", "8", "--max-new-tokens", "1"];
    let bench = [&["bench", "--device", "cpu", "--repeats", "1"][..], &tiny].concat();
    for (program, arguments) in [
        (LLMPROF, &["engines"][..]),
        (LLMPROF, &["cost", "--model", "llama-tiny", "--prompt-tokens", "8"]),
        (RUNNER, &["features"]),
        (RUNNER, &bench[..]),
    ] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let ended = Command::new(program).args(arguments).stdout(writer).output().unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && !errors.contains("internal error"), "{errors}");
    }
}
