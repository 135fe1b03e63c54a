//! Settings of passes on a command line: `nsys.cuda_graph_trace=graph`.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// Sets `a.b=value` in a tree; the value is JSON if it parses, else a text. The service validates
/// it.
pub fn change(tree: &mut Value, setting: &str) -> Result<()> {
    let (key, value) =
        setting.split_once('=').with_context(|| format!("--set {setting}: there is no = in it"))?;
    let place = key.split('.').try_fold(tree, |place, key| {
        if place.is_null() {
            *place = json!({});
        }
        place.as_object_mut().map(|fields| fields.entry(key).or_insert(Value::Null))
    });
    let place = place.with_context(|| format!("--set {key}: a part of it was set before"))?;
    *place = parse(value);
    Ok(())
}

/// A value: JSON if it parses, else a text.
pub fn parse(value: &str) -> Value {
    serde_json::from_str(value).unwrap_or_else(|_| json!(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_grow_a_tree_and_what_cannot_be_one_is_refused() {
        let mut tree = Value::Null;
        for setting in
            ["nsys.trace=[\"cuda\",\"nvtx\"]", "nsys.cuda_graph_trace=graph", "ncu.max_launches=3"]
        {
            change(&mut tree, setting).unwrap();
        }
        assert_eq!(
            tree,
            json!({ "nsys": { "trace": ["cuda", "nvtx"], "cuda_graph_trace": "graph" },
                "ncu": { "max_launches": 3 } })
        );
        assert!(
            change(&mut tree, "ncu.max_launches")
                .unwrap_err()
                .to_string()
                .contains("there is no =")
        );
        assert!(change(&mut tree, "ncu.max_launches.x=1").is_err());
    }
}
