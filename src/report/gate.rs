//! The result of a gate, and its forms: text, JUnit, annotations of GitHub, a Markdown comment.
//!
//! Pure. Text of callers is escaped in each form.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{
    format::{UNKNOWN, decimals, known},
    html::escape,
};
use crate::{
    analyze::series::gate::GateVerdict,
    domain::{
        headline::FigureName,
        ids::RunId,
        webhook_event::{EventMessage, WebhookEvent},
    },
};

/// The result of a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GateReport {
    pub verdict: GateVerdict,
    /// Name of the baseline.
    pub baseline: String,
    /// Its runs, of one build.
    pub baseline_runs: Vec<RunId>,
    /// Runs of the candidate.
    pub runs: Vec<RunId>,
    pub series: Option<String>,
    pub figures: Vec<GateFigure>,
    /// Reasons why the gate as a whole is inconclusive.
    pub reasons: Vec<String>,
    /// Another run of the candidate may decide.
    pub more_runs: bool,
    /// Reason for which a regression was accepted.
    pub accepted: Option<String>,
}

/// One figure of a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GateFigure {
    pub figure: FigureName,
    pub verdict: GateVerdict,
    pub threshold_pct: f64,
    /// Means of both sides, in the unit of the figure.
    pub baseline: Option<f64>,
    pub candidate: Option<f64>,
    /// Change to the worse, and its upper bound; negative for an improvement.
    pub worse_pct: Option<f64>,
    pub bound_pct: Option<f64>,
    /// Standard deviation between runs of one build.
    pub noise_pct: Option<f64>,
    /// Smallest change that is found with probability 0.95 with these runs.
    pub detectable_pct: Option<f64>,
    pub reason: String,
}

impl GateFigure {
    fn sentence(&self) -> String {
        let unit = self.figure.unit();
        let value = |it: Option<f64>| known(it, |it| decimals(it, 3));
        format!(
            "{}: {} ({} -> {} {unit})",
            self.figure.title(),
            self.reason,
            value(self.baseline),
            value(self.candidate),
        )
    }
}

impl GateReport {
    /// True if a caller accepted the regression.
    pub fn is_accepted(&self) -> bool {
        self.verdict == GateVerdict::Regression && self.accepted.is_some()
    }

    /// Number of figures with this verdict.
    fn count(&self, verdict: GateVerdict) -> usize {
        self.figures.iter().filter(|it| it.verdict == verdict).count()
    }

    /// The verdict in one line.
    pub fn summary(&self) -> String {
        let accepted = if self.is_accepted() { ", accepted" } else { "" };
        format!(
            "gate {}{accepted}: {} passed, {} regressed, {} inconclusive against {} \
             ({} and {} runs)",
            self.verdict,
            self.count(GateVerdict::Passed),
            self.count(GateVerdict::Regression),
            self.count(GateVerdict::Inconclusive),
            self.baseline,
            self.baseline_runs.len(),
            self.runs.len(),
        )
    }

    /// The message about a regression that is not accepted.
    pub fn failure(&self) -> Option<EventMessage> {
        if self.verdict != GateVerdict::Regression || self.is_accepted() {
            return None;
        }
        let (run, baseline) = (*self.runs.last()?, self.baseline_runs.first());
        let worse = || self.figures.iter().filter(|it| it.verdict == GateVerdict::Regression);
        let sentences: Vec<String> = worse().map(GateFigure::sentence).collect();
        let figures: Vec<Value> = worse()
            .map(|it| {
                json!({
                    "figure": it.figure, "worse_pct": it.worse_pct,
                    "threshold_pct": it.threshold_pct,
                })
            })
            .collect();
        let link = match baseline {
            Some(baseline) => format!("/runs/{baseline}/diff/{run}"),
            None => format!("/runs/{run}"),
        };
        let body = json!({
            "run_id": run, "baseline": self.baseline, "runs": self.runs,
            "baseline_runs": self.baseline_runs, "series": self.series, "figures": figures,
            "message": sentences.join("; "), "link": link,
        });
        let body = body.as_object()?.clone();
        Some(EventMessage { event: WebhookEvent::GateFailed, run, body })
    }

    /// For terminals.
    pub fn text(&self) -> String {
        let mut text = self.summary() + "\n";
        for it in &self.figures {
            _ = writeln!(text, "  {:<12} {}", it.verdict, it.sentence());
        }
        for reason in &self.reasons {
            _ = writeln!(text, "  {reason}");
        }
        if let Some(reason) = &self.accepted {
            _ = writeln!(text, "  accepted: {reason:?}");
        }
        text
    }

    /// For CI systems that read JUnit, which has no inconclusive result: it is an error.
    pub fn junit(&self) -> String {
        let verdict = |it: &GateFigure| {
            if self.is_accepted() && it.verdict == GateVerdict::Regression {
                GateVerdict::Passed
            } else {
                it.verdict
            }
        };
        let of = |wanted| self.figures.iter().filter(|it| verdict(it) == wanted).count();
        let errors = of(GateVerdict::Inconclusive) + usize::from(!self.reasons.is_empty());
        let mut xml = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite \
             name=\"llmprof gate\" tests=\"{}\" failures=\"{}\" errors=\"{errors}\">\n",
            self.figures.len() + usize::from(!self.reasons.is_empty()),
            of(GateVerdict::Regression),
        );
        let mut case = |name: &str, verdict: GateVerdict, message: &str| {
            let element = match verdict {
                GateVerdict::Passed => None,
                GateVerdict::Regression => Some("failure"),
                GateVerdict::Inconclusive => Some("error"),
            };
            let baseline = xml_text(&self.baseline);
            _ = write!(xml, "<testcase classname=\"llmprof.{baseline}\" name=\"{name}\">");
            if let Some(element) = element {
                _ = write!(xml, "<{element} message=\"{}\"/>", xml_text(message));
            }
            xml += "</testcase>\n";
        };
        for it in &self.figures {
            case(it.figure.as_str(), verdict(it), &it.sentence());
        }
        if !self.reasons.is_empty() {
            case("comparable", GateVerdict::Inconclusive, &self.reasons.join("; "));
        }
        xml + "</testsuite>\n</testsuites>\n"
    }

    /// Workflow commands of GitHub, one annotation per figure that does not pass.
    pub fn github(&self) -> String {
        let mut text = String::new();
        let accepted = self.is_accepted();
        for it in &self.figures {
            let command = match it.verdict {
                GateVerdict::Passed => continue,
                GateVerdict::Regression if accepted => "notice",
                GateVerdict::Regression => "error",
                GateVerdict::Inconclusive => "warning",
            };
            let title = format!("llmprof: {}", it.figure.title());
            _ = writeln!(text, "::{command} title={title}::{}", command_text(&it.sentence()));
        }
        for reason in &self.reasons {
            _ = writeln!(text, "::warning title=llmprof::{}", command_text(reason));
        }
        text + &self.summary() + "\n"
    }

    /// For a comment.
    pub fn markdown(&self) -> String {
        let mut text = format!("### {}\n\n", markdown_text(&self.summary()));
        if !self.figures.is_empty() {
            text += "| figure | baseline | candidate | worse by | noise | verdict |\n\
                     |---|---:|---:|---:|---:|---|\n";
        }
        for it in &self.figures {
            let value = |value: Option<f64>| known(value, |value| decimals(value, 3));
            let pct =
                |value: Option<f64>| known(value, |value| format!("{} %", decimals(value, 2)));
            _ = writeln!(
                text,
                "| {} ({}) | {} | {} | {} | {} | {}: {} |",
                it.figure.title(),
                it.figure.unit(),
                value(it.baseline),
                value(it.candidate),
                pct(it.worse_pct),
                pct(it.noise_pct),
                it.verdict,
                markdown_text(&it.reason),
            );
        }
        for reason in &self.reasons {
            _ = writeln!(text, "\n{}", markdown_text(reason));
        }
        if let Some(reason) = &self.accepted {
            _ = writeln!(text, "\nAccepted: {}", markdown_text(reason));
        }
        text
    }

    /// An example for the contract.
    pub fn example(run: RunId, baseline: RunId) -> Self {
        let figure = GateFigure {
            figure: FigureName::Tpot,
            verdict: GateVerdict::Regression,
            threshold_pct: 3.0,
            baseline: Some(0.67),
            candidate: Some(0.704),
            worse_pct: Some(5.07),
            bound_pct: Some(7.7),
            noise_pct: Some(0.9),
            detectable_pct: Some(6.2),
            reason: "worse by 5.07 %, beyond noise".into(),
        };
        Self {
            verdict: GateVerdict::Regression,
            baseline: "main".into(),
            baseline_runs: vec![baseline],
            runs: vec![run],
            series: Some("5e884898da28047151d0e56f8dc62927".into()),
            figures: vec![figure],
            reasons: vec![],
            more_runs: false,
            accepted: None,
        }
    }
}

/// Escapes text of an XML attribute; characters that XML does not allow are replaced.
fn xml_text(text: &str) -> String {
    let allowed = |it: char| !it.is_control() && it != '\u{fffe}' && it != '\u{ffff}';
    escape(&text.replace(|it| !allowed(it), " ")).to_string()
}

/// Escapes the message of a workflow command.
fn command_text(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes text of a Markdown line or cell.
fn markdown_text(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '~' | '!' | '@' => {
                escaped.push('\\');
                escaped.push(character);
            }
            character if character.is_control() => escaped.push(' '),
            character => escaped.push(character),
        }
    }
    if escaped.is_empty() { UNKNOWN.into() } else { escaped }
}

#[cfg(test)]
mod tests {
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
        assert!(report.junit().contains("tests=\"1\" failures=\"1\" errors=\"0\""));
        report.accepted = Some("known".into());
        assert!(report.junit().contains("failures=\"0\" errors=\"0\""));
        report.figures[0].verdict = GateVerdict::Inconclusive;
        report.reasons.push("the series differ".into());
        let xml = report.junit();
        assert!(xml.contains("tests=\"2\" failures=\"0\" errors=\"2\""), "{xml}");
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
        let text = "Time per output token: worse by 5.07 %, beyond noise (0.670 -> 0.704 ms)";
        assert_eq!(message.body["message"], text);
        report.accepted = Some("known".into());
        assert_eq!(report.failure(), None);
        report.verdict = GateVerdict::Inconclusive;
        assert_eq!(GateReport { accepted: None, ..report }.failure(), None);
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
        assert!(report.github().starts_with("::error title=llmprof: Time per output token::"));
        report.accepted = Some("known".into());
        assert!(report.github().starts_with("::notice "));
        report.figures[0].verdict = GateVerdict::Passed;
        assert!(report.github().starts_with("gate regression"));
    }
}
