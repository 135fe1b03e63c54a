//! The bundled sample inputs, for a first run on any installation.

use std::{fs, io, path::Path};

use super::manifest::write_whole;

const FILES: &[(&str, &[u8])] = &[
    ("inputs.yaml", include_bytes!("../../../../samples/inputs.yaml")),
    ("inputs-small.yaml", include_bytes!("../../../../samples/inputs-small.yaml")),
    ("inputs-text.yaml", include_bytes!("../../../../samples/inputs-text.yaml")),
    ("page.png", include_bytes!("../../../../samples/page.png")),
    ("small.png", include_bytes!("../../../../samples/small.png")),
];

/// Returns true if `name` is a bundled file.
pub fn contains(name: &str) -> bool {
    FILES.iter().any(|(file, _)| *file == name)
}

/// Names of the bundled manifests.
pub fn manifests() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name).filter(|name| name.ends_with(".yaml"))
}

/// Writes the samples into `folder`, unless they are up to date.
pub fn unpack(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, bytes) in FILES {
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|there| there == *bytes) {
            continue;
        }
        write_whole(&path, bytes)?;
    }
    Ok(())
}
