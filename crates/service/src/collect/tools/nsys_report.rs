//! The version of nsys that wrote a report, which an older nsys cannot export.

use std::{
    io::{Read as _, Seek as _, SeekFrom},
    path::Path,
};

use crate::{artifact::packed::open_own, runtime};

/// Bytes at the end of a report, which name the version.
const END: u64 = 16 << 10;

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

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

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
