//! Tests of the merge of settings, of the presets and of the models folder.

use llmprof_core::domain::{device_peaks::Devices, mode::Mode, profiling::Presets};

use super::*;

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
fn a_file_without_an_end_is_refused() {
    let error = Config::load_with(Some(Path::new("/dev/zero")), std::iter::empty()).unwrap_err();
    let expected = format!("cannot read /dev/zero: larger than {MAX_FILE} bytes");
    assert_eq!(llmprof_core::chain(&error), expected);
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
    for (variable, value, expected) in [
        ("SERVER__WRITE_S", "0", "server.write_s = 0; expected 1 second or more"),
        ("LIMITS__RUN_S", "0", "limits.run_s = 0; expected 1 second or more"),
        (
            "LIMITS__RUN_BYTES",
            "1048575",
            "limits.run_bytes = 1048575; expected 1048576 bytes or more, for the logs and reports \
             of a run",
        ),
    ] {
        let variable = format!("LLMPROF__{variable}");
        let error = load(&[(variable.as_str(), value)]).unwrap_err();
        assert_eq!(error.to_string(), format!("invalid {expected}"));
    }
    assert!(load(&[("LLMPROF__LIMITS__RUN_BYTES", "1048576")]).is_ok(), "the minimum");
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
    let text = include_str!("../../../../conf/models/deepseek-ocr-tiny.toml")
        .replace("vocab = 8192", "vocab = 9000");
    std::fs::write(dir.path().join("mine.toml"), text).unwrap();
    assert_eq!(models(Some(dir.path())).unwrap().models["mine"].decoder.vocab, 9000);
}

#[test]
fn a_folder_overrides_the_presets_key_by_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep.toml");
    std::fs::write(&path, "[ncu]\nmax_launches = 9\n").unwrap();
    let (changed, bundled) = (profiling(Some(dir.path())).unwrap(), profiling(None).unwrap());
    let of = |presets: &Presets, mode: &Mode| presets[mode].profiling.clone();
    assert_eq!(
        (of(&changed, &Mode::DEEP).ncu.max_launches, of(&bundled, &Mode::DEEP).ncu.max_launches),
        (9, 120)
    );
    assert_eq!(changed[&Mode::DEEP].description, bundled[&Mode::DEEP].description);
    assert_eq!(of(&changed, &Mode::DEEP).nsys, of(&bundled, &Mode::DEEP).nsys);
    assert_eq!(changed[&Mode::LIGHT], bundled[&Mode::LIGHT]);
    std::fs::write(&path, "[ncu]\nmax_launch = 9\n").unwrap();
    let error = profiling(Some(dir.path())).unwrap_err();
    assert_eq!(
        llmprof_core::chain(&error),
        "profiling preset deep: unknown setting ncu.max_launch; did you mean ncu.max_launches?"
    );
}

#[test]
fn files_of_other_names_are_presets_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("deep.toml", "[ncu]\nmax_launches = 9\n");
    write("nightly.toml", "[nsys]\nrepeats = 7\n");
    write("quick.toml", "base = \"light\"\ndescription = \"a short timeline\"\n[nvml]\nhz = 5\n");
    let presets = profiling(Some(dir.path())).unwrap();
    let names: Vec<&str> = presets.keys().map(Mode::as_str).collect();
    assert_eq!(names, ["deep", "light", "basic", "nightly", "quick"]);
    let of = |name: &str| &presets[&name.parse::<Mode>().unwrap()];
    let (deep, nightly, quick) = (of("deep"), of("nightly"), of("quick"));
    assert_eq!(nightly.profiling.nsys.repeats, 7);
    assert_eq!(nightly.description, "");
    assert_eq!(
        (deep.profiling.ncu.max_launches, nightly.profiling.ncu.max_launches),
        (9, 120),
        "the base is the bundled preset"
    );
    assert_eq!((quick.description.as_str(), quick.profiling.nvml.hz), ("a short timeline", 5));
    assert_eq!(quick.profiling.nsys, presets[&Mode::LIGHT].profiling.nsys);
}

#[test]
fn wrong_presets_are_refused_with_their_name() {
    for (name, text, expected) in [
        (
            "quick.toml",
            "base = \"lite\"",
            "quick: base: unknown \"lite\"; expected deep, light, basic",
        ),
        ("quick.toml", "base = 3", "quick: base: 3 is not a text"),
        ("quick.toml", "base = \"nightly\"", "expected deep, light, basic"),
        ("light.toml", "base = \"deep\"", "light: base: light is a bundled preset"),
        ("quick.toml", "description = \"a\\nb\"", "expected one line of at most 200 characters"),
        ("quick.toml", "[nvml]\nhz = 0", "quick: nvml.hz: 0 is not between 1 and 100"),
        ("Quick.toml", "", "invalid name of the preset"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(name), text).unwrap();
        let error = llmprof_core::chain(&profiling(Some(dir.path())).unwrap_err());
        assert!(error.contains(expected), "{name} {text}: {error}");
    }
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

#[test]
fn typical_parts_of_each_model_can_run_alone() {
    for model in models(None).unwrap().models.values() {
        let parts = model.typical_parts();
        assert!(parts.len() >= 3, "{}: {parts:?}", model.name);
        for part in parts {
            model.check_part(&part).unwrap();
        }
    }
}

#[test]
fn a_file_adds_devices_and_replaces_known_ones_and_a_wrong_one_is_named() {
    let row = |name: &str, gb_s: f64| {
        format!(
            "[[device]]\nname = \"own\"\nreported_as = [\"{name}\"]\nmemory_gb_s = {gb_s:?}\n\
             dense_tflops = {{ bf16 = 100.0 }}\nsource = \"datasheet\"\n"
        )
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("own.toml");
    std::fs::write(&path, row("GPU X", 500.0) + &row("nvidia h200", 600.0)).unwrap();
    let (own, known) = (devices_with(&path).unwrap(), devices().unwrap());
    let gb_s = |of: &Devices, name: &str| of.find(name).map(|it| it.memory_gb_s);
    assert_eq!((gb_s(&own, "GPU X"), gb_s(&known, "GPU X")), (Some(500.0), None));
    assert_eq!(gb_s(&own, "NVIDIA H200"), Some(600.0), "the file's row is preferred");
    assert_eq!(gb_s(&own, "NVIDIA H100 PCIe"), gb_s(&known, "NVIDIA H100 PCIe"));
    assert_eq!(devices_with(Path::new("")).unwrap(), known, "no file");
    for wrong in [row("GPU X", 0.0), row("a", 1.0) + &row("A", 1.0), "device = 1".to_owned()] {
        std::fs::write(&path, wrong).unwrap();
        let error = devices_with(&path).unwrap_err().to_string();
        assert!(error.ends_with("own.toml is not a table of devices"), "{error}");
    }
    assert!(matches!(devices_with(&dir.path().join("none")), Err(ConfigError::Read { .. })));
}
