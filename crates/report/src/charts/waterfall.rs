//! The waterfall of a stage: from the floor over the causes to the measured time, as inline SVG.
//!
//! Each bar starts where the one before it ends. Widths are percentages, colours are style classes.

use std::fmt::Write;

use llmprof_analyze::{
    ledger::{LedgerCause, LedgerRow, LedgerStage},
    stages::in_sentence,
};
use llmprof_core::domain::units::Nanos;

use super::{axis, svg};
use crate::{
    answer::is_shown,
    format::{ms, pct, short_ms},
    html::escape as html,
};

/// Height of a bar with its label, pixels.
const ROW: usize = 38;

/// One bar: label, class, start and length in nanoseconds.
struct Step {
    label: String,
    class: &'static str,
    from: i64,
    ns: i64,
}

/// Draws the rows of one stage; causes too small to be seen are one bar.
pub fn waterfall(stage: &LedgerStage, rows: &[&LedgerRow]) -> String {
    let steps = steps(stage, rows);
    let end = |it: &Step| it.from.max(it.from.saturating_add(it.ns));
    let scale = steps.iter().map(end).max().unwrap_or(0);
    if scale <= 0 {
        return String::new();
    }
    let id = format!("ledger-{}", stage.stage.replace(|it: char| !it.is_ascii_alphanumeric(), "-"));
    let title = format!("Gap ledger of {}", in_sentence(&stage.stage));
    let described: Vec<String> =
        steps.iter().map(|it| format!("{} {} ms", it.label, ms(Nanos(it.ns).as_ms()))).collect();
    let (height, scale_ms) = (steps.len() * ROW, Nanos(scale).as_ms());
    let mut drawing = svg::open(&id, &title, &described.join("; "), height + axis::BELOW);
    axis::lines(&mut drawing, scale_ms, height);
    let width = |ns: i64| (100.0 * ns as f64 / scale as f64).clamp(0.0, 100.0);
    for (at, step) in steps.iter().enumerate() {
        let top = at * ROW;
        let share = 100.0 * step.ns as f64 / stage.measured_ns.max(1) as f64;
        let sign = if step.ns < 0 { "−" } else { "" };
        let time = short_ms(Nanos(step.ns).as_ms().abs());
        let shown = format!("{sign}{time} ms · {sign}{}", pct(share.abs()));
        let bar = top + 19;
        let (left, right) = (step.from.min(step.from + step.ns), end(step));
        let _ = write!(
            drawing,
            "<g><title>{}: {}</title>{}\
             <rect class=\"track\" x=\"0\" y=\"{bar}\" width=\"100%\" height=\"12\"/>\
             <rect class=\"{}\" x=\"{:.3}%\" y=\"{bar}\" width=\"{:.3}%\" height=\"12\"/></g>",
            html(&step.label),
            html(&shown),
            svg::heading(&step.label, &shown, top + 13),
            step.class,
            width(left),
            width(right - left).max(0.3),
        );
    }
    axis::across(&mut drawing, scale_ms, height, "ms");
    drawing.push_str("</svg>");
    drawing
}

fn steps(stage: &LedgerStage, rows: &[&LedgerRow]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut at = 0i64;
    let small: Vec<&&LedgerRow> = rows.iter().filter(|it| !is_shown(it)).collect();
    let rest: i64 = small.iter().map(|it| it.ns).sum();
    let mut add = |label: String, class, ns: i64| {
        steps.push(Step { label, class, from: at, ns });
        at = at.saturating_add(ns);
    };
    let sorted = |is: fn(&LedgerRow) -> bool| {
        let mut of: Vec<&&LedgerRow> = rows.iter().filter(|it| is(it) && is_shown(it)).collect();
        of.sort_by_key(|it| std::cmp::Reverse(it.ns));
        of
    };
    for row in sorted(|it| it.cause == LedgerCause::Floor) {
        add(label(row.cause), "w-floor", row.ns);
    }
    for row in sorted(|it| it.cause.is_cause()) {
        // No kernel runs in these.
        let class = if row.cause.is_idle() { "w-gap" } else { "w-cause" };
        add(label(row.cause), class, row.ns);
    }
    if rest > 0 {
        let label = match small.len() {
            1 => "one smaller cause".to_owned(),
            several => format!("{several} smaller causes"),
        };
        add(label, "w-cause", rest);
    }
    for row in sorted(|it| it.cause == LedgerCause::Unexplained) {
        add(label(row.cause), "w-rest", row.ns);
    }
    // A difference that would be drawn as nothing is left out, as the nanosecond of a rounded mean.
    let is_visible = |it: &&&LedgerRow| it.ns.saturating_abs() > stage.measured_ns / 2_000;
    for row in sorted(|it| it.cause == LedgerCause::PassDifference).into_iter().filter(is_visible) {
        add(label(row.cause), "w-difference", row.ns);
    }
    steps.push(Step { label: "measured".into(), class: "w-total", from: 0, ns: stage.measured_ns });
    steps
}

/// The words of a row, without an article.
fn label(cause: LedgerCause) -> String {
    cause.words().trim_start_matches("the ").to_owned()
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::ledger::LedgerCause;

    use super::{label, svg};

    const CLASSES: [&str; 6] = ["w-floor", "w-cause", "w-gap", "w-rest", "w-difference", "w-total"];
    /// Least distance of two colours, in steps of 1/256 of each of red, green and blue.
    const MIN_DISTANCE: f64 = 75.0;

    fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
        let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("{start}"));
        rest.split_once(end).unwrap().0
    }

    #[test]
    fn no_label_of_a_cause_is_cut_inside_a_word_on_a_phone() {
        for cause in LedgerCause::ALL {
            let label = label(*cause);
            let drawn = svg::heading(&label, "1,072.0 ms · 100.0 %", 13);
            let (_, rest) = drawn.split_once("\">").unwrap();
            let narrow = rest.split('<').next().unwrap().replace("&#x27;", "'");
            let words = narrow.trim_end_matches('…');
            let rest = label.strip_prefix(words).unwrap_or_else(|| panic!("{narrow}: {label}"));
            assert!(rest.is_empty() || rest.starts_with(' '), "{narrow}: {label}");
        }
    }

    #[test]
    fn each_colour_has_a_legend_and_differs_from_the_others_in_both_themes() {
        let (style, page) =
            (include_str!("../html/style.css"), include_str!("../html/macros.html"));
        let themes: Vec<&str> = style.split(":root {").skip(1).take(2).collect();
        for theme in themes {
            let colour = |class: &str| -> [f64; 3] {
                let rule = between(style, &format!(".{class} {{"), "}");
                let name = between(rule, "fill: var(", ")");
                let hex = between(theme, &format!("{name}: #"), ";");
                [0, 2, 4].map(|at| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()))
            };
            for (at, class) in CLASSES.into_iter().enumerate() {
                assert!(page.contains(&format!("[\"{class}\", ")), "{class}");
                for other in CLASSES.into_iter().skip(at + 1) {
                    let (a, b) = (colour(class), colour(other));
                    let distance: f64 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
                    assert!(distance.sqrt() >= MIN_DISTANCE, "{class} and {other}: {a:?} {b:?}");
                }
            }
        }
    }
}
