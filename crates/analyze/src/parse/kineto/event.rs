//! Events and header of a trace as written, before anything is concluded from them.
//!
//! Fields of an unexpected type are absent; a field that an object has twice is an error, because
//! either value may be the right one.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::value::RawValue;

/// An integer; `quoted` if it is written as a string.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Integer {
    pub value: Option<i64>,
    pub quoted: bool,
}

/// A text; absent for anything else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text(pub Option<String>);

/// A process: its number, or a text that tools which merge traces write instead (`[TP00] 1996`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessId {
    pub number: Integer,
    pub label: Option<String>,
}

impl ProcessId {
    /// The number that it is or ends with.
    pub fn last_number(&self) -> Integer {
        match &self.label {
            Some(label) => Integer { value: last_number(label), quoted: false },
            None => self.number,
        }
    }
}

/// The number at the end of a label.
pub fn last_number(label: &str) -> Option<i64> {
    label.rsplit(|it: char| !it.is_ascii_digit()).next()?.parse().ok()
}

/// The sides of a grid or block; a missing side is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sides(pub [u32; 3]);

/// Implements the visits of all types; the given ones have a value.
macro_rules! lenient {
    ($visitor:ident => $out:ty { $($visit:item)* }) => {
        struct $visitor;

        impl<'de> Visitor<'de> for $visitor {
            type Value = $out;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a value")
            }

            $($visit)*
        }

        impl<'de> Deserialize<'de> for $out {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any($visitor)
            }
        }
    };
}

macro_rules! absent {
    ($($visit:ident($type:ty)),+) => {$(
        fn $visit<E>(self, _: $type) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }
    )+};
}

macro_rules! absent_unit {
    () => {
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }
    };
}

macro_rules! absent_seq {
    () => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            Ok(Self::Value::default())
        }
    };
}

macro_rules! absent_map {
    () => {
        fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok(Self::Value::default())
        }
    };
}

lenient! { IntegerVisitor => Integer {
    fn visit_i64<E>(self, value: i64) -> Result<Integer, E> {
        Ok(Integer { value: Some(value), quoted: false })
    }
    fn visit_u64<E>(self, value: u64) -> Result<Integer, E> {
        Ok(Integer { value: i64::try_from(value).ok(), quoted: false })
    }
    fn visit_str<E>(self, text: &str) -> Result<Integer, E> {
        let value = text.trim().parse().ok();
        Ok(Integer { value, quoted: value.is_some() })
    }
    absent!(visit_bool(bool), visit_f64(f64));
    absent_unit!();
    absent_seq!();
    absent_map!();
} }

lenient! { ProcessVisitor => ProcessId {
    fn visit_i64<E>(self, value: i64) -> Result<ProcessId, E> {
        Ok(ProcessId { number: Integer { value: Some(value), quoted: false }, label: None })
    }
    fn visit_u64<E>(self, value: u64) -> Result<ProcessId, E> {
        let value = i64::try_from(value).ok();
        Ok(ProcessId { number: Integer { value, quoted: false }, label: None })
    }
    fn visit_str<E>(self, text: &str) -> Result<ProcessId, E> {
        let value = text.trim().parse().ok();
        let label = value.is_none().then(|| text.to_owned());
        Ok(ProcessId { number: Integer { value, quoted: value.is_some() }, label })
    }
    absent!(visit_bool(bool), visit_f64(f64));
    absent_unit!();
    absent_seq!();
    absent_map!();
} }

lenient! { TextVisitor => Text {
    fn visit_str<E>(self, text: &str) -> Result<Text, E> {
        Ok(Text(Some(text.to_owned())))
    }
    absent!(visit_bool(bool), visit_i64(i64), visit_u64(u64), visit_f64(f64));
    absent_unit!();
    absent_seq!();
    absent_map!();
} }

lenient! { SidesVisitor => Sides {
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Sides, A::Error> {
        let (mut sides, mut at) = ([0; 3], 0);
        while let Some(Integer { value, .. }) = items.next_element()? {
            if let (Some(side), Some(value)) = (sides.get_mut(at), value) {
                *side = u32::try_from(value).unwrap_or(0);
            }
            at += 1;
        }
        Ok(Sides(sides))
    }
    absent!(visit_bool(bool), visit_i64(i64), visit_u64(u64), visit_f64(f64), visit_str(&str));
    absent_unit!();
    absent_map!();
} }

lenient! { ArgsVisitor => EventArgs {
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<EventArgs, A::Error> {
        ArgsFields::deserialize(MapAccessDeserializer::new(map)).map(EventArgs)
    }
    absent!(visit_bool(bool), visit_i64(i64), visit_u64(u64), visit_f64(f64), visit_str(&str));
    absent_unit!();
    absent_seq!();
} }

/// The arguments of an event; empty if they are not an object.
#[derive(Debug, Default)]
pub struct EventArgs(pub ArgsFields);

/// One event. An event that is not an object is an error.
#[derive(Debug, Default)]
pub struct TraceEvent(pub EventFields);

struct EventVisitor;

impl<'de> Visitor<'de> for EventVisitor {
    type Value = TraceEvent;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an event, which is an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TraceEvent, A::Error> {
        EventFields::deserialize(MapAccessDeserializer::new(map)).map(TraceEvent)
    }
}

impl<'de> Deserialize<'de> for TraceEvent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(EventVisitor)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct EventFields {
    pub ph: Text,
    pub cat: Text,
    pub name: Text,
    pub pid: ProcessId,
    pub tid: Integer,
    /// Microseconds, as written.
    pub ts: Option<Box<RawValue>>,
    pub dur: Option<Box<RawValue>>,
    pub args: EventArgs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ArgsFields {
    #[serde(rename = "External id", alias = "external id")]
    pub external_id: Integer,
    pub correlation: Integer,
    pub device: Integer,
    pub stream: Integer,
    pub bytes: Integer,
    #[serde(rename = "registers per thread")]
    pub registers: Integer,
    #[serde(rename = "shared memory")]
    pub shared_memory: Integer,
    pub grid: Sides,
    pub block: Sides,
    /// Kernel of a launching call of HIP.
    pub kernel: Text,
    #[serde(rename = "graph id")]
    pub graph_id: Integer,
    #[serde(rename = "graph node id")]
    pub graph_node_id: Integer,
    #[serde(rename = "Input Dims", alias = "Input dims")]
    pub input_dims: Option<Box<RawValue>>,
    #[serde(rename = "Concrete Inputs")]
    pub concrete_inputs: Option<Box<RawValue>>,
    #[serde(rename = "Input type", alias = "Input types")]
    pub input_types: Option<Box<RawValue>>,
    /// Name of a process, in an event of metadata.
    pub name: Text,
    #[serde(rename = "Collective name")]
    pub collective: Text,
    #[serde(rename = "In msg nelems")]
    pub in_elements: Integer,
    #[serde(rename = "Out msg nelems")]
    pub out_elements: Integer,
    pub dtype: Text,
    #[serde(rename = "Group size")]
    pub group_size: Integer,
    #[serde(rename = "Process Group Name")]
    pub group_name: Text,
    #[serde(rename = "Process Group Description")]
    pub group_description: Text,
    #[serde(rename = "Process Group Ranks")]
    pub group_ranks: Option<Box<RawValue>>,
    #[serde(rename = "Seq")]
    pub sequence: Integer,
}

/// Properties of a device.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct DeviceProperties {
    pub id: Integer,
    pub name: Text,
    #[serde(rename = "totalGlobalMem")]
    pub memory: Integer,
    #[serde(rename = "computeMajor")]
    pub major: Integer,
    #[serde(rename = "computeMinor")]
    pub minor: Integer,
    #[serde(rename = "numSms")]
    pub sms: Integer,
    #[serde(rename = "maxThreadsPerMultiprocessor")]
    pub threads_per_sm: Integer,
    #[serde(rename = "warpSize")]
    pub warp: Integer,
}

/// Place of the process among the program's processes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Distributed {
    pub rank: Integer,
    pub world_size: Integer,
    pub backend: Text,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> Result<EventFields, String> {
        serde_json::from_str::<TraceEvent>(text).map(|it| it.0).map_err(|error| error.to_string())
    }

    #[test]
    fn fields_of_another_type_are_absent_and_quoted_integers_are_read() {
        let it = event(
            r#"{"ph": 1, "cat": null, "name": ["a"], "pid": "Spans", "tid": "7", "ts": "1.5",
                "args": {"grid": [1, "2", 3, 4], "block": 5, "stream": 1.5, "device": {"a": 1},
                         "Input Dims": [[1, 2], []], "correlation": 18446744073709551615}}"#,
        )
        .unwrap();
        assert_eq!((it.ph.0, it.cat.0, it.name.0), (None, None, None));
        assert_eq!((it.pid.label.as_deref(), it.pid.last_number().value), (Some("Spans"), None));
        assert_eq!(it.tid, Integer { value: Some(7), quoted: true });
        assert_eq!(it.ts.unwrap().get(), "\"1.5\"");
        let args = it.args.0;
        assert_eq!((args.grid, args.block), (Sides([1, 2, 3]), Sides::default()));
        assert_eq!((args.stream.value, args.device.value), (None, None));
        assert_eq!(args.correlation.value, None);
        assert_eq!(args.input_dims.unwrap().get(), "[[1, 2], []]");
        assert!(event(r#"{"args": "text"}"#).unwrap().args.0.name.0.is_none());
    }

    #[test]
    fn a_field_twice_is_refused_and_so_is_an_event_that_is_not_an_object() {
        assert!(event(r#"{"ts": 1, "ts": 2}"#).unwrap_err().contains("duplicate field `ts`"));
        let twice = r#"{"args": {"correlation": 1, "correlation": 2}}"#;
        assert!(event(twice).unwrap_err().contains("duplicate field `correlation`"));
        let alias = r#"{"args": {"External id": 1, "external id": 2}}"#;
        assert!(event(alias).unwrap_err().contains("duplicate field `External id`"));
        assert!(event(r#"["X", "kernel"]"#).unwrap_err().contains("expected an event"));
    }
}
