//! The folders of runs after a power cut: names and contents that were not synced may be lost.
//!
//! The files are real; what was synced is remembered by their inodes.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::random::Random;

/// Durable names and contents below a folder.
#[derive(Debug, Default)]
pub struct Files {
    root: PathBuf,
    contents: BTreeMap<u64, Vec<u8>>,
    /// Names of a folder, with their inodes.
    names: BTreeMap<u64, BTreeMap<String, u64>>,
}

impl Files {
    pub fn new(root: PathBuf) -> Self {
        Self { root, ..Self::default() }
    }

    /// Remembers the content of a file or the names of a folder.
    pub fn synced(&mut self, path: &Path) {
        let Ok(meta) = fs::metadata(path) else { return };
        if meta.is_dir() {
            self.names.insert(meta.ino(), names(path));
        } else if let Ok(content) = fs::read(path) {
            self.contents.insert(meta.ino(), content);
        }
    }

    /// Loses a random part of what is not durable.
    pub fn cut_power(&mut self, random: &mut Random) {
        let root = self.root.clone();
        self.cut_folder(&root, random);
        self.contents.clear();
        self.names.clear();
        self.sync_all(&root);
    }

    fn sync_all(&mut self, folder: &Path) {
        self.synced(folder);
        for name in names(folder).keys() {
            let path = folder.join(name);
            if path.is_dir() {
                self.sync_all(&path);
            } else {
                self.synced(&path);
            }
        }
    }

    fn cut_folder(&self, folder: &Path, random: &mut Random) {
        let Ok(meta) = fs::metadata(folder) else { return };
        let durable = self.names.get(&meta.ino()).cloned().unwrap_or_default();
        for (name, inode) in names(folder) {
            let path = folder.join(&name);
            let before = durable.get(&name);
            if before != Some(&inode) && random.chance(50) {
                if path.is_dir() {
                    fs::remove_dir_all(&path).unwrap();
                } else {
                    fs::remove_file(&path).unwrap();
                    // The file that was replaced.
                    if let Some(old) = before.and_then(|it| self.contents.get(it)) {
                        fs::write(&path, old).unwrap();
                    }
                }
                continue;
            }
            if path.is_dir() {
                self.cut_folder(&path, random);
            } else if random.chance(50) {
                let content = self.contents.get(&inode).cloned().unwrap_or_default();
                fs::write(&path, content).unwrap();
            }
        }
    }
}

/// Names of a folder, with their inodes.
fn names(folder: &Path) -> BTreeMap<String, u64> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    let found = entries.flatten().filter_map(|entry| {
        let inode = entry.metadata().ok()?.ino();
        Some((entry.file_name().to_str()?.to_owned(), inode))
    });
    found.collect()
}
