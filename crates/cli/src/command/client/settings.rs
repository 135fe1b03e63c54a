//! Settings of passes on a command line: `--set nsys.cuda_graph_trace=graph`.

use anyhow::{Context as _, Result};
use llmprof_core::domain::settings::{Settings, assign_all, assignments};
use serde_json::Value;

/// Dropped settings that a note lists.
const LISTED: usize = 5;

/// Sets them in the `profiling` of a submission. The service validates them.
pub fn change(submission: &mut Value, settings: &[String]) -> Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    let profiling = &mut submission["profiling"];
    if profiling.is_null() {
        *profiling = Settings::new().into();
    }
    let tree = profiling.as_object_mut().context("profiling of the submission is not an object")?;
    assign_all(tree, settings).context("--set")
}

/// The note on settings of the file that the mode of an option dropped.
pub fn dropped_note(dropped: &Settings, mode: &str) -> String {
    let settings = assignments(dropped);
    let listed = settings[..settings.len().min(LISTED)].join(", ");
    let more = match settings.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "mode {mode} has its own settings: the file's `profiling`, of another mode, is dropped \
         ({listed}{more}); --set changes single settings"
    )
}

/// The note on fields of the file's `resolved` that the model of an option dropped.
pub fn dropped_model_note(dropped: &[&str], model: &str) -> Option<String> {
    let names = dropped.join(", ");
    (!names.is_empty()).then(|| {
        format!(
            "model {model} is not the file's model: the values of that model in `resolved` are \
             dropped ({names})"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_added_to_those_of_the_submission() {
        let set = ["nsys.cuda_graph_trace=graph".to_owned(), "ncu.max_launches=3".to_owned()];
        let mut body = json!({ "profiling": { "nsys": { "delay_s": 2 } } });
        change(&mut body, &set).unwrap();
        let nsys = json!({ "delay_s": 2, "cuda_graph_trace": "graph" });
        assert_eq!(body["profiling"], json!({ "nsys": nsys, "ncu": { "max_launches": 3 } }));
        let mut empty = json!({});
        change(&mut empty, &[]).unwrap();
        assert_eq!(empty, json!({}));
        let mut prefixed = json!({});
        change(&mut prefixed, &["profiling.ncu.max_launches=3".to_owned()]).unwrap();
        assert_eq!(prefixed, json!({ "profiling": { "ncu": { "max_launches": 3 } } }));
        assert!(change(&mut json!({ "profiling": 3 }), &set).is_err());
        let twice = [&set[..], &set[1..]].concat();
        let refused = format!("{:#}", change(&mut json!({}), &twice).unwrap_err());
        assert_eq!(refused, "--set: setting ncu.max_launches: given more than once; give it once");
    }
}
