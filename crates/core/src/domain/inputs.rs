//! Inputs of a run: samples, each a prompt and images.
//!
//! Plain values. Images are named by the hash of their content.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum length of a prompt, bytes.
pub const MAX_PROMPT: usize = 64 * 1024;
/// Maximum number of samples.
pub const MAX_SAMPLES: usize = 256;
/// Maximum number of images of a sample.
pub const MAX_SAMPLE_IMAGES: usize = 64;
/// Maximum number of images of all samples.
pub const MAX_IMAGES: usize = 512;
/// Maximum length of an image's name, characters.
pub const MAX_NAME: usize = 200;

/// An image of stored inputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StoredImage {
    /// Name that the client gave.
    #[cfg_attr(feature = "schema", schema(example = "page.png"))]
    pub name: String,
    /// Lower-case hexadecimal.
    #[cfg_attr(
        feature = "schema",
        schema(example = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")
    )]
    pub sha256: String,
    pub bytes: u64,
    /// Pixels.
    pub width: u32,
    pub height: u32,
    pub format: ImageFormat,
}

/// Format of an image, by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    Png,
    Jpeg,
    Webp,
}

impl ImageFormat {
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Webp => "image/webp",
        }
    }

    /// Extension of a file's name.
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg => "jpg",
            Self::Webp => "webp",
        }
    }
}

/// A prompt with its images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct InputSample {
    #[cfg_attr(feature = "schema", schema(example = "Convert the document to markdown."))]
    pub prompt: String,
    /// Positions in the list of images.
    pub images: Vec<u32>,
}

/// Samples and the images that they name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputSet {
    pub samples: Vec<InputSample>,
    pub images: Vec<StoredImage>,
    /// Seed of a run that states none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl InputSet {
    /// Bytes of the images, each content once.
    pub fn bytes(&self) -> u64 {
        let contents: BTreeMap<&str, u64> =
            self.images.iter().map(|image| (image.sha256.as_str(), image.bytes)).collect();
        contents.into_values().sum()
    }

    /// Text that is equal for equal prompts, image contents and seeds, whatever the images' names
    /// are.
    pub fn content(&self) -> String {
        // A run of inputs without a seed has the seed 0.
        let seed = self.seed.filter(|seed| *seed != 0);
        let mut text = seed.map(|seed| format!("seed {seed}\n")).unwrap_or_default();
        for sample in &self.samples {
            let hash = |at: &u32| Some(self.images.get(*at as usize)?.sha256.as_str());
            let hashes: Vec<&str> = sample.images.iter().filter_map(hash).collect();
            text += &sample_content(&sample.prompt, &hashes);
        }
        text
    }
}

/// Text that is equal for equal prompts with equal images, by their hashes.
pub fn sample_content(prompt: &str, images: &[&str]) -> String {
    let mut text = format!("{} {}\n{prompt}", prompt.len(), images.len());
    for hash in images {
        text += "\n";
        text += hash;
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, sha256: &str) -> StoredImage {
        let (name, sha256) = (name.to_owned(), sha256.to_owned());
        StoredImage { name, sha256, bytes: 10, width: 1, height: 1, format: ImageFormat::Png }
    }

    #[test]
    fn content_ignores_the_names_of_images_and_the_default_seed_and_nothing_else() {
        let set = |prompt: &str, images: &[u32], hashes: [&str; 2]| InputSet {
            samples: vec![InputSample { prompt: prompt.into(), images: images.into() }],
            images: vec![image("a.png", hashes[0]), image("b.png", hashes[1])],
            seed: None,
        };
        let plain = set("x", &[0, 1], ["1", "2"]);
        let mut renamed = plain.clone();
        renamed.images[0].name = "c.png".into();
        renamed.seed = Some(0);
        assert_eq!(plain.content(), renamed.content());
        for other in [
            set("y", &[0, 1], ["1", "2"]),
            set("x", &[1, 0], ["1", "2"]),
            set("x", &[0], ["1", "2"]),
            set("x", &[0, 1], ["1", "3"]),
            set("x\n1", &[1], ["1", "2"]),
            InputSet { seed: Some(7), ..plain.clone() },
        ] {
            assert_ne!(plain.content(), other.content());
        }
        assert_eq!((plain.bytes(), set("x", &[0, 1], ["1", "1"]).bytes()), (20, 10));
    }
}
