//! Whole numbers and objects as JSON Schema understands them: `3.0` is a whole number, too, and a list is no object.

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

/// Largest integer that every JSON reader keeps exact.
pub const MAX_EXACT: u64 = (1 << 53) - 1;

/// Reads a whole number.
pub fn whole<'de, D: Deserializer<'de>, T: TryFrom<i64>>(deserializer: D) -> Result<T, D::Error> {
    exactly(&serde_json::Number::deserialize(deserializer)?)
}

/// Reads a whole number, or nothing.
pub fn maybe_whole<'de, D: Deserializer<'de>, T: TryFrom<i64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Option::<serde_json::Number>::deserialize(deserializer)?.map(|number| exactly(&number)).transpose()
}

/// Reads an object, or nothing: a derived reader takes a list of a struct's fields, too, and the contract does not.
pub fn maybe_object<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    let map = Option::<serde_json::Map<String, Value>>::deserialize(deserializer)?;
    map.map(|map| serde_json::from_value(Value::Object(map)).map_err(serde::de::Error::custom)).transpose()
}

fn exactly<T: TryFrom<i64>, E: serde::de::Error>(number: &serde_json::Number) -> Result<T, E> {
    let whole = number.as_i64().or_else(|| {
        let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= MAX_EXACT as f64);
        float.map(|float| float as i64)
    });
    let whole = whole.and_then(|whole| whole.try_into().ok());
    whole.ok_or_else(|| E::custom(format!("{number} is no whole number within the limits of its field")))
}
