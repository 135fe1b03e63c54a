//! Manifests matched with the files of an upload.

use std::{fs, path::Path};

use super::*;

/// Uploads files of these names; each is a page of one pixel.
fn upload(dir: &Path, names: &[&str], manifest: Option<&str>) -> InputsUpload {
    let file = |(at, name): (usize, &&str)| {
        let path = dir.join(at.to_string());
        image::RgbImage::new(1, 1).save_with_format(&path, image::ImageFormat::Png).unwrap();
        UploadedFile { path, name: (*name).to_owned() }
    };
    let files = names.iter().enumerate().map(file).collect();
    let manifest = manifest.map(|text| {
        let path = dir.join("manifest");
        fs::write(&path, text).unwrap();
        UploadedFile { path, name: "m.yaml".into() }
    });
    let prompt = manifest.is_none().then(|| "read".to_owned());
    InputsUpload {
        folder: dir.to_owned(),
        files,
        manifest,
        is_archive: false,
        stated: None,
        samples: UploadedSamples { prompt, each_image: false },
        limits: UploadLimits { max_bytes: 1 << 20, least_free: 0 },
        known: dir.join("known"),
    }
}

#[test]
fn a_content_that_is_known_is_not_decoded_again() {
    let dir = tempfile::tempdir().unwrap();
    let upload = upload(dir.path(), &["a.png", "b.png"], None);
    let staged = stage(&upload).unwrap();
    assert!(staged.files.iter().all(|file| file.thumbnail.is_some()));
    assert_eq!(staged.set.samples[0].images, [0, 1]);
    fs::create_dir(&upload.known).unwrap();
    fs::write(upload.known.join(&staged.set.images[0].sha256), "").unwrap();
    let again = stage(&upload).unwrap();
    assert!(again.files.iter().all(|file| file.thumbnail.is_none()));
    assert_eq!(again.set, staged.set);
}

#[test]
fn a_prompt_with_more_placeholders_than_images_is_refused_with_both_counts() {
    let dir = tempfile::tempdir().unwrap();
    let error = |upload: InputsUpload| stage(&upload).unwrap_err().to_string();
    let mut plain = upload(dir.path(), &["a.png", "b.png"], None);
    plain.samples.prompt = Some("<image> <image>".into());
    assert!(stage(&plain).is_ok());
    plain.samples.each_image = true;
    let counts = "2 <image> placeholders, but 1 image; remove placeholders or add images";
    assert_eq!(error(plain), format!("samples[0].prompt: {counts}"));
    let text = "prompt: <image><image>\nimages: [{path: a.png}]";
    assert_eq!(error(upload(dir.path(), &["a.png"], Some(text))), format!("prompt: {counts}"));
}

#[test]
fn a_manifest_and_fields_of_samples_contradict_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let text = "prompt: x\nimages: [{path: a.png}]";
    let with = |prompt: Option<&str>, each_image: bool| {
        let samples = UploadedSamples { prompt: prompt.map(str::to_owned), each_image };
        stage(&InputsUpload { samples, ..upload(dir.path(), &["a.png"], Some(text)) })
    };
    assert!(with(None, false).is_ok());
    for (prompt, each_image, field) in
        [(Some("read"), false, "prompt"), (Some(""), true, "prompt"), (None, true, "each_image")]
    {
        let error = with(prompt, each_image).unwrap_err().to_string();
        let named = format!("the manifest m.yaml and `{field}` contradict each other");
        assert!(error.starts_with(&named), "{error}");
    }
}

#[test]
fn a_manifest_names_every_image_of_its_upload() {
    let dir = tempfile::tempdir().unwrap();
    let stage = |names: &[&str], manifest: &str| {
        let staged = super::stage(&upload(dir.path(), names, Some(manifest)));
        staged.map(|it| it.set).map_err(|error| error.to_string())
    };
    let text = "prompt: x\nimages: [{path: p/b.png, name: second}, {path: ./a.png}]";
    let set = stage(&["a.png", "b.png"], text).unwrap();
    assert_eq!(set.samples[0].images, [1, 0]);
    assert_eq!((set.images[0].name.as_str(), set.images[1].name.as_str()), ("a.png", "second"));
    let twice = "prompt: x\nimages: [{path: a.png}, {path: ./a.png}]";
    assert_eq!(stage(&["a.png"], twice).unwrap().samples[0].images, [0, 0]);
    let renamed = "prompt: x\nsamples:\n- images: [{path: a.png, name: first}, {path: b.png}]\n\
                   - images: [{path: a.png, name: again}, {path: ./a.png}]\n\
                   - images: [{path: a.png, name: first}]";
    let set = stage(&["a.png", "b.png"], renamed).unwrap();
    let of_sample = |at: usize| {
        let name = |at: &u32| set.images[*at as usize].name.as_str();
        set.samples[at].images.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(of_sample(0), ["first", "b.png"]);
    assert_eq!(of_sample(1), ["again", "a.png"], "a file has a name for each sample");
    assert_eq!((of_sample(2), set.images.len()), (vec!["first"], 4));
    assert_eq!(set.images[0].sha256, set.images[1].sha256);
    for (names, text, reason) in [
        (vec!["a.png"], "prompt: x\nimages: [{path: b.png}]", "image b.png: not in the upload"),
        (vec!["a.png"], "prompt: x", "image a.png: not named in the manifest"),
        (
            vec!["a.png", "a.png"],
            "prompt: x\nimages: [{path: a.png}]",
            "image a.png: sent more than once",
        ),
        (vec!["a.png"], "prompt: x\nimages: [{path: ../a.png}]", "leaves the folder"),
        (
            vec!["a.png"],
            "prompt: x\nsamples: [{images: [{path: a.png}]}, {images: [{path: c.png}]}]",
            "sample 1: image c.png: not in the upload",
        ),
        (
            vec!["p.png"],
            "prompt: x\nimages: [{path: a/p.png}, {path: b/p.png}]",
            "image b/p.png: not in the upload: p.png is image a/p.png",
        ),
        (
            vec!["p.png"],
            "prompt: x\nimages: [{path: a.png, name: p.png}, {path: b.png, name: p.png}]",
            "image b.png: not in the upload: p.png is image a.png",
        ),
        (vec![], "image: x", "m.yaml is not a manifest"),
    ] {
        let error = stage(&names, text).unwrap_err();
        assert!(error.contains(reason) && error.lines().count() == 1, "{error}");
    }
}
