//! First pages of randomly changed captures: every number stands in a table, and no sentence
//! contradicts another one or a finding.

use std::{
    collections::BTreeMap,
    fmt::Write,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use llmprof_analyze::{analyze, parse, stages::DECODE};
use llmprof_core::{
    domain::{
        device_peaks::Devices,
        ids::RunId,
        state::RunState,
        subject::{RunSpec, SubjectKind},
    },
    trace::{Trace, timeline::Timeline},
};
use llmprof_report::{
    RunFacts,
    answer::{Answer, Cited, stored_answer, unfounded},
    kernel_names,
    pipeline::{self, Statements},
    profile::profile,
    stored_first_page, stored_tiles,
};
use llmprof_service::config;
use proptest::prelude::*;
use serde_json::Value;
use uuid::Uuid;

use crate::{
    parse::{
        changes::{change, sorted},
        page_text,
    },
    support::{captures::capture, golden::golden, slow_cases},
};

/// The stored report of an import of a timeline.
fn report(timeline: Timeline) -> Vec<u8> {
    let devices = Devices::from_toml(include_str!("../../../conf/devices.toml")).unwrap();
    let spec = RunSpec::import_of_nothing();
    let trace = Trace {
        subject: SubjectKind::Import,
        environment: timeline.target.clone(),
        timeline: Some(timeline),
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
        inputs_sha256: None,
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
    found.extend(unspoken(&tables));
    for answer in stored_answer(report).unwrap() {
        found.extend(repeated(&answer));
        found.extend(reasons(&answer));
        found.extend(stated_and_unknown(&answer, &tables));
        found.extend(hidden(&answer, &tables));
    }
    found
}

/// The rows of a list of a report, which is absent if it is empty.
fn rows<'a>(report: &'a Value, list: &str) -> &'a [Value] {
    report[list].as_array().map_or(&[], Vec::as_slice)
}

/// Sentences that stand on the page twice: whole statements, and sentences of remedies, reasons and
/// conditions. Equal savings of several causes are several facts.
fn repeated(answer: &Answer) -> Vec<String> {
    let mut texts: BTreeMap<&str, usize> = BTreeMap::new();
    let statements = answer.sentences.iter().chain(answer.reasons.iter().map(|it| &it.text));
    let statements = statements.map(|it| it.as_str());
    let advice = answer.reasons.iter().map(|it| it.advice.as_str());
    let unknown = answer.unknown.iter().map(String::as_str);
    let composed = advice
        .filter(|it| !it.is_empty())
        .chain(unknown)
        .chain(answer.overhead.iter().map(|it| it.as_str()));
    let sentences = composed.flat_map(|text| text.split(". ")).map(|it| it.trim_end_matches('.'));
    let is_saving = |it: &&str| it.starts_with("This saves") || it.starts_with("The same remedy");
    for text in statements.chain(sentences.filter(|it| !is_saving(it))) {
        *texts.entry(text).or_default() += 1;
    }
    texts.retain(|_, times| *times > 1);
    texts.into_keys().map(|it| format!("repeated: {it}")).collect()
}

/// Critical findings that the page lacks; a capture without stages has other sentences.
fn hidden(answer: &Answer, report: &Value) -> Vec<String> {
    let texts = answer.unknown.iter().map(String::as_str);
    let page: Vec<&str> = texts.chain(answer.overhead.iter().map(Cited::as_str)).collect();
    let findings = rows(report, "findings");
    let is_said = |id: &Value| {
        let messages = findings.iter().filter(|it| it["id"] == *id).map(|it| &it["message"]);
        messages.filter_map(Value::as_str).any(|it| page.iter().any(|text| text.contains(it)))
    };
    let critical = findings.iter().filter(|it| it["severity"] == "critical");
    let ids = critical.map(|it| &it["id"]).filter(|it| **it != "no_stages");
    ids.filter(|it| !is_said(it)).map(|it| format!("hidden: {it}")).collect()
}

/// Findings that name a stage as tables do.
fn unspoken(report: &Value) -> Vec<String> {
    // Ranges have their own names.
    let of_stages = rows(report, "findings").iter().filter(|it| it["id"] != "range_unclosed");
    let messages = of_stages.filter_map(|it| it["message"].as_str());
    messages.filter(|it| it.contains(DECODE)).map(|it| format!("unspoken: {it}")).collect()
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

/// Savings in the ledger, each with the one of the finding on the same cause, milliseconds.
fn compared_savings(report: &Value) -> Vec<(String, f64, f64)> {
    let findings = rows(report, "findings");
    let of_row = |row: &Value| {
        let (id, stage) = (format!("ledger_{}", row["cause"].as_str()?), row["stage"].as_str()?);
        let is_of = |it: &&Value| it["id"] == id.as_str() && it["max_saving"]["stage"] == stage;
        let promised = findings.iter().find(is_of)?["max_saving"]["ms"].as_f64()?;
        Some((format!("{id} of {stage}"), promised, row["max_saving_ns"].as_f64()? * 1e-6))
    };
    rows(report, "ledger").iter().filter_map(of_row).collect()
}

fn savings(report: &Value) -> Vec<String> {
    let differs = |(_, a, b): &(String, f64, f64)| (a - b).abs() > 1e-3 + 1e-3 * a;
    let text = |(of, a, b)| format!("{of} saves {a} ms by the finding and {b} by the ledger");
    compared_savings(report).into_iter().filter(differs).map(text).collect()
}

/// Stages whose distance from the floor is stated and unknown.
fn stated_and_unknown(answer: &Answer, report: &Value) -> Vec<String> {
    let stages = rows(report, "ledger_stages");
    let has_floor = |it: &&Value| !it["times_floor"].is_null();
    let is_unknown = |it: &&Value| {
        let (name, missing) = (it["stage"].as_str().unwrap(), rows(it, "missing"));
        let name = name.trim_end_matches("_all");
        missing.iter().any(|why| why.as_str().unwrap().starts_with("How fast it could be"))
            || answer.unknown.iter().any(|why| why.starts_with(&format!("How fast {name}")))
    };
    stages.iter().filter(has_floor).filter(is_unknown).map(|it| it["stage"].to_string()).collect()
}

const NAMES: [&str; 12] = [
    "torch-shared-core.sqlite",
    "torch-cuda-graph-node.sqlite",
    "hf-llama-attention-mock.sqlite",
    "hf-llama-e2e.sqlite",
    "hf-serve-window.sqlite",
    "jax-steps.sqlite",
    "h200-whole-graphs.sqlite",
    "engine-batching-graphs.sqlite",
    "engine-eager-window.json.gz",
    "torch-kineto-eager.json.gz",
    "torch-kineto-graph.json.gz",
    "hf-deepseek-decoder.sqlite",
];

fn path(name: &str, dir: &Path) -> PathBuf {
    match name.strip_suffix(".sqlite") {
        Some(name) => {
            let path = dir.join(format!("{name}.sqlite"));
            capture(name, &path, "").unwrap();
            path
        }
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(name),
    }
}

fn base(name: &str) -> Timeline {
    let dir = tempfile::tempdir().unwrap();
    parse::timeline(&[path(name, dir.path())]).unwrap()
}

/// Targets of links that no element of the page has.
fn dead_links(html: &str) -> Vec<&str> {
    let targets = html.split("href=\"#").skip(1).filter_map(|it| it.split('"').next());
    targets.filter(|target| !html.contains(&format!("id=\"{target}\""))).collect()
}

/// Headline figures that a form of the report lacks.
fn missing_tiles(report: &str, texts: &[&String]) -> Vec<String> {
    let tiles = stored_tiles(report.as_bytes()).unwrap();
    let tiles = tiles.iter().map(|it| serde_json::to_value(it).unwrap());
    let words = tiles.map(|it| ["label", "value", "note"].map(|key| it[key].clone()));
    let words: Vec<String> = words.flatten().filter_map(|it| Some(it.as_str()?.into())).collect();
    let mut missing = Vec::new();
    for text in texts {
        let text = text.replace('\\', "").replace("&#x27;", "'").replace("&lt;", "<");
        let text = text.replace("&#x2f;", "/");
        missing.extend(words.iter().filter(|word| !text.contains(word.as_str())).cloned());
    }
    missing
}

/// Names that different kernels of a report have in its tables.
fn alike_kernels(report: &str) -> Vec<String> {
    let report: Value = serde_json::from_str(report).unwrap();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let kernels = rows(&report, "kernels_topk").iter();
    let kernels: Vec<(String, String)> =
        kernels.map(|it| (text(it, "kernel_name"), text(it, "full_name"))).collect();
    let kernels: Vec<(&str, &str)> = kernels.iter().map(|it| (&*it.0, &*it.1)).collect();
    let mut of_name: BTreeMap<String, (&str, &str)> = BTreeMap::new();
    let named = kernel_names::distinct(&kernels).into_iter().zip(&kernels);
    let clash = |(name, &kernel)| {
        let first = of_name.entry(String::clone(&name)).or_insert(kernel);
        let is_generic = ["Kernel", "Kernel2", "kernel"].contains(&name.as_str());
        let has_arguments = kernel.1.contains(&format!("{}<", kernel.0));
        (*first != kernel || is_generic && has_arguments).then_some(name)
    };
    named.filter_map(clash).collect()
}

#[test]
fn first_pages_of_real_captures_cite_tables_that_the_report_links_to() {
    let (mut sources, mut savings, mut tiles) = (BTreeMap::new(), 0, 0);
    let mut pages = Pages::default();
    for name in NAMES {
        let dir = tempfile::tempdir().unwrap();
        let devices = config::devices().unwrap();
        let files = [path(name, dir.path())];
        let analyzed =
            pipeline::analyze_capture(&files, &[], Statements::default(), &devices).unwrap();
        let files: BTreeMap<_, _> = analyzed.render(RunId(Uuid::nil())).into_iter().collect();
        let (json, html) = (&files["report.json"], &files["report.html"]);
        assert_eq!(contradictions(json.as_bytes()), Vec::<String>::new(), "{name}");
        for page in [&files["report.md"], html] {
            assert!(page.matches("is a stage").count() <= 1, "{name}: {page}");
        }
        assert_eq!(dead_links(html), Vec::<&str>::new(), "{name}");
        let answer = stored_answer(json.as_bytes()).unwrap().remove(0);
        let page = analyzed.first_page(RunId(Uuid::nil()));
        assert_eq!(page_text::faults(&files, &page, &answer), Vec::<String>::new(), "{name}");
        let stored = stored_first_page(json.as_bytes(), &[]).unwrap();
        let texts = [&files["report.md"], &files["stakeholder_summary.md"], html, &page, &stored];
        assert_eq!(missing_tiles(json, &texts), Vec::<String>::new(), "{name}");
        tiles += stored_tiles(json.as_bytes()).unwrap().len();
        assert_eq!(alike_kernels(json), Vec::<String>::new(), "{name}");
        assert!(!answer.sentences.is_empty(), "{name}");
        pages.add(name, &answer);
        for source in answer.sentences.iter().flat_map(Cited::sources) {
            *sources.entry(source.table).or_insert(0) += source.columns.len();
        }
        savings += compared_savings(&serde_json::from_str(json).unwrap()).len();
    }
    let cited = ["ledger_stages", "step_batches", "step_times", "stage_shares", "stages"];
    assert!(cited.iter().all(|it| sources.contains_key(it)), "{sources:?}");
    assert!(savings > 9, "{savings} savings have a finding");
    assert!(tiles > NAMES.len(), "{tiles} headline figures");
    golden("captures", "first_pages.md", &pages.text());
}

#[test]
fn a_capture_without_ranges_states_once_that_it_has_no_stages() {
    let mut stated = 0;
    for name in ["torch-shared-core", "torch-cuda-graph-node", "hf-llama-attention-mock"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bare.sqlite");
        capture(name, &path, "delete from NVTX_EVENTS").unwrap();
        let devices = config::devices().unwrap();
        let analyzed =
            pipeline::analyze_capture(&[path], &[], Statements::default(), &devices).unwrap();
        let files: BTreeMap<_, _> = analyzed.render(RunId(Uuid::nil())).into_iter().collect();
        let contradictions = contradictions(files["report.json"].as_bytes());
        assert_eq!(contradictions, Vec::<String>::new(), "{name}");
        for page in ["report.md", "report.html", "stakeholder_summary.md"].map(|it| &files[it]) {
            let times = ["is a stage", "not mark them"].map(|it| page.matches(it).count());
            assert!(times.iter().all(|it| *it <= 1), "{name}: {page}");
            stated += times.iter().sum::<usize>();
        }
    }
    assert!(stated > 2, "{stated}");
}

/// The answers of first pages, and which of their questions have one.
#[derive(Default)]
struct Pages {
    rows: String,
    pages: String,
}

impl Pages {
    fn add(&mut self, name: &str, answer: &Answer) {
        let has_ratio = answer.sentences.iter().flat_map(Cited::sources).any(|it| {
            it.table == "ledger_stages" && it.columns.iter().any(|it| it == "times_floor")
        });
        let answered = [
            answer.ran.is_some(),
            !answer.sentences.is_empty(),
            has_ratio,
            !answer.reasons.is_empty(),
        ];
        let cells = answered.map(|it| if it { "answered" } else { "withheld" }).join(" | ");
        let sure =
            if answer.unknown.is_empty() { "nothing".into() } else { answer.unknown.join(" ") };
        _ = writeln!(self.rows, "| `{name}` | {cells} | {sure} |");
        _ = writeln!(self.pages, "\n## {name}");
        let reasons = answer.reasons.iter().map(|it| {
            format!("Why: {} Largest part: {} {}", it.text, it.evidence, it.advice)
                .trim_end()
                .to_owned()
        });
        let cited = answer.ran.iter().chain(&answer.sentences).map(Cited::to_string);
        let unknown = answer.unknown.iter().map(|it| format!("Not measured: {it}"));
        let sure = answer.overhead.iter().map(|it| format!("How sure: {it}"));
        for text in cited.chain(reasons).chain(unknown).chain(sure) {
            _ = writeln!(self.pages, "- {text}");
        }
    }

    fn text(&self) -> String {
        format!(
            "# First pages of captures\n\n| capture | what ran | how long | how far from possible \
             | why | withheld, and its remedy |\n|---|---|---|---|---|---|\n{}{}",
            self.rows, self.pages
        )
    }
}

proptest! {
    #![proptest_config(slow_cases(12, 48))]

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
