//! Parts of a tiny model, built alone and extracted from their layer.

use candle_core::{DType, Device};

use super::*;
use crate::{record::Recorder, weights};

fn tiny() -> ModelSpec {
    let spec: ModelSpec =
        toml::from_str(include_str!("../../../../conf/models/deepseek-ocr-tiny.toml"))
            .expect("the preset parses");
    ModelSpec { name: "tiny".to_owned(), ..spec }
}

fn part(path: &str, extracted: bool) -> std::result::Result<(ModelPart, Recorder), PartError> {
    let spec = tiny();
    let recorder = Recorder::new();
    let root = Site::root(weights::synthetic(1, DType::F32, &Device::Cpu), recorder.clone());
    let pixels =
        |count: usize, side: usize| Tensor::zeros((count, 3, side, side), DType::F32, &Device::Cpu);
    let views = llmprof_core::trace::event::ImageViews {
        width: 1,
        height: 1,
        global_px: 256,
        crop_px: 160,
        crops_wide: 2,
        crops_high: 1,
        tokens: 1,
    };
    let pages = [PageTensors { views, global: pixels(1, 256)?, crops: Some(pixels(2, 160)?) }];
    let place =
        PartRequest { spec: &spec, path, seed: 4, prompt_tokens: 9, capacity: 12, pages: &pages };
    ModelPart::new(&root, &place, extracted).map(|part| (part, recorder))
}

#[test]
fn a_part_has_the_operator_paths_of_the_whole_model() -> anyhow::Result<()> {
    for path in [
        "decoder.layers.0.mlp",
        "decoder.layers.3.self_attn",
        "decoder.layers.2",
        "vision.sam.blocks.2",
        "vision.clip.layers.1",
    ] {
        let (mut part, recorder) = part(path, false)?;
        tiny().check_part(path)?;
        assert_eq!(part.has_steps(), llmprof_core::domain::model::parts::has_decode_steps(path));
        part.prefill()?;
        if part.has_steps() {
            part.step()?;
        }
        let calls = recorder.drain().into_iter().filter_map(|event| match event {
            llmprof_core::trace::event::Event::Op(call) => Some(call.path),
            _ => None,
        });
        let (mine, others): (Vec<_>, Vec<_>) = calls.partition(|call| call.starts_with(path));
        assert!(!mine.is_empty() && others.is_empty(), "{path}: {others:?}");
    }
    Ok(())
}

#[test]
fn an_extracted_part_has_the_outputs_of_the_part_alone() -> anyhow::Result<()> {
    for path in ["decoder.layers.1.mlp", "decoder.layers.3.self_attn"] {
        assert!(part(path, true)?.0.has_steps());
    }
    Ok(())
}

#[test]
fn an_unknown_part_is_refused_with_a_list_of_parts() {
    for path in [
        "",
        "decoder.layers.4",
        "decoder.layers.0.norm",
        "vision.sam.blocks.x",
        "vision.sam.blocks.1.attn",
        "encoder",
    ] {
        let refused = part(path, false).err().expect("refused").to_string();
        assert!(
            refused.contains("is not a part of tiny: it has decoder.layers.0 to 3"),
            "{refused}"
        );
        assert!(tiny().check_part(path).is_err(), "{path}");
    }
}
