//! Parts of a model that can run alone, by their module paths.

use super::ModelSpec;

/// A path that does not lead to such a part.
#[derive(Debug, thiserror::Error)]
#[error("{path:?} is not a part of {model}: {known}")]
pub struct UnknownPart {
    path: String,
    model: String,
    known: String,
}

impl ModelSpec {
    /// Checks that the part at `path` can run alone.
    pub fn check_part(&self, path: &str) -> Result<(), UnknownPart> {
        let names: Vec<&str> = path.split('.').collect();
        let below =
            |index: &str, count: usize| index.parse().is_ok_and(|index: usize| index < count);
        let is_part = match (names.as_slice(), &self.vision) {
            (["decoder", "layers", layer, rest @ ..], _) => {
                below(layer, self.decoder.layers) && matches!(rest, [] | ["self_attn" | "mlp"])
            }
            (["vision", "sam" | "clip"], Some(_)) => true,
            (["vision", "sam", "blocks", block], Some(vision)) => below(block, vision.sam.layers),
            (["vision", "clip", "layers", layer], Some(vision)) => below(layer, vision.clip.layers),
            _ => false,
        };
        if is_part { Ok(()) } else { Err(self.unknown_part(path)) }
    }

    /// Parts to offer: the first layer of each kind and its modules.
    pub fn typical_parts(&self) -> Vec<String> {
        let first_moe = self.decoder.moe.as_ref().map(|moe| moe.first_layer);
        let layers =
            [Some(0), first_moe].into_iter().flatten().filter(|it| *it < self.decoder.layers);
        let modules =
            |layer| ["", ".self_attn", ".mlp"].map(|it| format!("decoder.layers.{layer}{it}"));
        let vision = ["vision.sam", "vision.sam.blocks.0", "vision.clip", "vision.clip.layers.0"];
        let vision = vision.iter().filter(|_| self.vision.is_some()).map(|it| (*it).to_owned());
        layers.flat_map(modules).chain(vision).collect()
    }

    /// Returns the error for `path`, with the model's parts.
    pub fn unknown_part(&self, path: &str) -> UnknownPart {
        let mut known = format!(
            "it has decoder.layers.0 to {}, each with .self_attn and .mlp",
            self.decoder.layers - 1
        );
        if let Some(vision) = &self.vision {
            let (blocks, layers) = (vision.sam.layers - 1, vision.clip.layers - 1);
            known += &format!(
                ", vision.sam, vision.sam.blocks.0 to {blocks}, vision.clip, \
                 vision.clip.layers.0 to {layers}"
            );
        }
        UnknownPart { path: path.to_owned(), model: self.name.clone(), known }
    }
}

/// True if the part at this path decodes token by token, as parts of a decoder do.
pub fn has_decode_steps(path: &str) -> bool {
    path.starts_with("decoder.")
}
