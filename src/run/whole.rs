//! Whole numbers and objects as JSON Schema understands them: `3.0` is a whole number, too, and a list is no object.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

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

/// What is read from an object alone: a derived reader takes a list of a struct's fields, too, and the contract does not.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// Reads an object.
pub fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|Object(value)| value)
}

/// Reads an object, or nothing.
pub fn maybe_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.map(|Object(value)| value))
}

/// Reads a list of objects.
pub fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Ok(Vec::deserialize(deserializer)?.into_iter().map(|Object(value)| value).collect())
}

fn exactly<T: TryFrom<i64>, E: serde::de::Error>(number: &serde_json::Number) -> Result<T, E> {
    let whole = number.as_i64().or_else(|| {
        let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() <= MAX_EXACT as f64);
        float.map(|float| float as i64)
    });
    let whole = whole.and_then(|whole| whole.try_into().ok());
    whole.ok_or_else(|| E::custom(format!("{number} is no whole number within the limits of its field")))
}
