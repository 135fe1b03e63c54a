//! Bars as inline SVG without scripts. Widths are percentages, so charts fit any width and text
//! keeps its size.
//!
//! Colours are classes of the page's style sheet, for light and dark mode.

use std::fmt::Write;

use super::axis;
use crate::{format::figure, html::escape as html};

/// Height of one bar with its label, pixels.
const ROW: usize = 46;
/// Characters of a label with its value on a phone.
const PHONE: usize = 54;
/// Longest labels that fit in front of any value on a phone, and on a desk, characters.
const LABEL: usize = 28;
const WIDE_LABEL: usize = 72;

/// One bar: a time in milliseconds, optionally with a part inside it and a spread around its end.
#[derive(Debug, Clone, Default)]
pub struct Bar {
    pub label: String,
    /// The value as text, behind the label.
    pub shown: String,
    pub value: f64,
    /// Class that colours the bar.
    pub class: &'static str,
    /// A part of the value, drawn inside from the left.
    pub part: Option<(String, f64)>,
    /// Deviation around the value, drawn as a whisker.
    pub spread: Option<f64>,
}

/// Draws horizontal bars on one scale of milliseconds from zero.
pub fn bars(id: &str, title: &str, description: &str, bars: &[Bar]) -> String {
    let scale = bars.iter().map(|bar| bar.value + bar.spread.unwrap_or(0.0)).fold(0.0, f64::max);
    let width =
        |value: f64| if scale > 0.0 { (100.0 * value / scale).clamp(0.0, 100.0) } else { 0.0 };
    let height = bars.len() * ROW;
    let mut svg = open(id, title, description, height + axis::BELOW);
    axis::lines(&mut svg, scale, height);
    for (index, bar) in bars.iter().enumerate() {
        let top = index * ROW;
        let _ = write!(
            svg,
            "<g><title>{}: {}</title>{}\
             <rect class=\"track\" x=\"0\" y=\"{}\" width=\"100%\" height=\"14\" rx=\"3\"/>\
             <rect class=\"{}\" x=\"0\" y=\"{}\" width=\"{:.3}%\" height=\"14\" rx=\"3\"/>",
            html(&bar.label),
            html(&bar.shown),
            heading(&bar.label, &bar.shown, top + 14),
            top + 22,
            bar.class,
            top + 22,
            width(bar.value).max(0.3),
        );
        if let Some((name, part)) = &bar.part {
            let _ = write!(
                svg,
                "<rect class=\"part\" x=\"0\" y=\"{}\" width=\"{:.3}%\" height=\"6\" \
                 rx=\"2\"><title>{}</title></rect>",
                top + 26,
                width(*part),
                html(name),
            );
        }
        if let Some(spread) = bar.spread.filter(|spread| *spread > 0.0) {
            let (low, high, middle) =
                (width(bar.value - spread), width(bar.value + spread), top + 29);
            let _ = write!(
                svg,
                "<line class=\"whisker\" x1=\"{low:.3}%\" x2=\"{high:.3}%\" y1=\"{middle}\" \
                 y2=\"{middle}\"/>\
                 <line class=\"whisker\" x1=\"{low:.3}%\" x2=\"{low:.3}%\" y1=\"{0}\" y2=\"{1}\"/>\
                 <line class=\"whisker\" x1=\"{high:.3}%\" x2=\"{high:.3}%\" y1=\"{0}\" \
                 y2=\"{1}\"/>",
                middle - 4,
                middle + 4,
            );
        }
        svg.push_str("</g>");
    }
    axis::across(&mut svg, scale, height, "ms");
    svg.push_str("</svg>");
    svg
}

/// The label of a bar with the value right behind it, so that both stand above the start of the
/// bar: the label in two lengths if the page's width decides how much of it fits.
pub fn heading(label: &str, shown: &str, y: usize) -> String {
    let fits = PHONE.saturating_sub(shown.chars().count() + 2).max(LABEL);
    let [narrow, wide] = [fits, WIDE_LABEL].map(|max| html(&shorten(label, max)));
    let shown = html(shown);
    let drawn = |class: &str, text: &str| {
        format!(
            "<text class=\"label{class}\" x=\"0\" y=\"{y}\">{text}\
             <tspan class=\"value\" dx=\"8\">{shown}</tspan></text>"
        )
    };
    match narrow == wide {
        true => drawn("", &wide),
        false => drawn(" narrow", &narrow) + &drawn(" wide", &wide),
    }
}

/// Values side by side.
#[derive(Debug, Clone)]
pub struct ColumnChart<'a> {
    /// Class that colours them.
    pub class: &'static str,
    /// Value of a full column; the largest value when absent.
    pub scale: Option<f64>,
    pub values: &'a [f64],
    /// Unit of the values.
    pub unit: &'a str,
    /// Names of the first and the last column, below them.
    pub ends: &'a str,
}

/// Up to this number of columns, each has its value above it: they fit on a phone.
const MAX_LABELLED: usize = 6;
/// Widest column, percent of the drawing.
const MAX_COLUMN: f64 = 12.0;

/// Draws one column per value, in order, from zero. A value stands above its column: each of a few,
/// and of many the largest, next to a scale.
pub fn columns(
    id: &str,
    title: &str,
    description: &str,
    it: &ColumnChart,
    shown: impl Fn(usize, f64) -> String,
) -> String {
    const HEIGHT: f64 = 96.0;
    const ABOVE: usize = 16;
    let ColumnChart { class, values, unit, ends, .. } = *it;
    let scale = values.iter().copied().fold(it.scale.unwrap_or(0.0), f64::max);
    let step = 100.0 / values.len().max(1) as f64;
    let width = (step * 0.82).min(MAX_COLUMN);
    let left = |index: usize| step * index as f64 + (step - width) / 2.0;
    let height = |value: f64| if scale > 0.0 { (HEIGHT * value / scale).max(1.0) } else { 1.0 };
    let mut svg = open(id, title, description, ABOVE + HEIGHT as usize + axis::BELOW);
    let _ = write!(svg, "<g transform=\"translate(0 {ABOVE})\">");
    for (index, value) in values.iter().enumerate() {
        let height = height(*value);
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{:.3}%\" y=\"{:.2}\" width=\"{:.3}%\" \
             height=\"{height:.2}\"><title>{}</title></rect>",
            left(index),
            HEIGHT - height,
            width,
            html(&shown(index, *value)),
        );
    }
    let is_each_labelled = values.len() <= MAX_LABELLED;
    if !is_each_labelled {
        axis::up(&mut svg, scale, HEIGHT, unit);
    }
    let largest = (0..values.len()).max_by(|a, b| values[*a].total_cmp(&values[*b]));
    for index in (0..values.len()).filter(|index| is_each_labelled || largest == Some(*index)) {
        let (value, middle) = (values[index], left(index) + width / 2.0);
        let _ = write!(
            svg,
            "<text class=\"label\" x=\"{middle:.3}%\" y=\"{:.2}\" text-anchor=\"{}\">{}</text>",
            HEIGHT - height(value) - 4.0,
            axis::anchor(middle),
            figure(value),
        );
    }
    let unit = if is_each_labelled { format!(", {unit}") } else { String::new() };
    let _ = write!(
        svg,
        "<text class=\"value\" x=\"0\" y=\"{}\">{}</text></g></svg>",
        HEIGHT as usize + axis::BELOW - 6,
        html(&format!("{ends}{unit}"))
    );
    svg
}

/// Opens a drawing of the page's width.
pub fn open(id: &str, title: &str, description: &str, height: usize) -> String {
    format!(
        "<svg class=\"chart\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\" \
         width=\"100%\" height=\"{height}\">\
         <title id=\"{id}-title\">{}</title><desc id=\"{id}-desc\">{}</desc>",
        html(title),
        html(description),
    )
}

/// Shortens a long path to its end, which distinguishes operators, another long name to both ends,
/// and words to the first of them: at most `max` characters.
fn shorten(label: &str, max: usize) -> String {
    let length = label.chars().count();
    if length <= max {
        return label.to_owned();
    }
    let are_words = label.chars().all(|it| it.is_alphabetic() || " ,'-".contains(it));
    let start: String = label.chars().take(max).collect();
    if let Some((words, _)) = start.rsplit_once(' ').filter(|_| are_words) {
        return format!("{}…", words.trim_end_matches(','));
    }
    let head_length = if label.contains('.') { 0 } else { max / 2 };
    let head: String = label.chars().take(head_length).collect();
    let tail: String = label.chars().skip(length - (max - head_length) + 1).collect();
    format!("{head}…{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_label_stays_text() {
        let bar = Bar {
            label: "<script>\"&".into(),
            shown: "1 ms".into(),
            value: 1.0,
            class: "prefill",
            ..Bar::default()
        };
        let svg = bars("x", "t", "d", &[bar]);
        assert!(!svg.contains("<script>"));
        assert!(svg.contains("&lt;script&gt;&quot;&amp;"));
    }

    #[test]
    fn a_scale_of_nothing_draws_nothing_non_finite() {
        let svg = bars("x", "t", "d", &[Bar::default()])
            + &columns(
                "y",
                "t",
                "d",
                &ColumnChart { class: "x", scale: None, values: &[0.0], unit: "ms", ends: "1" },
                |_, _| String::new(),
            );
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn a_chart_has_a_scale_with_a_unit_and_the_whole_name_as_a_tooltip() {
        let name = "decoder.layers.*.mlp.shared_experts.experts.gate_proj";
        let bar = Bar { label: name.into(), shown: "3.1 ms".into(), value: 3.1, ..Bar::default() };
        let svg = bars("x", "t", "d", &[bar]);
        assert!(svg.contains(&format!("<title>{name}: 3.1 ms</title>")), "{svg}");
        assert!(svg.contains(&format!("<text class=\"label wide\" x=\"0\" y=\"14\">{name}<")));
        assert!(svg.contains("label narrow") && svg.contains(">3 ms</text>"), "{svg}");
    }

    #[test]
    fn a_value_stands_at_its_bar_and_above_its_column() {
        let bar = Bar { label: "decode".into(), shown: "3.1 ms".into(), ..Bar::default() };
        let svg = bars("x", "t", "d", &[bar]);
        assert!(svg.contains(">decode<tspan class=\"value\" dx=\"8\">3.1 ms</tspan>"), "{svg}");
        let columns = |values: &[f64]| {
            let it = ColumnChart { class: "x", scale: None, values, unit: "ms", ends: "1, 2" };
            columns("x", "t", "d", &it, |_, _| String::new())
        };
        let few = columns(&[2.0, 4.0]);
        for (x, y, value) in [("25.000%", "44.00", "2.00"), ("75.000%", "-4.00", "4.00")] {
            let text = format!("x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{value}</text>");
            assert!(few.contains(&text), "{text}: {few}");
        }
        assert!(few.ends_with(">1, 2, ms</text></g></svg>"), "{few}");
        let many = columns(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.25]);
        assert_eq!(many.matches("class=\"label\"").count(), 1, "{many}");
        assert!(many.contains(">4.25</text>") && many.contains(">4 ms</text>"), "{many}");
        assert!(many.ends_with(">1, 2</text></g></svg>"), "{many}");
    }

    #[test]
    fn words_are_never_cut_inside_a_word() {
        let label = "gaps in which the host launched nothing, and waited";
        for max in 5..60 {
            let short = shorten(label, max);
            assert!(short.chars().count() <= max, "{short}");
            let words = short.trim_end_matches('…');
            assert!(label.starts_with(words), "{short}");
            let rest = &label[words.len()..];
            assert!(rest.is_empty() || rest.starts_with([' ', ',']), "{short}");
        }
    }

    #[test]
    fn a_long_path_keeps_its_end() {
        let short = shorten("decoder.layers.*.mlp.shared_experts.gate_proj", LABEL);
        assert!(short.starts_with('…') && short.ends_with("shared_experts.gate_proj"));
        assert_eq!(short.chars().count(), LABEL);
        let kernel = shorten(
            "sm80_xmma_gemm_f32f32_tilesize32x32x8_stage3_warpsize1x2x1_execute_kernel__5x_cublas",
            LABEL,
        );
        assert!(
            kernel.starts_with("sm80_xmma_gemm…") && kernel.ends_with("_5x_cublas"),
            "{kernel}"
        );
        assert_eq!(kernel.chars().count(), LABEL);
    }
}
