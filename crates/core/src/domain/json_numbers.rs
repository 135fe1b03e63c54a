//! Deserializers of integers and objects by JSON Schema's rules: `3.0` is an integer, and a list
//! is not an object.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

/// Largest integer that every JSON parser represents exactly.
pub const MAX_EXACT: u64 = (1 << 53) - 1;

/// Deserializes an integer.
pub fn integer<'de, D: Deserializer<'de>, T: TryFrom<i64>>(deserializer: D) -> Result<T, D::Error> {
    exactly(&serde_json::Number::deserialize(deserializer)?)
}

/// Deserializes an integer or `null`.
pub fn optional_integer<'de, D: Deserializer<'de>, T: TryFrom<i64>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::<serde_json::Number>::deserialize(deserializer)?
        .map(|number| exactly(&number))
        .transpose()
}

/// Deserializes a list of integers.
pub fn integers<'de, D: Deserializer<'de>, T: TryFrom<i64>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Vec::<serde_json::Number>::deserialize(deserializer)?.iter().map(exactly).collect()
}

/// A value that is deserialized from an object only: a derived `Deserialize` also accepts a list of
/// the struct's fields, and the contract does not.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonFields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for JsonFields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(JsonFields(PhantomData))
    }
}

/// Deserializes an object.
pub fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|Object(value)| value)
}

/// Deserializes an object or `null`.
pub fn optional_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.map(|Object(value)| value))
}

/// Deserializes a list of objects.
pub fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Vec::deserialize(deserializer)?.into_iter().map(|Object(value)| value).collect())
}

fn exactly<T: TryFrom<i64>, E: serde::de::Error>(number: &serde_json::Number) -> Result<T, E> {
    let integer = number.as_i64().or_else(|| {
        let float =
            number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= MAX_EXACT as f64);
        float.map(|float| float as i64)
    });
    let integer = integer.and_then(|integer| integer.try_into().ok());
    integer.ok_or_else(|| {
        E::custom(format!("{number} is not a whole number within the limits of its field"))
    })
}
