//! CLIP and SAM compared with Hugging Face transformers: fixtures of `tests/reference/make.py`, on
//! the CPU in f32.
//!
//! Each at the size of its learned tables, at a smaller and at a larger one, several views at once.

use llmprof_core::domain::model::{ClipSpec, SamSpec};

use super::{clip::Clip, sam::Sam};
use crate::models::reference::{Fixture, assert_close};

#[test]
fn clip_equals_transformers_at_every_size() -> anyhow::Result<()> {
    let fixture = Fixture::open("clip", "dimensions.json")?;
    let spec: ClipSpec = serde_json::from_str(&fixture.description)?;
    let sides = [spec.grid, 3, 6];
    let clip = Clip::new(&fixture.root, &spec, &sides)?;
    for side in sides {
        let got = clip.forward(fixture.tensor(&format!("input.{side}")))?;
        assert_close(
            &got,
            fixture.tensor(&format!("output.{side}")),
            &format!("a grid of {side}"),
        )?;
    }
    Ok(())
}

#[test]
fn sam_equals_transformers_at_every_size() -> anyhow::Result<()> {
    let fixture = Fixture::open("sam", "dimensions.json")?;
    let spec: SamSpec = serde_json::from_str(&fixture.description)?;
    let sides = [spec.image_px, 20, 48];
    let sam = Sam::new(&fixture.root, &spec, &sides)?;
    for side in sides {
        let got = sam.forward(fixture.tensor(&format!("input.{side}")))?;
        assert_close(
            &got,
            fixture.tensor(&format!("output.{side}")),
            &format!("a view of {side} pixels"),
        )?;
    }
    Ok(())
}
