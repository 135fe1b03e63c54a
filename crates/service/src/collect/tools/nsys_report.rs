//! Files that nsys wrote: those of a pass, and the version that wrote a report, which an older nsys
//! cannot export.

use std::{
    io::{Read as _, Seek as _, SeekFrom},
    path::Path,
};

use llmprof_core::{domain::finding::Finding, layout};

use crate::{artifact::packed::open_own, runtime};

/// Bytes at the end of a report, which name the version.
const END: u64 = 16 << 10;

/// Extensions of the files that a recording and its export leave.
const RECORDED: [&str; 3] = ["nsys-rep", "sqlite", "qdstrm"];

/// Adds the names of the files of nsys in `folders` of the run in `dir`; `None` without a file.
pub fn with_recorded_files<F: AsRef<Path>>(
    finding: Finding,
    dir: &Path,
    folders: &[F],
) -> Option<Finding> {
    let files = folders.iter().flat_map(|folder| {
        let report = folder.as_ref().join(layout::NSYS_REPORT_FILE);
        RECORDED.map(|extension| report.with_extension(extension))
    });
    let existing = files.filter(|file| dir.join(file).exists());
    let names: Vec<String> = existing.map(|file| file.display().to_string()).collect();
    (!names.is_empty()).then(|| finding.with("files of nsys", names.join(", ")))
}

/// The nsys that wrote a report, if the report names one newer than the installed version.
pub async fn newer_writer(report: &Path, installed: &str) -> Option<String> {
    let (report, installed) = (report.to_owned(), installed.to_owned());
    runtime::blocking(move || newer(&report, &installed)).await.ok().flatten()
}

fn newer(report: &Path, installed: &str) -> Option<String> {
    let writer = writer(&end(report).ok()?)?;
    (numbers(&writer)? > numbers(installed)?).then_some(writer)
}

fn end(report: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = open_own(report)?;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(END)))?;
    let mut bytes = Vec::new();
    file.take(END).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The last version in the form `2023.3.1.92-233133147223`, without its build.
fn writer(end: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(end);
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '-'));
    let version = |word: &str| {
        // Lengths and types of fields stand next to it.
        let version = &word[word.find("20")?..];
        let (version, build) = version.split_once('-')?;
        let is_version = numbers(version).is_some_and(|it| it.len() == 4 && it[0] < 2100);
        (is_version && !build.is_empty()).then(|| version.to_owned())
    };
    words.filter_map(version).next_back()
}

/// The numbers of a version, without its build.
fn numbers(version: &str) -> Option<Vec<u32>> {
    let version = version.split('-').next().unwrap_or_default();
    version.split('.').map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use llmprof_core::domain::finding::catalogue;
    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn a_finding_names_the_files_of_nsys_that_exist() {
        for (files, named) in [
            (&[][..], None),
            (&["run.sqlite", "run.nsys-rep"], Some("nsys/run.nsys-rep, nsys/run.sqlite")),
            (&["run.qdstrm", "run.nsys-rep"], Some("nsys/run.nsys-rep, nsys/run.qdstrm")),
            (&["run.qdstrm", "events.jsonl"], Some("nsys/run.qdstrm")),
            (
                &["run.sqlite", "window-2/run.sqlite"],
                Some("nsys/run.sqlite, nsys/window-2/run.sqlite"),
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(dir.path().join("nsys/window-2")).unwrap();
            for file in files {
                std::fs::write(dir.path().join("nsys").join(file), "raw").unwrap();
            }
            let finding = Finding::new(catalogue::NSYS_SEES_ENVIRONMENTS, "exposed");
            let folders = ["nsys", "nsys/window-2"];
            let finding = with_recorded_files(finding, dir.path(), &folders);
            let evidence = finding.map(|it| it.evidence["files of nsys"].clone());
            assert_eq!(evidence.as_deref(), named, "{files:?}");
        }
    }

    #[tokio::test]
    async fn a_report_that_is_a_pipe_or_a_link_names_no_version_and_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        std::fs::write(at("file"), "2023.3.1.92-233133147223v0").unwrap();
        symlink(at("file"), at("link")).unwrap();
        for (name, newer) in [("pipe", None), ("link", None), ("file", Some("2023.3.1.92"))] {
            assert_eq!(newer_writer(&at(name), "2021.5").await.as_deref(), newer, "{name}");
        }
    }

    #[test]
    fn the_writer_of_a_report_is_read_from_its_end_and_compared_with_the_installed_version() {
        let report = |end: &[u8]| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), [&[b'x'; 40_000][..], end].concat()).unwrap();
            file
        };
        let newer = |end: &[u8], installed: &str| super::newer(report(end).path(), installed);
        let new = b"\x0a\x1b2023.3.1.92-233133147223v0\x10:\x00\xff";
        assert_eq!(newer(new, "2022.4.2.1-df9881f").as_deref(), Some("2023.3.1.92"));
        assert_eq!(newer(new, "2023.3.1.92-233133147223v0"), None);
        assert_eq!(newer(new, "2025.6.1.190"), None);
        assert_eq!(newer(b"2022.1.3.3-1c7b5f7:", "2021.5").as_deref(), Some("2022.1.3.3"));
        assert_eq!(newer(b"20-20 2023.1 2023.1.1.x-1", "2021.5"), None);
        assert_eq!(newer(new, "unknown"), None);
        assert_eq!(super::newer(Path::new("/nonexistent"), "2021.5"), None);
    }
}
