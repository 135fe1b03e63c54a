//! A curve over time as inline SVG, with the stages shaded behind it and scales on both axes.
//!
//! Widths are percentages; the curve alone is stretched, and its stroke is not. Colours are
//! classes.

use std::fmt::Write;

use super::{axis, svg};
use crate::html::escape as html;

/// Height of the drawing without its scale, pixels.
const HEIGHT: f64 = 120.0;
/// Width that the curve is drawn in before it is stretched.
const WIDTH: f64 = 1000.0;

/// Data of the chart.
#[derive(Debug, Clone, Default)]
pub struct Timeline<'a> {
    pub seconds: f64,
    pub points: &'a [(f64, f64)],
    /// Style class, first and last second, and tooltip.
    pub bands: Vec<(&'static str, f64, f64, String)>,
    /// A level to compare with, drawn when it is near.
    pub limit: Option<(f64, String)>,
    pub unit: &'static str,
}

/// Draws the curve from zero; empty text if there is nothing to draw.
pub fn timeline(id: &str, title: &str, description: &str, it: &Timeline) -> String {
    let highest = it.points.iter().map(|point| point.1).fold(0.0, f64::max);
    if it.points.len() < 2 || !(it.seconds > 0.0 && highest > 0.0) {
        return String::new();
    }
    let limit =
        it.limit.as_ref().filter(|(level, _)| (highest * 0.5..=highest * 1.5).contains(level));
    let top = limit.map_or(highest, |(level, _)| highest.max(*level)) * 1.05;
    let across = |second: f64| (second / it.seconds).clamp(0.0, 1.0);
    let down = |value: f64| HEIGHT * (1.0 - (value / top).clamp(0.0, 1.0));

    let mut svg = svg::open(id, title, description, HEIGHT as usize + axis::BELOW);
    for (class, from, to, tooltip) in &it.bands {
        let (x, width) = (100.0 * across(*from), 100.0 * (across(*to) - across(*from)));
        let _ = write!(
            svg,
            "<rect class=\"band {class}\" x=\"{x:.3}%\" y=\"0\" width=\"{:.3}%\" \
             height=\"{HEIGHT}\"><title>{}</title></rect>",
            width.max(0.05),
            html(tooltip),
        );
    }
    if let Some((level, tooltip)) = limit {
        let y = down(*level);
        let _ = write!(
            svg,
            "<line class=\"limit\" x1=\"0\" x2=\"100%\" y1=\"{y:.2}\" \
             y2=\"{y:.2}\"><title>{}</title></line>",
            html(tooltip)
        );
    }
    let _ = write!(
        svg,
        "<svg x=\"0\" y=\"0\" width=\"100%\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         preserveAspectRatio=\"none\">\
         <polyline class=\"curve\" vector-effect=\"non-scaling-stroke\" points=\""
    );
    for (second, value) in it.points {
        let _ = write!(svg, "{:.1},{:.2} ", WIDTH * across(*second), down(*value));
    }
    svg.push_str("\"/></svg>");
    axis::up(&mut svg, top, HEIGHT, it.unit);
    axis::across(&mut svg, it.seconds, HEIGHT as usize, "s");
    let _ = write!(
        svg,
        "<text class=\"value\" x=\"0\" y=\"12\">peak {highest:.0} {}</text></svg>",
        html(it.unit),
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(points: &[(f64, f64)], limit: f64) -> String {
        let bands = vec![("prefill", 0.0, 5.0, "<b>".to_owned())];
        let limit = Some((limit, "limit".to_owned()));
        timeline("x", "t", "d", &Timeline { seconds: 10.0, points, bands, limit, unit: "W" })
    }

    #[test]
    fn text_stays_text_and_a_limit_is_drawn_when_it_is_near() {
        let near = drawn(&[(0.0, 100.0), (10.0, 650.0)], 700.0);
        assert!(
            near.contains("class=\"limit\"") && near.contains("&lt;b&gt;") && !near.contains("<b>")
        );
        assert!(!drawn(&[(0.0, 100.0), (10.0, 650.0)], 5_000.0).contains("class=\"limit\""));
    }

    #[test]
    fn both_axes_have_a_scale_with_a_unit() {
        let drawn = drawn(&[(0.0, 100.0), (10.0, 650.0)], 5_000.0);
        for text in [">600 W</text>", ">10 s</text>", ">peak 650 W</text>"] {
            assert!(drawn.contains(text), "{text}: {drawn}");
        }
    }

    #[test]
    fn nothing_to_draw_is_no_drawing() {
        assert_eq!(drawn(&[], 1.0), "");
        assert_eq!(drawn(&[(0.0, 0.0), (1.0, 0.0)], 1.0), "");
        assert!(!drawn(&[(0.0, 1.0), (1.0, 2.0)], f64::NAN).contains("NaN"));
    }
}
