//! A manifest of inputs: prompts and images, by path, by hash or by both.
//!
//! Plain values. A run's `inputs.yaml` is one, and so are the manifests that clients submit.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    hex::hex,
    inputs::{MAX_IMAGES, MAX_NAME, MAX_PROMPT, MAX_SAMPLE_IMAGES, MAX_SAMPLES, sample_content},
    json_numbers::{MAX_EXACT, Within},
    run_files::InputFile,
};

/// A manifest: one sample, or a list of samples.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputManifest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Seed of a run that states none.
    #[serde(
        default,
        deserialize_with = "Within::<0, MAX_EXACT>::optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub seed: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ManifestImage>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<ManifestSampleText>,
}

/// A sample of a manifest; without a prompt it has the manifest's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestSampleText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ManifestImage>,
}

/// An image of a sample: a file, a stored content, or a file whose content is stated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ManifestImage {
    /// Relative to the manifest. With a hash, the file may be absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, example = "page.png"))]
    pub path: Option<PathBuf>,
    /// Name in reports; the path when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 200, example = "page.png"))]
    pub name: Option<String>,
    /// Hash of the content, 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schema(
            pattern = "^[0-9a-f]{64}$",
            example = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
        )
    )]
    pub sha256: Option<String>,
    /// Facts of the content, for readers; the hash identifies it.
    #[serde(
        default,
        deserialize_with = "Within::<0, MAX_EXACT>::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 9007199254740991i64))]
    pub bytes: Option<u64>,
    /// Pixels.
    #[serde(
        default,
        deserialize_with = "Within::<0, 4_294_967_295>::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 4294967295i64))]
    pub width: Option<u32>,
    #[serde(
        default,
        deserialize_with = "Within::<0, 4_294_967_295>::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 4294967295i64))]
    pub height: Option<u32>,
}

/// A prompt with its images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestSample {
    pub prompt: String,
    pub images: Vec<ManifestImage>,
}

/// Samples of a manifest, each with its prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestSamples {
    pub seed: Option<u64>,
    pub samples: Vec<ManifestSample>,
}

impl ManifestImage {
    /// The image of a file.
    pub fn of_path(path: impl Into<PathBuf>) -> Self {
        Self { path: Some(path.into()), ..Self::default() }
    }

    /// The path, else the name, else the hash, for messages.
    pub fn shown(&self) -> String {
        match (&self.path, &self.name, &self.sha256) {
            (Some(path), ..) => path.display().to_string(),
            (None, Some(name), _) => name.clone(),
            (None, None, hash) => format!("sha256:{}", hash.as_deref().unwrap_or_default()),
        }
    }

    fn check(&self) -> Result<(), String> {
        if let Some(name) = &self.name {
            check_name(name)?;
        }
        match &self.sha256 {
            Some(hash) if !is_hash(hash) => Err(format!(
                "invalid sha256 \"{hash:.80}\"; expected 64 hexadecimal digits in lower case"
            )),
            None if self.path.is_none() => {
                Err("an image has neither `path` nor `sha256`; state one of them".into())
            }
            _ => Ok(()),
        }
    }
}

impl InputManifest {
    /// The manifest of these samples; a prompt that all share is stated once.
    pub fn new(all: ManifestSamples) -> Self {
        let ManifestSamples { seed, mut samples } = all;
        if samples.len() == 1
            && let Some(ManifestSample { prompt, images }) = samples.pop()
        {
            return Self { prompt: Some(prompt), seed, images, samples: Vec::new() };
        }
        let shared = samples.first().map(|first| first.prompt.clone());
        let prompt = shared.filter(|prompt| samples.iter().all(|it| it.prompt == *prompt));
        let text = |sample: ManifestSample| ManifestSampleText {
            prompt: Some(sample.prompt).filter(|_| prompt.is_none()),
            images: sample.images,
        };
        let samples = samples.into_iter().map(text).collect();
        Self { prompt, seed, images: Vec::new(), samples }
    }

    /// The samples, each with its prompt, within the limits of inputs.
    pub fn samples(self) -> Result<ManifestSamples, String> {
        let Self { prompt, seed, images, samples } = self;
        let missing = "missing field `prompt`";
        let samples = if samples.is_empty() {
            vec![ManifestSample { prompt: prompt.ok_or(missing)?, images }]
        } else if images.is_empty() {
            let of = |(at, sample): (usize, ManifestSampleText)| {
                let prompt = sample.prompt.or_else(|| prompt.clone());
                let prompt = prompt.ok_or_else(|| format!("samples[{at}]: {missing}"))?;
                Ok(ManifestSample { prompt, images: sample.images })
            };
            samples.into_iter().enumerate().map(of).collect::<Result<_, String>>()?
        } else {
            return Err("it has samples and images; move the images into samples".into());
        };
        let all = ManifestSamples { seed, samples };
        all.check()?;
        Ok(all)
    }

    /// SHA-256 of the prompts and of the hashes of their images: equal for manifests that state the
    /// same inputs, whatever their names. `None` if an image has no hash.
    pub fn content_sha256(&self) -> Option<String> {
        let samples = self.clone().samples().ok()?.samples;
        let of = |it: &ManifestSample| {
            let images: Option<Vec<&str>> =
                it.images.iter().map(|image| image.sha256.as_deref()).collect();
            Some(sample_content(&it.prompt, &images?))
        };
        let content: String = samples.iter().map(of).collect::<Option<_>>()?;
        Some(hex(&Sha256::digest(content)))
    }

    /// The images in order, as a report lists them; `None` if one lacks its facts.
    pub fn files(&self) -> Option<Vec<InputFile>> {
        let of_samples = self.samples.iter().flat_map(|sample| &sample.images);
        let file = |image: &ManifestImage| {
            Some(InputFile {
                path: image.name.clone().unwrap_or_else(|| image.shown()),
                bytes: image.bytes?,
                sha256: image.sha256.clone()?,
                width: image.width?,
                height: image.height?,
            })
        };
        self.images.iter().chain(of_samples).map(file).collect()
    }
}

impl ManifestSamples {
    /// Images of all samples, in order.
    pub fn images(&self) -> impl Iterator<Item = &ManifestImage> {
        self.samples.iter().flat_map(|sample| &sample.images)
    }

    fn check(&self) -> Result<(), String> {
        if self.samples.len() > MAX_SAMPLES {
            return Err(format!("it has more than {MAX_SAMPLES} samples"));
        }
        if self.images().count() > MAX_IMAGES {
            return Err(format!("its samples name more than {MAX_IMAGES} images"));
        }
        for sample in &self.samples {
            if sample.prompt.len() > MAX_PROMPT {
                return Err(format!("its prompt is longer than {MAX_PROMPT} bytes"));
            }
            if sample.images.len() > MAX_SAMPLE_IMAGES {
                return Err(format!("a sample names more than {MAX_SAMPLE_IMAGES} images"));
            }
        }
        self.images().try_for_each(ManifestImage::check)
    }
}

/// Refuses a name that is too long or has control characters.
pub fn check_name(name: &str) -> Result<(), String> {
    let length = name.chars().count();
    if length == 0 || length > MAX_NAME || name.chars().any(char::is_control) {
        return Err(format!(
            "invalid name {:?}; expected 1 to {MAX_NAME} characters without control characters",
            name.chars().take(MAX_NAME).collect::<String>()
        ));
    }
    Ok(())
}

/// True for a hash as a manifest states it.
pub fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(prompt: &str, hashes: &[char]) -> ManifestSample {
        let image = |digit: &char| ManifestImage {
            sha256: Some(digit.to_string().repeat(64)),
            ..ManifestImage::default()
        };
        ManifestSample { prompt: prompt.into(), images: hashes.iter().map(image).collect() }
    }

    #[test]
    fn a_manifest_of_samples_has_the_same_samples_again() {
        for samples in [
            vec![sample("read", &['1', '2'])],
            vec![sample("read", &['1']), sample("count", &[])],
            vec![sample("read", &['1']), sample("read", &['2'])],
        ] {
            let all = ManifestSamples { seed: Some(7), samples };
            let manifest = InputManifest::new(all.clone());
            let is_shared = all.samples.iter().all(|it| it.prompt == "read");
            assert_eq!(manifest.prompt.is_some(), is_shared);
            assert_eq!(manifest.samples(), Ok(all));
        }
    }

    #[test]
    fn an_image_is_named_by_a_path_or_a_hash() {
        let of = |image: ManifestImage| {
            let images = vec![image];
            InputManifest { prompt: Some("x".into()), images, ..Default::default() }.samples()
        };
        let neither = of(ManifestImage::default()).unwrap_err();
        assert!(neither.contains("neither `path` nor `sha256`"), "{neither}");
        for hash in ["", "abc", &"A".repeat(64)] {
            let image = ManifestImage { sha256: Some(hash.into()), ..ManifestImage::default() };
            assert!(of(image).unwrap_err().contains("64 hexadecimal digits"), "{hash}");
        }
    }
}
