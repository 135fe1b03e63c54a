//! The path of a capture file: the one that is shown, and the place of its data.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::{
    ParseError,
    stored::{self, Plain, open_own},
};

/// A capture file. Its name is shown, and ranks are read from it; its data may be elsewhere if an
/// argument names it by a link.
///
/// A path converts to a file of a run's folder, which is read without following a link.
#[derive(Debug, Clone)]
pub struct CapturePath {
    shown: PathBuf,
    data: PathBuf,
    /// Only the packed form of the named file exists, and `data` is that form.
    is_packed: bool,
}

impl From<&Path> for CapturePath {
    fn from(own: &Path) -> Self {
        Self { shown: own.to_owned(), data: own.to_owned(), is_packed: false }
    }
}

impl From<&PathBuf> for CapturePath {
    fn from(own: &PathBuf) -> Self {
        own.as_path().into()
    }
}

impl From<&Self> for CapturePath {
    fn from(file: &Self) -> Self {
        file.clone()
    }
}

impl CapturePath {
    /// The file that an argument names, or its packed form. Links to it are resolved once, here.
    pub fn named(path: &Path) -> Result<Self, ParseError> {
        let resolved = match path.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let packed = stored::packed_path(path).canonicalize();
                packed.map(|data| (data, true)).map_err(|_| error)
            }
            found => found.map(|data| (data, false)),
        };
        let (data, is_packed) =
            resolved.map_err(|source| ParseError::Read { path: path.into(), source })?;
        Ok(Self { shown: path.to_owned(), data, is_packed })
    }

    /// The path for messages.
    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// The path from which the data is read.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// File name of the shown path.
    pub fn name(&self) -> String {
        file_name(&self.shown)
    }

    /// The same file with its data elsewhere, unpacked.
    pub fn with_data(&self, data: &Path) -> Self {
        Self { shown: self.shown.clone(), data: data.to_owned(), is_packed: false }
    }

    /// Opens the content, packed or not.
    pub fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        match self.is_packed {
            true => Ok(Box::new(zstd::Decoder::new(open_own(&self.data)?)?)),
            false => stored::open(&self.data),
        }
    }

    /// Returns the content as an unpacked file.
    pub fn plain(&self) -> io::Result<Plain> {
        match self.is_packed {
            true => stored::unpacked(self.open()?),
            false => stored::plain(&self.data),
        }
    }
}

/// Name of a file; characters that are not UTF-8 are replaced.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn content(file: &CapturePath) -> Option<String> {
        let mut text = String::new();
        file.open().ok()?.read_to_string(&mut text).ok()?;
        let plain = file.plain().ok()?;
        assert_eq!(stored::read_own(plain.path()).unwrap(), text.as_bytes());
        Some(text)
    }

    #[test]
    fn a_link_is_followed_for_an_argument_alone_and_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let dir = stored::resolved(dir.path());
        let (folder, blobs, link) = (dir.join("folder"), dir.join("blobs"), dir.join("link"));
        fs::create_dir(&folder).unwrap();
        fs::create_dir(&blobs).unwrap();
        symlink(&folder, &link).unwrap();
        let packed = zstd::encode_all(&b"text"[..], 1).unwrap();
        for (blob, bytes) in [("5af3", &b"text"[..]), ("9bc2", &packed)] {
            fs::write(blobs.join(blob), bytes).unwrap();
        }
        fs::write(folder.join("file"), "text").unwrap();
        fs::write(folder.join("packed.zst"), &packed).unwrap();
        symlink("../blobs/5af3", folder.join("linked")).unwrap();
        symlink("../blobs/9bc2", folder.join("linked-packed.zst")).unwrap();
        // Name, and whether a run's folder may have the file.
        let files = [("file", true), ("packed", true), ("linked", false), ("linked-packed", false)];
        for (name, is_own) in files {
            for (folder, is_link) in [(&folder, false), (&link, true)] {
                let path = folder.join(name);
                let named = CapturePath::named(&path).unwrap();
                assert_eq!((named.shown(), named.name()), (&*path, name.to_owned()));
                assert_eq!(content(&named).as_deref(), Some("text"), "{}", path.display());
                let own = content(&CapturePath::from(&path));
                assert_eq!(own.is_some(), is_own && !is_link, "{}", path.display());
            }
        }
        symlink("../blobs/none", folder.join("dangling")).unwrap();
        for name in ["none", "dangling"] {
            let error = CapturePath::named(&folder.join(name)).unwrap_err();
            let error = llmprof_core::chain(&error);
            assert!(error.contains(name) && error.contains("No such file"), "{error}");
        }
    }
}
