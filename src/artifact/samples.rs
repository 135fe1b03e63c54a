//! The bundled sample inputs, for a first run on any installation.

use std::{fs, io, path::Path};

const FILES: &[(&str, &[u8])] = &[
    ("inputs.yaml", include_bytes!("../../samples/inputs.yaml")),
    ("inputs-small.yaml", include_bytes!("../../samples/inputs-small.yaml")),
    ("inputs-text.yaml", include_bytes!("../../samples/inputs-text.yaml")),
    ("page.png", include_bytes!("../../samples/page.png")),
    ("small.png", include_bytes!("../../samples/small.png")),
];

/// Writes the samples into `folder`, unless they are up to date.
pub fn unpack(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, bytes) in FILES {
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|there| there == *bytes) {
            continue;
        }
        let new = folder.join(format!(".{name}.new"));
        fs::write(&new, bytes)?;
        fs::rename(&new, &path)?;
    }
    Ok(())
}
