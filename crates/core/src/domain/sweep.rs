//! A sweep: a grid of submissions; each point is a run.
//!
//! Plain values: axes with their points, states, and the figures that are kept of a point's run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{
        MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};

use super::{
    command::ParamValue, headline::Headline, json_numbers::Within, named_values::named_values,
};

named_values! {
    /// State of a sweep.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    SweepState {
        /// Points are queued until each has figures or is a gap.
        Running = "running",
        /// No further point starts.
        Paused = "paused",
        /// Each point has figures or is a gap.
        Done = "done",
        /// On request; points that were not measured are gaps.
        Cancelled = "cancelled",
    }
}

impl SweepState {
    /// True once it has ended: the state does not change again.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Cancelled)
    }
}

named_values! {
    /// State of a point of a sweep.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    SweepPointState {
        /// Not queued yet.
        Waiting = "waiting",
        Queued = "queued",
        Running = "running",
        /// Its run has figures.
        Measured = "measured",
        /// It has no figures, for the reason that it states.
        Gap = "gap",
    }
}

/// Axis with the tokens of a prompt, which is generated.
pub const PROMPT_TOKENS: &str = "prompt_tokens";
/// Axis with the tokens to generate.
pub const NEW_TOKENS: &str = "new_tokens";
/// Prefix of an axis over a parameter of a command.
pub const PARAM_PREFIX: &str = "params.";

/// Axes over fields of the submission of a model, each with the field.
pub const MODEL_AXES: &[(&str, &str)] = &[
    ("batch", "batch"),
    ("model", "model"),
    (PROMPT_TOKENS, "inputs"),
    (NEW_TOKENS, "max_new_tokens"),
    ("dtype", "dtype"),
];

/// Values of an axis: a list, or integers from a first to a last one.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum AxisValues {
    List(Vec<ParamValue>),
    Range(AxisRange),
}

/// By the type of the value, so that errors name the field of a range.
impl<'de> Deserialize<'de> for AxisValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AxisVisitor)
    }
}

struct AxisVisitor;

impl<'de> Visitor<'de> for AxisVisitor {
    type Value = AxisValues;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("a list of values, or {from, to, step} or {from, to, factor}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Deserialize::deserialize(SeqAccessDeserializer::new(list)).map(AxisValues::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
        AxisRange::deserialize(MapAccessDeserializer::new(fields)).map(AxisValues::Range)
    }
}

/// Integers from `from` to at most `to`, by a step or by a factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AxisRange {
    #[serde(deserialize_with = "Within::<0, 4_294_967_295>::integer")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 4294967295i64))]
    from: u32,
    #[serde(deserialize_with = "Within::<0, 4_294_967_295>::integer")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 4294967295i64))]
    to: u32,
    /// Difference of neighbours; 1 if there is no factor.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "Within::<1, 4_294_967_295>::optional"
    )]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 4294967295i64))]
    step: Option<u32>,
    /// Quotient of neighbours, in place of a step.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "Within::<2, 4_294_967_295>::optional"
    )]
    #[cfg_attr(feature = "schema", schema(minimum = 2, maximum = 4294967295i64))]
    factor: Option<u32>,
}

/// Axes that are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AxesError {
    /// The contract does not have them.
    #[error("{0}")]
    Malformed(String),
    /// The contract has them, but they have no points, equal ones or too many.
    #[error("{0}")]
    Unfit(String),
}

impl AxesError {
    /// The error with the name of the axis.
    fn of_axis(self, name: &str) -> Self {
        match self {
            Self::Malformed(why) => Self::Malformed(format!("axes.{name}: {why}")),
            Self::Unfit(why) => Self::Unfit(format!("axes.{name}: {why}")),
        }
    }
}

impl AxisRange {
    fn numbers(self) -> Result<impl Iterator<Item = u64>, AxesError> {
        let unfit = |why: &str| AxesError::Unfit(why.into());
        let (from, to) = (u64::from(self.from), u64::from(self.to));
        let (step, factor) = match (self.step, self.factor) {
            (Some(_), Some(_)) => return Err(unfit("step and factor contradict each other")),
            (None, Some(_)) if from == 0 => return Err(unfit("from: 0 has no multiples")),
            (step, None) => (u64::from(step.unwrap_or(1)), 1),
            (None, Some(factor)) => (0, u64::from(factor)),
        };
        let next = move |it: &u64| it.checked_mul(factor)?.checked_add(step);
        Ok(std::iter::successors(Some(from), next).take_while(move |it| *it <= to))
    }

    /// Number of values, without enumerating the values of a step.
    fn count(self) -> Result<u64, AxesError> {
        let numbers = self.numbers()?;
        let steps = u64::from(self.to.saturating_sub(self.from));
        Ok(match (self.factor, self.to < self.from) {
            (_, true) => 0,
            (Some(_), _) => numbers.count() as u64,
            (None, _) => steps / u64::from(self.step.unwrap_or(1)) + 1,
        })
    }
}

impl AxisValues {
    /// Number of values, at least one.
    fn count(&self) -> Result<u64, AxesError> {
        match self {
            Self::List(values) if values.is_empty() => {
                Err(AxesError::Malformed("no values".into()))
            }
            Self::List(values) => Ok(values.len() as u64),
            Self::Range(range) => match range.count()? {
                0 => Err(AxesError::Unfit("no values".into())),
                count => Ok(count),
            },
        }
    }

    /// The values in order.
    fn values(&self) -> Result<Vec<ParamValue>, AxesError> {
        Ok(match self {
            Self::List(values) => values.clone(),
            Self::Range(range) => {
                range.numbers()?.map(|it| ParamValue::Int(it.cast_signed())).collect()
            }
        })
    }
}

/// The values of a point by axis.
pub type PointAxes = BTreeMap<String, ParamValue>;

/// Number of points of a grid, without enumerating them; at most `max`.
pub fn count_points(axes: &BTreeMap<String, AxisValues>, max: u64) -> Result<u64, AxesError> {
    if axes.is_empty() {
        let message = "axes: none; expected at least one, such as \"new_tokens\": [16, 64]";
        return Err(AxesError::Malformed(message.into()));
    }
    let mut points: u64 = 1;
    for (name, axis) in axes {
        points = points.saturating_mul(axis.count().map_err(|error| error.of_axis(name))?);
    }
    if points > max {
        return Err(AxesError::Unfit(format!(
            "the sweep has {points} points, at most {max} are accepted (sweeps.max_points)"
        )));
    }
    Ok(points)
}

/// The points of a grid in order: the last axis changes first. [`count_points`] bounds them.
pub fn points(axes: &BTreeMap<String, AxisValues>) -> Result<Vec<PointAxes>, AxesError> {
    let mut points = vec![PointAxes::new()];
    for (name, axis) in axes {
        let values = axis.values().map_err(|error| error.of_axis(name))?;
        let mut seen = BTreeSet::new();
        for value in &values {
            value.check_form().map_err(|why| AxesError::Malformed(why).of_axis(name))?;
            if !seen.insert(value.to_string()) {
                return Err(AxesError::Unfit(format!("{value} is listed twice")).of_axis(name));
            }
        }
        let with = |point: &PointAxes, value: &ParamValue| {
            let mut point = point.clone();
            point.insert(name.clone(), value.clone());
            point
        };
        points = points
            .iter()
            .flat_map(|point| values.iter().map(move |value| with(point, value)))
            .collect();
    }
    Ok(points)
}

/// Numbers of points by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SweepCounts {
    pub points: u64,
    pub waiting: u64,
    pub queued: u64,
    pub running: u64,
    pub measured: u64,
    /// Part of `measured`: their runs were made before.
    pub reused: u64,
    pub gaps: u64,
}

/// Figures of a point's run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SweepFigures {
    pub headline: Headline,
    pub stages: Vec<SweepStage>,
    /// Operators with FLOPs.
    pub operators: Vec<SweepOperator>,
    /// Intensity above which compute is the limit of the device rather than memory.
    pub ridge: Option<SweepRidge>,
}

/// A stage of a point.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SweepStage {
    pub stage: String,
    /// Mean of a repeat.
    pub ms: f64,
    /// Lower bound by the model's FLOPs and bytes.
    pub floor_ms: Option<f64>,
}

/// An operator of a point, layers rolled up, in one stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SweepOperator {
    pub path: String,
    pub stage: String,
    /// By the model's architecture, of a repeat.
    pub flops: f64,
    pub bytes: f64,
    /// Time over all repeats of the pass that measures it.
    pub ms: Option<f64>,
}

/// The ridge point of a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SweepRidge {
    pub flops_per_byte: f64,
    /// `datasheet`, or `measured` on this device.
    #[cfg_attr(feature = "schema", schema(example = "datasheet"))]
    pub source: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(text: &str) -> BTreeMap<String, AxisValues> {
        serde_json::from_str(text).unwrap()
    }

    fn all(text: &str) -> Vec<String> {
        let shown = |point: &PointAxes| {
            point.values().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        points(&axes(text)).unwrap().iter().map(shown).collect()
    }

    #[test]
    fn a_grid_is_the_product_of_its_axes() {
        let grid = r#"{"dtype": ["f32", "f16"], "new_tokens": {"from": 4, "to": 20, "factor": 2}}"#;
        assert_eq!(count_points(&axes(grid), 6), Ok(6));
        assert_eq!(all(grid), ["f32 4", "f32 8", "f32 16", "f16 4", "f16 8", "f16 16"]);
        assert_eq!(all(r#"{"a": {"from": 1, "to": 8, "step": 3}}"#), ["1", "4", "7"]);
        assert_eq!(all(r#"{"a": {"from": 1, "to": 2}}"#), ["1", "2"]);
    }

    #[test]
    fn a_grid_of_billions_is_refused_by_its_size_alone() {
        let many = r#"{"a": {"from": 1, "to": 4294967295}, "b": {"from": 0, "to": 4294967295},
                       "c": [1, 2]}"#;
        let refused = count_points(&axes(many), 256).unwrap_err().to_string();
        assert!(refused.starts_with("the sweep has 18446744073709551615 points"), "{refused}");
        let million = r#"{"a": {"from": 1, "to": 1000000}}"#;
        let refused = count_points(&axes(million), 256).unwrap_err().to_string();
        assert!(refused.contains("has 1000000 points, at most 256"), "{refused}");
    }

    #[test]
    fn an_axis_without_values_or_with_a_value_twice_is_refused() {
        type Kind = fn(String) -> AxesError;
        let (malformed, unfit): (Kind, Kind) = (AxesError::Malformed, AxesError::Unfit);
        for (text, kind, reason) in [
            (r#"{"a": []}"#, malformed, "no values"),
            (r#"{"a": {"from": 3, "to": 2}}"#, unfit, "no values"),
            (r#"{"a": {"from": 0, "to": 9, "factor": 2}}"#, unfit, "from: 0 has no multiples"),
            (
                r#"{"a": {"from": 3, "to": 9, "step": 1, "factor": 2}}"#,
                unfit,
                "step and factor contradict each other",
            ),
        ] {
            let refused = count_points(&axes(text), 256).unwrap_err();
            assert_eq!(refused, kind(format!("axes.a: {reason}")), "{text}");
        }
        let none = count_points(&axes("{}"), 256).unwrap_err();
        assert!(matches!(none, AxesError::Malformed(why) if why.starts_with("axes: none")));
        let twice = points(&axes(r#"{"a": [1, 2, 1]}"#)).unwrap_err();
        assert_eq!(twice, unfit("axes.a: 1 is listed twice".into()));
    }

    #[test]
    fn a_number_of_a_range_is_refused_with_its_bounds() {
        for (range, expected) in [
            (r#"{"from": -1, "to": 9}"#, "-1 is not between 0 and 4294967295"),
            (r#"{"from": 3, "to": 9, "step": 0}"#, "0 is not between 1 and 4294967295"),
            (r#"{"from": 3, "to": 9, "factor": 1}"#, "1 is not between 2 and 4294967295"),
            ("3", "expected a list of values, or {from, to, step} or {from, to, factor}"),
        ] {
            let error = serde_json::from_str::<AxisValues>(range).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_largest_factor_ends() {
        let range = r#"{"a": {"from": 4294967295, "to": 4294967295, "factor": 4294967295}}"#;
        assert_eq!(all(range), ["4294967295"]);
    }
}
