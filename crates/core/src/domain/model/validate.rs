//! Validation of a model's dimensions.
//!
//! Pure arithmetic; the first invalid value is the error. Does not check if a model fits a device.

use super::{ClipSpec, DecoderSpec, ModelError, ModelSpec, MoeSpec, SamSpec, VisionSpec};

/// Above every known model, and small enough not to overflow.
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
    /// Checks the dimensions; returns the first invalid one.
    pub fn validate(&self) -> Result<(), ModelError> {
        self.decoder.validate()?;
        self.vision.as_ref().map_or(Ok(()), |vision| vision.validate(&self.decoder))
    }
}

fn check_sizes(part: &str, sizes: &[(&str, usize, usize)]) -> Result<(), ModelError> {
    for (name, size, max) in sizes {
        ensure!((1..=*max).contains(size), "{part}.{name} is {size}, not in 1..={max}");
    }
    Ok(())
}

impl DecoderSpec {
    fn validate(&self) -> Result<(), ModelError> {
        check_sizes(
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
            "decoder.heads {} is not a multiple of kv_heads {}",
            self.heads,
            self.kv_heads
        );
        ensure!(
            self.head_dim.is_multiple_of(2),
            "decoder.head_dim {} is odd; rotary positions need pairs",
            self.head_dim
        );
        ensure!(
            self.rope_theta.is_finite() && self.rope_theta > 0.0,
            "decoder.rope_theta is {}",
            self.rope_theta
        );
        if let Some(problem) = self.rope_scaling.as_ref().and_then(|scaling| scaling.problem()) {
            ensure!(false, "decoder.rope_scaling: {problem}");
        }
        ensure!(
            self.rms_norm_eps.is_finite() && self.rms_norm_eps > 0.0,
            "decoder.rms_norm_eps is {}",
            self.rms_norm_eps
        );
        ensure!(
            (self.bos_token as usize) < self.vocab,
            "decoder.bos_token {} is not below vocab {}",
            self.bos_token,
            self.vocab
        );
        if let Some(moe) = &self.moe {
            moe.validate(self.layers)?;
        }
        let parameters = self.parameters();
        ensure!(parameters <= MAX_PARAMETERS, "the decoder would have {parameters} parameters");
        Ok(())
    }
}

impl MoeSpec {
    fn validate(&self, layers: usize) -> Result<(), ModelError> {
        let sizes = [
            ("experts", self.experts, 1 << 16),
            ("top_k", self.top_k, 1 << 16),
            ("intermediate", self.intermediate, MAX_DIMENSION),
        ];
        check_sizes("decoder.moe", &sizes)?;
        ensure!(
            self.top_k <= self.experts,
            "decoder.moe.top_k {} is more than its {} experts",
            self.top_k,
            self.experts
        );
        ensure!(
            self.first_layer <= layers,
            "decoder.moe.first_layer {} is past the last of {layers} layers",
            self.first_layer
        );
        ensure!(self.shared <= MAX_LAYERS, "decoder.moe.shared is {}", self.shared);
        Ok(())
    }
}

impl VisionSpec {
    fn validate(&self, decoder: &DecoderSpec) -> Result<(), ModelError> {
        let (sam, clip) = (&self.sam, &self.clip);
        check_sizes(
            "vision",
            &[
                ("global_px", self.global_px, MAX_VIEW_PX),
                ("crop_px", self.crop_px, MAX_VIEW_PX),
                ("sam.image_px", sam.image_px, MAX_VIEW_PX),
            ],
        )?;
        sam.validate()?;
        clip.validate()?;
        for (name, px) in [
            ("global_px", self.global_px),
            ("crop_px", self.crop_px),
            ("sam.image_px", sam.image_px),
        ] {
            ensure!(
                px.is_multiple_of(sam.patch),
                "vision.{name} {px} is not a multiple of the patch {}",
                sam.patch
            );
        }
        ensure!(
            clip.width == sam.downsample[1],
            "vision.clip.width {} is not SAM's last width {}, which feeds it",
            clip.width,
            sam.downsample[1]
        );
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

impl SamSpec {
    fn validate(&self) -> Result<(), ModelError> {
        check_sizes(
            "vision.sam",
            &[
                ("patch", self.patch, 1024),
                ("width", self.width, MAX_DIMENSION),
                ("layers", self.layers, MAX_LAYERS),
                ("heads", self.heads, MAX_DIMENSION),
                ("mlp", self.mlp, MAX_DIMENSION),
                ("window", self.window, MAX_VIEW_PX),
                ("neck", self.neck, MAX_DIMENSION),
                ("downsample[0]", self.downsample[0], MAX_DIMENSION),
                ("downsample[1]", self.downsample[1], MAX_DIMENSION),
            ],
        )?;
        ensure!(
            self.width.is_multiple_of(self.heads),
            "vision.sam.width {} is not a multiple of its {} heads",
            self.width,
            self.heads
        );
        if let Some(layer) = self.global_layers.iter().find(|&&layer| layer >= self.layers) {
            ensure!(false, "vision.sam.global_layers contains layer {layer} of {}", self.layers);
        }
        Ok(())
    }
}

impl ClipSpec {
    fn validate(&self) -> Result<(), ModelError> {
        check_sizes(
            "vision.clip",
            &[
                ("width", self.width, MAX_DIMENSION),
                ("layers", self.layers, MAX_LAYERS),
                ("heads", self.heads, MAX_DIMENSION),
                ("mlp", self.mlp, MAX_DIMENSION),
                ("grid", self.grid, MAX_VIEW_PX),
            ],
        )?;
        ensure!(
            self.width.is_multiple_of(self.heads),
            "vision.clip.width {} is not a multiple of its {} heads",
            self.width,
            self.heads
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preset() -> ModelSpec {
        toml::from_str(include_str!("../../../../../conf/models/deepseek-ocr.toml"))
            .expect("the preset parses")
    }

    #[test]
    fn the_published_decoder_has_its_published_size() {
        // The rest of the model's 3,336,106,240 parameters is the image encoder.
        assert_eq!(preset().decoder.parameters(), 2_934_734_080);
        assert!(preset().validate().is_ok());
    }

    #[test]
    fn an_impossible_dimension_is_named() {
        let refused = |change: fn(&mut ModelSpec)| {
            let mut spec = preset();
            change(&mut spec);
            spec.validate().expect_err("rejected").to_string()
        };
        assert!(refused(|s| s.decoder.layers = 0).contains("decoder.layers is 0"));
        assert!(refused(|s| s.decoder.kv_heads = 3).contains("not a multiple of kv_heads 3"));
        assert!(refused(|s| s.decoder.head_dim = 7).contains("odd"));
        assert!(refused(|s| s.decoder.rope_theta = f64::NAN).contains("rope_theta"));
        assert!(refused(|s| s.decoder.hidden = usize::MAX).contains("decoder.hidden"));
        assert!(
            refused(|s| s.decoder.moe.as_mut().expect("a mixture").top_k = 65).contains("top_k 65")
        );
        assert!(
            refused(|s| s.vision.as_mut().expect("vision").clip.width = 512)
                .contains("SAM's last width")
        );
        assert!(
            refused(|s| s.vision.as_mut().expect("vision").image_token = u32::MAX)
                .contains("image_token")
        );
    }
}
