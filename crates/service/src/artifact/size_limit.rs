//! The size limit of a run's folder: the largest files are dropped until the rest is within it.
//!
//! A file counts with its size, as it costs that much to hash, download and bundle, also if it is
//! sparse and occupies nothing on the disk. Space that is reserved behind its end is released, and
//! counts if that fails. Dropped files are listed in a note, from which the finding is made.

use std::{
    cmp::Reverse,
    fs::{self, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    layout,
};

use super::{dropped_files, folder::remove_lifted, packed::open_own, walk::walk};
use crate::runtime::work::SlicedWork;

/// Maximum difference of a file's size on disk from its size that is not reserved space.
const ROUNDING: u64 = 1 << 20;
/// Maximum bytes of a note that are read.
const NOTE_BYTES: u64 = 64 << 10;
/// Maximum files that a finding lists, and entries with too long paths that a note lists.
const LISTED: usize = 20;
/// Reason to drop entries with too long paths.
const NESTED: &str = "the program nested folders too deep";
/// End of the line of such an entry, in place of its size.
const LONG_PATH: &str = "its path is longer than 1024 bytes";

/// A regular file of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizedFile {
    /// Relative to the folder.
    pub path: PathBuf,
    pub bytes: u64,
    /// Bytes on disk.
    pub stored: u64,
}

impl SizedFile {
    /// The larger of both sizes, without the rounding to blocks.
    fn counted(&self) -> u64 {
        if self.stored > self.bytes.saturating_add(ROUNDING) { self.stored } else { self.bytes }
    }

    /// Releases the space behind the end of the file at `dir`.
    fn release_reserved(&mut self, dir: &Path) {
        if self.counted() == self.bytes {
            return;
        }
        let path = dir.join(&self.path);
        let released = OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(self.bytes).and_then(|()| file.metadata()));
        if let Ok(meta) = released {
            self.stored = meta.blocks() * 512;
        }
    }
}

/// The regular files below `dir`, without links. Files that vanish meanwhile, and folders that the
/// program made unreadable, are left out.
pub fn files(dir: &Path, work: &SlicedWork) -> io::Result<Vec<SizedFile>> {
    walked(dir, work).map(|(files, _)| files)
}

/// The same, and the paths that are too long to be kept.
fn walked(dir: &Path, work: &SlicedWork) -> io::Result<(Vec<SizedFile>, Vec<PathBuf>)> {
    let mut found = Vec::new();
    let unvisited = walk(dir, work, |path, entry| {
        if let Ok(meta) = entry.metadata()
            && meta.is_file()
        {
            found.push(SizedFile { path, bytes: meta.len(), stored: meta.blocks() * 512 });
        }
        Ok(())
    })?;
    Ok((found, unvisited.too_long))
}

/// Removes entries below `dir` with too long paths, then the largest files until the others have at
/// most `max_bytes`, and adds them to a note; images of the inputs, then reports and journal are
/// removed last. Returns the files that were removed for their size.
pub fn enforce(dir: &Path, max_bytes: u64, work: &SlicedWork) -> io::Result<Vec<SizedFile>> {
    let (mut files, too_long) = walked(dir, work)?;
    drop_nested(dir, &too_long, work)?;
    // They are written after this, so a further seal would find the folder too large.
    files.retain(|file| !is_of_seal(&file.path));
    files.iter_mut().for_each(|file| file.release_reserved(dir));
    let mut total = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.counted()));
    if total <= max_bytes {
        return Ok(Vec::new());
    }
    files.sort_by_cached_key(|file| {
        (is_own(&file.path), is_input(&file.path), Reverse(file.counted()))
    });
    let mut dropped = Vec::new();
    for file in files {
        if total <= max_bytes {
            break;
        }
        // A sum of more than 2^64 bytes was cut off.
        total = total.saturating_sub(file.counted());
        work.checkpoint()?;
        // Noted first: a removal that is interrupted leaves no file missing without a note.
        note(dir, max_bytes, &file)?;
        fs::remove_file(dir.join(&file.path))?;
        tracing::warn!(
            dir = %dir.display(), path = %file.path.display(), bytes = file.bytes,
            stored = file.stored, max_bytes, "file dropped: the folder is too large"
        );
        dropped.push(file);
    }
    Ok(dropped)
}

/// Returns true for files of the seal itself, and those that are not sealed.
fn is_of_seal(path: &Path) -> bool {
    let name = path.to_str().unwrap_or_default();
    name == layout::DROPPED || name == layout::MANIFEST || layout::is_unsealed(name)
}

/// Returns true for the files that llmprof itself writes about the run as a whole.
fn is_own(path: &Path) -> bool {
    let is_top = path.components().count() == 1;
    let name = path.to_str().unwrap_or_default();
    let is_report = layout::step_of(name).is_some();
    is_top && (is_report || name == layout::PROGRESS || name == layout::SPEC)
}

/// Returns true for images of the inputs, without which the run cannot be repeated.
fn is_input(path: &Path) -> bool {
    path.starts_with(layout::INPUT_COPIES)
}

/// Adds a file to the note of the folder.
fn note(dir: &Path, max_bytes: u64, file: &SizedFile) -> io::Result<()> {
    let header = format!("The files of the run exceeded {max_bytes} bytes (limits.run_bytes)");
    add_line(dir, &header, &line(&file.path, file))
}

/// Adds a line to the note of the folder; a new note starts with the reason.
fn add_line(dir: &Path, reason: &str, line: &str) -> io::Result<()> {
    let path = dir.join(layout::DROPPED);
    let is_new = !path.exists();
    let mut note = OpenOptions::new().append(true).create(true).open(path)?;
    if is_new {
        writeln!(note, "{reason}; dropped:")?;
    }
    writeln!(note, "{line}")
}

/// Removes the entries with too long paths, and adds the first ones and their number to the note.
fn drop_nested(dir: &Path, too_long: &[PathBuf], work: &SlicedWork) -> io::Result<()> {
    for path in too_long.iter().take(LISTED) {
        add_line(dir, NESTED, &format!("{}: {LONG_PATH}", shown(path)))?;
    }
    let more = too_long.len().saturating_sub(LISTED);
    if more > 0 {
        add_line(dir, NESTED, &format!("{more} more: {LONG_PATH}"))?;
    }
    for path in too_long {
        work.checkpoint()?;
        remove_lifted(dir, path, work)?;
    }
    if let Some(first) = too_long.first() {
        let (path, entries) = (shown(first), too_long.len());
        tracing::warn!(dir = %dir.display(), path, entries, "dropped: too long paths");
    }
    Ok(())
}

/// A path in a note. One with a line break would be two lines.
fn shown(path: &Path) -> String {
    path.to_string_lossy().replace(char::is_control, "?")
}

/// Line of a note: path, size, and size on disk if it is another one.
fn line(path: &Path, file: &SizedFile) -> String {
    let path = shown(path);
    let sparse = file.stored.abs_diff(file.bytes) > ROUNDING;
    let stored = if sparse { format!(" ({} on disk)", file.stored) } else { String::new() };
    format!("{path}: {} bytes{stored}", file.bytes)
}

/// The finding about the files that the note of the folder lists; `None` without a note.
pub fn finding(dir: &Path, max_bytes: u64) -> Option<Finding> {
    let note = open_own(&dir.join(layout::DROPPED)).ok()?;
    let mut text = Vec::new();
    // The part that was read before an error counts; a cut may be inside a character.
    note.take(NOTE_BYTES).read_to_end(&mut text).ok();
    let text = String::from_utf8_lossy(&text);
    let files: Vec<(&str, &str)> =
        text.lines().skip(1).filter_map(|line| line.rsplit_once(": ")).collect();
    let exceeded = format!("the run's files exceeded {max_bytes} bytes (limits.run_bytes)");
    let (nested, large): (Vec<_>, Vec<_>) =
        files.iter().partition(|(_, size)| size.ends_with(LONG_PATH));
    let is_nested = large.is_empty() && !nested.is_empty();
    let parts = [(exceeded.as_str(), large), (NESTED, nested)].map(|(reason, files)| {
        let names: Vec<&str> = files.iter().take(3).map(|(path, _)| *path).collect();
        let more = if files.len() > names.len() { ", ..." } else { "" };
        (!names.is_empty()).then(|| format!("{reason}; dropped: {}{more}", names.join(", ")))
    });
    let message = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
    let message = if message.is_empty() { exceeded } else { message };
    let finding = Finding::new(catalogue::RUN_TOO_LARGE, message);
    let finding = finding.with("limit, bytes", max_bytes);
    let list = files.iter().take(LISTED);
    let finding = list.fold(finding, |finding, (path, size)| finding.with(path, *size));
    if is_nested {
        return Some(finding.advise("have the program nest fewer folders below {out}"));
    }
    let bytes = |size: &str| size.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0);
    let remedy = dropped_files::remedy("", files.iter().map(|&(path, size)| (path, bytes(size))));
    Some(finding.advise(format!("{remedy}; a sparse file counts with its full size")))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::artifact::walk::tests::nest;

    fn sparse(dir: &Path, path: &str, bytes: u64) {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        File::create(path).unwrap().set_len(bytes).unwrap();
    }

    #[test]
    fn the_largest_files_are_dropped_in_any_folder_sparse_or_not_until_the_rest_fits() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        sparse(dir.path(), "nsys/out/deep/map.mdb", 4 << 40);
        sparse(dir.path(), "report.json", 3000);
        fs::write(at("nsys/out/full"), vec![1; 2000]).unwrap();
        fs::write(at("nsys/small"), vec![1; 500]).unwrap();
        let dropped = enforce(dir.path(), 4000, &SlicedWork::default()).unwrap();
        let paths: Vec<_> = dropped.iter().map(|file| file.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["nsys/out/deep/map.mdb", "nsys/out/full"]);
        assert!(at("report.json").exists() && at("nsys/small").exists());
        assert_eq!(enforce(dir.path(), 4000, &SlicedWork::default()).unwrap(), [], "it fits now");
        let finding = finding(dir.path(), 4000).unwrap();
        assert_eq!(finding.id, catalogue::RUN_TOO_LARGE);
        assert!(finding.advice.as_ref().unwrap().contains("have the program write fewer"));
        let text = format!("{finding:?}");
        assert!(text.contains("nsys/out/deep/map.mdb") && text.contains("4398046511104 bytes (0"));
    }

    #[test]
    fn entries_with_too_long_paths_are_dropped_with_a_note_and_the_rest_is_sealed() {
        let dir = tempfile::tempdir().unwrap();
        sparse(dir.path(), "report.json", 10);
        fs::create_dir(dir.path().join("out")).unwrap();
        nest(&dir.path().join("out"), 450);
        assert_eq!(enforce(dir.path(), 1000, &SlicedWork::default()).unwrap(), []);
        assert!(walked(dir.path(), &SlicedWork::default()).unwrap().1.is_empty());
        let names = fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, [layout::DROPPED, "out", "report.json"]);
        let found = finding(dir.path(), 1000).unwrap();
        assert!(found.message.starts_with(&format!("{NESTED}; dropped: out/ten-bytes-/")));
        assert!(LONG_PATH.contains(&format!("{} bytes", crate::artifact::walk::MAX_PATH)));
        sparse(dir.path(), "nsys/large", 2000);
        enforce(dir.path(), 1000, &SlicedWork::default()).unwrap();
        let both = finding(dir.path(), 1000).unwrap().message.clone();
        assert!(both.contains("dropped: nsys/large") && both.contains(NESTED), "{both}");
    }

    #[test]
    fn the_note_of_many_entries_with_too_long_paths_is_short() {
        let dir = tempfile::tempdir().unwrap();
        // A program's folder whose path has 1007 bytes: names of 20 bytes in it are too long.
        let mut deep = PathBuf::from("out");
        (0..4).for_each(|_| deep.push("n".repeat(250)));
        fs::create_dir_all(dir.path().join(&deep)).unwrap();
        for number in 0..LISTED + 7 {
            fs::write(dir.path().join(&deep).join(format!("{number:020}")), "").unwrap();
        }
        enforce(dir.path(), 1000, &SlicedWork::default()).unwrap();
        let note = fs::read_to_string(dir.path().join(layout::DROPPED)).unwrap();
        assert_eq!(note.lines().count(), 1 + LISTED + 1, "{note}");
        assert!(note.ends_with(&format!("7 more: {LONG_PATH}\n")), "{note}");
        assert!(fs::read_dir(dir.path().join(&deep)).unwrap().next().is_none());
    }

    #[test]
    fn images_of_the_inputs_are_dropped_after_the_data_of_passes_and_before_reports() {
        let dir = tempfile::tempdir().unwrap();
        sparse(dir.path(), "inputs/1.png", 2000);
        sparse(dir.path(), "report.json", 2000);
        sparse(dir.path(), "nsys/small", 10);
        let dropped = |max_bytes| {
            let files = enforce(dir.path(), max_bytes, &SlicedWork::default()).unwrap();
            files.into_iter().map(|it| it.path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(dropped(4000), ["nsys/small"]);
        assert_eq!(dropped(2000), ["inputs/1.png"]);
    }

    #[test]
    fn a_second_seal_of_a_full_folder_drops_nothing() {
        let dir = tempfile::tempdir().unwrap();
        sparse(dir.path(), "nsys/kept", 1000);
        sparse(dir.path(), "nsys/dropped", 1001);
        assert_eq!(enforce(dir.path(), 1000, &SlicedWork::default()).unwrap().len(), 1);
        for written in [layout::MANIFEST, layout::RESULT, layout::PASSES] {
            sparse(dir.path(), written, 500);
        }
        assert_eq!(enforce(dir.path(), 1000, &SlicedWork::default()).unwrap(), []);
    }

    #[test]
    fn reserved_space_behind_the_end_of_a_file_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reserved");
        let file = File::create(&path).unwrap();
        let keep = nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE;
        if nix::fcntl::fallocate(&file, keep, 0, 8 << 20).is_err() {
            return; // not on every file system
        }
        fs::write(dir.path().join("other"), "kept").unwrap();
        assert_eq!(enforce(dir.path(), 4 << 20, &SlicedWork::default()).unwrap(), []);
        assert!(fs::metadata(path).unwrap().blocks() * 512 < 8 << 20);
    }

    #[test]
    fn a_note_that_is_cut_within_a_character_is_a_finding() {
        let dir = tempfile::tempdir().unwrap();
        let lines = format!("dropped:\n{}", "äöü/map: 5 bytes\n".repeat(5000));
        for shift in 0..2 {
            fs::write(dir.path().join(layout::DROPPED), format!("{}{lines}", "x".repeat(shift)))
                .unwrap();
            assert!(finding(dir.path(), 100).unwrap().message.contains("äöü/map"));
        }
    }

    #[test]
    fn a_folder_within_the_limit_has_neither_note_nor_finding() {
        let dir = tempfile::tempdir().unwrap();
        sparse(dir.path(), "a", 100);
        assert_eq!(enforce(dir.path(), 100, &SlicedWork::default()).unwrap(), []);
        assert_eq!(finding(dir.path(), 100), None);
        assert!(!dir.path().join(layout::DROPPED).exists());
    }
}
