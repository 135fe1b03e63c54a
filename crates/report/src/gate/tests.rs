//! Tests of the result of a gate and of its forms.

use llmprof_core::domain::visible::{hidden, is_hidden};

use super::*;

fn report() -> GateReport {
    let id = |text: &str| text.parse().unwrap();
    GateReport::example(
        id("019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10"),
        id("019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d11"),
    )
}

#[test]
fn junit_has_a_failure_for_a_regression_and_an_error_for_what_is_inconclusive() {
    let mut report = report();
    assert!(report.junit().contains("tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"1\""));
    report.accepted = Some("known".into());
    assert!(report.junit().contains("failures=\"0\" errors=\"0\""));
    report.figures[0].verdict = GateVerdict::Inconclusive;
    report.reasons.push("the series differ".into());
    let xml = report.junit();
    assert!(xml.contains("tests=\"3\" failures=\"0\" errors=\"2\""), "{xml}");
    assert!(xml.matches("<error message=").count() == 2 && !xml.contains("<failure"));
}

#[test]
fn a_regression_that_is_not_accepted_is_a_message() {
    let mut report = report();
    let message = report.failure().unwrap();
    assert_eq!((message.event, message.run), (WebhookEvent::GateFailed, report.runs[0]));
    let link = format!("/runs/{}/diff/{}", report.baseline_runs[0], report.runs[0]);
    assert_eq!(message.body["link"], link);
    assert_eq!(message.body["figures"][0]["worse_pct"], 5.07);
    let text = "Median time per output token: worse by 5.07 %, beyond noise (0.670 -> 0.704 ms)";
    assert_eq!(message.body["message"], text);
    report.accepted = Some("known".into());
    assert_eq!(report.failure(), None);
    report.verdict = GateVerdict::Inconclusive;
    assert_eq!(GateReport { accepted: None, ..report }.failure(), None);
}

#[test]
fn a_figure_that_is_a_mean_is_called_a_mean_in_every_form() {
    let mut report = report();
    report.figures[0].statistic = Some(FigureStatistic::Mean);
    let message = report.failure().unwrap().body["message"].to_string();
    for text in [report.github(), report.markdown(), message] {
        assert!(text.contains("Mean time per output token"), "{text}");
        assert!(!text.contains("Median time per output token"), "{text}");
    }
}

#[test]
fn a_measured_figure_without_a_stated_statistic_is_not_called_a_median() {
    let mut report = report();
    report.figures[0].statistic = None;
    let text = report.markdown();
    assert!(text.contains("Median or mean time per output token"), "{text}");
    report.figures[0].baseline = None;
    report.figures[0].candidate = None;
    let text = report.markdown();
    assert!(text.contains("| Median time per output token"), "{text}");
}

#[test]
fn no_form_has_a_hidden_character() {
    let hostile: String = hidden().collect();
    let report = GateReport {
        baseline: hostile.clone(),
        accepted: Some(hostile.clone()),
        reasons: vec![hostile],
        ..report()
    };
    for text in [report.text(), report.junit(), report.github(), report.markdown()] {
        assert!(!text.contains(is_hidden), "{text:?}");
    }
}

#[test]
fn hostile_text_stays_text_in_every_form() {
    let hostile = "\"><x/>]]>\n::error::%0A|`![a](b)\u{0}<script>@all";
    let report = GateReport {
        accepted: Some(hostile.into()),
        reasons: vec![hostile.into()],
        figures: vec![],
        ..report()
    };
    let xml = report.junit();
    assert!(!xml.contains("<x/>") && !xml.contains('\u{0}') && !xml.contains("]]>"), "{xml}");
    let commands = report.github();
    assert!(commands.lines().all(|line| !line.starts_with("::error")), "{commands}");
    let markdown = report.markdown();
    let marked = pulldown_cmark::Parser::new(&markdown).find(|event| {
        use pulldown_cmark::{Event, Tag};
        let marks = |tag: &Tag| matches!(tag, Tag::Link { .. } | Tag::Image { .. });
        matches!(event, Event::Html(_) | Event::InlineHtml(_) | Event::Code(_))
            || matches!(event, Event::Start(tag) if marks(tag))
    });
    assert_eq!(marked, None, "{markdown}");
}

#[test]
fn an_annotation_per_figure_that_does_not_pass() {
    let mut report = report();
    assert!(report.github().starts_with("::error title=llmprof: Median time per output token::"));
    report.accepted = Some("known".into());
    assert!(report.github().starts_with("::notice "));
    report.figures[0].verdict = GateVerdict::Passed;
    report.dropped.clear();
    assert!(report.github().starts_with("gate regression"));
}

#[test]
fn every_form_names_a_dropped_figure_and_an_inconclusive_one() {
    let mut report = report();
    let absent = &mut report.figures[0];
    absent.verdict = GateVerdict::Inconclusive;
    (absent.baseline, absent.candidate) = (None, None);
    absent.reason = "not measured on either side".into();
    report.verdict = GateVerdict::Inconclusive;
    let dropped = "Median time to first token: not measured on either side; dropped, because \
                   `slower`";
    let text = report.text();
    assert!(
        text.starts_with("gate inconclusive: 0 passed, 0 regressed, 1 inconclusive, 1 dropped")
    );
    let unknown = "inconclusive Median time per output token: not measured on either side\n";
    assert!(text.contains(unknown));
    assert!(text.contains(&format!("  dropped      {dropped}")), "{text}");
    let junit = report.junit();
    for case in [
        "name=\"ttft\"><skipped message=\"Median time to first token",
        "name=\"tpot\"><error message=\"Median time per output token",
    ] {
        assert!(junit.contains(case), "{junit}");
    }
    let github = report.github();
    let notice = format!("::notice title=llmprof: Median time to first token::{dropped}");
    assert!(github.contains(&notice));
    assert!(github.contains("::warning title=llmprof: Median time per output token::"), "{github}");
    let markdown = report.markdown();
    let row = "| Median time to first token (ms) | – | – | – | – | dropped: not";
    assert!(markdown.contains(row));
    assert!(markdown.contains("| inconclusive: not measured on either side |"), "{markdown}");
}

#[test]
fn a_stored_gate_of_an_earlier_version_is_read() {
    let mut stored = serde_json::to_value(report()).unwrap();
    stored.as_object_mut().unwrap().remove("dropped");
    stored["figures"][0].as_object_mut().unwrap().remove("requested");
    let read: GateReport = serde_json::from_value(stored).unwrap();
    assert_eq!((read.dropped.len(), read.figures[0].requested), (0, FigureRequest::Named));
}
