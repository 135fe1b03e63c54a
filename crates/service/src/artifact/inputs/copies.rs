//! Copies of the inputs of a run in its folder, with a manifest that another service accepts.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use llmprof_core::{
    domain::{
        input_manifest::{InputManifest, ManifestImage, ManifestSample, ManifestSamples},
        run_files::InputFile,
    },
    layout,
};

use super::{Image, Inputs, Sample, images, manifest};
use crate::{artifact::folder::remove_tree, runtime::work::SlicedWork};

/// Copies the images into the run's folder `dir`, each file once, and writes the manifest; returns
/// the inputs with the copies. Files of earlier inputs are removed.
pub fn copy_into(dir: &Path, inputs: &Inputs) -> io::Result<Inputs> {
    let folder = dir.join(layout::INPUT_COPIES);
    remove_tree(&folder, &SlicedWork::default())?;
    fs::create_dir_all(&folder)?;
    let mut copies: Vec<(PathBuf, String)> = Vec::new();
    let mut copy = |image: &Image| -> io::Result<(Image, ManifestImage)> {
        let known = copies.iter().find(|(from, _)| *from == image.path);
        let name = match known {
            Some((_, name)) => name.clone(),
            None => {
                let format = images::header(&image.path).map_err(io::Error::other)?.format;
                let name = format!("{}.{}", copies.len() + 1, format.extension());
                copy_file(&image.path, &folder.join(&name))?;
                copies.push((image.path.clone(), name.clone()));
                name
            }
        };
        let path = folder.join(&name);
        let named =
            ManifestImage { name: Some(image.name.clone()), ..ManifestImage::of_path(name) };
        Ok((Image { path, ..image.clone() }, named))
    };
    let (mut samples, mut texts) = (Vec::new(), Vec::new());
    for Sample { prompt, images } in &inputs.samples {
        let copied = images.iter().map(&mut copy).collect::<io::Result<Vec<_>>>()?;
        let (images, named) = copied.into_iter().unzip();
        samples.push(Sample { prompt: prompt.clone(), images });
        texts.push(ManifestSample { prompt: prompt.clone(), images: named });
    }
    let path = dir.join(layout::INPUT_MANIFEST);
    let all = ManifestSamples { seed: inputs.seed, samples: texts };
    fs::write(&path, manifest::text(all).map_err(io::Error::other)?)?;
    Ok(Inputs { manifest: path, samples, seed: inputs.seed })
}

/// The manifest of a run in its folder `dir`: `inputs` are its copies, `files` their contents in
/// order.
pub fn manifest_of(dir: &Path, inputs: &Inputs, files: &[InputFile], seed: u64) -> InputManifest {
    let mut files = files.iter();
    let mut image = |image: &Image| {
        let file = files.next();
        let path = image.path.strip_prefix(dir).unwrap_or(&image.path);
        ManifestImage {
            name: Some(image.name.clone()),
            sha256: file.map(|it| it.sha256.clone()),
            bytes: file.map(|it| it.bytes),
            width: Some(image.width),
            height: Some(image.height),
            ..ManifestImage::of_path(path)
        }
    };
    let sample = |sample: &Sample| ManifestSample {
        prompt: sample.prompt.clone(),
        images: sample.images.iter().map(&mut image).collect(),
    };
    let samples = inputs.samples.iter().map(sample).collect();
    InputManifest::new(ManifestSamples { seed: Some(seed), samples })
}

/// Links a stored content, which never changes; copies other files.
pub(crate) fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let is_read_only = fs::metadata(from)?.permissions().mode() & 0o222 == 0;
    if is_read_only && fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_inputs_of_their_own() {
        let (from, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        image::RgbImage::new(3, 2).save(from.path().join("a.png")).unwrap();
        image::RgbImage::new(2, 3).save(from.path().join("b.jpg")).unwrap();
        let text = "samples:\n- {prompt: x, images: [{path: a.png}, {path: b.jpg, name: second}]}\n\
                    - {prompt: y, images: [{path: a.png}]}";
        fs::write(from.path().join("m.yaml"), text).unwrap();
        let read = super::super::read(from.path(), "m.yaml").unwrap();
        let copied = copy_into(run.path(), &read).unwrap();
        drop(from);
        assert_eq!(copied.samples[0].images[0].path, copied.samples[1].images[0].path);
        let again = super::super::read(run.path(), layout::INPUT_MANIFEST).unwrap();
        assert_eq!(again.samples, copied.samples);
        let names: Vec<&str> = again.images().map(|image| image.name.as_str()).collect();
        assert_eq!(names, ["a.png", "second", "a.png"]);
        assert_eq!(fs::read_dir(run.path().join("inputs")).unwrap().count(), 3);
    }
}
