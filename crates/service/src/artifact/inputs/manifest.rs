//! Text of a manifest of inputs: parsed within limits, and written.
//!
//! Reads and writes no file.

use std::path::PathBuf;

use llmprof_core::domain::{
    inputs::{MAX_IMAGES, MAX_NAME, MAX_PROMPT, MAX_SAMPLE_IMAGES, MAX_SAMPLES},
    plain_words::plain_words,
};
use serde::{Deserialize, Serialize};

/// Maximum size of a manifest, bytes.
pub const MAX_MANIFEST: u64 = 1 << 20;
/// Brackets that open a YAML list or map. Its parser compares each token with all that are open.
pub(super) const MAX_BRACKETS: usize = 1000;

/// A manifest: one sample, or a list of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    images: Vec<ManifestImage>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    samples: Vec<SampleText>,
}

/// A sample; without a prompt it has the manifest's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SampleText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    images: Vec<ManifestImage>,
}

/// An image of a sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestImage {
    /// Relative to the manifest.
    pub path: PathBuf,
    /// Name in reports; the path when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A prompt with its images.
#[derive(Debug, Clone, PartialEq)]
pub struct ManifestSample {
    pub prompt: String,
    pub images: Vec<ManifestImage>,
}

/// Parses a manifest. The error is one line without its name.
pub fn parse(text: &[u8]) -> Result<Vec<ManifestSample>, String> {
    if text.len() as u64 > MAX_MANIFEST {
        return Err(format!("it is larger than {MAX_MANIFEST} bytes"));
    }
    let brackets = text.iter().filter(|byte| matches!(byte, b'[' | b'{')).count();
    if brackets > MAX_BRACKETS {
        return Err(format!(
            "it has {brackets} opening brackets, in its prompt or around it; at most \
             {MAX_BRACKETS} are read"
        ));
    }
    let parsed: ManifestText =
        yaml_serde::from_slice(text).map_err(|error| plain_words(&one_line(&error.to_string())))?;
    let samples = parsed.samples()?;
    check(&samples)?;
    Ok(samples)
}

/// The text of a manifest with these samples.
pub fn text(samples: &[ManifestSample]) -> Result<String, String> {
    let of = |sample: &ManifestSample| SampleText {
        prompt: Some(sample.prompt.clone()),
        images: sample.images.clone(),
    };
    let manifest = match samples {
        [one] => {
            let SampleText { prompt, images } = of(one);
            ManifestText { prompt, images, samples: Vec::new() }
        }
        several => {
            ManifestText { samples: several.iter().map(of).collect(), ..ManifestText::default() }
        }
    };
    yaml_serde::to_string(&manifest).map_err(|error| error.to_string())
}

impl ManifestText {
    fn samples(self) -> Result<Vec<ManifestSample>, String> {
        let Self { prompt, images, samples } = self;
        if samples.is_empty() {
            let prompt = prompt.ok_or("missing field `prompt`")?;
            return Ok(vec![ManifestSample { prompt, images }]);
        }
        if !images.is_empty() {
            return Err("it has samples and images; move the images into samples".into());
        }
        let of = |(at, sample): (usize, SampleText)| {
            let missing = || format!("samples[{at}]: missing field `prompt`");
            let prompt = sample.prompt.or_else(|| prompt.clone()).ok_or_else(missing)?;
            Ok(ManifestSample { prompt, images: sample.images })
        };
        samples.into_iter().enumerate().map(of).collect()
    }
}

fn check(samples: &[ManifestSample]) -> Result<(), String> {
    if samples.len() > MAX_SAMPLES {
        return Err(format!("it has more than {MAX_SAMPLES} samples"));
    }
    if samples.iter().map(|sample| sample.images.len()).sum::<usize>() > MAX_IMAGES {
        return Err(format!("its samples name more than {MAX_IMAGES} images"));
    }
    for sample in samples {
        if sample.prompt.len() > MAX_PROMPT {
            return Err(format!("its prompt is longer than {MAX_PROMPT} bytes"));
        }
        if sample.images.len() > MAX_SAMPLE_IMAGES {
            return Err(format!("a sample names more than {MAX_SAMPLE_IMAGES} images"));
        }
        for name in sample.images.iter().filter_map(|image| image.name.as_deref()) {
            check_name(name)?;
        }
    }
    Ok(())
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

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_share_the_prompt_of_their_manifest() {
        let yaml = "prompt: read\nsamples:\n- images: [{path: a.png}]\n- {prompt: count}";
        let samples = parse(yaml.as_bytes()).unwrap();
        let prompts: Vec<&str> = samples.iter().map(|it| it.prompt.as_str()).collect();
        assert_eq!((prompts, samples[0].images.len()), (vec!["read", "count"], 1));
        let again = text(&samples).unwrap();
        assert_eq!(parse(again.as_bytes()).unwrap(), samples);
        let one = text(&samples[..1]).unwrap();
        assert!(!one.contains("samples") && parse(one.as_bytes()).unwrap() == samples[..1]);
    }

    #[test]
    fn a_manifest_beyond_its_limits_is_refused_in_one_line() {
        let many = |count: usize, item: &str| format!("samples:\n{}", item.repeat(count));
        for (yaml, reason) in [
            ("images: []".into(), "missing field `prompt`"),
            ("samples: [{}]".into(), "samples[0]: missing field `prompt`"),
            ("prompt: x\nimages: [{path: a}]\nsamples: [{}]".into(), "samples and images"),
            (many(MAX_SAMPLES + 1, "- prompt: x\n"), "more than 256 samples"),
            (format!("prompt: {}", "x".repeat(MAX_PROMPT + 1)), "longer than 65536 bytes"),
            (format!("prompt: x\nimages:\n{}", "- path: a\n".repeat(65)), "more than 64 images"),
            ("prompt: x\nimages: [{path: a, name: \"a\\nb\"}]".into(), "invalid name"),
            ("prompt: [x".into(), "line"),
        ] {
            let error = parse(yaml.as_bytes()).unwrap_err();
            assert!(error.contains(reason) && error.lines().count() == 1, "{error}");
        }
    }
}
