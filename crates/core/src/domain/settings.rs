//! Trees of settings: one merge for files, environment and requests, which rejects unknown keys.

use serde_json::{Map, Value};

use super::unique_keys::UniqueKeys;

/// A tree of settings.
pub type Settings = Map<String, Value>;

/// An unknown key, with the most similar known one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown setting {key}{}", suggestion(nearest.as_deref()))]
pub struct UnknownSetting {
    pub key: String,
    pub nearest: Option<String>,
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|nearest| format!("; did you mean {nearest}?")).unwrap_or_default()
}

/// Overwrites `base` with `over`, key by key.
pub fn merge(base: &mut Settings, over: Settings) -> Result<(), UnknownSetting> {
    merge_at(base, over, "")
}

fn merge_at(base: &mut Settings, over: Settings, path: &str) -> Result<(), UnknownSetting> {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(base)), Value::Object(over)) => {
                merge_at(base, over, &format!("{path}{key}."))?;
            }
            // 3.0 is an integer in JSON Schema.
            (Some(known), value) => {
                *known = value.as_f64().and_then(|it| integer(known, it)).unwrap_or(value);
            }
            (None, _) => {
                let near = nearest(&key, base.keys().map(String::as_str));
                return Err(UnknownSetting {
                    nearest: near.map(|near| format!("{path}{near}")),
                    key: format!("{path}{key}"),
                });
            }
        }
    }
    Ok(())
}

/// A setting that cannot be set in a tree.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAssignment {
    #[error("setting {0}: there is no = in it; expected KEY=VALUE, as in ncu.max_launches=3")]
    NoValue(String),
    #[error("setting {0}: a part of it was set before")]
    PartSet(String),
    #[error("setting {0}: given more than once; give it once")]
    Repeated(String),
    #[error("setting {0}: {1}")]
    Value(String, String),
}

/// The field of a submission with the settings, with which messages name them.
const PREFIX: &str = "profiling.";

/// Sets each of `settings` in a tree, as [`assign`] does: `nsys.sample=none`, or with the prefix
/// `profiling.`. None may set what another one sets.
pub fn assign_all<S: AsRef<str>>(
    tree: &mut Settings,
    settings: impl IntoIterator<Item = S>,
) -> Result<(), BadAssignment> {
    let mut set: Vec<String> = Vec::new();
    for setting in settings {
        let setting = setting.as_ref().trim_start();
        let setting = setting.strip_prefix(PREFIX).unwrap_or(setting);
        assign(tree, setting)?;
        let key = setting.split('=').next().unwrap_or_default().trim().to_owned();
        let is_in = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|it| it.is_empty() || it.starts_with('.'))
        };
        if set.iter().any(|it| is_in(it, &key) || is_in(&key, it)) {
            return Err(BadAssignment::Repeated(key));
        }
        set.push(key);
    }
    Ok(())
}

/// Sets `a.b=value` in a tree; the value is JSON if it parses, else a text.
fn assign(tree: &mut Settings, setting: &str) -> Result<(), BadAssignment> {
    let (path, value) =
        setting.split_once('=').ok_or_else(|| BadAssignment::NoValue(setting.to_owned()))?;
    let mut groups: Vec<&str> = path.trim().split('.').collect();
    let key = groups.pop().unwrap_or_default();
    let group = groups.into_iter().try_fold(tree, |tree, group| {
        let group = tree.entry(group).or_insert(Value::Null);
        if group.is_null() {
            *group = Settings::new().into();
        }
        group.as_object_mut()
    });
    let group = group.ok_or_else(|| BadAssignment::PartSet(path.to_owned()))?;
    let value = parse(value.trim()).map_err(|why| BadAssignment::Value(path.to_owned(), why))?;
    group.insert(key.to_owned(), value);
    Ok(())
}

/// A value: JSON if it parses, else a text. JSON with a repeated key is refused.
pub fn parse(value: &str) -> Result<Value, String> {
    match serde_json::from_str(value) {
        Ok(UniqueKeys(value)) => Ok(value),
        Err(error) if error.is_data() => Err(error.to_string()),
        Err(_) => Ok(value.into()),
    }
}

/// The settings of a tree, each as [`assign`] reads it.
pub fn assignments(tree: &Settings) -> Vec<String> {
    let of_one = |(key, value): (&String, &Value)| match value {
        Value::Object(group) => {
            assignments(group).iter().map(|setting| format!("{key}.{setting}")).collect()
        }
        Value::String(text) if parse(text).is_ok_and(|read| read == *value) => {
            vec![format!("{key}={text}")]
        }
        _ => vec![format!("{key}={value}")],
    };
    tree.iter().flat_map(of_one).collect()
}

/// The settings of `changed` that differ from `base`; [`merge`] of both is `changed`.
pub fn difference(base: &Settings, changed: Settings) -> Settings {
    let of_one = |(key, value): (String, Value)| match (base.get(&key), value) {
        (Some(Value::Object(base)), Value::Object(changed)) => {
            let group = difference(base, changed);
            (!group.is_empty()).then(|| (key, group.into()))
        }
        (Some(same), value) if *same == value => None,
        (_, value) => Some((key, value)),
    };
    changed.into_iter().filter_map(of_one).collect()
}

/// The number as an integer, if `known` is an integer and the number has no fraction.
fn integer(known: &Value, number: f64) -> Option<Value> {
    (known.is_u64() && number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number))
        .then(|| Value::from(number as u64))
}

/// The known word most similar to `word`, if any is similar enough.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|known| (strsim::jaro_winkler(word, known), known))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn merged(base: Value, over: Value) -> Result<Value, UnknownSetting> {
        let (Value::Object(mut base), Value::Object(over)) = (base, over) else {
            panic!("settings are objects")
        };
        merge(&mut base, over).map(|()| Value::Object(base))
    }

    #[test]
    fn nested_keys_are_replaced_one_by_one() {
        let base = json!({ "a": { "x": 1, "y": 2 }, "b": [1] });
        let over = json!({ "a": { "y": 3.0 }, "b": [] });
        assert_eq!(merged(base, over), Ok(json!({ "a": { "x": 1, "y": 3 }, "b": [] })));
    }

    #[test]
    fn settings_grow_a_tree_and_what_cannot_be_one_is_refused() {
        let mut tree = Settings::new();
        let set = [
            "nsys.trace=[\"cuda\",\"nvtx\"]",
            "nsys.cuda_graph_trace=graph",
            "ncu.max_launches=3",
            "ncu.note=\"3\"",
        ];
        set.iter().for_each(|setting| assign(&mut tree, setting).unwrap());
        let expected = json!({
            "nsys": { "trace": ["cuda", "nvtx"], "cuda_graph_trace": "graph" },
            "ncu": { "max_launches": 3, "note": "3" }
        });
        assert_eq!(Value::from(tree.clone()), expected);
        assert_eq!(assignments(&tree), set);

        let error = |tree: &mut Settings, setting| assign(tree, setting).unwrap_err();
        assert_eq!(
            error(&mut tree, "ncu.max_launches"),
            BadAssignment::NoValue("ncu.max_launches".into())
        );
        let part = BadAssignment::PartSet("ncu.max_launches.x".into());
        assert_eq!(error(&mut tree, "ncu.max_launches.x=1"), part);

        let Value::Object(mut empty) = json!({ "nsys": null }) else {
            panic!("settings are objects")
        };
        assign(&mut empty, " nsys.delay_s = 2 ").unwrap();
        assert_eq!(Value::from(empty), json!({ "nsys": { "delay_s": 2 } }));
    }

    #[test]
    fn a_setting_that_is_given_twice_whole_or_in_part_is_refused_by_name() {
        let repeated = |key: &str| Err(BadAssignment::Repeated(key.into()));
        for (set, expected) in [
            (&["a.x=1", "a.y=1", "ab=1"][..], Ok(())),
            (&["a.x=1", "a.y=1", "a.x=1"], repeated("a.x")),
            (&["a.x=1", " a.x = 2"], repeated("a.x")),
            (&["a.x=1", " profiling.a.x=2"], repeated("a.x")),
            (&["a.x=1", "a={}"], repeated("a")),
            (&["a={}", "a.x=1"], repeated("a.x")),
        ] {
            assert_eq!(assign_all(&mut Settings::new(), set), expected, "{set:?}");
        }
        let twice = assign_all(&mut Settings::new(), [r#"a={"x": 1, "x": 2}"#]).unwrap_err();
        let message = twice.to_string();
        assert!(message.starts_with("setting a: `x` is given more than once"), "{message}");
    }

    proptest! {
        /// `base` and `changed` have the same keys, as two sets of settings do.
        #[test]
        fn the_difference_makes_one_set_of_settings_of_another_also_as_lines(
            base in prop::array::uniform4(0i64..3), changed in prop::array::uniform4(0i64..3),
        ) {
            let tree = |[a, b, c, d]: [i64; 4]| -> Settings {
                let inner = json!({ "x": b, "y": { "z": [c, 1] } });
                let tree = json!({ "a": a, "b": inner, "t": d.to_string() });
                serde_json::from_value(tree).unwrap()
            };
            let (base, changed) = (tree(base), tree(changed));
            let mut lines = Settings::new();
            for line in assignments(&difference(&base, changed.clone())) {
                assign(&mut lines, &line).unwrap();
            }
            let mut merged = base.clone();
            merge(&mut merged, lines).unwrap();
            prop_assert_eq!(&merged, &changed);
            prop_assert!(difference(&changed, merged).is_empty());
        }
    }

    #[test]
    fn an_unknown_key_is_rejected_with_the_nearest_one() {
        let error = merged(json!({ "a": { "lease_s": 1 } }), json!({ "a": { "leases": 1 } }));
        let message = error.unwrap_err().to_string();
        assert_eq!(message, "unknown setting a.leases; did you mean a.lease_s?");
    }
}
