//! The bundled input pages, so that the first run works on real input wherever the program was installed.

use std::{fs, io, path::Path};

const FILES: &[(&str, &[u8])] = &[
    ("inputs.yaml", include_bytes!("../samples/inputs.yaml")),
    ("inputs-small.yaml", include_bytes!("../samples/inputs-small.yaml")),
    ("inputs-text.yaml", include_bytes!("../samples/inputs-text.yaml")),
    ("page.png", include_bytes!("../samples/page.png")),
    ("small.png", include_bytes!("../samples/small.png")),
];

/// Writes the samples into `folder`, leaving alone what is already as it should be.
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
