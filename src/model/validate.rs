//! Which dimensions make a model at all.
//!
//! Pure arithmetic; the first thing wrong is said in one line. What fits a machine is not decided here.

use super::{Clip, Decoder, ModelError, ModelSpec, Moe, Sam, Vision};

/// Far above any model, far below what overflows.
const MAX_DIMENSION: usize = 1 << 20;
const MAX_LAYERS: usize = 1024;
const MAX_VIEW_PX: usize = 8192;
const MAX_PARAMETERS: u128 = 1 << 42;

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(ModelError::Impossible(format!($($message)+)));
        }
    };
}

impl ModelSpec {
    /// Says what is impossible about these dimensions, if anything is.
    pub fn validate(&self) -> Result<(), ModelError> {
        self.decoder.validate()?;
        self.vision.as_ref().map_or(Ok(()), |vision| vision.validate(&self.decoder))
    }
}

fn sizes(part: &str, named: &[(&str, usize, usize)]) -> Result<(), ModelError> {
    for (name, size, max) in named {
        ensure!((1..=*max).contains(size), "{part}.{name} is {size}, not in 1..={max}");
    }
    Ok(())
}

impl Decoder {
    fn validate(&self) -> Result<(), ModelError> {
        sizes(
            "decoder",
            &[
                ("hidden", self.hidden, MAX_DIMENSION),
                ("layers", self.layers, MAX_LAYERS),
                ("heads", self.heads, MAX_DIMENSION),
                ("kv_heads", self.kv_heads, MAX_DIMENSION),
                ("head_dim", self.head_dim, MAX_DIMENSION),
                ("intermediate", self.intermediate, MAX_DIMENSION),
                ("vocab", self.vocab, 1 << 24),
                ("max_positions", self.max_positions, 1 << 24),
            ],
        )?;
        ensure!(
            self.heads.is_multiple_of(self.kv_heads),
            "decoder.heads {} is no multiple of kv_heads {}",
            self.heads,
            self.kv_heads
        );
        ensure!(self.head_dim.is_multiple_of(2), "decoder.head_dim {} is odd: rotary positions turn pairs", self.head_dim);
        ensure!(self.rope_theta.is_finite() && self.rope_theta > 0.0, "decoder.rope_theta is {}", self.rope_theta);
        if let Some(problem) = self.rope_scaling.as_ref().and_then(|scaling| scaling.problem()) {
            ensure!(false, "decoder.rope_scaling: {problem}");
        }
        ensure!(self.rms_norm_eps.is_finite() && self.rms_norm_eps > 0.0, "decoder.rms_norm_eps is {}", self.rms_norm_eps);
        ensure!((self.bos_token as usize) < self.vocab, "decoder.bos_token {} is not below vocab {}", self.bos_token, self.vocab);
        if let Some(moe) = &self.moe {
            moe.validate(self.layers)?;
        }
        let parameters = self.parameters();
        ensure!(parameters <= MAX_PARAMETERS, "the decoder would have {parameters} parameters");
        Ok(())
    }
}

impl Moe {
    fn validate(&self, layers: usize) -> Result<(), ModelError> {
        let named = [
            ("experts", self.experts, 1 << 16),
            ("top_k", self.top_k, 1 << 16),
            ("intermediate", self.intermediate, MAX_DIMENSION),
        ];
        sizes("decoder.moe", &named)?;
        ensure!(self.top_k <= self.experts, "decoder.moe.top_k {} is more than its {} experts", self.top_k, self.experts);
        ensure!(self.first_layer <= layers, "decoder.moe.first_layer {} is past the last of {layers} layers", self.first_layer);
        ensure!(self.shared <= MAX_LAYERS, "decoder.moe.shared is {}", self.shared);
        Ok(())
    }
}

impl Vision {
    fn validate(&self, decoder: &Decoder) -> Result<(), ModelError> {
        let Sam { patch, width, layers, heads, mlp, window, ref global_layers, image_px, neck, downsample } = self.sam;
        sizes(
            "vision",
            &[
                ("global_px", self.global_px, MAX_VIEW_PX),
                ("crop_px", self.crop_px, MAX_VIEW_PX),
                ("sam.image_px", image_px, MAX_VIEW_PX),
            ],
        )?;
        sizes(
            "vision.sam",
            &[
                ("patch", patch, 1024),
                ("width", width, MAX_DIMENSION),
                ("layers", layers, MAX_LAYERS),
                ("heads", heads, MAX_DIMENSION),
                ("mlp", mlp, MAX_DIMENSION),
                ("window", window, MAX_VIEW_PX),
                ("neck", neck, MAX_DIMENSION),
                ("downsample[0]", downsample[0], MAX_DIMENSION),
                ("downsample[1]", downsample[1], MAX_DIMENSION),
            ],
        )?;
        let Clip { width: clip_width, layers: clip_layers, heads: clip_heads, mlp: clip_mlp, grid } = self.clip;
        sizes(
            "vision.clip",
            &[
                ("width", clip_width, MAX_DIMENSION),
                ("layers", clip_layers, MAX_LAYERS),
                ("heads", clip_heads, MAX_DIMENSION),
                ("mlp", clip_mlp, MAX_DIMENSION),
                ("grid", grid, MAX_VIEW_PX),
            ],
        )?;
        for (name, px) in [("global_px", self.global_px), ("crop_px", self.crop_px), ("sam.image_px", image_px)] {
            ensure!(px.is_multiple_of(patch), "vision.{name} {px} is no multiple of the patch {patch}");
        }
        ensure!(width.is_multiple_of(heads), "vision.sam.width {width} is no multiple of its {heads} heads");
        ensure!(clip_width.is_multiple_of(clip_heads), "vision.clip.width {clip_width} is no multiple of its {clip_heads} heads");
        ensure!(
            clip_width == downsample[1],
            "vision.clip.width {clip_width} is not SAM's last width {}, which feeds it",
            downsample[1]
        );
        if let Some(layer) = global_layers.iter().find(|&&layer| layer >= layers) {
            ensure!(false, "vision.sam.global_layers names layer {layer} of {layers}");
        }
        ensure!(self.max_crops <= 64, "vision.max_crops is {}", self.max_crops);
        ensure!(
            self.max_crops == 0 || (1..=self.max_crops).contains(&self.min_crops),
            "vision.min_crops {} is not in 1..={}",
            self.min_crops,
            self.max_crops
        );
        ensure!(
            (self.image_token as usize) < decoder.vocab,
            "vision.image_token {} is not below vocab {}",
            self.image_token,
            decoder.vocab
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preset() -> ModelSpec {
        toml::from_str(include_str!("../../conf/models/deepseek-ocr.toml")).expect("the preset parses")
    }

    #[test]
    fn the_published_decoder_has_its_published_size() {
        // The rest of the whole model's 3,336,106,240 is the image side.
        assert_eq!(preset().decoder.parameters(), 2_934_734_080);
        assert!(preset().validate().is_ok());
    }

    #[test]
    fn an_impossible_dimension_is_named() {
        let refused = |change: fn(&mut ModelSpec)| {
            let mut spec = preset();
            change(&mut spec);
            spec.validate().expect_err("refused").to_string()
        };
        assert!(refused(|s| s.decoder.layers = 0).contains("decoder.layers is 0"));
        assert!(refused(|s| s.decoder.kv_heads = 3).contains("no multiple of kv_heads 3"));
        assert!(refused(|s| s.decoder.head_dim = 7).contains("odd"));
        assert!(refused(|s| s.decoder.rope_theta = f64::NAN).contains("rope_theta"));
        assert!(refused(|s| s.decoder.hidden = usize::MAX).contains("decoder.hidden"));
        assert!(refused(|s| s.decoder.moe.as_mut().expect("a mixture").top_k = 65).contains("top_k 65"));
        assert!(refused(|s| s.vision.as_mut().expect("vision").clip.width = 512).contains("SAM's last width"));
        assert!(refused(|s| s.vision.as_mut().expect("vision").image_token = u32::MAX).contains("image_token"));
    }
}
