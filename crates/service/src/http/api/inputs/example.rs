//! Examples of stored inputs in the contract.

use llmprof_core::domain::{
    ids::InputsId,
    inputs::{ImageFormat, InputSample, InputSet, StoredImage},
};

use super::{InputsList, InputsSummary, InputsView, ManifestName};
use crate::store::StoredInputs;

fn id() -> InputsId {
    "019aa2d4-77b0-7e15-b6c3-0d9e51f2a834".parse().expect("the example's id is a UUID")
}

fn stored() -> StoredInputs {
    StoredInputs {
        id: id(),
        owner: Some("ann".into()),
        name: "invoices".into(),
        samples: 1,
        images: 1,
        bytes: 102_400,
        created_at: "2026-11-20T09:00:00.000Z".into(),
        used_at: "2026-11-20T09:00:00.000Z".into(),
        prompt: "Convert the document to markdown.".into(),
        needed_by: None,
    }
}

pub(super) fn view() -> InputsView {
    let prompt = "Convert the document to markdown.".into();
    let image = StoredImage {
        name: "page.png".into(),
        sha256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".into(),
        bytes: 102_400,
        width: 1240,
        height: 1754,
        format: ImageFormat::Png,
    };
    let samples = vec![InputSample { prompt, images: vec![0] }];
    InputsView::of(stored(), InputSet { samples, images: vec![image], seed: None })
}

pub(super) fn list() -> InputsList {
    let manifests = vec![ManifestName { name: "inputs.yaml".into(), bundled: true }];
    InputsList { inputs: vec![InputsSummary::from(stored())], manifests, next_cursor: None }
}
