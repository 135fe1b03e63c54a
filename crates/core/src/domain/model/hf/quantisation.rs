//! Rejection of quantised weights, whose bytes and peak rates no dtype gives.

use serde_json::Value;

use super::super::ModelError;

/// Fields that describe quantised weights, in any object of a config: of transformers, of older
/// compressed-tensors and AWQ, and of MLX.
const FIELDS: [&str; 5] = [
    "quantization_config",
    "compression_config",
    "quant_config",
    "quantization",
    "quantize_config",
];
/// Fields of such an object that name its method or its dtype, best first.
const METHODS: [&str; 5] = ["quant_method", "quant_algo", "format", "fmt", "version"];

/// Rejects a config with quantised weights, also of a part of the model.
pub fn reject(config: &Value) -> Result<(), ModelError> {
    let Some(fields) = config.as_object() else { return Ok(()) };
    for (name, value) in fields {
        if FIELDS.contains(&name.as_str()) && !is_empty(value) {
            return Err(ModelError::Quantised(format!("{name}: {}", method(value))));
        }
        reject(value)?;
    }
    Ok(())
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// The method of a quantisation in a few words.
fn method(value: &Value) -> String {
    let named = METHODS.iter().find_map(|name| value.get(name)?.as_str());
    let named = named.or(value.as_str()).map(str::to_owned);
    let loaded = ["load_in_4bit", "load_in_8bit"]
        .into_iter()
        .find(|name| value.get(name).and_then(Value::as_bool) == Some(true));
    let bits = value.get("bits").or(value.get("w_bit")).and_then(Value::as_u64);
    let bits = bits.map(|bits| format!("{bits} bits"));
    let parts: Vec<String> =
        [named, loaded.map(str::to_owned), bits].into_iter().flatten().collect();
    let text = if parts.is_empty() { "unknown method".to_owned() } else { parts.join(", ") };
    text.chars().filter(|it| !it.is_control()).take(60).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(config: Value) -> Option<String> {
        reject(&config).err().map(|error| error.to_string())
    }

    #[test]
    fn quantised_weights_are_rejected_with_their_method_and_a_remedy() {
        for (name, config, method) in [
            ("quantization_config", json!({ "quant_method": "fp8", "fmt": "e4m3" }), "fp8"),
            ("quantization_config", json!({ "quant_method": "gptq", "bits": 4 }), "gptq, 4 bits"),
            ("quantization_config", json!({ "quant_method": "awq", "w_bit": 4 }), "awq, 4 bits"),
            ("quantization_config", json!({ "load_in_4bit": true }), "load_in_4bit"),
            (
                "quantization_config",
                json!({ "quant_method": "bitsandbytes", "load_in_8bit": true }),
                "bitsandbytes, load_in_8bit",
            ),
            ("quantization_config", json!({ "quant_method": "mxfp4" }), "mxfp4"),
            ("quantization_config", json!({ "quant_algo": "NVFP4" }), "NVFP4"),
            (
                "quantization_config",
                json!({ "quant_method": "compressed-tensors", "format": "float-quantized" }),
                "compressed-tensors",
            ),
            ("quantization_config", json!({ "modules": [] }), "unknown method"),
            ("quantization_config", json!("fp8"), "fp8"),
            ("compression_config", json!({ "format": "pack-quantized" }), "pack-quantized"),
            ("quantization", json!({ "group_size": 64, "bits": 4 }), "4 bits"),
        ] {
            let error = refused(json!({ "model_type": "qwen3", name: config })).unwrap();
            assert!(error.contains(&format!("quantised ({name}: {method})")), "{error}");
            assert!(error.contains("remove that key"), "{error}");
            let nested = refused(json!({ "text_config": { name: config } }));
            assert!(nested.is_some_and(|error| error.contains(method)));
        }
    }

    #[test]
    fn an_empty_quantisation_is_none() {
        for config in [json!({}), json!({ "quantization_config": null }), json!([1])] {
            assert_eq!(refused(config), None);
        }
        assert_eq!(refused(json!({ "quantization_config": {}, "quantization": false })), None);
    }
}
