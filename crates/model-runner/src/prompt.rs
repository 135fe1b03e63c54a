//! From a prompt and its images to the tokens that the decoder reads.
//!
//! Uses the tokenizer next to the weights. Without one, bytes are tokens: the work is the same, the
//! text is meaningless, and no output is decoded to text.

use std::{ops::Range, path::Path};

use llmprof_core::domain::placeholders::{ExcessPlaceholders, PLACEHOLDER, count_placeholders};

const FILE: &str = "tokenizer.json";
/// Token of byte 0 in the fallback; those below are reserved for BOS and EOS.
const FIRST_BYTE: u32 = 3;

/// A prompt that cannot be tokenized.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    #[error("cannot read {path}: {reason}")]
    Tokenizer { path: String, reason: String },
    #[error("cannot tokenize the prompt: {0}")]
    Encode(String),
    #[error("the prompt has {0}")]
    Images(#[from] ExcessPlaceholders),
    #[error("token {token} of the prompt exceeds the model's vocabulary of {vocab}")]
    Vocabulary { token: u32, vocab: usize },
}

/// Converts text to tokens and back.
pub enum Tokenizer {
    Trained(Box<tokenizers::Tokenizer>),
    Bytes,
}

impl Tokenizer {
    /// The tokenizer next to the weights, or the fallback.
    pub fn open(weights: Option<&Path>) -> Result<Self, PromptError> {
        let Some(path) = weights.map(|folder| folder.join(FILE)).filter(|path| path.exists())
        else {
            return Ok(Self::Bytes);
        };
        let trained = tokenizers::Tokenizer::from_file(&path).map_err(|e| {
            PromptError::Tokenizer { path: path.display().to_string(), reason: e.to_string() }
        })?;
        Ok(Self::Trained(Box::new(trained)))
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        match self {
            Self::Trained(trained) => {
                let encoding =
                    trained.encode(text, false).map_err(|e| PromptError::Encode(e.to_string()))?;
                Ok(encoding.get_ids().to_vec())
            }
            Self::Bytes => Ok(text.bytes().map(|byte| FIRST_BYTE + u32::from(byte)).collect()),
        }
    }

    /// The text of `tokens`; `None` without a tokenizer.
    pub fn decode(&self, tokens: &[u32]) -> Option<String> {
        match self {
            Self::Trained(trained) => trained.decode(tokens, false).ok(),
            Self::Bytes => None,
        }
    }
}

/// Tokens of a prompt, and the ranges of them that images fill.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    pub tokens: Vec<u32>,
    pub images: Vec<Range<usize>>,
}

/// The model's vocabulary and special tokens.
pub struct Vocabulary {
    pub bos: u32,
    pub image: Option<u32>,
    pub size: usize,
}

/// BOS, then the text with each image's tokens at its placeholder. Images without one come first,
/// one per line.
pub fn assemble(
    text: &str,
    image_tokens: &[usize],
    tokenizer: &Tokenizer,
    vocabulary: &Vocabulary,
) -> Result<Prompt, PromptError> {
    let given = image_tokens.len();
    let named = count_placeholders(text, given)?;
    let text = format!("{PLACEHOLDER}\n").repeat(given - named) + text;
    let mut tokens = vec![vocabulary.bos];
    let mut images = Vec::with_capacity(given);
    for (part, text) in text.split(PLACEHOLDER).enumerate() {
        if part > 0 {
            let count = image_tokens[part - 1];
            images.push(tokens.len()..tokens.len() + count);
            tokens.extend(std::iter::repeat_n(vocabulary.image.unwrap_or(vocabulary.bos), count));
        }
        tokens.extend(tokenizer.encode(text)?);
    }
    match tokens.iter().find(|&&token| token as usize >= vocabulary.size) {
        Some(&token) => Err(PromptError::Vocabulary { token, vocab: vocabulary.size }),
        None => Ok(Prompt { tokens, images }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCABULARY: Vocabulary = Vocabulary { bos: 0, image: Some(900), size: 1000 };

    #[test]
    fn images_are_at_their_placeholders() -> Result<(), PromptError> {
        let prompt = assemble("a<image>b", &[3], &Tokenizer::Bytes, &VOCABULARY)?;
        assert_eq!(prompt.tokens, [0, 3 + 97, 900, 900, 900, 3 + 98]);
        assert_eq!(prompt.images, std::iter::once(2..5).collect::<Vec<_>>());
        Ok(())
    }

    #[test]
    fn images_without_a_placeholder_come_first() -> Result<(), PromptError> {
        let implied = assemble("x", &[2, 1], &Tokenizer::Bytes, &VOCABULARY)?;
        assert_eq!(
            implied,
            assemble("<image>\n<image>\nx", &[2, 1], &Tokenizer::Bytes, &VOCABULARY)?
        );
        assert_eq!(implied.images, [1..3, 4..5]);
        Ok(())
    }

    #[test]
    fn a_placeholder_without_an_image_is_refused() {
        let refused =
            assemble("<image>", &[], &Tokenizer::Bytes, &VOCABULARY).expect_err("refused");
        let counts = "the prompt has 1 <image> placeholder, but 0 images";
        assert!(refused.to_string().starts_with(counts), "{refused}");
    }

    #[test]
    fn a_token_past_the_vocabulary_is_refused() {
        let small = Vocabulary { size: 64, ..VOCABULARY };
        assert!(matches!(
            assemble("a", &[], &Tokenizer::Bytes, &small),
            Err(PromptError::Vocabulary { token: 100, vocab: 64 })
        ));
    }
}
