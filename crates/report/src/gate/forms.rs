//! Forms of the result of a gate: text, JUnit, annotations of GitHub, a Markdown comment.
//!
//! Pure. Text of callers is escaped in each form.

use std::fmt::Write;

use llmprof_analyze::series::gate::{GateVerdict, change_words};
use llmprof_core::domain::visible::{one_line, visible};

use super::{DROPPED, GateFigure, GateReport};
use crate::{
    format::{UNKNOWN, decimals, known},
    html::escape,
};

impl GateReport {
    /// For terminals.
    pub fn text(&self) -> String {
        let mut text = self.summary() + "\n";
        for it in &self.figures {
            _ = writeln!(text, "  {:<12} {}", it.verdict, it.sentence());
        }
        for it in &self.dropped {
            _ = writeln!(text, "  {DROPPED:<12} {}", it.sentence());
        }
        for reason in &self.reasons {
            _ = writeln!(text, "  {reason}");
        }
        if let Some(reason) = &self.accepted {
            _ = writeln!(text, "  accepted: {reason:?}");
        }
        visible(&text).into_owned()
    }

    /// For CI systems that read JUnit, which has no inconclusive result: it is an error. A dropped
    /// figure is skipped.
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
             name=\"llmprof gate\" tests=\"{}\" failures=\"{}\" errors=\"{errors}\" \
             skipped=\"{}\">\n",
            self.figures.len() + self.dropped.len() + usize::from(!self.reasons.is_empty()),
            of(GateVerdict::Regression),
            self.dropped.len(),
        );
        let mut case = |name: &str, element: Option<&str>, message: &str| {
            let baseline = xml_text(&self.baseline);
            _ = write!(xml, "<testcase classname=\"llmprof.{baseline}\" name=\"{name}\">");
            if let Some(element) = element {
                _ = write!(xml, "<{element} message=\"{}\"/>", xml_text(message));
            }
            xml += "</testcase>\n";
        };
        for it in &self.figures {
            let element = match verdict(it) {
                GateVerdict::Passed => None,
                GateVerdict::Regression => Some("failure"),
                GateVerdict::Inconclusive => Some("error"),
            };
            case(it.figure.as_str(), element, &it.sentence());
        }
        for it in &self.dropped {
            case(it.figure.as_str(), Some("skipped"), &it.sentence());
        }
        if !self.reasons.is_empty() {
            case("comparable", Some("error"), &self.reasons.join("; "));
        }
        xml + "</testsuite>\n</testsuites>\n"
    }

    /// Workflow commands of GitHub, one annotation per figure that does not pass or is dropped.
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
            let title = format!("llmprof: {}", it.title());
            _ = writeln!(text, "::{command} title={title}::{}", command_text(&it.sentence()));
        }
        for it in &self.dropped {
            let title = format!("llmprof: {}", it.figure.title());
            _ = writeln!(text, "::notice title={title}::{}", command_text(&it.sentence()));
        }
        for reason in &self.reasons {
            _ = writeln!(text, "::warning title=llmprof::{}", command_text(reason));
        }
        text + &visible(&self.summary()) + "\n"
    }

    /// For a comment.
    pub fn markdown(&self) -> String {
        let mut text = format!("### {}\n\n", markdown_text(&self.summary()));
        if !self.figures.is_empty() || !self.dropped.is_empty() {
            text += "| figure | baseline | candidate | change | noise | verdict |\n\
                     |---|---:|---:|---:|---:|---|\n";
        }
        for it in &self.figures {
            let value = |value: Option<f64>| known(value, |value| decimals(value, 3));
            let pct =
                |value: Option<f64>| known(value, |value| format!("{} %", decimals(value, 2)));
            _ = writeln!(
                text,
                "| {} ({}) | {} | {} | {} | {} | {}: {} |",
                it.title(),
                it.figure.unit(),
                value(it.baseline),
                value(it.candidate),
                known(it.worse_pct, change_words),
                pct(it.noise_pct),
                it.verdict,
                markdown_text(&it.reason),
            );
        }
        for it in &self.dropped {
            _ = writeln!(
                text,
                "| {} ({}) | {UNKNOWN} | {UNKNOWN} | {UNKNOWN} | {UNKNOWN} | {DROPPED}: {} |",
                it.figure.title(),
                it.figure.unit(),
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
}

/// Escapes text of an XML attribute; characters that XML does not allow are replaced.
fn xml_text(text: &str) -> String {
    escape(&one_line(text).replace(['\u{fffe}', '\u{ffff}'], " "))
}

/// Escapes the message of a workflow command.
fn command_text(text: &str) -> String {
    visible(text).replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes text of a Markdown line or cell.
fn markdown_text(text: &str) -> String {
    let mut escaped = String::new();
    for character in one_line(text).chars() {
        match character {
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '~' | '!' | '@' => {
                escaped.push('\\');
                escaped.push(character);
            }
            character => escaped.push(character),
        }
    }
    if escaped.is_empty() { UNKNOWN.into() } else { escaped }
}
