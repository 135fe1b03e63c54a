//! Tool `submit_run`: queues a run of a model or of an allowed command.

use llmprof_core::domain::json_numbers::{MAX_EXACT, Within};
use rmcp::{
    model::Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Effect, items, known, links, of, text};
use crate::mcp::{
    answer::ToolAnswer,
    arguments::invalid,
    service_api::{ApiCall, ApiRefusal, ServiceApi, read},
};

/// A submission. The service checks every value.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// Model to profile, as `describe` lists it; or give `command`
    #[schemars(length(min = 1, max = 200), example = &"deepseek-ocr-tiny")]
    model: Option<String>,
    /// Command to profile, as `describe` lists it
    #[schemars(length(min = 1, max = 200))]
    command: Option<String>,
    /// Parameters of the command by name
    params: Option<Map<String, Value>>,
    /// Only this part of the model
    #[schemars(length(max = 200), example = &"decoder.layers.3.self_attn")]
    part: Option<String>,
    /// Id of stored inputs, or a manifest of the service; a bundled page or text when absent
    #[schemars(length(max = 200))]
    inputs: Option<String>,
    /// Prompt, in place of `inputs`
    #[schemars(length(max = 100_000))]
    prompt: Option<String>,
    /// Depth of the profile: `basic` measures only time, `light` adds a timeline, `deep` (the
    /// default) adds counters of kernels
    #[schemars(length(max = 64), example = &"light")]
    mode: Option<String>,
    /// Measured repeats without a profiler; more give a narrower interval
    #[serde(default, deserialize_with = "Within::<1, 100>::optional")]
    #[schemars(range(min = 1, max = 100))]
    repeats: Option<u32>,
    /// Unmeasured repeats before them
    #[serde(default, deserialize_with = "Within::<0, 100>::optional")]
    #[schemars(range(min = 0, max = 100))]
    warmup: Option<u32>,
    /// Tokens to generate after prefill
    #[serde(default, deserialize_with = "Within::<1, 4096>::optional")]
    #[schemars(range(min = 1, max = 4096))]
    max_new_tokens: Option<u32>,
    /// Sequences generated together
    #[serde(default, deserialize_with = "Within::<1, 1024>::optional")]
    #[schemars(range(min = 1, max = 1024))]
    batch: Option<u32>,
    /// Seed of synthetic weights; of the inputs when absent
    #[serde(default, deserialize_with = "Within::<0, MAX_EXACT>::optional")]
    #[schemars(range(min = 0, max = MAX_EXACT))]
    seed: Option<u64>,
    /// Dtype of the model: `f32`, `f16` or `bf16`
    #[schemars(length(max = 64), example = &"bf16")]
    dtype: Option<String>,
    /// `e2e`: also profile the whole model, and align `part` with it
    #[schemars(length(max = 64))]
    align_with: Option<String>,
    /// Device, as `describe` lists it
    #[schemars(length(max = 64), example = &"auto")]
    device: Option<String>,
    /// Limit on the whole run, seconds
    #[serde(default, deserialize_with = "Within::<1, 1800>::optional")]
    #[schemars(range(min = 1, max = 1800))]
    timeout_s: Option<u32>,
    /// Runs of higher priority start first
    #[serde(default, deserialize_with = "Within::<-100, 100>::optional")]
    #[schemars(range(min = -100, max = 100))]
    priority: Option<i32>,
    /// Settings that override those of the mode (`GET /profiling`)
    profiling: Option<Map<String, Value>>,
    /// Labels to find the run by
    #[serde(default)]
    #[schemars(length(max = 16))]
    labels: Vec<String>,
    /// Commit of the profiled program: runs of one series are compared by it
    #[schemars(length(max = 64), example = &"3f2c1ab")]
    revision: Option<String>,
    /// Check the submission and return its steps; queue nothing
    #[serde(default)]
    dry_run: bool,
}

pub fn tool() -> Tool {
    of::<Arguments>(
        "submit_run",
        "Queue a run",
        "Queues a profile of a model or of an allowed command, and returns its run_id at once. It \
         uses a GPU for minutes: try dry_run first, which returns the steps and the expected \
         duration. Then call wait_for_run. Each call queues another run.",
        Effect::Adds,
    )
}

/// The body of the submission.
fn body(arguments: Arguments) -> Result<Value, ApiRefusal> {
    let it = arguments;
    if it.model.is_some() == it.command.is_some() {
        return Err(invalid("give either model or command; describe lists both"));
    }
    if it.command.is_none() && it.params.is_some() {
        return Err(invalid("params are of a command; give command too"));
    }
    let is_of_model = it.part.is_some() || it.inputs.is_some() || it.prompt.is_some();
    let has_size = it.max_new_tokens.is_some() || it.batch.is_some();
    let has_values = it.seed.is_some() || it.dtype.is_some() || it.align_with.is_some();
    if it.command.is_some() && (is_of_model || has_size || has_values) {
        return Err(invalid(
            "part, inputs, prompt, max_new_tokens, batch, seed, dtype and align_with are of a \
             model, not a command",
        ));
    }
    if it.inputs.is_some() && it.prompt.is_some() {
        return Err(invalid("give either inputs or prompt"));
    }
    let params = it.params.unwrap_or_default();
    let target = match it.command {
        Some(command) => Some(json!({ "command": command, "params": params })),
        None => it.part.map(Value::from),
    };
    let inputs = match it.prompt {
        Some(prompt) => Some(json!({ "prompt": prompt, "images": [] })),
        None => it.inputs.map(Value::from),
    };
    let fields = [
        ("model", it.model.map(Value::from)),
        ("target", target),
        ("inputs", inputs),
        ("mode", it.mode.map(Value::from)),
        ("repeats", it.repeats.map(Value::from)),
        ("warmup", it.warmup.map(Value::from)),
        ("max_new_tokens", it.max_new_tokens.map(Value::from)),
        ("batch", it.batch.map(Value::from)),
        ("seed", it.seed.map(Value::from)),
        ("dtype", it.dtype.map(Value::from)),
        ("align_with", it.align_with.map(Value::from)),
        ("device", it.device.map(Value::from)),
        ("timeout_s", it.timeout_s.map(Value::from)),
        ("priority", it.priority.map(Value::from)),
        ("profiling", it.profiling.map(Value::from)),
        ("labels", Some(Value::from(it.labels)).filter(|it| it != &json!([]))),
        ("revision", it.revision.map(Value::from)),
        ("dry_run", it.dry_run.then_some(Value::from(true))),
    ];
    let given = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Ok(Value::Object(given.collect()))
}

pub async fn call(api: &impl ServiceApi, arguments: Arguments) -> Result<ToolAnswer, ApiRefusal> {
    let is_check = arguments.dry_run;
    let run: Value = read(api, ApiCall::post("/runs", body(arguments)?)).await?;
    let mut answer = ToolAnswer::default();
    if is_check {
        let steps: Vec<Value> = items(&run["steps"])
            .iter()
            .map(|it| known(it, &["step", "repeats", "skipped_because"]))
            .collect();
        let will_run = steps.iter().filter(|it| it["skipped_because"].is_null());
        let names: Vec<&str> = will_run.map(|it| text(it, "step")).collect();
        answer.line(format!("valid; nothing was queued. Steps: {}", names.join(", ")));
        answer.field("duration", known(&run["duration"], &["seconds", "unknown_because", "basis"]));
        for note in items(&run["notes"]) {
            answer.line(note.as_str().unwrap_or_default());
        }
        answer.list("steps", steps, "POST /runs with dry_run");
        return Ok(answer);
    }
    let id = text(&run, "run_id");
    answer.line(format!("run {id} is {}", text(&run, "state")));
    answer.line(format!("next: wait_for_run with run_id {id}"));
    answer.field("run_id", id);
    answer.field("state", run["state"].clone());
    answer.field("queue_position", run["queue_position"].clone());
    answer.field("links", links(id));
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body_of(value: Value) -> Result<Value, ApiRefusal> {
        body(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn a_submission_has_the_given_fields_alone() {
        let model =
            json!({ "model": "llama-tiny", "mode": "basic", "prompt": "Hi", "dry_run": true });
        assert_eq!(
            body_of(model).unwrap(),
            json!({ "model": "llama-tiny", "mode": "basic", "dry_run": true,
                "inputs": { "prompt": "Hi", "images": [] } })
        );
        let command = json!({ "command": "torch", "params": { "tokens": 8 }, "labels": ["a"] });
        assert_eq!(
            body_of(command).unwrap(),
            json!({ "target": { "command": "torch", "params": { "tokens": 8 } }, "labels": ["a"] })
        );
    }

    #[test]
    fn contradicting_arguments_are_refused_with_the_remedy() {
        for (value, reason) in [
            (json!({}), "either model or command"),
            (json!({ "model": "a", "command": "b" }), "either model or command"),
            (json!({ "model": "a", "params": {} }), "give command too"),
            (json!({ "command": "a", "prompt": "b" }), "of a model"),
            (json!({ "command": "a", "seed": 1 }), "of a model"),
            (json!({ "model": "a", "prompt": "b", "inputs": "c" }), "either inputs or prompt"),
        ] {
            let refusal = body_of(value).unwrap_err();
            assert!(refusal.message.contains(reason), "{refusal}");
        }
    }
}
