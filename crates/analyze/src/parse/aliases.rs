//! Old names of fields and columns, for files that earlier versions sealed.
//!
//! One list serves `report.json`, `kernels.json` and `tables.jsonl`: a column's name is the path of
//! its field.

use serde_json::{Map, Value};

/// Paths of renamed fields as earlier versions wrote them, and the current names of the last
/// segments. Lists are transparent.
const RENAMED: &[(&str, &str)] = &[
    ("operators.total_ms", "inclusive_ms"),
    ("operators.self_ms", "exclusive_ms"),
    ("operators.share_pct", "exclusive_pct"),
    ("operators.device.total_ms", "inclusive_ms"),
    ("operators.device.self_ms", "exclusive_ms"),
    ("operators.device.share_pct", "exclusive_pct"),
    ("operators_by_path.total_ms", "inclusive_ms"),
    ("operators_by_path.self_ms", "exclusive_ms"),
    ("operators_by_path.share_pct", "exclusive_pct"),
    ("operators_by_path.device.total_ms", "inclusive_ms"),
    ("operators_by_path.device.self_ms", "exclusive_ms"),
    ("operators_by_path.device.share_pct", "exclusive_pct"),
    ("operator_mfu.self_ms", "exclusive_ms"),
    ("operator_mfu.share_pct", "exclusive_pct"),
    // In the report; `kernels` is the list of `kernels.json` and `tables.jsonl`.
    ("kernels_topk.full_names", "name_variants"),
    ("kernels_topk.geometries", "launch_configs"),
    ("kernels_topk.counters.geometries", "launch_configs"),
    ("kernels.full_names", "name_variants"),
    ("kernels.geometries", "launch_configs"),
    ("kernels.counters.geometries", "launch_configs"),
    ("roofline.points.geometries", "launch_configs"),
    ("findings.saves_at_most", "max_saving"),
    ("engine_steps.range", "evidence"),
    ("costs.prefill.weight_bytes_at_most", "max_weight_bytes"),
    ("costs.decode.weight_bytes_at_most", "max_weight_bytes"),
    ("costs.modules.prefill.weight_bytes_at_most", "max_weight_bytes"),
    ("costs.modules.decode.weight_bytes_at_most", "max_weight_bytes"),
    ("costs.experts.prefill_at_most", "max_prefill"),
    ("stage_rules.within", "include_ranges"),
    ("stage_rules.without", "exclude_ranges"),
];

fn renamed(path: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(old, _)| *old == path).map(|(_, current)| *current)
}

/// Current name of a stored table's column; `None` if the stored name is current.
pub fn column(table: &str, column: &str) -> Option<String> {
    let mut path = table.to_owned();
    let mut current: Vec<&str> = Vec::new();
    for segment in column.split('.') {
        path = format!("{path}.{segment}");
        current.push(renamed(&path).unwrap_or(segment));
    }
    Some(current.join(".")).filter(|current| current != column)
}

/// Reads a stored JSON file; old fields get their current names.
pub fn read(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::from_slice(bytes)?;
    rename(&mut value, &mut String::new());
    Ok(value)
}

fn rename(value: &mut Value, path: &mut String) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, path)),
        Value::Object(fields) => {
            let length = path.len();
            let mut current = Map::with_capacity(fields.len());
            for (name, mut field) in std::mem::take(fields) {
                if length > 0 {
                    path.push('.');
                }
                path.push_str(&name);
                rename(&mut field, path);
                let name = renamed(path).map_or(name, str::to_owned);
                current.insert(name, field);
                path.truncate(length);
            }
            *fields = current;
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn old_fields_are_renamed_where_they_were_and_nowhere_else() {
        let old = json!({
            "findings": [
                { "id": "a", "saves_at_most": { "ms": 1.0 }, "evidence": { "geometries": "2" } }
            ],
            "kernels_topk": [
                { "geometries": 2, "total_ms": 1.0, "counters": { "geometries": 1 } }
            ],
            "operators": [{ "total_ms": 3.0, "device": null }],
            "geometries": 7,
        });
        let expected = json!({
            "findings": [
                { "id": "a", "max_saving": { "ms": 1.0 }, "evidence": { "geometries": "2" } }
            ],
            "kernels_topk": [
                { "launch_configs": 2, "total_ms": 1.0, "counters": { "launch_configs": 1 } }
            ],
            "operators": [{ "inclusive_ms": 3.0, "device": null }],
            "geometries": 7,
        });
        assert_eq!(read(old.to_string().as_bytes()).unwrap(), expected);
        assert_eq!(read(expected.to_string().as_bytes()).unwrap(), expected);
    }

    #[test]
    fn columns_are_renamed_segment_by_segment() {
        for (table, old, current) in [
            ("kernels", "counters.geometries", Some("counters.launch_configs")),
            ("findings", "saves_at_most.pct", Some("max_saving.pct")),
            ("kernels", "total_ms", None),
            ("gemms", "geometries", None),
        ] {
            assert_eq!(column(table, old).as_deref(), current, "{table} {old}");
        }
    }
}
