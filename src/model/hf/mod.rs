//! Reads a Hugging Face `config.json` into a [`ModelSpec`].
//!
//! Pure: takes the text. An architecture that the runner could not build is refused by name, not approximated. A further family is
//! a file here and a word in [`FAMILIES`].

mod deepseek_ocr;
mod dense;
mod fields;

use serde_json::Value;

use self::fields::Fields;
use super::{ModelError, ModelSpec};

/// A family of published models.
struct Family {
    /// Whether a config is of this family.
    knows: fn(&Fields) -> bool,
    read: fn(&Fields) -> Result<ModelSpec, ModelError>,
}

/// Every family that is read. The first that knows a config reads it.
const FAMILIES: &[Family] = &[deepseek_ocr::FAMILY, dense::FAMILY];

/// Converts the text of a `config.json`.
pub fn parse_config(name: &str, text: &str) -> Result<ModelSpec, ModelError> {
    let json: Value = serde_json::from_str(text).map_err(|e| ModelError::Parse(e.to_string()))?;
    let root = Fields::of(&json);
    let unknown = || ModelError::Unsupported(format!("model_type {:?}", root.text("model_type").unwrap_or_default()));
    let family = FAMILIES.iter().find(|family| (family.knows)(&root)).ok_or_else(unknown)?;
    let spec = ModelSpec { name: name.to_owned(), ..(family.read)(&root)? };
    spec.validate()?;
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_family_knows_is_refused_by_name() {
        let refused = |text: &str| parse_config("x", text).expect_err("refused").to_string();
        assert!(refused(r#"{"model_type": "mamba"}"#).contains("mamba"));
        assert!(refused("[]").contains("model_type"));
        assert!(refused("{").contains("EOF"));
    }
}
