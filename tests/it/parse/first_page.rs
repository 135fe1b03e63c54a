//! First pages of randomly changed captures: every number stands in a table, and no sentence
//! contradicts another one or a finding.

use std::{collections::BTreeMap, sync::LazyLock};

use llmprof_analyze::{analyze, parse};
use llmprof_core::{
    domain::{
        device_peaks::Devices,
        ids::RunId,
        import::Import,
        state::RunState,
        subject::{Common, RunSpec, Subject, SubjectKind},
    },
    trace::{Trace, timeline::Timeline},
};
use llmprof_report::{
    RunFacts,
    answer::{Answer, stored_answer, unfounded},
    profile::profile,
};
use proptest::prelude::*;
use serde_json::Value;
use uuid::Uuid;

use crate::parse::{
    changes::{change, sorted},
    sums::OpenCapture,
};

/// The stored report of an import of `nsys`.
fn report(nsys: Timeline) -> Vec<u8> {
    let devices = Devices::from_toml(include_str!("../../../conf/devices.toml")).unwrap();
    let import = Import {
        name: "capture".into(),
        model: None,
        files: vec![],
        stages: vec![],
        include_ranges: vec![],
        exclude_ranges: vec![],
        computes: None,
    };
    let spec = RunSpec { subject: Subject::Import(import), common: Common::default() };
    let trace = Trace {
        subject: SubjectKind::Import,
        environment: nsys.target.clone(),
        nsys: Some(nsys),
        ..Trace::default()
    };
    let analysis = analyze(&trace, None, devices.find("NVIDIA H200"));
    let facts = RunFacts {
        id: RunId(Uuid::nil()),
        spec: &spec,
        model: None,
        environment: &trace.environment,
        steps: &[],
        findings: &[],
        inputs: &[],
        part: &[],
        command: None,
        state: RunState::Succeeded,
    };
    serde_json::to_vec(&profile(&facts, &trace, &analysis)).unwrap()
}

/// Sentences of the first page that cannot be true together, or with the findings.
fn contradictions(report: &[u8]) -> Vec<String> {
    let mut found = unfounded(report).unwrap();
    let tables: Value = serde_json::from_slice(report).unwrap();
    found.extend(savings(&tables));
    for answer in stored_answer(report).unwrap() {
        found.extend(repeated(&answer));
        found.extend(reasons(&answer));
        found.extend(said_and_unknown(&answer, &tables));
    }
    found
}

/// The rows of a list of a report, which is absent if it is empty.
fn rows<'a>(report: &'a Value, list: &str) -> &'a [Value] {
    report[list].as_array().map_or(&[], Vec::as_slice)
}

/// Texts that stand on the page twice.
fn repeated(answer: &Answer) -> Vec<String> {
    let mut texts: BTreeMap<&str, usize> = BTreeMap::new();
    let cited = answer.sentences.iter().chain(&answer.overhead).map(|it| it.as_str());
    for text in cited.chain(answer.unknown.iter().map(String::as_str)) {
        *texts.entry(text).or_default() += 1;
    }
    texts.retain(|_, times| *times > 1);
    texts.into_keys().map(|it| format!("repeated: {it}")).collect()
}

/// The first number of a text and the stage after "of".
fn share(text: &str) -> Option<(f64, String)> {
    let (number, rest) = text.trim_start_matches("At most ").split_once(" % of ")?;
    let (stage, _) = rest.split_once(": ")?;
    Some((number.trim_start_matches("< ").parse().ok()?, stage.to_owned()))
}

/// Reasons whose shares of one whole are above 100 %.
fn reasons(answer: &Answer) -> Vec<String> {
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for reason in &answer.reasons {
        let text = reason.text.as_str();
        let Some((pct, whole)) = share(text) else { return vec![format!("no share: {text}")] };
        *sums.entry(whole).or_default() += pct;
    }
    // Each is rounded to a percent.
    let rounding = 0.5 * answer.reasons.len() as f64;
    sums.retain(|_, sum| *sum > 100.0 + rounding);
    sums.into_iter().map(|(whole, sum)| format!("{sum} % of {whole}")).collect()
}

/// Savings of reasons that are not those of the findings on the same cause.
fn savings(report: &Value) -> Vec<String> {
    let findings = rows(report, "findings");
    let mut differ = Vec::new();
    for row in rows(report, "ledger") {
        let id = format!("ledger_{}", row["cause"].as_str().unwrap());
        let stage = row["stage"].as_str().unwrap();
        let is_of = |it: &&Value| it["id"] == id.as_str() && it["max_saving"]["stage"] == stage;
        let Some(finding) = findings.iter().find(is_of) else { continue };
        let (a, b) = (finding["max_saving"]["ms"].as_f64(), row["max_saving_ns"].as_f64());
        let is_equal = a.zip(b).is_none_or(|(ms, ns)| (ms - ns * 1e-6).abs() < 1e-3 + 1e-3 * ms);
        if !is_equal {
            differ.push(format!("{id} in {stage} saves {a:?} ms, and the ledger has {b:?} ns"));
        }
    }
    differ
}

/// Stages whose distance from the floor is stated and unknown.
fn said_and_unknown(answer: &Answer, report: &Value) -> Vec<String> {
    let mut both = Vec::new();
    let stages = rows(report, "ledger_stages");
    for stage in stages {
        let name = stage["stage"].as_str().unwrap();
        let has_floor = !stage["times_floor"].is_null();
        let is_unknown = answer.unknown.iter().any(|it| {
            it.starts_with(&format!("How fast {name}")) || it.starts_with("How fast it could be")
        });
        if has_floor && is_unknown && stages.len() == 1 {
            both.push(format!("the floor of {name} is stated and unknown"));
        }
    }
    both
}

fn base(name: &str) -> Timeline {
    parse::nsys::read(&OpenCapture::open(name).dir.path().join("run.sqlite")).unwrap()
}

const NAMES: [&str; 6] = [
    "torch-cuda-graph-node",
    "hf-llama-attention-mock",
    "hf-llama-e2e",
    "hf-serve-window",
    "jax-steps",
    "h200-whole-graphs",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_sentence_on_a_changed_capture_contradicts_a_table_a_finding_or_another_one(
        which in 0usize..NAMES.len(),
        changes in prop::collection::vec(change(), 0..6),
    ) {
        static BASES: LazyLock<Vec<Timeline>> =
            LazyLock::new(|| NAMES.iter().map(|it| base(it)).collect());
        let mut nsys = BASES[which].clone();
        changes.iter().for_each(|change| change.apply(&mut nsys));
        prop_assert_eq!(contradictions(&report(sorted(nsys))), Vec::<String>::new());
    }
}
