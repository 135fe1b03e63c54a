//! What a run takes on disk, against the most that it may.
//!
//! Looked at while a child runs, since a trace grows by gigabytes a minute. What is too much is dropped, and a note says what it was.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{task::spawn_blocking, time::sleep};

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(200);
/// Files up to this size tell about a pass and stay, unless they are a tool's raw data.
const SMALL: u64 = 1 << 20;
/// Endings of files that a tool which was ended leaves half written.
const RAW: [&str; 6] = ["nsys-rep", "qdstrm", "sqlite", "sqlite-journal", "ncu-rep", "csv"];
/// Name of the note in the folder of a pass.
pub const NOTE: &str = "dropped.txt";

/// The folder of a run, the most bytes that it may hold, and the least that have to be free on its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    pub dir: PathBuf,
    pub most_bytes: u64,
    pub free_bytes: u64,
}

/// Whose bounds were passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The run is larger than it may be.
    Run,
    /// The disk is nearly full.
    Disk,
}

impl Space {
    /// Whether the run, with what its child keeps in `scratch`, is larger than it may be, or the disk nearly full.
    pub fn is_passed(&self, scratch: &Path) -> Option<Bound> {
        if bytes_in(&self.dir) + bytes_in(scratch) > self.most_bytes {
            return Some(Bound::Run);
        }
        // A disk that does not tell ends nothing.
        free_bytes(&self.dir).is_ok_and(|free| free < self.free_bytes).then_some(Bound::Disk)
    }

    /// Returns when a bound was passed: never, when none is.
    pub async fn passed(space: Option<&Self>, scratch: &Path) -> Bound {
        let Some(space) = space else { return std::future::pending().await };
        loop {
            sleep(PERIOD).await;
            let (space, scratch) = (space.clone(), scratch.to_owned());
            if let Ok(Some(bound)) = spawn_blocking(move || space.is_passed(&scratch)).await {
                return bound;
            }
        }
    }
}

/// Bytes that are free for us on the disk of `dir`.
pub fn free_bytes(dir: &Path) -> io::Result<u64> {
    let disk = nix::sys::statvfs::statvfs(dir)?;
    Ok(disk.blocks_available() * disk.fragment_size())
}

/// Bytes of all files below `folder`. What vanishes while it is looked at counts nothing, and links are not followed.
fn bytes_in(folder: &Path) -> u64 {
    let mut bytes = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => folders.push(entry.path()),
                Ok(meta) if meta.is_file() => bytes += meta.len(),
                _ => {}
            }
        }
    }
    bytes
}

/// Removes the raw data of a pass from its folder, leaves a note there, and says what it removed.
pub fn drop_raw(folder: &Path, why: &str) -> io::Result<Vec<(String, u64)>> {
    let mut dropped = Vec::new();
    for entry in fs::read_dir(folder)? {
        let (path, meta) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        let raw = path.extension().and_then(|it| it.to_str()).is_some_and(|extension| RAW.contains(&extension));
        if meta.is_file() && (raw || meta.len() > SMALL) {
            fs::remove_file(&path)?;
            dropped.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), meta.len()));
        }
    }
    dropped.sort();
    let lines: String = dropped.iter().map(|(name, bytes)| format!("{name}: {bytes} bytes\n")).collect();
    fs::write(folder.join(NOTE), format!("{why}\n{lines}"))?;
    Ok(dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_data_and_what_is_large_go_and_what_tells_about_the_pass_stays() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("run.sqlite", 10), ("events.jsonl", 20), ("cmd.txt", 5), ("core", SMALL + 1)] {
            fs::write(dir.path().join(name), vec![b'x'; usize::try_from(bytes).unwrap()]).unwrap();
        }
        let space = |most_bytes| Space { dir: dir.path().to_owned(), most_bytes, free_bytes: 0 };
        let none = Path::new("/nowhere");
        assert_eq!((space(SMALL + 35).is_passed(none), space(SMALL + 36).is_passed(none)), (Some(Bound::Run), None));
        let full = Space { free_bytes: u64::MAX, ..space(SMALL + 36) };
        assert_eq!(full.is_passed(none), Some(Bound::Disk));
        let dropped = drop_raw(dir.path(), "too much").unwrap();
        assert_eq!(dropped, [("core".to_owned(), SMALL + 1), ("run.sqlite".to_owned(), 10)]);
        let note = fs::read_to_string(dir.path().join(NOTE)).unwrap();
        assert_eq!(note, format!("too much\ncore: {} bytes\nrun.sqlite: 10 bytes\n", SMALL + 1));
        assert!(dir.path().join("events.jsonl").is_file() && dir.path().join("cmd.txt").is_file());
    }
}
