//! JSON values whose objects contain each key once: `serde_json::Value` keeps the last value of a
//! repeated key and drops the earlier ones.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

/// Maximum characters of a repeated key in an error.
const MAX_KEY: usize = 40;

/// Levels of arrays and objects that a JSON text may have.
pub const MAX_LEVELS: usize = 127;

/// Returns true for the error of a text with more than [`MAX_LEVELS`] levels.
pub fn is_too_deep(error: &serde_json::Error) -> bool {
    error.to_string().starts_with("recursion limit exceeded")
}

/// A value without repeated keys, at any depth. Integers beyond 64 bits become floats, as
/// `serde_json` reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct UniqueKeys(pub Value);

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_i128<E: Error>(self, number: i128) -> Result<Value, E> {
        self.visit_f64(number as f64)
    }

    fn visit_u128<E: Error>(self, number: u128) -> Result<Value, E> {
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        let value = Number::from_f64(number).map(Value::Number);
        value.ok_or_else(|| E::custom(format!("{number} is not a number of JSON")))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        UniqueKeys::deserialize(deserializer).map(|UniqueKeys(value)| value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(UniqueKeys(item)) = list.next_element()? {
            items.push(item);
        }
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("`{key:.MAX_KEY$}` is given more than once")));
            }
            let UniqueKeys(value) = fields.next_value()?;
            object.insert(key, value);
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_repeated_key_is_refused_at_any_depth_by_its_name() {
        for (text, expected) in [
            (r#"{"a": 1, "a": 1}"#, "`a` is given more than once"),
            (r#"{"a": {"b": null, "b": {}}}"#, "`b` is given more than once"),
            (r#"[{"a": [{"c": 1, "d": 2, "c": 3}]}]"#, "`c` is given more than once"),
            (r#"{"a": 1, "\u0061": 2}"#, "`a` is given more than once"),
        ] {
            let error = serde_json::from_str::<UniqueKeys>(text).unwrap_err();
            assert!(error.is_data() && error.to_string().starts_with(expected), "{error}");
        }
        let long = "x".repeat(1000);
        let text = format!(r#"{{"{long}": 1, "{long}": 2}}"#);
        let error = serde_json::from_str::<UniqueKeys>(&text).unwrap_err().to_string();
        assert!(error.len() < 100, "{error}");
    }

    #[test]
    fn yaml_is_read_by_the_same_rule_and_large_integers_as_json_reads_them() {
        let read = |text: &str| yaml_serde::from_str::<UniqueKeys>(text).map(|it| it.0);
        let large = read("seed: 18446744073709551616\nb: -9223372036854775809").unwrap();
        assert_eq!(
            large,
            json!({ "seed": 18_446_744_073_709_551_616_f64, "b": -9.223372036854776e18 })
        );
        for (text, expected) in [
            ("a: 1\nb: {c: 1, c: 2}", "`c` is given more than once"),
            ("a: 1\n\"a\": 1", "`a` is given more than once"),
            ("a: .inf", "inf is not a number of JSON"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(|it| json!(it)),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-d]{1,2}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_value_without_repeated_keys_is_read_as_serde_json_reads_it(value in any_value()) {
            let text = value.to_string();
            let UniqueKeys(read) = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(read, serde_json::from_str::<Value>(&text).unwrap());
        }

        #[test]
        fn an_object_is_refused_exactly_if_a_key_is_repeated(
            keys in prop::collection::vec("[a-f]", 0..5), depth in 0usize..4,
        ) {
            let fields: Vec<String> = keys.iter().map(|key| format!("\"{key}\": 1")).collect();
            let object = format!("{{{}}}", fields.join(", "));
            let text = format!("{}{object}{}", "{\"in\": [".repeat(depth), "]}".repeat(depth));
            let unique: std::collections::BTreeSet<&String> = keys.iter().collect();
            let read = serde_json::from_str::<UniqueKeys>(&text);
            prop_assert_eq!(read.is_ok(), unique.len() == keys.len());
        }
    }
}
