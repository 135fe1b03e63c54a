//! Frequencies of rotary positions, unscaled and scaled for a longer context.
//!
//! Pure arithmetic in f64; the runner computes the tables of angles.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};

use super::DecoderSpec;

/// Scaling of rotary frequencies for a context longer than the originally trained one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// Llama 3.1's, by wavelength `l = 2 pi / f` against the original context `L`: `f` if
    /// `l < L / high`, `f / factor` if `l > L / low`, and between them `(1 - s) f / factor + s f`
    /// with `s = (L / l - low) / (high - low)`. Source: `apply_scaling` in Meta's llama-models,
    /// `_compute_llama3_parameters` in transformers.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_positions: usize,
    },
}

impl RopeScaling {
    /// Returns the first impossible value, if any.
    pub(crate) fn problem(&self) -> Option<String> {
        let Self::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_positions,
        } = *self;
        if !(factor.is_finite() && factor >= 1.0) {
            return Some(format!("factor is {factor}, expected at least 1"));
        }
        if !(high.is_finite() && 0.0 < low && low < high) {
            return Some(format!(
                "low_freq_factor {low} is not between 0 and high_freq_factor {high}"
            ));
        }
        (original_max_positions == 0).then(|| "original_max_positions is 0".to_owned())
    }

    fn scale(&self, frequency: f64) -> f64 {
        let Self::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_positions,
        } = *self;
        // Turns in the original context, `L / l`: the bounds on wavelengths are bounds on these.
        let turns = original_max_positions as f64 * frequency / TAU;
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 - kept) * frequency / factor + kept * frequency
    }
}

impl DecoderSpec {
    /// Radians per position of each pair of a head's elements: `theta^(-2i / head_dim)`, scaled by
    /// `rope_scaling`.
    pub fn rope_frequencies(&self) -> Vec<f64> {
        let unscaled = (0..self.head_dim / 2)
            .map(|i| self.rope_theta.powf(-2.0 * i as f64 / self.head_dim as f64));
        match &self.rope_scaling {
            Some(scaling) => unscaled.map(|frequency| scaling.scale(frequency)).collect(),
            None => unscaled.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA_3_1: RopeScaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 8192,
    };

    #[test]
    fn short_waves_are_kept_long_ones_divided_and_those_between_blended() {
        let scaled = |wavelength: f64| LLAMA_3_1.scale(TAU / wavelength) * wavelength / TAU;
        for (wavelength, share) in [(2000.0, 1.0), (2048.0, 1.0), (8192.0, 0.125), (9000.0, 0.125)]
        {
            assert!(
                (scaled(wavelength) - share).abs() < 1e-12,
                "{wavelength}: {}",
                scaled(wavelength)
            );
        }
        // L / l = 2 is a third of the way from 1 to 4.
        assert!((scaled(4096.0) - (2.0 / 3.0 / 8.0 + 1.0 / 3.0)).abs() < 1e-12);
    }

    #[test]
    fn an_impossible_scaling_is_rejected() {
        let problem = |factor, low_freq_factor, high_freq_factor, original_max_positions| {
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_positions,
            }
            .problem()
        };
        assert_eq!(LLAMA_3_1.problem(), None);
        assert!(problem(0.5, 1.0, 4.0, 8192).is_some_and(|it| it.contains("factor is 0.5")));
        assert!(problem(f64::NAN, 1.0, 4.0, 8192).is_some());
        assert!(problem(8.0, 4.0, 4.0, 8192).is_some_and(|it| it.contains("low_freq_factor 4")));
        assert!(problem(8.0, 0.0, 4.0, 8192).is_some());
        assert!(problem(8.0, 1.0, 4.0, 0).is_some_and(|it| it.contains("original_max_positions")));
    }
}
