//! What a prompt and its images fill of a context: views, and positions.
//!
//! The same arithmetic as the runner's, over sizes alone: no pixel is read. Text counts bytes, a position each, which is how a model
//! without a tokenizer is run; where there is one, the caller must know the prompt's length.

use crate::{
    model::{ModelSpec, Vision},
    trace::event::ImageViews,
};

/// Stands for an image in a prompt.
pub const PLACEHOLDER: &str = "<image>";

/// Why a workload cannot be made of these inputs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputsProblem {
    #[error("the model {0} takes no images")]
    NoImages(String),
    #[error("the prompt names {named} images with {PLACEHOLDER}, and {given} are given")]
    Images { named: usize, given: usize },
    #[error("prompt_tokens {prompt_tokens} leaves no place for the {image_tokens} positions of the images")]
    Short { prompt_tokens: u64, image_tokens: u64 },
    #[error("{needed} positions ({prompt_tokens} of prompt and {new_tokens} new) do not fit the context of {limit}")]
    Context { needed: u64, prompt_tokens: u64, new_tokens: u64, limit: u64 },
    #[error("the length of this prompt is the business of the model's tokenizer: say prompt_tokens")]
    Tokenizer,
    #[error("neither inputs nor prompt_tokens are given: the cost depends on the prompt's length")]
    Nothing,
}

/// Views and positions of the inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Needs {
    pub images: Vec<ImageViews>,
    pub prompt_tokens: u64,
    /// Part of `prompt_tokens`.
    pub image_tokens: u64,
}

/// What `model` reads of a prompt (`None`: there is none) and of images of these sizes, and whether it then has room for `new_tokens`.
pub fn needs(
    model: &ModelSpec,
    prompt: Option<&str>,
    sizes: &[(u32, u32)],
    prompt_tokens: Option<u64>,
    new_tokens: u64,
) -> Result<Needs, InputsProblem> {
    let images: Vec<ImageViews> = match &model.vision {
        Some(vision) => sizes.iter().map(|&(width, height)| views(vision, width, height)).collect(),
        None if sizes.is_empty() => Vec::new(),
        None => return Err(InputsProblem::NoImages(model.name.clone())),
    };
    let image_tokens = images.iter().map(|views| views.tokens).sum();
    let prompt_tokens = match (prompt_tokens, prompt) {
        (Some(told), _) if told <= image_tokens => return Err(InputsProblem::Short { prompt_tokens: told, image_tokens }),
        (Some(told), _) => told,
        (None, Some(_)) if model.weights.is_some() => return Err(InputsProblem::Tokenizer),
        (None, Some(prompt)) => {
            let (named, given) = (prompt.matches(PLACEHOLDER).count(), images.len());
            let implied = given.checked_sub(named).ok_or(InputsProblem::Images { named, given })?;
            // The beginning of a text is a token; an image that is not named stands on a line of its own.
            1 + image_tokens + (prompt.len() - named * PLACEHOLDER.len() + implied) as u64
        }
        (None, None) => return Err(InputsProblem::Nothing),
    };
    let (needed, limit) = (prompt_tokens.saturating_add(new_tokens), model.decoder.max_positions as u64);
    if needed > limit {
        return Err(InputsProblem::Context { needed, prompt_tokens, new_tokens, limit });
    }
    Ok(Needs { images, prompt_tokens, image_tokens })
}

/// How a page of this size is cut.
pub fn views(vision: &Vision, width: u32, height: u32) -> ImageViews {
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

/// Crops across and down, 0 x 0 for none: of the grids allowed, the one shaped most like the page; of grids shaped alike the larger wins
/// only when the page fills more than half of its pixels.
fn crops(vision: &Vision, width: u32, height: u32) -> (u32, u32) {
    if width == 0 || height == 0 || width.max(height) as usize <= vision.crop_px {
        return (0, 0);
    }
    let most = vision.max_crops as u32;
    let mut grids: Vec<(u32, u32)> = (1..=most)
        .flat_map(|wide| (1..=most / wide).map(move |high| (wide, high)))
        .filter(|(wide, high)| wide * high >= vision.min_crops as u32)
        .collect();
    grids.sort_by_key(|&(wide, high)| (wide * high, wide));
    let shape = f64::from(width) / f64::from(height);
    let (pixels, crop) = (f64::from(width) * f64::from(height), (vision.crop_px as f64).powi(2));
    let mut best = ((1, 1), f64::INFINITY);
    for (wide, high) in grids {
        let distance = (shape - f64::from(wide) / f64::from(high)).abs();
        if distance < best.1 || (distance == best.1 && pixels > 0.5 * crop * f64::from(wide * high)) {
            best = ((wide, high), distance);
        }
    }
    // One crop would show what the whole page shows.
    if best.0 == (1, 1) { (0, 0) } else { best.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> ModelSpec {
        let (_, text) = crate::model::PRESETS.iter().find(|(preset, _)| *preset == name).unwrap();
        toml::from_str(text).unwrap()
    }

    #[test]
    fn text_and_images_fill_positions() {
        let ocr = model("deepseek-ocr");
        let one = |prompt: &str| needs(&ocr, Some(prompt), &[(600, 600)], None, 8).unwrap().prompt_tokens;
        assert_eq!((one("<image>ab"), one("ab")), (1 + 273 + 2, 1 + 273 + 3));
        let told = needs(&ocr, Some("ab"), &[(1240, 1754)], Some(1000), 8).unwrap();
        assert_eq!((told.prompt_tokens, told.image_tokens, told.images[0].crops_wide), (1000, 903, 2));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let (ocr, llama) = (model("deepseek-ocr"), model("llama-tiny"));
        let refused = |model, prompt, sizes: &[(u32, u32)], told| needs(model, prompt, sizes, told, 8).unwrap_err();
        assert_eq!(refused(&llama, None, &[], None), InputsProblem::Nothing);
        assert!(matches!(refused(&llama, Some("a"), &[(1, 1)], None), InputsProblem::NoImages(_)));
        assert_eq!(refused(&ocr, Some("<image>"), &[], None), InputsProblem::Images { named: 1, given: 0 });
        assert_eq!(refused(&ocr, None, &[(9, 9)], Some(273)), InputsProblem::Short { prompt_tokens: 273, image_tokens: 273 });
        assert!(matches!(refused(&ocr, None, &[], Some(u64::MAX)), InputsProblem::Context { .. }));
        let loaded = ModelSpec { weights: Some("/weights".into()), ..llama.clone() };
        assert_eq!(refused(&loaded, Some("a"), &[], None), InputsProblem::Tokenizer);
    }
}
