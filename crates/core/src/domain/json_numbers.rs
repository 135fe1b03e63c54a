//! Integers from outside within their ranges, and objects, by JSON Schema's rules: `3.0` is an
//! integer, and a list is not an object.

use std::{
    fmt::{self, Display},
    marker::PhantomData,
};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Unexpected, Visitor, value, value::MapAccessDeserializer},
};
use serde_json::Number;

use super::plain_words::plain_words;

/// Largest integer that every JSON parser represents exactly.
pub const MAX_EXACT: i64 = (1 << 53) - 1;

/// Readers of integers from `MIN` to `MAX`, as in
/// `deserialize_with = "Within::<1, 100>::integer"` for a field,
/// `deserialize_with = "Within::<1, 100>::parameter"` for a parameter of a query and
/// `value_parser = Within::<1, 100>::text::<u32>` for an option. The error has the value and the
/// range; the field is its path.
///
/// Stored values are read by the same rule: do not narrow the range of a stored field.
pub struct Within<const MIN: i64, const MAX: i64>;

impl<const MIN: i64, const MAX: i64> Within<MIN, MAX> {
    /// Deserializes an integer.
    pub fn integer<'de, D: Deserializer<'de>, T: TryFrom<i64>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        converted(Ranged::<MIN, MAX>::deserialize(deserializer)?)
    }

    /// Deserializes an integer or `null`.
    pub fn optional<'de, D: Deserializer<'de>, T: TryFrom<i64>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        Option::<Ranged<MIN, MAX>>::deserialize(deserializer)?.map(converted).transpose()
    }

    /// Deserializes a list of integers.
    pub fn list<'de, D: Deserializer<'de>, T: TryFrom<i64>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        Vec::<Ranged<MIN, MAX>>::deserialize(deserializer)?.into_iter().map(converted).collect()
    }

    /// Deserializes an integer from the text of a query.
    pub fn parameter<'de, D: Deserializer<'de>, T: TryFrom<i64>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        Self::of_text(&String::deserialize(deserializer)?)
    }

    /// Deserializes an integer from the text of a query, if the query has it.
    pub fn optional_parameter<'de, D: Deserializer<'de>, T: TryFrom<i64>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| Self::of_text(&text)).transpose()
    }

    /// Parses an integer; the caller names it in the error.
    pub fn text<T: TryFrom<i64>>(text: &str) -> Result<T, String> {
        Self::of_text::<T, value::Error>(text).map_err(|error| plain_words(&error.to_string()))
    }

    /// Parses the integer `name`; the error names it.
    pub fn named<T: TryFrom<i64>>(name: &str, text: &str) -> Result<T, String> {
        let parsed = Self::of_text::<T, value::Error>(text);
        parsed.map_err(|error| plain_words(&format!("{name}: {error}")))
    }

    fn of_text<T: TryFrom<i64>, E: Error>(text: &str) -> Result<T, E> {
        let range = RangeVisitor::<MIN, MAX>;
        let number: i128 =
            text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &range))?;
        let integer = i64::try_from(number).ok().filter(|it| (MIN..=MAX).contains(it));
        let integer = integer.ok_or_else(|| outside::<MIN, MAX, E>(&number))?;
        converted(Ranged::<MIN, MAX>(integer))
    }
}

/// An integer from `MIN` to `MAX`.
struct Ranged<const MIN: i64, const MAX: i64>(i64);

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for Ranged<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RangeVisitor::<MIN, MAX>)
    }
}

struct RangeVisitor<const MIN: i64, const MAX: i64>;

impl<const MIN: i64, const MAX: i64> Visitor<'_> for RangeVisitor<MIN, MAX> {
    type Value = Ranged<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an integer between {MIN} and {MAX}")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        ranged(&number.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        ranged(&number.into())
    }

    fn visit_i128<E: Error>(self, number: i128) -> Result<Self::Value, E> {
        Err(outside::<MIN, MAX, E>(&number))
    }

    fn visit_u128<E: Error>(self, number: u128) -> Result<Self::Value, E> {
        Err(outside::<MIN, MAX, E>(&number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        let wrong = || E::invalid_value(Unexpected::Float(number), &self);
        if number.fract() != 0.0 {
            return Err(wrong());
        }
        ranged(&Number::from_f64(number).ok_or_else(wrong)?)
    }
}

/// A number without a fraction, if it is within the range.
fn ranged<const MIN: i64, const MAX: i64, E: Error>(
    number: &Number,
) -> Result<Ranged<MIN, MAX>, E> {
    let float = || number.as_f64().filter(|float| float.abs() <= MAX_EXACT as f64);
    let integer = number.as_i64().or_else(|| float().map(|float| float as i64));
    let within = integer.filter(|integer| (MIN..=MAX).contains(integer));
    let shown = || integer.map_or_else(|| number.clone(), Number::from);
    within.map(Ranged).ok_or_else(|| outside::<MIN, MAX, E>(&shown()))
}

/// The integer as the type of its field.
fn converted<const MIN: i64, const MAX: i64, T: TryFrom<i64>, E: Error>(
    Ranged(integer): Ranged<MIN, MAX>,
) -> Result<T, E> {
    integer.try_into().map_err(|_| outside::<MIN, MAX, E>(&integer))
}

fn outside<const MIN: i64, const MAX: i64, E: Error>(number: &impl Display) -> E {
    E::custom(format!("{number} is not between {MIN} and {MAX}"))
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Fields {
        #[serde(default, deserialize_with = "Within::<-100, 100>::integer")]
        one: i32,
        #[serde(default, deserialize_with = "Within::<0, MAX_EXACT>::optional")]
        some: Option<u64>,
        #[serde(default, deserialize_with = "Within::<10, 20>::list")]
        all: Vec<u32>,
    }

    #[test]
    fn integers_within_their_ranges_are_read_also_as_floats() {
        let text = r#"{"one": -100.0, "some": 9007199254740991, "all": [10, 20.0]}"#;
        let fields: Fields = serde_json::from_str(text).unwrap();
        assert_eq!(
            fields,
            Fields { one: -100, some: Some(9_007_199_254_740_991), all: vec![10, 20] }
        );
        let fields: Fields = serde_json::from_value(json!({ "some": null })).unwrap();
        assert_eq!(fields, Fields { one: 0, some: None, all: vec![] });
    }

    #[test]
    fn an_integer_outside_its_range_is_refused_with_value_and_range() {
        for (fields, expected) in [
            (json!({ "one": 101 }), "101 is not between -100 and 100"),
            (json!({ "one": u64::MAX }), "18446744073709551615 is not between -100 and 100"),
            (json!({ "one": 1e300 }), "300 is not between -100 and 100"),
            (json!({ "one": 1.5 }), "`1.5`, expected an integer between -100 and 100"),
            (json!({ "one": "1" }), "expected an integer between -100 and 100"),
            (json!({ "one": null }), "expected an integer between -100 and 100"),
            (json!({ "some": -1 }), "-1 is not between 0 and 9007199254740991"),
            (json!({ "some": 9_007_199_254_740_992_u64 }), "9007199254740992 is not between 0"),
            (json!({ "all": [10, 9] }), "9 is not between 10 and 20"),
        ] {
            let error = serde_json::from_value::<Fields>(fields).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_text_is_an_integer_of_its_range_or_refused_with_value_and_range() {
        assert_eq!(Within::<1, 200>::text::<u32>("200"), Ok(200));
        assert_eq!(Within::<-5, 5>::named::<i32>("priority", "-5"), Ok(-5));
        for (text, expected) in [
            ("0", "limit: 0 is not between 1 and 200"),
            ("201", "limit: 201 is not between 1 and 200"),
            ("-1", "limit: -1 is not between 1 and 200"),
            ("1000000000000", "limit: 1000000000000 is not between 1 and 200"),
            ("18446744073709551616", "limit: 18446744073709551616 is not between 1 and 200"),
            ("few", "invalid limit \"few\"; expected an integer between 1 and 200"),
            ("1.0", "invalid limit \"1.0\"; expected an integer between 1 and 200"),
            ("", "invalid limit \"\"; expected an integer between 1 and 200"),
        ] {
            let refused = Within::<1, 200>::named::<u32>("limit", text).unwrap_err();
            assert_eq!(refused, expected);
        }
        let long = Within::<1, 200>::named::<u32>("limit", &"9".repeat(1000)).unwrap_err();
        assert!(long.len() < 120, "{long}");
    }

    #[test]
    fn an_integer_beyond_64_bits_is_refused_with_value_and_range() {
        use serde::de::{IntoDeserializer, value::U128Deserializer};
        let number: U128Deserializer<value::Error> = (1_u128 << 64).into_deserializer();
        let error = Within::<1, 100>::integer::<_, u32>(number).unwrap_err().to_string();
        assert_eq!(error, "18446744073709551616 is not between 1 and 100");
    }
}
