//! Errors of the import of nsys: their text, and the causes that the text or the capture shows.

use llmprof_core::trace::{timeline::Timeline, xla};

/// Text of nsys after an import that may have lost data, with exit code 0.
const IMPORT_ERROR: &str = "non-fatal error";
/// Name of the importer's reason, which follows in the same line or the next one.
const REASON: &str = "ErrorText";
/// Max characters of a quoted reason; the end of a longer one states the error.
const MAX_CHARS: usize = 400;
/// Names of XLA and of its ranges.
const XLA_NAMES: [&str; 4] = ["XLA", "XlaModule", "Thunk:#", xla::DOMAIN];

/// An import that ended with errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportError {
    /// Line of nsys that reports errors.
    pub line: String,
    /// Reason of the importer, if it is in the log.
    pub reason: Option<String>,
}

impl ImportError {
    /// The error in the lines of a log.
    pub fn find(log: &[String]) -> Option<Self> {
        let line = log.iter().find(|line| line.contains(IMPORT_ERROR))?;
        Some(Self { line: line.trim().to_owned(), reason: reason(log) })
    }

    /// The file that the reason names: its last absolute path that is not a source
    /// or recording of nsys.
    pub fn file(&self) -> Option<&str> {
        let breaks = |c: char| c.is_whitespace() || "\"'`,:;()[]<>=".contains(c);
        let words = self.reason.as_deref()?.split(breaks);
        let mut words = words.map(|word| word.trim_end_matches('.'));
        words.rfind(|word| word.len() > 1 && word.starts_with('/') && !is_of_nsys(word))
    }

    /// True if the reason or a range of the capture shows XLA.
    pub fn shows_xla(&self, trace: &Timeline) -> bool {
        let named = |reason: &str| XLA_NAMES.iter().any(|name| reason.contains(name));
        self.reason.as_deref().is_some_and(named)
            || trace.ranges.iter().any(|range| range.domain == xla::DOMAIN)
    }

    /// The cause of a system-wide recording: a file of another process.
    pub fn foreign_file(&self, is_system_wide: bool) -> Option<String> {
        let file = self.file().filter(|_| is_system_wide)?;
        Some(format!("A file of another process ({file}) broke the import; run again"))
    }
}

fn is_of_nsys(word: &str) -> bool {
    let extension = word.rsplit('.').next().unwrap_or_default();
    ["cpp", "cc", "h", "hpp", "qdstrm", "nsys-rep"].contains(&extension)
}

fn reason(log: &[String]) -> Option<String> {
    let at = log.iter().position(|line| line.contains(REASON))?;
    let (_, rest) = log[at].split_once(REASON)?;
    let rest = rest.trim_matches([' ', ':', '"']);
    let value = || log.get(at + 1)?.trim().strip_prefix("Value:");
    let text = if rest.is_empty() { value()? } else { rest };
    // The importer escapes line breaks.
    let text = text.replace("\\n", " ");
    let text = text.trim_matches([' ', '"']);
    let excess = text.chars().count().saturating_sub(MAX_CHARS);
    let end: String = text.chars().skip(excess).collect();
    (!end.is_empty()).then_some(end)
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::range::Range;

    use super::*;

    const LINE: &str = "Importation succeeded with non-fatal errors.";

    fn found(log: &str) -> ImportError {
        let lines: Vec<String> = log.lines().map(str::to_owned).collect();
        ImportError::find(&[vec![LINE.to_owned()], lines].concat()).unwrap()
    }

    #[test]
    fn the_reason_of_the_importer_and_the_file_in_it_are_found_in_either_layout() {
        let (plain, file) = (Some("Not an ELF: /tmp/a/lib.so.1"), Some("/tmp/a/lib.so.1"));
        let thrown = Some("/b/Elf.cpp(12): throw Not an ELF (/tmp/a/lib.so.1).");
        for (log, reason, file) in [
            ("", None, None),
            ("ErrorText: Not an ELF: /tmp/a/lib.so.1", plain, file),
            ("Type: ErrorText\n  Value: \"Not an ELF: /tmp/a/lib.so.1\"", plain, file),
            (r#"ErrorText: "/b/Elf.cpp(12): throw\nNot an ELF (/tmp/a/lib.so.1).""#, thrown, file),
            ("ErrorText: order in /b/Events.cpp(7)", Some("order in /b/Events.cpp(7)"), None),
            ("ErrorText: /b/Elf.cpp:7: order", Some("/b/Elf.cpp:7: order"), None),
            ("ErrorText: end of /r/run.qdstrm", Some("end of /r/run.qdstrm"), None),
            ("Type: ErrorText\nother", None, None),
        ] {
            let error = found(log);
            assert_eq!((error.reason.as_deref(), error.file()), (reason, file), "{log}");
            assert_eq!(error.foreign_file(false), None, "{log}");
            assert_eq!(error.foreign_file(true).is_some(), file.is_some(), "{log}");
        }
        assert_eq!(ImportError::find(&["ErrorText: x".into()]), None);
        let long = format!("ErrorText: {}end", "x".repeat(2 * MAX_CHARS));
        let reason = found(&long).reason.unwrap();
        assert!(reason.len() == MAX_CHARS && reason.ends_with("end"), "{reason}");
    }

    #[test]
    fn xla_is_a_cause_only_if_the_reason_or_a_range_shows_it() {
        let trace = |domain: &str| Timeline {
            ranges: vec![Range::new((domain, "jit_f, program 7"), (0, Some(1)), (1, true))],
            ..Timeline::default()
        };
        for (log, domain, expected) in [
            ("", "", false),
            ("", "TSL", true),
            ("ErrorText: no end of XlaModule:#hlo_module=jit_f#", "", true),
            ("ErrorText: Not an ELF: /tmp/a/lib.so.1", "", false),
        ] {
            assert_eq!(found(log).shows_xla(&trace(domain)), expected, "{log} {domain}");
        }
    }
}
