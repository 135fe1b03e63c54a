//! Images that a manifest or a submission names by hash: of stored inputs, else the copies of runs.

use std::{fs, io, path::Path};

use llmprof_core::domain::{input_manifest::is_hash, inputs::MAX_IMAGES};

use crate::{
    artifact::inputs::{copies, staging::BY_HASH},
    http::{
        error::ApiError,
        state::{App, UploadFolder},
    },
    runtime,
};

/// Digits of a hash.
const HASH: usize = 64;

/// Hashes in the text of a manifest, which is not parsed here: uploads are read in a child process.
pub fn hashes_in(manifest: &[u8]) -> Vec<String> {
    let words = manifest.split(|byte| !byte.is_ascii_alphanumeric());
    let hashes = words.filter(|word| word.len() == HASH).filter_map(|it| str::from_utf8(it).ok());
    let mut found: Vec<String> = hashes.filter(|it| is_hash(it)).map(str::to_owned).collect();
    found.sort_unstable();
    found.dedup();
    found.truncate(MAX_IMAGES);
    found
}

/// Copies these contents from runs into the folder of the upload, unless they are stored: they stay
/// when the run is deleted.
pub async fn find_contents(
    app: &App,
    folder: &UploadFolder,
    hashes: &[String],
) -> Result<(), ApiError> {
    if hashes.is_empty() {
        return Ok(());
    }
    let known = app.store.known_contents(hashes).await?;
    let unknown: Vec<String> = hashes.iter().filter(|it| !known.contains(*it)).cloned().collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let copies = app.store.run_images(&unknown).await?;
    let (runs, folder) = (app.runs.clone(), folder.path().join(BY_HASH));
    let copied = runtime::blocking(move || -> io::Result<()> {
        fs::create_dir_all(&folder)?;
        copies.into_iter().try_for_each(|(hash, run, path)| {
            copy(&runs.join(format!("{run}")).join(path), &folder.join(hash))
        })
    });
    let copied = copied.await.map_err(|error| ApiError::internal(&error))?;
    copied.map_err(|error| ApiError::internal(&error))
}

/// Copies a file, unless its run was deleted meanwhile.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    match copies::copy_file(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        copied => copied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_found_in_a_manifest_of_any_form() {
        let (a, b) = ("a1".repeat(32), "b2".repeat(32));
        let text = format!("images: [{{sha256: {b}}},\n {{\"sha256\":\"{a}\"}}, {a}0, x{b}] {a}");
        assert_eq!(hashes_in(text.as_bytes()), [a, b]);
        assert!(hashes_in(&[0xff; 200]).is_empty());
    }
}
