//! Conversion of a Hugging Face `config.json` into a [`ModelSpec`].
//!
//! Pure: takes the text. Architectures that the runner cannot build, quantised weights and other
//! fields that change the work are rejected by name, not approximated. A further family is a file
//! here and an entry in `FAMILIES`.

mod deepseek_ocr;
mod dense;
mod fields;
mod quantisation;

use serde_json::Value;

use self::fields::ConfigFields;
use super::{ModelError, ModelSpec};

/// A family of published models.
struct Family {
    /// True for a config of this family.
    matches: fn(&ConfigFields) -> bool,
    read: fn(&ConfigFields) -> Result<ModelSpec, ModelError>,
}

/// All families; the first that matches a config reads it.
const FAMILIES: &[Family] = &[deepseek_ocr::FAMILY, dense::FAMILY];

/// Converts the text of a `config.json`.
pub fn parse_config(name: &str, text: &str) -> Result<ModelSpec, ModelError> {
    let json: Value = serde_json::from_str(text).map_err(|e| ModelError::Parse(e.to_string()))?;
    quantisation::reject(&json)?;
    let root = ConfigFields::of(&json);
    let unknown = || {
        ModelError::Unsupported(format!(
            "model_type {:?}",
            root.text("model_type").unwrap_or_default()
        ))
    };
    let family = FAMILIES.iter().find(|family| (family.matches)(&root)).ok_or_else(unknown)?;
    let spec = ModelSpec { name: name.to_owned(), ..(family.read)(&root)? };
    spec.validate()?;
    Ok(spec)
}

/// True if the text of a `config.json` states the dtype of the weights.
pub fn states_dtype(text: &str) -> bool {
    let json: Option<Value> = serde_json::from_str(text).ok();
    json.is_some_and(|json| ConfigFields::of(&json).dtype_name().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_family_is_rejected_by_name() {
        let error = |text: &str| parse_config("x", text).expect_err("rejected").to_string();
        assert!(error(r#"{"model_type": "mamba"}"#).contains("mamba"));
        assert!(error("[]").contains("model_type"));
        assert!(error("{").contains("EOF"));
    }
}
