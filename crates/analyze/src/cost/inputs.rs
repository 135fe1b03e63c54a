//! Views and context positions of a prompt and its images.
//!
//! Uses the runner's arithmetic on sizes only; no pixel is read. Without a tokenizer each byte of
//! text is one position, as in the runner; with one, the caller must pass the prompt's length.

use llmprof_core::{
    domain::{
        model::{ModelSpec, VisionSpec},
        placeholders::{ExcessPlaceholders, PLACEHOLDER, count_placeholders},
    },
    trace::event::ImageViews,
};

/// A reason why a workload cannot be derived from these inputs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputsProblem {
    #[error("model {0} does not accept images")]
    NoImages(String),
    #[error("the prompt has {0}")]
    Images(#[from] ExcessPlaceholders),
    #[error(
        "prompt_tokens {prompt_tokens} is too small: the images occupy {image_tokens} positions"
    )]
    Short { prompt_tokens: u64, image_tokens: u64 },
    #[error(
        "{needed} positions ({prompt_tokens} prompt, {new_tokens} new) exceed the context of \
         {limit}"
    )]
    Context { needed: u64, prompt_tokens: u64, new_tokens: u64, limit: u64 },
    #[error("the model's tokenizer determines this prompt's length; pass prompt_tokens")]
    Tokenizer,
    #[error("inputs and prompt_tokens are both missing; the cost depends on the prompt's length")]
    Nothing,
}

/// Views and positions of the inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct InputNeeds {
    pub images: Vec<ImageViews>,
    pub prompt_tokens: u64,
    /// Part of `prompt_tokens`.
    pub image_tokens: u64,
}

/// The views and positions of a prompt (`None` without one) and images of these sizes. Fails when
/// they and `new_tokens` exceed the context of `model`.
pub fn needs(
    model: &ModelSpec,
    prompt: Option<&str>,
    sizes: &[(u32, u32)],
    prompt_tokens: Option<u64>,
    new_tokens: u64,
) -> Result<InputNeeds, InputsProblem> {
    let images: Vec<ImageViews> = match &model.vision {
        Some(vision) => sizes.iter().map(|&(width, height)| views(vision, width, height)).collect(),
        None if sizes.is_empty() => Vec::new(),
        None => return Err(InputsProblem::NoImages(model.name.clone())),
    };
    let text_tokens = prompt.map(|prompt| text_positions(prompt, images.len())).transpose()?;
    let image_tokens = images.iter().map(|views| views.tokens).sum();
    let prompt_tokens = match (prompt_tokens, text_tokens) {
        (Some(given), _) if given <= image_tokens => {
            return Err(InputsProblem::Short { prompt_tokens: given, image_tokens });
        }
        (Some(given), _) => given,
        (None, Some(_)) if model.weights.is_some() => return Err(InputsProblem::Tokenizer),
        (None, Some(text_tokens)) => image_tokens + text_tokens,
        (None, None) => return Err(InputsProblem::Nothing),
    };
    let (needed, limit) =
        (prompt_tokens.saturating_add(new_tokens), model.decoder.max_positions as u64);
    if needed > limit {
        return Err(InputsProblem::Context { needed, prompt_tokens, new_tokens, limit });
    }
    Ok(InputNeeds { images, prompt_tokens, image_tokens })
}

/// Positions of a prompt with so many images, without the images' own: the start-of-text token is
/// one, and an image without a placeholder gets a line of its own.
fn text_positions(prompt: &str, images: usize) -> Result<u64, ExcessPlaceholders> {
    let named = count_placeholders(prompt, images)?;
    Ok((1 + prompt.len() - named * PLACEHOLDER.len() + (images - named)) as u64)
}

/// Splits a page of this size into views.
pub fn views(vision: &VisionSpec, width: u32, height: u32) -> ImageViews {
    let (crops_wide, crops_high) = crops(vision, width, height);
    ImageViews {
        width,
        height,
        global_px: vision.global_px as u32,
        crop_px: if crops_wide > 0 { vision.crop_px as u32 } else { 0 },
        crops_wide,
        crops_high,
        tokens: vision.tokens(crops_wide as usize, crops_high as usize) as u64,
    }
}

/// Columns and rows of crops, 0 x 0 for none: the allowed grid whose aspect ratio is closest to the
/// page's. If two grids are equally close, the larger one wins only when the page fills more than
/// half of its pixels.
fn crops(vision: &VisionSpec, width: u32, height: u32) -> (u32, u32) {
    if width == 0 || height == 0 || width.max(height) as usize <= vision.crop_px {
        return (0, 0);
    }
    let max = vision.max_crops as u32;
    let mut grids: Vec<(u32, u32)> = (1..=max)
        .flat_map(|wide| (1..=max / wide).map(move |high| (wide, high)))
        .filter(|(wide, high)| wide * high >= vision.min_crops as u32)
        .collect();
    grids.sort_by_key(|&(wide, high)| (wide * high, wide));
    let shape = f64::from(width) / f64::from(height);
    let (pixels, crop) = (f64::from(width) * f64::from(height), (vision.crop_px as f64).powi(2));
    let mut best = ((1, 1), f64::INFINITY);
    for (wide, high) in grids {
        let distance = (shape - f64::from(wide) / f64::from(high)).abs();
        if distance < best.1 || (distance == best.1 && pixels > 0.5 * crop * f64::from(wide * high))
        {
            best = ((wide, high), distance);
        }
    }
    // A single crop would repeat the global view.
    if best.0 == (1, 1) { (0, 0) } else { best.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> ModelSpec {
        let (_, text) = llmprof_core::domain::model::PRESETS
            .iter()
            .find(|(preset, _)| *preset == name)
            .unwrap();
        toml::from_str(text).unwrap()
    }

    #[test]
    fn text_and_images_fill_positions() {
        let ocr = model("deepseek-ocr");
        let one =
            |prompt: &str| needs(&ocr, Some(prompt), &[(600, 600)], None, 8).unwrap().prompt_tokens;
        assert_eq!((one("<image>ab"), one("ab")), (1 + 273 + 2, 1 + 273 + 3));
        let needs = needs(&ocr, Some("ab"), &[(1240, 1754)], Some(1000), 8).unwrap();
        assert_eq!(
            (needs.prompt_tokens, needs.image_tokens, needs.images[0].crops_wide),
            (1000, 903, 2)
        );
    }

    #[test]
    fn invalid_inputs_are_refused_with_a_reason() {
        let (ocr, llama) = (model("deepseek-ocr"), model("llama-tiny"));
        let refused = |model, prompt, sizes: &[(u32, u32)], tokens| {
            needs(model, prompt, sizes, tokens, 8).unwrap_err()
        };
        assert_eq!(refused(&llama, None, &[], None), InputsProblem::Nothing);
        assert!(matches!(refused(&llama, Some("a"), &[(1, 1)], None), InputsProblem::NoImages(_)));
        let excess = InputsProblem::Images(ExcessPlaceholders { named: 1, given: 0 });
        assert_eq!(refused(&ocr, Some("<image>"), &[], None), excess);
        assert_eq!(refused(&ocr, Some("<image>"), &[], Some(64)), excess, "of any length");
        assert_eq!(
            refused(&ocr, None, &[(9, 9)], Some(273)),
            InputsProblem::Short { prompt_tokens: 273, image_tokens: 273 }
        );
        assert!(matches!(refused(&ocr, None, &[], Some(u64::MAX)), InputsProblem::Context { .. }));
        let loaded = ModelSpec { weights: Some("/weights".into()), ..llama.clone() };
        assert_eq!(refused(&loaded, Some("a"), &[], None), InputsProblem::Tokenizer);
    }
}
