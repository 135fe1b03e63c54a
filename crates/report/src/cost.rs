//! The static cost of a model as JSON, Markdown and CSV. It needs no run.

use minijinja::{
    context,
    value::{Serde, Value},
};
use serde::{Deserialize, Serialize};

use super::{engine, json, tables};
pub use llmprof_analyze::cost::InputsProblem;
use llmprof_analyze::cost::{
    self, CONVENTIONS, Cost, CostInputs, CostOfModule, Prompts, by_layer, by_module,
};
use llmprof_core::{
    domain::{dtype::Dtype, model::ModelSpec},
    trace::event::ImageViews,
};

/// Version of [`ModelCost`]; it grows when a field changes its meaning or is removed.
const SCHEMA_VERSION: u32 = 2;

/// The model and inputs to count.
#[derive(Debug, Clone, Copy)]
pub struct CostRequest<'a> {
    pub model: &'a ModelSpec,
    /// Name of the inputs in the request.
    pub inputs: Option<&'a str>,
    /// Samples of the inputs. The first one is `prompt` and `images`.
    pub samples: usize,
    pub prompt: Option<&'a str>,
    /// Width and height of each image.
    pub images: &'a [(u32, u32)],
    pub prompt_tokens: Option<u64>,
    pub new_tokens: u64,
    /// Sequences of these inputs that are computed at the same time.
    pub batch: u64,
    /// The model's dtype when absent.
    pub dtype: Option<Dtype>,
    /// Parts of a path that the table by module distinguishes.
    pub depth: usize,
    /// Each layer has rows of its own.
    pub per_layer: bool,
}

/// Parts of a path that distinguish SAM, CLIP, the projector and the decoder's layers.
pub const DEPTH: usize = 2;

/// FLOPs and bytes of a model for given inputs, only from its architecture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ModelCost {
    #[cfg_attr(feature = "schema", schema(example = 2))]
    pub schema_version: u32,
    #[cfg_attr(feature = "schema", schema(example = "deepseek-ocr"))]
    pub model: String,
    pub dtype: Dtype,
    /// Manifest of the inputs; `null` if a number of prompt positions replaces them.
    pub inputs: Option<String>,
    /// Sequences of these inputs, computed at the same time.
    #[serde(default = "one")]
    pub batch: u64,
    /// Positions of images in each sequence.
    pub image_tokens: u64,
    /// Views of each image.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub images: Vec<ImageViews>,
    /// Rules for counting FLOPs and bytes.
    pub conventions: Vec<String>,
    /// Parts that are not counted.
    pub notes: Vec<String>,
    /// The operators of `cost`, summed by module.
    pub by_module: Vec<CostOfModule>,
    pub cost: Cost,
}

const fn one() -> u64 {
    1
}

/// Counts the cost of a request.
pub fn model_cost(request: &CostRequest) -> Result<ModelCost, InputsProblem> {
    let needs = cost::needs(
        request.model,
        request.prompt,
        request.images,
        request.prompt_tokens,
        request.new_tokens,
    )?;
    let dtype = request.dtype.unwrap_or(request.model.dtype);
    let images: Vec<ImageViews> =
        (0..request.batch).flat_map(|_| needs.images.iter().cloned()).collect();
    let work = CostInputs {
        images: &images,
        prompts: Prompts::equal(needs.prompt_tokens, request.batch),
        new_tokens: request.new_tokens,
        element_bytes: dtype.bytes(),
    };
    let count = if request.per_layer { cost::cost_per_layer } else { cost::cost };
    let cost = count(request.model, &work);
    let no_images = request.model.vision.is_some() && needs.images.is_empty();
    let note = "No images were given: vision has parameters here but no FLOPs.".to_owned();
    let first = format!(
        "The inputs have {} samples: the first one is counted, in each sequence of the batch.",
        request.samples
    );
    let notes = [(no_images, note), (request.samples > 1, first)];
    Ok(ModelCost {
        schema_version: SCHEMA_VERSION,
        model: request.model.name.clone(),
        dtype,
        inputs: request.inputs.map(str::to_owned),
        batch: request.batch,
        image_tokens: needs.image_tokens,
        conventions: CONVENTIONS.map(str::to_owned).to_vec(),
        notes: notes.into_iter().filter_map(|(is_so, note)| is_so.then_some(note)).collect(),
        by_module: match request.per_layer {
            true => by_layer(&cost, request.depth),
            false => by_module(&cost, request.depth),
        },
        cost,
        images: needs.images,
    })
}

impl ModelCost {
    /// For programs.
    pub fn json(&self) -> String {
        json(self)
    }

    /// For people.
    pub fn markdown(&self) -> String {
        let page = context! {
            answer => Value::from(Serde(self)),
            dtype => self.dtype.as_str(),
            modules => Value::from(Serde(tables::module_costs(&self.cost, &self.by_module))),
            costs => Value::from(Serde(tables::cost_table(&self.cost))),
        };
        engine::render("cost.md", page)
    }

    /// For spreadsheets: one row per operator.
    pub fn csv(&self) -> String {
        tables::cost_csv(&self.cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_lists_the_same_operators() {
        let (_, text) = llmprof_core::domain::model::PRESETS[1];
        let model = ModelSpec { name: "a|b".into(), ..toml::from_str(text).unwrap() };
        let asked = CostRequest {
            model: &model,
            inputs: None,
            samples: 0,
            prompt: None,
            images: &[],
            prompt_tokens: Some(64),
            new_tokens: 4,
            batch: 1,
            dtype: Some(Dtype::F16),
            depth: DEPTH,
            per_layer: false,
        };
        let answer = model_cost(&asked).unwrap();
        let rows = answer.cost.modules.len();
        assert_eq!(answer.csv().lines().count(), rows + 1);
        let lines = rows + answer.by_module.len() + 2 * 3;
        assert_eq!(
            answer.markdown().lines().filter(|line| line.starts_with("| ")).count(),
            lines,
            "two heads, rules and sums"
        );
        assert!(answer.markdown().starts_with("# Static cost of a\\|b"), "{}", answer.markdown());
        let read: ModelCost = serde_json::from_str(&answer.json()).unwrap();
        assert_eq!(read, answer);
    }

    #[test]
    fn vision_is_read_by_module_and_images_that_are_missing_are_noted() {
        let (_, text) = llmprof_core::domain::model::PRESETS[0];
        let model = ModelSpec { name: "deepseek-ocr".into(), ..toml::from_str(text).unwrap() };
        let asked = |images: &'static [(u32, u32)], prompt_tokens| CostRequest {
            model: &model,
            inputs: None,
            samples: 1,
            prompt: Some("read"),
            images,
            prompt_tokens,
            new_tokens: 4,
            batch: 1,
            dtype: None,
            depth: DEPTH,
            per_layer: false,
        };
        let with = model_cost(&asked(&[(600, 400)], None)).unwrap();
        let of = |path: &str| with.by_module.iter().find(|it| it.path == path).unwrap().clone();
        let vision: u64 = ["vision.sam", "vision.clip", "vision.projector", "vision.assemble"]
            .map(|path| of(path).prefill_flops)
            .iter()
            .sum();
        assert_eq!((vision, with.notes.len()), (with.cost.vision_flops, 0));
        assert!(
            of("vision.projector").parameters == 2048 * 1280 + 1280
                && of("vision.sam").prefill_activation_bytes > 0
        );
        let per_layer = CostRequest { per_layer: true, ..asked(&[(600, 400)], None) };
        let rows = model_cost(&per_layer).unwrap().by_module;
        let last = ["vision.sam.blocks.11", "vision.clip.layers.23", "decoder.layers.11"];
        assert!(last.iter().all(|last| rows.iter().any(|row| row.path == *last)), "{rows:?}");
        let first = model_cost(&CostRequest { samples: 2, ..asked(&[(600, 400)], None) }).unwrap();
        assert!(first.notes[0].starts_with("The inputs have 2 samples"), "{:?}", first.notes);
        let without = model_cost(&asked(&[], Some(64))).unwrap();
        assert_eq!(without.cost.vision_flops, 0);
        assert!(
            without.notes[0].starts_with("No images were given")
                && without.markdown().contains("No images were given")
        );
    }
}
