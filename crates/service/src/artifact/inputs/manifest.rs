//! Text of a manifest of inputs: parsed within limits, and written.
//!
//! Reads and writes no file.

use llmprof_core::domain::{
    byte_order_mark::without_mark,
    input_manifest::{InputManifest, ManifestSamples},
    plain_words::plain_words,
    yaml::to_yaml,
};

/// Maximum size of a manifest, bytes.
pub const MAX_MANIFEST: u64 = 1 << 20;
/// Brackets that open a YAML list or map. Its parser compares each token with all that are open.
pub(super) const MAX_BRACKETS: usize = 1000;

/// Parses a manifest. The error is one line without its name.
pub fn parse(text: &[u8]) -> Result<ManifestSamples, String> {
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
    let parsed: InputManifest = yaml_serde::from_slice(without_mark(text))
        .map_err(|error| plain_words(&one_line(&error.to_string())))?;
    parsed.samples()
}

/// The text of a manifest with these samples.
pub fn text(samples: ManifestSamples) -> Result<String, String> {
    to_yaml(&InputManifest::new(samples)).map_err(|error| error.to_string())
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::{
        input_manifest::ManifestSample,
        inputs::{MAX_PROMPT, MAX_SAMPLES},
    };

    use super::*;

    #[test]
    fn a_byte_order_mark_before_a_manifest_is_skipped() {
        let text = "prompt: read\nimages: [{path: a.png}]\n";
        assert_eq!(parse(format!("\u{feff}{text}").as_bytes()), parse(text.as_bytes()));
        assert!(parse(text.as_bytes()).is_ok());
    }

    #[test]
    fn samples_share_the_prompt_of_their_manifest() {
        let yaml = "prompt: read\nsamples:\n- images: [{path: a.png}]\n- {prompt: count}";
        let all = parse(yaml.as_bytes()).unwrap();
        let prompts: Vec<&str> = all.samples.iter().map(|it| it.prompt.as_str()).collect();
        assert_eq!((prompts, all.samples[0].images.len()), (vec!["read", "count"], 1));
        let again = text(all.clone()).unwrap();
        assert_eq!(parse(again.as_bytes()).unwrap(), all);
        let one = ManifestSamples { samples: all.samples[..1].into(), ..all };
        let text = text(one.clone()).unwrap();
        assert!(!text.contains("samples") && parse(text.as_bytes()).unwrap() == one);
    }

    #[test]
    fn a_prompt_of_any_text_is_read_as_it_was_written() {
        for prompt in
            ["", " x ", "a\n\n  b\n", "no", "7", "- [x]: 'y' # z", "\u{85}\u{2028}\t\u{7}é"]
        {
            let yaml = text(ManifestSamples {
                seed: Some(3),
                samples: vec![ManifestSample { prompt: prompt.into(), images: vec![] }],
            });
            let read = parse(yaml.unwrap().as_bytes()).unwrap();
            assert_eq!((read.samples[0].prompt.as_str(), read.seed), (prompt, Some(3)));
        }
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
            ("prompt: x\nseed: 9007199254740992".into(), "seed: 9007199254740992 is not"),
            ("prompt: x\nseed: -1".into(), "seed: -1 is not between 0 and 9007199254740991"),
            (
                "prompt: x\nimages: [{path: a, width: -1}]".into(),
                "images[0].width: -1 is not between 0 and 4294967295",
            ),
            ("prompt: x\nimages: [{name: a}]".into(), "neither `path` nor `sha256`"),
            ("prompt: [x".into(), "line"),
        ] {
            let error = parse(yaml.as_bytes()).unwrap_err();
            assert!(error.contains(reason) && error.lines().count() == 1, "{error}");
        }
    }
}
