//! Deployment files: the image contains every file that the build reads, its settings exist, and
//! ports are published on the host only.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use llmprof_core::{
    domain::state::{Step, StepRecord, StepState},
    trace::power::{GpuReading, PowerSample},
};
use llmprof_service::config::Config;
use yaml_serde::Value;

use super::sources::{root, rust_files};
use crate::api::router::Api;

fn text(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// Path of `name`, relative to a source in `folder`, from the repository's root.
fn resolved(folder: &Path, name: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in folder.join(name).strip_prefix(root()).unwrap().components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
    }
    path
}

#[test]
fn a_setting_of_the_systemd_unit_is_stated_once() {
    let mut stated = BTreeSet::new();
    let unit = text("conf/systemd/llmprof.service");
    for (key, _) in unit.lines().filter_map(|line| line.split_once('=')) {
        let is_comment = key.starts_with('#');
        assert!(is_comment || stated.insert(key), "{key} is stated twice");
    }
    assert!(stated.len() > 20, "{stated:?}");
}

#[test]
fn the_image_contains_every_included_file() {
    let kept: Vec<String> = text(".dockerignore")
        .lines()
        .filter_map(|line| line.strip_prefix('!').map(str::to_owned))
        .collect();
    let files: Vec<PathBuf> =
        ["src", "crates"].iter().flat_map(|folder| rust_files(&root().join(folder))).collect();
    let codes: Vec<String> = files.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let declared = codes.iter().flat_map(|code| code.split("#[cfg(test)]\nmod ").skip(1));
    let of_tests: BTreeSet<&str> =
        declared.filter_map(|it| it.lines().next()?.strip_suffix(';')).collect();
    let mut included = BTreeSet::new();
    for (path, code) in files
        .iter()
        .zip(&codes)
        .filter(|(path, _)| !of_tests.contains(path.file_stem().unwrap().to_str().unwrap()))
    {
        let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for (at, start) in
            ["include_str!(\"", "include_bytes!(\""].iter().flat_map(|it| code.match_indices(it))
        {
            let name = code[at + start.len()..].split('"').next().unwrap();
            let file = resolved(path.parent().unwrap(), name);
            assert!(
                kept.iter().any(|kept| file.starts_with(kept)),
                "{} is kept out of the image",
                file.display()
            );
            included.insert(file);
        }
    }
    for known in ["conf/default.toml", "crates/service/src/http/ui/templates/page.css"] {
        assert!(included.contains(Path::new(known)), "{known} was not found");
    }
    let manifests = fs::read_dir(root().join("crates")).unwrap();
    for folder in manifests.map(|entry| entry.unwrap().path()).chain([root().to_owned()]) {
        let file = folder.strip_prefix(root()).unwrap().join("Cargo.toml");
        assert!(kept.iter().any(|kept| file.starts_with(kept)), "{} is kept out", file.display());
    }
    assert!(kept.iter().any(|kept| kept == "build.rs"), "build.rs is kept out");
    let is_kept = |kept: &String| root().join(kept).exists();
    assert!(kept.iter().all(is_kept), "a name in .dockerignore is not a file: {kept:?}");
}

#[test]
fn settings_of_the_image_exist_and_require_a_token() {
    let dockerfile = text("Dockerfile");
    let instruction = dockerfile.lines().filter(|line| line.starts_with("ENV LLMPROF__"));
    let settings = instruction.flat_map(|line| line["ENV ".len()..].split_whitespace());
    let settings: Vec<(String, String)> =
        settings.map(|it| it.split_once('=').unwrap()).map(|(k, v)| (k.into(), v.into())).collect();
    let config = Config::load_with(None, settings.into_iter()).unwrap();
    assert_eq!(config.server.listen, "0.0.0.0:8080");
    assert!(
        config.server.behind_proxy
            && config.access.tokens != llmprof_service::config::TokenPolicy::Off
    );
    let user = dockerfile.lines().rfind(|line| line.starts_with("USER ")).unwrap();
    assert!(!user.contains("root"), "{user}");
}

#[test]
fn compose_publishes_on_loopback_and_writes_to_volumes() {
    let compose: Value = yaml_serde::from_str(&text("docker-compose.yml")).unwrap();
    let services: BTreeMap<String, Value> =
        yaml_serde::from_value(compose["services"].clone()).unwrap();
    assert_eq!(services.keys().collect::<Vec<_>>(), ["grafana", "llmprof", "prometheus"]);
    for (name, service) in services {
        for port in service["ports"].as_sequence().unwrap() {
            assert!(port.as_str().unwrap().starts_with("127.0.0.1:"), "{name}: {port:?}");
        }
        assert_eq!(service["read_only"], Value::Bool(true), "{name}");
    }
}

/// Names of llmprof metrics in `text`.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("llmprof_")).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_dashboard_shows_exactly_the_served_metrics() {
    // Every value of a GPU and of a step.
    let sample = PowerSample {
        power_w: Some(1.0),
        temperature_c: Some(1),
        gpu_pct: Some(1),
        memory_used_bytes: Some(1),
        sm_mhz: Some(1),
        memory_mhz: Some(1),
        energy_mj: Some(1),
        ..PowerSample::default()
    };
    let api =
        Api::with_gpus(vec![GpuReading { uuid: "GPU-1".into(), name: "a GPU".into(), sample }])
            .await;
    api.submit(serde_json::json!({})).await;
    let run = api.start().await;
    let (started_at, ended_at) =
        ("2026-11-20T09:00:00.000Z".to_owned(), Some("2026-11-20T09:00:07.500Z".to_owned()));
    let (step, state) = (Step::Baseline, StepState::Succeeded);
    let ended = StepRecord { step, state, started_at, ended_at, exit_code: None, message: None };
    api.store.save_steps(&run, &[ended]).await.unwrap();
    let served = api.get("/metrics").await.text();
    let types = served.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut kinds: BTreeMap<&str, &str> = types.collect();
    let dashboard: Value = yaml_serde::from_str(&text("conf/grafana/llmprof.json")).unwrap();
    let panels = dashboard["panels"].as_sequence().unwrap();
    let mut places = BTreeSet::new();
    let mut shown = BTreeSet::new();
    for panel in panels {
        let at = &panel["gridPos"];
        assert!(
            places.insert((at["x"].as_u64().unwrap(), at["y"].as_u64().unwrap())),
            "two panels in one place"
        );
        assert!(
            !panel["title"].as_str().unwrap().is_empty()
                && panel["fieldConfig"]["defaults"]["unit"].is_string()
        );
        for target in panel["targets"].as_sequence().unwrap() {
            shown.extend(metrics(target["expr"].as_str().unwrap()));
        }
    }
    // A histogram is served as three series, and a counter with a suffix.
    let parts = [
        ("_bucket", "histogram"),
        ("_count", "histogram"),
        ("_sum", "histogram"),
        ("_total", "counter"),
    ];
    let family = |name: &String| {
        let families =
            parts.iter().filter_map(|(part, kind)| Some((name.strip_suffix(part)?, kind)));
        families
            .into_iter()
            .find(|(family, kind)| kinds.get(family) == Some(kind))
            .map_or(name.as_str(), |(family, _)| family)
            .to_owned()
    };
    let families: BTreeSet<String> = shown.iter().map(family).collect();
    for name in &families {
        assert!(kinds.contains_key(name.as_str()), "{name} is shown and not served");
    }
    kinds.retain(|name, _| !families.contains(*name));
    assert!(kinds.is_empty(), "served and not shown: {kinds:?}");
}
