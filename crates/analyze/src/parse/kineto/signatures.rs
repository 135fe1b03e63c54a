//! Distinct signatures of operators. Shapes are parsed once per signature.

use foldhash::HashMap;
use llmprof_core::trace::framework::OperatorSignature;
use serde::{Deserialize, Deserializer, de::IgnoredAny};

/// Maximum memory of all signatures as written, bytes.
const MAX_SIGNATURES: usize = 256 << 20;

/// Signatures by their text.
#[derive(Debug, Default)]
pub struct Signatures {
    known: HashMap<String, u32>,
    all: Vec<OperatorSignature>,
    key: String,
    bytes: usize,
}

impl Signatures {
    /// Index of a signature, given as the texts of the event.
    pub fn index(&mut self, name: &str, dims: &str, types: &str, values: &str) -> u32 {
        self.key.clear();
        for text in [name, "\0", dims, "\0", types, "\0", values] {
            self.key.push_str(text);
        }
        if let Some(known) = self.known.get(&self.key) {
            return *known;
        }
        let index = self.all.len() as u32;
        self.bytes += 4 * self.key.len() + size_of::<OperatorSignature>();
        self.known.insert(self.key.clone(), index);
        self.all.push(OperatorSignature {
            name: name.to_owned(),
            shapes: shapes(dims),
            types: serde_json::from_str(types).unwrap_or_default(),
            values: serde_json::from_str(values).unwrap_or_default(),
        });
        index
    }

    /// True if signatures take more memory than in any program.
    pub const fn is_full(&self) -> bool {
        self.bytes > MAX_SIGNATURES
    }

    pub fn into_all(self) -> Vec<OperatorSignature> {
        self.all
    }
}

/// Shapes of the inputs; all absent if one is not a list.
fn shapes(text: &str) -> Vec<Vec<u64>> {
    let inputs: Vec<InputShape> = serde_json::from_str(text).unwrap_or_default();
    inputs.into_iter().map(|it| it.0).collect()
}

/// The shape of one input; empty for a list of tensors.
struct InputShape(Vec<u64>);

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Tensor(Vec<u64>),
    Other(IgnoredAny),
}

impl<'de> Deserialize<'de> for InputShape {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(match Written::deserialize(from)? {
            Written::Tensor(sides) => Self(sides),
            Written::Other(_) => Self(vec![]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_those_of_tensors_and_equal_texts_are_one_signature() {
        let mut all = Signatures::default();
        let dims = "[[2, 3], [], [[1, 2], [3, 4]], [3]]";
        let types = r#"["float", "Scalar", "TensorList", "c10::Half"]"#;
        assert_eq!(all.index("aten::cat", dims, types, "[]"), 0);
        assert_eq!(all.index("aten::cat", dims, types, "[]"), 0);
        assert_eq!(all.index("aten::cat", "broken", "", ""), 1);
        assert_eq!(all.index("aten::cat", dims, types, r#"["", "True"]"#), 2);
        let all = all.into_all();
        assert_eq!(all[0].shapes, [vec![2, 3], vec![], vec![], vec![3]]);
        assert_eq!(all[0].types[3], "c10::Half");
        assert_eq!(all[2].values, ["", "True"]);
        assert_eq!((all[1].shapes.len(), all[1].types.len()), (0, 0));
    }
}
