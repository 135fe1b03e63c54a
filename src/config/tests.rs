//! Tests of the merge of settings, of the presets and of the models folder.

use super::*;
use crate::domain::mode::Mode;

fn load(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::load_with(
        None,
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    )
}

#[test]
fn the_environment_overrides_the_defaults() {
    let config = load(&[
        ("LLMPROF__WORKER__LEASE_S", "5"),
        ("LLMPROF__SERVER__DATA", "/srv/llmprof"),
        ("HOME", "/root"),
    ])
    .unwrap();
    assert_eq!((config.worker.lease_s, config.server.data), (5, PathBuf::from("/srv/llmprof")));
    assert_eq!(config.server.listen, "127.0.0.1:8080");
}

#[test]
fn a_list_in_the_environment_is_toml() {
    let config = load(&[("LLMPROF__WORKER__DEVICES", r#"["cpu"]"#)]).unwrap();
    assert_eq!(config.worker.devices, ["cpu"]);
}

#[test]
fn an_unknown_setting_is_rejected_with_the_nearest_one() {
    let error = load(&[("LLMPROF__WORKER__LEASES", "5")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "LLMPROF__WORKER__LEASES: unknown setting worker.leases; did you mean worker.lease_s?"
    );
}

#[test]
fn a_renamed_setting_is_refused_with_its_new_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("llmprof.toml");
    for (old, new) in RENAMED {
        std::fs::write(&path, format!("{old} = 1\n")).unwrap();
        let error = Config::load_with(Some(&path), std::iter::empty()).unwrap_err().to_string();
        let expected = format!("unknown setting {old}; did you mean {new}?");
        assert_eq!(error, format!("{}: {expected}", path.display()));
    }
}

#[test]
fn a_file_overrides_the_defaults_and_a_wrong_type_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("llmprof.toml");
    std::fs::write(&path, "[worker]\ngrace_s = 3\n").unwrap();
    assert_eq!(Config::load_with(Some(&path), std::iter::empty()).unwrap().worker.grace_s, 3);
    std::fs::write(&path, "[worker]\ngrace_s = \"soon\"\n").unwrap();
    assert!(matches!(
        Config::load_with(Some(&path), std::iter::empty()),
        Err(ConfigError::Type { .. })
    ));
}

#[test]
fn a_value_outside_of_its_range_is_refused() {
    let error = load(&[("LLMPROF__SERVER__WRITE_S", "0")]).unwrap_err();
    assert_eq!(error.to_string(), "invalid server.write_s = 0; expected 1 second or more");
    assert!(load(&[("LLMPROF__SERVER__CONNECTIONS_PER_ADDRESS", "0")]).is_ok(), "no limit");
}

#[test]
fn bundled_models_are_valid_and_a_folder_overrides_them() {
    let bundled = models(None).unwrap().models;
    assert_eq!(
        bundled.keys().collect::<Vec<_>>(),
        ["deepseek-ocr", "deepseek-ocr-tiny", "llama-tiny", "qwen3-0.6b"]
    );
    let dir = tempfile::tempdir().unwrap();
    let text = include_str!("../../conf/models/deepseek-ocr-tiny.toml")
        .replace("vocab = 8192", "vocab = 9000");
    std::fs::write(dir.path().join("mine.toml"), text).unwrap();
    assert_eq!(models(Some(dir.path())).unwrap().models["mine"].decoder.vocab, 9000);
}

#[test]
fn a_folder_overrides_the_presets_key_by_key_and_unknown_names_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep.toml");
    std::fs::write(&path, "[ncu]\nmax_launches = 9\n").unwrap();
    let (changed, bundled) = (profiling(Some(dir.path())).unwrap(), profiling(None).unwrap());
    assert_eq!(
        (changed[&Mode::Deep].ncu.max_launches, bundled[&Mode::Deep].ncu.max_launches),
        (9, 120)
    );
    assert_eq!(
        (&changed[&Mode::Deep].nsys, &changed[&Mode::Light]),
        (&bundled[&Mode::Deep].nsys, &bundled[&Mode::Light])
    );
    std::fs::write(&path, "[ncu]\nmax_launch = 9\n").unwrap();
    let error = profiling(Some(dir.path())).unwrap_err();
    assert_eq!(
        crate::chain(&error),
        "profiling preset deep: unknown setting ncu.max_launch; did you mean ncu.max_launches?"
    );
    std::fs::rename(&path, dir.path().join("deeper.toml")).unwrap();
    assert!(matches!(profiling(Some(dir.path())), Err(ConfigError::UnknownPreset { .. })));
}

#[test]
fn a_published_folder_is_a_model_with_the_weights_next_to_its_config() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("Llama-mini");
    std::fs::create_dir(&folder).unwrap();
    let config = r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
        "vocab_size": 256, "max_position_embeddings": 512, "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}"#;
    std::fs::write(folder.join("config.json"), config).unwrap();
    assert_eq!(models(Some(dir.path())).unwrap().models["Llama-mini"].weights, None);
    std::fs::write(folder.join("model.safetensors"), "").unwrap();
    let model = &models(Some(dir.path())).unwrap().models["Llama-mini"];
    assert_eq!((model.weights.as_deref(), model.decoder.kv_heads), (Some(folder.as_path()), 2));
}
