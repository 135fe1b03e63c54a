//! A static cost by module: operators summed by the first segments of their paths.
//!
//! Each operator belongs to one row, so the rows add up to the cost's totals.

use serde::{Deserialize, Serialize};

use super::Cost;
use crate::operators::rolled_paths::is_index;

/// Sum over the operators of one module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CostOfModule {
    #[cfg_attr(feature = "schema", schema(example = "vision.sam"))]
    pub path: String,
    pub parameters: u64,
    pub weight_bytes: u64,
    pub prefill_flops: u64,
    /// FLOPs of all decode steps.
    pub decode_flops: u64,
    /// Activations read and written in prefill.
    pub prefill_activation_bytes: u64,
    /// Activations read and written in all decode steps.
    pub decode_activation_bytes: u64,
}

/// Sums the operators by the first `depth` path segments, in model order. A `*` or the number of a
/// layer counts as one segment with its predecessor: `decoder.layers.*`.
pub fn by_module(cost: &Cost, depth: usize) -> Vec<CostOfModule> {
    sum_by(cost, |path| first_parts(path, depth))
}

/// The same with rows of their own for each numbered layer, also of a tower whose layers are deeper
/// than `depth`.
pub fn by_layer(cost: &Cost, depth: usize) -> Vec<CostOfModule> {
    sum_by(cost, |path| {
        let (module, layer) = (first_parts(path, depth), layer_of(path).unwrap_or_default());
        if layer.len() > module.len() { layer } else { module }
    })
}

fn sum_by(cost: &Cost, module_of: impl Fn(&str) -> &str) -> Vec<CostOfModule> {
    let mut sums: Vec<CostOfModule> = Vec::new();
    for operator in &cost.modules {
        let path = module_of(&operator.path);
        let at = sums.iter().position(|sum| sum.path == path).unwrap_or_else(|| {
            sums.push(CostOfModule { path: path.to_owned(), ..CostOfModule::default() });
            sums.len() - 1
        });
        let sum = &mut sums[at];
        sum.parameters += operator.parameters;
        sum.weight_bytes += operator.weight_bytes;
        sum.prefill_flops += operator.prefill_flops;
        sum.decode_flops += operator.decode_flops;
        sum.prefill_activation_bytes += operator.prefill.activation_bytes;
        sum.decode_activation_bytes += operator.decode.activation_bytes;
    }
    sums
}

/// The path up to the number of its first layer.
fn layer_of(path: &str) -> Option<&str> {
    let mut end = 0;
    for segment in path.split('.') {
        end += segment.len();
        if is_index(segment) {
            return Some(&path[..end]);
        }
        end += 1;
    }
    None
}

fn first_parts(path: &str, depth: usize) -> &str {
    let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
    let is_layer = |segment: &str| segment == "*" || is_index(segment);
    let next = |at: usize| path[at..].trim_start_matches('.').split('.').next().unwrap_or("");
    let mut ends = ends.filter(|at| !is_layer(next(*at)));
    ends.nth(depth.saturating_sub(1)).map_or(path, |at| &path[..at])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use llmprof_core::domain::model::{ModelSpec, PRESETS};

    use super::{
        super::{CostInputs, Prompts, cost, cost_per_layer, needs},
        *,
    };

    #[test]
    fn a_wildcard_segment_counts_with_its_predecessor() {
        let path = "vision.sam.blocks.*.attn.qkv";
        let parts = [1, 2, 3, 4, 5, 9].map(|depth| first_parts(path, depth));
        assert_eq!(
            parts,
            ["vision", "vision.sam", "vision.sam.blocks.*", "vision.sam.blocks.*.attn", path, path]
        );
        assert_eq!(first_parts("vision.sam.neck.*", 3), "vision.sam.neck.*");
        assert_eq!(first_parts("decoder.layers.11.mlp.gate", 2), "decoder.layers.11");
    }

    #[test]
    fn the_layers_of_each_tower_have_a_row_at_any_depth_and_rows_add_up() {
        for (name, text) in PRESETS {
            let model: ModelSpec = toml::from_str(text).unwrap();
            let images: &[(u32, u32)] = if model.vision.is_some() { &[(600, 400)] } else { &[] };
            let prompt_tokens = if images.is_empty() { Some(100) } else { None };
            let needs = needs(&model, Some("read"), images, prompt_tokens, 4).unwrap();
            let work = CostInputs {
                images: &needs.images,
                prompts: Prompts::equal(needs.prompt_tokens, 1),
                new_tokens: 4,
                element_bytes: 2,
            };
            let whole = cost_per_layer(&model, &work);
            let vision = model.vision.as_ref();
            let towers = [
                ("vision.sam.blocks.", vision.map_or(0, |it| it.sam.layers)),
                ("vision.clip.layers.", vision.map_or(0, |it| it.clip.layers)),
                ("decoder.layers.", model.decoder.layers),
            ];
            for depth in 1..=3 {
                let rows = by_layer(&whole, depth);
                for (tower, layers) in towers {
                    // At depth 3, a layer of the decoder has several rows.
                    let inside = rows.iter().filter_map(|it| it.path.strip_prefix(tower));
                    let found: BTreeSet<&str> =
                        inside.filter_map(|it| it.split('.').next()).collect();
                    assert!(found.iter().all(|it| is_index(it)), "{name} {tower} {depth}");
                    assert_eq!(found.len(), layers, "{name} {tower} {depth}");
                }
                let flops: u64 = rows.iter().map(|it| it.prefill_flops).sum();
                assert_eq!(flops, whole.prefill_flops, "{name} {depth}");
            }
        }
    }

    #[test]
    fn modules_of_any_depth_add_up_to_the_totals() {
        for (name, text) in PRESETS {
            let model: ModelSpec = toml::from_str(text).unwrap();
            let images: &[(u32, u32)] =
                if model.vision.is_some() { &[(600, 400), (2000, 1000)] } else { &[] };
            let prompt_tokens = if images.is_empty() { Some(100) } else { None };
            let needs = needs(&model, Some("read"), images, prompt_tokens, 16).unwrap();
            let work = CostInputs {
                images: &needs.images,
                prompts: Prompts::equal(needs.prompt_tokens, 1),
                new_tokens: 16,
                element_bytes: 2,
            };
            let whole = cost(&model, &work);
            for depth in 1..=7 {
                let rows = by_module(&whole, depth);
                let sum = |field: fn(&CostOfModule) -> u64| rows.iter().map(field).sum::<u64>();
                assert_eq!(sum(|it| it.parameters), whole.parameters, "{name}");
                assert_eq!(sum(|it| it.prefill_flops), whole.prefill_flops, "{name}");
                assert_eq!(sum(|it| it.decode_flops), whole.decode_flops, "{name}");
                assert_eq!(
                    sum(|it| it.prefill_activation_bytes),
                    whole.prefill.activation_bytes,
                    "{name}"
                );
                assert_eq!(
                    sum(|it| it.decode_activation_bytes),
                    whole.decode.activation_bytes,
                    "{name}"
                );
            }
            let vision: u64 = by_module(&whole, 1)
                .iter()
                .filter(|it| it.path == "vision")
                .map(|it| it.prefill_flops)
                .sum();
            assert_eq!(vision, whole.vision_flops, "{name}");
        }
    }
}
