//! Reports of a small saved run: golden files, and claims about every file.
//!
//! `LLMPROF_BLESS=1 just test runs::report` writes the golden files; read the difference
//! before you commit it.

use std::path::Path;

use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        state::StepState,
        subject::Subject,
    },
    layout,
    trace::{
        Trace,
        event::{Event, OperatorCall},
    },
};
use llmprof_report::{format::HALF_INTERVAL, profile::LLMProfileReport, tables::CSV_FILES};
use serde_json::Value;

use crate::support::{
    golden::golden,
    report_input::{ReportInput, with_foreign_id},
};

#[test]
fn the_files_of_a_run_without_a_gpu_are_as_blessed() {
    for (name, text) in ReportInput::saved().files() {
        golden("cpu", name, &text);
    }
}

#[test]
fn the_files_of_a_run_with_kernels_are_as_blessed() {
    for (name, text) in ReportInput::with_kernels().files() {
        golden("gpu", name, &text);
    }
}

#[test]
fn energy_power_and_clocks_of_a_sampled_gpu_are_as_blessed() {
    let run = ReportInput::with_power();
    for name in [layout::POWER_JSON, layout::POWER_CSV] {
        golden("synthetic", name, &run.file(name));
    }
    let page = run.file(layout::REPORT_HTML);
    let section = page
        .split_once(r#"<section class="card" id="power""#)
        .unwrap()
        .1
        .split_once("</section>")
        .unwrap()
        .0;
    golden("synthetic", "power-section.html", section);
    let report = run.file(layout::REPORT_MD);
    let section =
        report.split_once("## Power and Clocks").unwrap().1.split_once("\n## ").unwrap().0;
    golden("synthetic", "power-section.md", section);
}

#[test]
fn a_throttled_gpu_is_a_finding_and_a_sampled_run_has_its_figures_in_the_report_for_programs() {
    let report: LLMProfileReport =
        serde_json::from_str(&ReportInput::with_power().file(layout::REPORT_JSON)).unwrap();
    assert!(
        report
            .findings
            .iter()
            .any(|it| it.id == "gpu_throttled" && it.evidence["stage"] == "prefill")
    );
    let power = report.power.unwrap();
    let joules: Vec<_> =
        power.stages.iter().map(|it| it.energy_j.unwrap() / it.mean_w.unwrap()).collect();
    for (seconds, row) in joules.iter().zip(&report.stages) {
        assert!(
            (seconds * 1e3 - row.ms.mean).abs() < 1e-6,
            "energy over power is the stage's time"
        );
    }
}

#[test]
fn a_run_on_a_gpu_without_samples_states_the_reason() {
    let mut run = ReportInput::with_kernels();
    assert!(run.file(layout::REPORT_MD).contains("No GPU was sampled."));
    run.findings = vec![Finding::new(catalogue::POWER_NOT_SAMPLED, "The driver was away.")];
    assert!(run.file(layout::REPORT_HTML).contains("The driver was away."));
    assert!(run.files().iter().all(|(name, _)| *name != layout::POWER_CSV));
}

#[test]
fn a_report_holds_the_six_tables_in_order() {
    let report = ReportInput::saved().file(layout::REPORT_MD);
    let heads: Vec<&str> = report
        .lines()
        .filter_map(|line| line.strip_prefix("## ")?.split_once(". "))
        .map(|it| it.1)
        .collect();
    assert_eq!(
        heads,
        ["Aggregates", "Per-Stage Timings", "MFU", "Top Operators", "Top Kernels", "Environment"]
    );
}

#[test]
fn vision_is_a_note_and_never_a_stage() {
    let report: LLMProfileReport =
        serde_json::from_str(&ReportInput::saved().file(layout::REPORT_JSON)).unwrap();
    let stages: Vec<&str> = report.stages.iter().map(|row| row.stage.as_str()).collect();
    assert_eq!(stages, ["prefill", "decode_all"]);
    assert_eq!(report.stage_notes[0].part, "vision");
    let shares: f64 = report.stages.iter().filter_map(|row| row.share_pct).sum();
    assert!((shares - 100.0).abs() < 1e-9);
}

#[test]
fn tables_of_operators_and_kernels_are_sorted_and_their_means_are_computed() {
    let report: LLMProfileReport =
        serde_json::from_str(&ReportInput::with_kernels().file(layout::REPORT_JSON)).unwrap();
    assert!(
        report.operators.is_sorted_by(|a, b| a.inclusive_ms >= b.inclusive_ms)
            && !report.operators.is_empty()
    );
    assert!(report.kernels_topk.is_sorted_by(|a, b| a.total_ms >= b.total_ms));
    let kernels: Vec<_> = report
        .kernels_topk
        .iter()
        .map(|it| (it.stage.as_str(), it.calls, it.total_ms, it.mean_ms))
        .collect();
    assert_eq!(
        kernels,
        [("prefill", 1, 0.9, 0.9), ("prefill", 1, 0.4, 0.4), ("decode_all", 2, 0.3, 0.15)]
    );
}

#[test]
fn missing_data_is_reported_with_its_remedy() {
    let run = ReportInput::saved();
    for name in [layout::REPORT_MD, layout::REPORT_HTML, layout::SUMMARY_MD] {
        assert!(run.file(name).contains("install the package nsight-systems"), "{name}");
    }
    assert!(
        run.file(layout::KERNELS_MD)
            .contains("**No data.** There is no kernel data: the model ran on the CPU")
    );
}

#[test]
fn a_run_without_data_has_every_file_and_every_table_states_the_reason() {
    let mut run = ReportInput::saved();
    run.trace = Trace::default();
    let files = run.files();
    assert_eq!(files.len(), 20);
    let report = &files.iter().find(|(name, _)| *name == layout::REPORT_MD).unwrap().1;
    assert_eq!(report.split("## Findings").next().unwrap().matches("**No data.**").count(), 5);
    assert!(report.contains("completed no measured stage"));
}

#[test]
fn the_page_needs_no_network_and_no_script() {
    let page = ReportInput::with_kernels().file(layout::REPORT_HTML);
    for loader in ["http:", "https:", "<script", "src=", "@import", "url(", "<iframe", "onload"] {
        assert!(!page.contains(loader), "{loader}");
    }
}

#[test]
fn text_from_outside_stays_text_in_every_file() {
    const HOSTILE: &str = "<script>alert(1)</script>|`*_x_*`\n# [a](javascript:b) \"'&\u{0}";
    let mut run = ReportInput::with_kernels();
    run.spec.common.labels = vec![HOSTILE.into()];
    run.model.description = HOSTILE.into();
    if let Subject::Model(it) = &mut run.spec.subject {
        it.workload.model = HOSTILE.into();
    }
    run.inputs[0].path = HOSTILE.into();
    run.environment.hostname = Some(HOSTILE.into());
    run.steps[2].state = StepState::Failed;
    run.steps[2].message = Some(HOSTILE.into());
    let finding =
        Finding::new(catalogue::KERNELS_LOST, HOSTILE).with(HOSTILE, HOSTILE).advise(HOSTILE);
    run.findings = vec![with_foreign_id(&finding, HOSTILE)];
    run.trace.timeline.as_mut().unwrap().strings[0] = HOSTILE.into();
    run.trace.counters[0].kernel = HOSTILE.into();
    run.trace.counters[0].values.stalls[0].reason = HOSTILE.into();
    for call in &mut run.trace.gemms.as_mut().unwrap().prefill.calls {
        (call.shape.left_type, call.algorithm) = (HOSTILE.into(), Some(HOSTILE.into()));
    }
    for event in &mut run.trace.baseline {
        if let Event::Op(OperatorCall { path, op, dtype, .. }) = event {
            (*path, *op, *dtype) = (HOSTILE.into(), HOSTILE.into(), HOSTILE.into());
        }
    }
    for (name, text) in run.files() {
        match Path::new(name).extension().unwrap().to_str().unwrap() {
            // Every record is one line with the same number of cells.
            "csv" => assert!(
                text.lines().all(|line| line
                    .split('"')
                    .step_by(2)
                    .map(|plain| plain.matches(',').count())
                    .sum::<usize>()
                    == text.lines().next().unwrap().matches(',').count()),
                "{name}"
            ),
            "json" => assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{name}"),
            "jsonl" => {
                assert!(
                    text.lines()
                        .all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()),
                    "{name}"
                );
            }
            "html" => {
                assert!(!text.contains("<script") && text.contains("&lt;script&gt;"), "{name}")
            }
            _ => assert_markdown_is_harmless(name, &text),
        }
    }
}

/// Rows have as many cells as their head, and text from outside stays text. Code is text.
fn assert_markdown_is_harmless(name: &str, text: &str) {
    use pulldown_cmark::{Event, Options, Parser, Tag};
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        let foreign = matches!(
            event,
            Event::Html(_)
                | Event::InlineHtml(_)
                | Event::Start(Tag::Link { .. } | Tag::Image { .. } | Tag::Emphasis)
        );
        assert!(!foreign, "{name}: {event:?}");
    }
    let cells = |line: &str| line.replace("\\\\", "").replace("\\|", "").matches('|').count();
    for block in text.split("\n\n").filter(|block| block.starts_with('|')) {
        let widths: Vec<usize> =
            block.lines().filter(|line| line.starts_with('|')).map(cells).collect();
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{name}: {block}");
    }
}

#[test]
fn the_report_of_a_text_model_does_not_mention_vision() {
    let mut run = ReportInput::saved();
    run.model = toml::from_str(include_str!("../../../conf/models/llama-tiny.toml")).unwrap();
    run.inputs.clear();
    run.trace.baseline.retain(|event| match event {
        Event::Range(it) => !matches!(it.name.as_str(), "vision" | "sam" | "clip" | "projector"),
        Event::Op(it) => !it.path.starts_with("vision") && it.path != "decoder.insert_images",
        Event::Experts(_) => false,
        _ => true,
    });
    for event in &mut run.trace.baseline {
        if let Event::Start(start) = event {
            start.images.clear();
            start.image_tokens = 0;
        }
    }
    for name in [layout::REPORT_MD, layout::REPORT_HTML, layout::SUMMARY_MD, layout::OPERATORS_MD] {
        let text = run.file(name).to_lowercase();
        for word in ["vision", "image tokens", "of them images"] {
            assert!(
                !text.contains(word),
                "{name} mentions {word}: {}",
                text.lines().find(|line| line.contains(word)).unwrap()
            );
        }
    }
}

/// Leaf fields of a record as columns, each with its value; a column of the table ends the descent.
fn fields(record: &Value, path: &str, columns: &[Value], into: &mut Vec<(String, Value)>) {
    match record {
        Value::Object(fields_of) if path.is_empty() || !columns.contains(&Value::from(path)) => {
            for (name, value) in fields_of {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                fields(value, &path, columns, into);
            }
        }
        _ => into.push((path.to_owned(), record.clone())),
    }
}

/// Lists of records in a report, named by their paths.
fn lists<'a>(value: &'a Value, path: &str, into: &mut Vec<(String, &'a Vec<Value>)>) {
    match value {
        Value::Array(list) if list.iter().all(Value::is_object) => {
            into.push((path.to_owned(), list));
        }
        Value::Object(fields) if path.matches('.').count() < 1 => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                lists(value, &path, into);
            }
        }
        _ => {}
    }
}

#[test]
fn every_list_of_the_report_is_a_table_with_the_same_fields_and_values() {
    for run in [ReportInput::saved(), ReportInput::with_kernels(), ReportInput::with_power()] {
        let stored = run.file(layout::TABLES);
        let tables: Vec<Value> =
            stored.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let report: Value = serde_json::from_str(&run.file(layout::REPORT_JSON)).unwrap();
        let mut found = Vec::new();
        lists(&report, "", &mut found);
        for (path, records) in found.iter().filter(|(_, records)| !records.is_empty()) {
            let name = if path == "kernels_topk" { "kernels" } else { path };
            let table = tables
                .iter()
                .find(|table| table["name"] == name)
                .unwrap_or_else(|| panic!("{name} is not a table"));
            let columns = table["columns"].as_array().unwrap();
            assert_eq!(columns.len(), table["kinds"].as_array().unwrap().len(), "{name}");
            for (record, row) in records.iter().zip(table["rows"].as_array().unwrap()) {
                let mut cells = Vec::new();
                fields(record, "", columns, &mut cells);
                for (column, value) in cells.into_iter().filter(|(_, value)| !value.is_null()) {
                    let at = columns.iter().position(|it| *it == column.as_str());
                    let at = at.unwrap_or_else(|| panic!("{name} has no column {column}"));
                    assert_eq!(row[at], value, "{name} {column}");
                }
            }
        }
    }
}

#[test]
fn every_csv_file_has_the_columns_and_rows_of_its_table() {
    let run = ReportInput::with_all_tables();
    let stored = run.file(layout::TABLES);
    for (file, name) in CSV_FILES {
        let table: Value = stored
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .find(|table| table["name"] == name)
            .unwrap_or_else(|| panic!("{name} is not a table"));
        let names: Vec<&str> =
            table["columns"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
        let csv = run.file(file);
        assert_eq!(csv.lines().next(), Some(names.join(",").as_str()), "{file}");
        assert_eq!(csv.lines().count() as u64, table["total"].as_u64().unwrap() + 1, "{file}");
    }
}

#[test]
fn a_page_with_a_plus_minus_states_that_it_is_half_of_an_interval() {
    let runs = [
        ReportInput::saved(),
        ReportInput::with_kernels(),
        ReportInput::with_power(),
        ReportInput::with_samples(),
    ];
    for (name, text) in runs.iter().flat_map(ReportInput::files) {
        let is_page = name.ends_with(".md") || name.ends_with(".html");
        if is_page && text.contains('±') {
            assert!(text.contains(HALF_INTERVAL), "{name}");
        }
    }
}

#[test]
fn reports_show_sampled_metrics_with_their_intervals() {
    let run = ReportInput::with_samples();
    for file in [layout::REPORT_MD, layout::REPORT_HTML] {
        let text = run.file(file);
        let shown = ["Sampled Metrics by Stage", "SMs active", " ± "];
        assert!(shown.iter().all(|it| text.contains(it)), "{file}");
    }
    let report: Value = serde_json::from_str(&run.file(layout::REPORT_JSON)).unwrap();
    let stage = &report["sampled_stages"][0]["metrics"]["dram_read"];
    assert!(stage["pct"].as_f64().unwrap() > 0.0, "{stage}");
    assert!(report["sampled_metrics"].as_array().is_some_and(|it| !it.is_empty()));
    let none = ReportInput::with_power().file(layout::REPORT_MD);
    assert!(!none.contains("Sampled Metrics"), "a run without samples has no such tables");
}
