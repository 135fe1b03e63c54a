//! Values that the packages of llmprof share, and the names of a run's files.

pub mod domain;
pub mod layout;
pub mod trace;

use std::{
    fmt::Display,
    io::{self, Write},
};

use domain::visible;

/// Writes to standard output; a reader that left, such as `head`, is not an error.
pub fn print(text: &str) -> io::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes a line to standard output, as [`print`] does.
pub fn print_line(line: impl Display) -> io::Result<()> {
    print(&format!("{line}\n"))
}

/// Writes a JSON value on a line of standard output, readable on a terminal.
pub fn print_json(value: &impl Display) -> io::Result<()> {
    print_line(visible::json(&value.to_string()))
}

/// Writes a line to standard error; hidden characters of text from outside are symbols. A failed
/// write is ignored: a reader that left changes neither the output nor the exit code.
pub fn print_notice(line: impl Display) {
    _ = writeln!(io::stderr(), "{}", visible::visible(&line.to_string()));
}

/// An error with its causes, in one line: the only place where a chain is joined.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
