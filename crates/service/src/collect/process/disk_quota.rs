//! Disk quota of a run, checked while a child runs: a trace grows by gigabytes per minute.
//!
//! Files count with their size, sparse ones too: space that they reserve on the disk is covered by
//! the free space to keep. Raw data over the quota is removed, and a note lists the removed files.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::sleep;

use crate::{
    artifact::{
        dropped_files::TEMPORARY_FILES,
        free_space::free_bytes,
        size_limit::{self, SizedFile},
    },
    runtime::{self, work::SlicedWork},
};

/// Time between two checks.
const PERIOD: Duration = Duration::from_millis(200);
/// Maximum size of files that are kept, unless they are a tool's raw data.
const SMALL: u64 = 1 << 20;
/// Extensions of a tool's raw data, which is incomplete when the tool was ended.
const RAW: [&str; 6] = ["nsys-rep", "qdstrm", "sqlite", "sqlite-journal", "ncu-rep", "csv"];
/// Name of the note in the folder of a pass.
pub const NOTE: &str = "dropped.txt";

/// The folder of a run, its maximum size, and the free space to keep on its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskQuota {
    pub dir: PathBuf,
    pub max_bytes: u64,
    pub free_bytes: u64,
}

/// The exceeded limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaLimit {
    /// The size of the run, including `temporary` bytes that are removed when its tools end.
    Run { temporary: u64 },
    /// The free space of the disk.
    Disk,
}

impl DiskQuota {
    /// Returns the exceeded limit, if any; `scratch` counts as part of the run.
    pub fn check(&self, scratch: &Path) -> Option<QuotaLimit> {
        let temporary = bytes_in(scratch);
        if bytes_in(&self.dir).saturating_add(temporary) > self.max_bytes {
            return Some(QuotaLimit::Run { temporary });
        }
        // Unknown free space is not a reason to end a run.
        free_bytes(&self.dir).is_ok_and(|free| free < self.free_bytes).then_some(QuotaLimit::Disk)
    }

    /// Waits until a limit is exceeded; forever without a quota.
    pub async fn exceeded(quota: Option<&Self>, scratch: &Path) -> QuotaLimit {
        let Some(quota) = quota else { return std::future::pending().await };
        loop {
            sleep(PERIOD).await;
            let (quota, scratch) = (quota.clone(), scratch.to_owned());
            if let Ok(Some(limit)) = runtime::blocking(move || quota.check(&scratch)).await {
                return limit;
            }
        }
    }
}

/// Size of all files below `folder`. Files that vanish meanwhile count as 0; links are not
/// followed.
pub(super) fn bytes_in(folder: &Path) -> u64 {
    let files = size_limit::files(folder, &SlicedWork::default()).unwrap_or_default();
    files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.bytes))
}

/// Removes the raw data of a pass in its folder and those below, leaves a note in its folder, and
/// returns the removed files; `temporary` bytes of others were removed with the tools.
pub fn drop_raw(folder: &Path, why: &str, temporary: u64) -> io::Result<Vec<(String, u64)>> {
    let mut dropped = Vec::new();
    dropped.extend((temporary > 0).then(|| (TEMPORARY_FILES.to_owned(), temporary)));
    for SizedFile { path, bytes, .. } in size_limit::files(folder, &SlicedWork::default())? {
        let raw = path
            .extension()
            .and_then(|it| it.to_str())
            .is_some_and(|extension| RAW.contains(&extension));
        if raw || bytes > SMALL {
            fs::remove_file(folder.join(&path))?;
            dropped.push((path.to_string_lossy().into_owned(), bytes));
        }
    }
    dropped.sort();
    let lines: String =
        dropped.iter().map(|(name, bytes)| format!("{name}: {bytes} bytes\n")).collect();
    fs::write(folder.join(NOTE), format!("{why}\n{lines}"))?;
    Ok(dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_data_and_large_files_are_removed_and_small_files_kept() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("out/deep")).unwrap();
        for (name, bytes) in
            [("run.sqlite", 10), ("events.jsonl", 20), ("cmd.txt", 5), ("core", SMALL + 1)]
        {
            fs::write(dir.path().join(name), vec![b'x'; usize::try_from(bytes).unwrap()]).unwrap();
        }
        fs::File::create(dir.path().join("out/deep/map")).unwrap().set_len(SMALL + 2).unwrap();
        fs::write(dir.path().join("out/deep/kept"), "").unwrap();
        let quota = |max_bytes| DiskQuota { dir: dir.path().to_owned(), max_bytes, free_bytes: 0 };
        let none = Path::new("/nowhere");
        assert_eq!(
            (quota(2 * SMALL + 37).check(none), quota(2 * SMALL + 38).check(none)),
            (Some(QuotaLimit::Run { temporary: 0 }), None)
        );
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("report.qdstrm"), "1234567").unwrap();
        let with_scratch = quota(2 * SMALL + 44).check(scratch.path());
        assert_eq!(with_scratch, Some(QuotaLimit::Run { temporary: 7 }));
        let full = DiskQuota { free_bytes: u64::MAX, ..quota(2 * SMALL + 38) };
        assert_eq!(full.check(none), Some(QuotaLimit::Disk));
        let dropped = drop_raw(dir.path(), "too much", 7).unwrap();
        let expected = [
            ("core", SMALL + 1),
            ("out/deep/map", SMALL + 2),
            ("run.sqlite", 10),
            ("temporary files of the tool", 7),
        ];
        assert_eq!(dropped, expected.map(|(path, bytes)| (path.to_owned(), bytes)));
        let note = fs::read_to_string(dir.path().join(NOTE)).unwrap();
        let lines = expected.map(|(path, bytes)| format!("{path}: {bytes} bytes\n")).concat();
        assert_eq!(note, format!("too much\n{lines}"));
        assert!(dir.path().join("out/deep/kept").is_file());
        assert!(dir.path().join("events.jsonl").is_file() && dir.path().join("cmd.txt").is_file());
    }
}
