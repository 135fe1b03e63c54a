//! Commands as values, which tests can compare and files can record.
//!
//! Starts nothing. A child gets the variables of [`PASSED`], its command's variables, and a folder
//! for temporary files; never the service's whole environment, because profilers store the
//! environment of their targets in reports that users share.

use std::{
    ffi::{OsStr, OsString},
    fmt::Write as _,
    path::{Path, PathBuf},
};

pub use crate::config::environment::PASSED;

/// A program with arguments, environment and working folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argv {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Variables of this command, which override those passed on.
    pub env: Vec<(String, OsString)>,
    /// Names of variables to pass on from the service, in addition to [`PASSED`].
    pub pass: Vec<String>,
    /// Working folder; the service's when absent.
    pub cwd: Option<PathBuf>,
}

impl Argv {
    /// Creates a command without arguments.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            pass: Vec::new(),
            cwd: None,
        }
    }

    /// Appends one argument.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Appends several arguments.
    pub fn args<T: Into<OsString>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of this command.
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Returns the child's environment: the allowed part of `ours`, overridden by the command's.
    pub fn environment(
        &self,
        ours: impl Iterator<Item = (OsString, OsString)>,
    ) -> Vec<(OsString, OsString)> {
        let passed = |name: &OsStr| {
            PASSED.iter().any(|p| name == *p) || self.pass.iter().any(|p| name == p.as_str())
        };
        let set = |name: &OsStr| self.env.iter().any(|(n, _)| name == n.as_str());
        ours.filter(|(name, _)| passed(name) && !set(name))
            .chain(self.env.iter().map(|(name, value)| (name.into(), value.clone())))
            .collect()
    }

    /// Returns the command as it runs in an unpacked copy of `dir`: its paths relative to it, those
    /// in variables too, and `programs` by their names.
    pub fn portable(&self, dir: &Path, programs: &[&Path]) -> Self {
        let portable = |word: &OsStr| -> OsString {
            let path = Path::new(word);
            match (path.strip_prefix(dir), path.file_name()) {
                (Ok(inner), _) if inner.as_os_str().is_empty() => ".".into(),
                (Ok(inner), _) => inner.into(),
                (Err(_), Some(name)) if programs.contains(&path) => name.to_owned(),
                (Err(_), _) => word.to_owned(),
            }
        };
        Self {
            program: portable(self.program.as_os_str()).into(),
            args: self.args.iter().map(|word| portable(word)).collect(),
            env: self.env.iter().map(|(name, value)| (name.clone(), portable(value))).collect(),
            ..self.clone()
        }
    }

    /// Returns the command and its variables as one line for a POSIX shell.
    pub fn shell(&self) -> String {
        let mut line = String::new();
        for (name, value) in &self.env {
            let _ = write!(line, "{name}={} ", quoted(value));
        }
        line.push_str(&quoted(self.program.as_os_str()));
        for arg in &self.args {
            let _ = write!(line, " {}", quoted(arg));
        }
        line
    }
}

/// Quotes a word for a shell; bytes that are not UTF-8 become replacement characters.
fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(safe) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_parses_the_line_into_the_same_words() {
        let words = ["plain", "two words", "it's", "", "$HOME;`id`", "a\nb"];
        let argv = Argv::new("/bin/printf").arg("%s|").args(words);
        let shell = std::process::Command::new("sh").arg("-c").arg(argv.shell()).output().unwrap();
        assert_eq!(
            String::from_utf8(shell.stdout).unwrap(),
            "plain|two words|it's||$HOME;`id`|a\nb|"
        );
    }

    #[test]
    fn a_portable_command_has_no_path_of_the_folder_and_its_programs() {
        let argv = Argv::new("/opt/bin/runner")
            .args(["--out", "/runs/a/nsys", "/runs/ab", "/runs/a"])
            .env("LOG", "/runs/a/nsys/log");
        let portable = argv.portable(Path::new("/runs/a"), &[Path::new("/opt/bin/runner")]);
        assert_eq!(portable.shell(), "LOG=nsys/log runner --out nsys /runs/ab .");
    }

    #[test]
    fn a_child_gets_listed_variables_and_no_others() {
        let ours = [("PATH", "/bin"), ("API_TOKEN", "secret"), ("TZ", "UTC"), ("EXTRA", "1")];
        let mut argv = Argv::new("x").env("TZ", "Europe/Berlin");
        argv.pass.push("EXTRA".into());
        let seen = argv.environment(ours.iter().map(|(n, v)| (n.into(), v.into())));
        let seen: Vec<_> =
            seen.iter().map(|(n, v)| (n.to_str().unwrap(), v.to_str().unwrap())).collect();
        assert_eq!(seen, [("PATH", "/bin"), ("EXTRA", "1"), ("TZ", "Europe/Berlin")]);
    }
}
