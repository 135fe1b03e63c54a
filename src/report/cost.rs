//! A static cost as an answer: for programs, for people, for spreadsheets. No run is needed for it.
//!
//! Formats what [`crate::analyze::cost`] counts; asks neither files nor devices.

use minijinja::{
    context,
    value::{Serde, Value},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{csv, escape, json, tables};
pub use crate::analyze::cost::InputsProblem;
use crate::{
    analyze::cost::{self, CONVENTIONS, Cost, CostOfModule, Workload, by_module},
    model::ModelSpec,
    run::Dtype,
    trace::event::ImageViews,
};

/// Version of [`ModelCost`]; it grows when a field changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

/// What a cost is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub model: &'a ModelSpec,
    /// Name of the inputs, as it was given.
    pub inputs: Option<&'a str>,
    pub prompt: Option<&'a str>,
    /// Width and height of each image.
    pub images: &'a [(u32, u32)],
    pub prompt_tokens: Option<u64>,
    pub new_tokens: u64,
    /// The model's own when absent.
    pub dtype: Option<Dtype>,
    /// Parts of a path that the table by module tells apart.
    pub depth: usize,
}

/// Parts of a path that tell SAM, CLIP, the projector and the decoder's layers apart.
pub const DEPTH: usize = 2;

/// What a model needs for given inputs, from its architecture alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelCost {
    #[schema(example = 1)]
    pub schema_version: u32,
    #[schema(example = "deepseek-ocr")]
    pub model: String,
    pub dtype: Dtype,
    /// Manifest of the inputs; `null` where a number of prompt positions stood for them.
    pub inputs: Option<String>,
    /// Part of the cost's `prompt_tokens`.
    pub image_tokens: u64,
    /// How each image is cut.
    #[schema(value_type = Vec<Object>)]
    pub images: Vec<ImageViews>,
    /// How FLOPs and bytes are counted.
    pub conventions: Vec<String>,
    /// What was not counted.
    pub notes: Vec<String>,
    /// The operators of `cost`, summed by module.
    pub by_module: Vec<CostOfModule>,
    pub cost: Cost,
}

/// Counts what was asked for.
pub fn model_cost(asked: &Asked) -> Result<ModelCost, InputsProblem> {
    let needs = cost::needs(asked.model, asked.prompt, asked.images, asked.prompt_tokens, asked.new_tokens)?;
    let dtype = asked.dtype.unwrap_or(asked.model.dtype);
    let work = Workload {
        images: &needs.images,
        prompt_tokens: needs.prompt_tokens,
        new_tokens: asked.new_tokens,
        element_bytes: dtype.bytes(),
    };
    let cost = cost::cost(asked.model, &work);
    let no_images = asked.model.vision.is_some() && needs.images.is_empty();
    let note = "No images are counted: the model reads them, and none were given. Vision has its parameters here and no FLOPs.";
    Ok(ModelCost {
        schema_version: SCHEMA_VERSION,
        model: asked.model.name.clone(),
        dtype,
        inputs: asked.inputs.map(str::to_owned),
        image_tokens: needs.image_tokens,
        conventions: CONVENTIONS.map(str::to_owned).to_vec(),
        notes: no_images.then(|| note.to_owned()).into_iter().collect(),
        by_module: by_module(&cost, asked.depth),
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
        let engine = escape::engine();
        let template = engine.get_template("cost.md").expect("the template is embedded: a test renders it");
        let page = context! {
            answer => Value::from(Serde(self)),
            dtype => self.dtype.as_str(),
            modules => Value::from(Serde(tables::module_costs(&self.cost, &self.by_module))),
            costs => Value::from(Serde(tables::cost_table(&self.cost))),
        };
        template.render(page).expect("the template asks only for what the page holds: a test renders it")
    }

    /// For spreadsheets: one row per operator.
    pub fn csv(&self) -> String {
        csv::costs(&self.cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_tells_of_the_same_operators() {
        let (_, text) = crate::model::PRESETS[1];
        let model = ModelSpec { name: "a|b".into(), ..toml::from_str(text).unwrap() };
        let asked = Asked {
            model: &model,
            inputs: None,
            prompt: None,
            images: &[],
            prompt_tokens: Some(64),
            new_tokens: 4,
            dtype: Some(Dtype::F16),
            depth: DEPTH,
        };
        let answer = model_cost(&asked).unwrap();
        let rows = answer.cost.modules.len();
        assert_eq!(answer.csv().lines().count(), rows + 1);
        let lines = rows + answer.by_module.len() + 2 * 3;
        assert_eq!(answer.markdown().lines().filter(|line| line.starts_with("| ")).count(), lines, "two heads, rules and sums");
        assert!(answer.markdown().starts_with("# What a\\|b needs"), "{}", answer.markdown());
        let read: ModelCost = serde_json::from_str(&answer.json()).unwrap();
        assert_eq!(read, answer);
    }

    #[test]
    fn vision_is_read_by_module_and_images_that_are_missing_are_noted() {
        let (_, text) = crate::model::PRESETS[0];
        let model = ModelSpec { name: "deepseek-ocr".into(), ..toml::from_str(text).unwrap() };
        let asked = |images: &'static [(u32, u32)], prompt_tokens| Asked {
            model: &model,
            inputs: None,
            prompt: Some("read"),
            images,
            prompt_tokens,
            new_tokens: 4,
            dtype: None,
            depth: DEPTH,
        };
        let with = model_cost(&asked(&[(600, 400)], None)).unwrap();
        let of = |path: &str| with.by_module.iter().find(|it| it.path == path).unwrap().clone();
        let vision: u64 =
            ["vision.sam", "vision.clip", "vision.projector", "vision.assemble"].map(|path| of(path).prefill_flops).iter().sum();
        assert_eq!((vision, with.notes.len()), (with.cost.vision_flops, 0));
        assert!(of("vision.projector").parameters == 2048 * 1280 + 1280 && of("vision.sam").prefill_activation_bytes > 0);
        let without = model_cost(&asked(&[], Some(64))).unwrap();
        assert_eq!(without.cost.vision_flops, 0);
        assert!(without.notes[0].starts_with("No images are counted") && without.markdown().contains("No images are counted"));
    }
}
