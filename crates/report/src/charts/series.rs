//! A figure of a series over its runs: a point per run, the mean between change points, and a line
//! at each change point.

use std::fmt::Write;

use super::svg;
use crate::{format::decimals, html::escape as html};

/// Height of the plot, and of the text below it, pixels.
const HEIGHT: f64 = 150.0;
const BELOW: usize = 20;

/// A run of a series.
#[derive(Debug, Clone)]
pub struct SeriesDot {
    pub value: f64,
    pub tooltip: String,
    pub link: String,
}

/// A part of a series without a change: its first and last point, and the mean.
#[derive(Debug, Clone, Copy)]
pub struct SeriesLevel {
    pub from: usize,
    pub to: usize,
    pub mean: f64,
}

/// Draws the points in order. Empty without points.
pub fn series(
    id: &str,
    (title, description): (&str, &str),
    dots: &[SeriesDot],
    levels: &[SeriesLevel],
) -> String {
    let values = dots.iter().map(|it| it.value).filter(|it| it.is_finite());
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), it| (a.min(it), b.max(it)));
    if low > high {
        return String::new();
    }
    let margin = if high > low { 0.08 * (high - low) } else { (0.05 * high.abs()).max(1e-9) };
    let (low, high) = (low - margin, high + margin);
    let x = |at: usize| 1.0 + 98.0 * (at as f64 + 0.5) / dots.len() as f64;
    let y = |value: f64| HEIGHT * (high - value.clamp(low, high)) / (high - low);
    let mut svg = svg::open(id, title, description, HEIGHT as usize + BELOW);
    let _ = write!(
        svg,
        "<rect class=\"track\" x=\"0\" y=\"0\" width=\"100%\" height=\"{HEIGHT}\" rx=\"3\"/>"
    );
    for (place, level) in levels.iter().enumerate() {
        let (from, to) = (x(level.from), x(level.to.min(dots.len().saturating_sub(1))));
        if place > 0 {
            let _ = write!(
                svg,
                "<line class=\"limit\" x1=\"{from:.3}%\" x2=\"{from:.3}%\" y1=\"0\" \
                 y2=\"{HEIGHT}\"/>"
            );
        }
        let height = y(level.mean);
        let _ = write!(
            svg,
            "<line class=\"roof\" x1=\"{from:.3}%\" x2=\"{to:.3}%\" y1=\"{height:.2}\" \
             y2=\"{height:.2}\"/>"
        );
    }
    let radius = if dots.len() > 150 { 2.5 } else { 4.0 };
    for (at, dot) in dots.iter().enumerate().filter(|(_, dot)| dot.value.is_finite()) {
        let _ = write!(
            svg,
            "<a href=\"{}\"><circle class=\"decode dot\" cx=\"{:.3}%\" cy=\"{:.2}\" \
             r=\"{radius}\"><title>{}</title></circle></a>",
            html(&dot.link),
            x(at),
            y(dot.value),
            html(&dot.tooltip),
        );
    }
    let _ = write!(
        svg,
        "<text class=\"value\" x=\"0\" y=\"{0}\">{1} to {2}</text></svg>",
        HEIGHT as usize + BELOW - 4,
        decimals(low + margin, 3),
        decimals(high - margin, 3),
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dot(value: f64) -> SeriesDot {
        SeriesDot { value, tooltip: "<b>".into(), link: "/ui/runs/1?\"".into() }
    }

    #[test]
    fn a_chart_has_a_point_per_run_and_a_line_per_change() {
        let levels =
            [SeriesLevel { from: 0, to: 1, mean: 1.0 }, SeriesLevel { from: 2, to: 2, mean: 2.0 }];
        let svg = series("x", ("t", "d"), &[dot(1.0), dot(1.0), dot(2.0)], &levels);
        assert_eq!((svg.matches("<circle").count(), svg.matches("\"limit\"").count()), (3, 1));
        assert!(!svg.contains("<b>") && svg.contains("runs&#x2f;1?&quot;"));
    }

    #[test]
    fn equal_and_non_finite_values_draw_nothing_non_finite() {
        let levels = [SeriesLevel { from: 0, to: 9, mean: f64::NAN }];
        let svg = series("x", ("t", "d"), &[dot(0.0), dot(f64::NAN), dot(0.0)], &levels);
        assert!(!svg.contains("inf") && svg.matches("<circle").count() == 2);
        assert_eq!(series("x", ("t", "d"), &[], &[]), "");
        assert_eq!(series("x", ("t", "d"), &[dot(f64::NAN)], &[]), "");
    }
}
