//! Charts of a sweep as inline SVG: throughput against latency with the Pareto front, and times
//! along an axis of numbers.
//!
//! Horizontal positions are percentages, so a chart fits any width and text keeps its size. Colours
//! are style classes.

use std::fmt::Write;

use super::svg;
use crate::{format::decimals, html::escape as html};

/// Heights of the text above the plot, of the plot and of the text below it, pixels.
const ABOVE: f64 = 22.0;
const HEIGHT: f64 = 220.0;
const BELOW: f64 = 40.0;
/// Least distance of two labels of lines, pixels.
const LABEL: f64 = 14.0;
/// Classes of lines, in turn.
const CLASSES: [&str; 2] = ["prefill", "decode"];
/// Maximum number of lines of one chart, floors included: further ones hide earlier ones.
const MAX_LINES: usize = 24;

/// A point of a chart.
#[derive(Debug, Clone)]
pub struct ChartPoint {
    pub x: f64,
    pub y: f64,
    pub tooltip: String,
    /// Address of its run.
    pub link: Option<String>,
    /// Drawn filled, and connected with the others on the front.
    pub on_front: bool,
}

/// Points that are connected in their order.
#[derive(Debug, Clone)]
pub struct ChartLine {
    pub label: String,
    pub points: Vec<ChartPoint>,
}

/// A scale with a margin; logarithmic if values span more than a decade.
struct AxisScale {
    low: f64,
    high: f64,
    is_log: bool,
}

impl AxisScale {
    /// `None` without a finite value.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), it| {
            (low.min(it), high.max(it))
        });
        if !(low.is_finite() && high.is_finite()) {
            return None;
        }
        Some(Self { low, high, is_log: low > 0.0 && high / low > 10.0 })
    }

    /// Part of the scale, from 0.04 to 0.96.
    fn part(&self, value: f64) -> f64 {
        let on = |it: f64| if self.is_log { it.ln() } else { it };
        let span = on(self.high) - on(self.low);
        let part = if span > 0.0 { (on(value) - on(self.low)) / span } else { 0.5 };
        0.04 + 0.92 * part.clamp(0.0, 1.0)
    }
}

struct Plot {
    svg: String,
    across: AxisScale,
    up: AxisScale,
}

impl Plot {
    /// Draws the frame with the ends of both axes; `None` without points.
    fn open(
        (id, title, description): (&str, &str, &str),
        (across, up): (&str, &str),
        points: &[&ChartPoint],
    ) -> Option<Self> {
        let finite = || points.iter().filter(|it| it.x.is_finite() && it.y.is_finite());
        let scales =
            (AxisScale::of(finite().map(|it| it.x))?, AxisScale::of(finite().map(|it| it.y))?);
        let mut svg = svg::open(id, title, description, (ABOVE + HEIGHT + BELOW) as usize);
        let log = |scale: &AxisScale| if scale.is_log { ", logarithmic" } else { "" };
        let ends = |scale: &AxisScale| (plain(scale.low), plain(scale.high));
        let ((left, right), (bottom, top)) = (ends(&scales.0), ends(&scales.1));
        let (values, below) = (ABOVE + HEIGHT + 16.0, ABOVE + HEIGHT + 34.0);
        let _ = write!(
            svg,
            "<rect class=\"track\" x=\"0\" y=\"{ABOVE}\" width=\"100%\" height=\"{HEIGHT}\" \
             rx=\"3\"/><text class=\"label\" x=\"0\" y=\"14\">{}: {bottom} to {top}{}</text>\
             <text class=\"value\" x=\"0\" y=\"{values}\">{left}</text>\
             <text class=\"value\" x=\"100%\" y=\"{values}\" text-anchor=\"end\">{right}</text>\
             <text class=\"label\" x=\"50%\" y=\"{below}\" text-anchor=\"middle\">{}{}</text>",
            html(up),
            log(&scales.1),
            html(across),
            log(&scales.0),
        );
        Some(Self { svg, across: scales.0, up: scales.1 })
    }

    fn place(&self, point: &ChartPoint) -> (f64, f64) {
        (100.0 * self.across.part(point.x), ABOVE + HEIGHT * (1.0 - self.up.part(point.y)))
    }

    fn line(&mut self, class: &str, points: &[&ChartPoint]) {
        for pair in points.windows(2) {
            let ((x1, y1), (x2, y2)) = (self.place(pair[0]), self.place(pair[1]));
            let _ = write!(
                self.svg,
                "<line class=\"{class}\" x1=\"{x1:.3}%\" y1=\"{y1:.2}\" x2=\"{x2:.3}%\" \
                 y2=\"{y2:.2}\"/>"
            );
        }
    }

    fn dot(&mut self, class: &str, point: &ChartPoint) {
        let (x, y) = self.place(point);
        let dot = format!(
            "<circle class=\"dot {class}\" cx=\"{x:.3}%\" cy=\"{y:.2}\" r=\"{}\"><title>{}</title>\
             </circle>",
            if point.on_front { 6 } else { 4 },
            html(&point.tooltip),
        );
        match &point.link {
            Some(link) => {
                let _ = write!(self.svg, "<a href=\"{}\">{dot}</a>", html(link));
            }
            None => self.svg += &dot,
        }
    }

    fn finish(mut self) -> String {
        self.svg.push_str("</svg>");
        self.svg
    }
}

/// A number without trailing zeros.
fn plain(value: f64) -> String {
    let text = decimals(value, 3);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

fn drawn(points: &[ChartPoint]) -> Vec<&ChartPoint> {
    points.iter().filter(|it| it.x.is_finite() && it.y.is_finite()).collect()
}

/// Draws throughput against latency; the points of the front are connected. Empty without points.
pub fn tradeoff(id: &str, title: &str, axes: (&str, &str), points: &[ChartPoint]) -> String {
    let points = drawn(points);
    let mut front: Vec<&ChartPoint> = points.iter().filter(|it| it.on_front).copied().collect();
    front.sort_by(|a, b| a.x.total_cmp(&b.x));
    let text = format!("{} points, {} on the Pareto front", points.len(), front.len());
    let Some(mut plot) = Plot::open((id, title, &text), axes, &points) else {
        return String::new();
    };
    plot.line("roof", &front);
    for point in points {
        plot.dot(if point.on_front { "decode" } else { "prefill" }, point);
    }
    plot.finish()
}

/// Draws lines along an axis of numbers. Empty without points.
pub fn lines(id: &str, title: &str, axes: (&str, &str), lines: &[ChartLine]) -> String {
    let lines: Vec<(&ChartLine, Vec<&ChartPoint>)> =
        lines.iter().take(MAX_LINES).map(|it| (it, drawn(&it.points))).collect();
    let all: Vec<&ChartPoint> = lines.iter().flat_map(|(_, points)| points).copied().collect();
    let text = format!("{} lines, {} points", lines.len(), all.len());
    let Some(mut plot) = Plot::open((id, title, &text), axes, &all) else {
        return String::new();
    };
    let mut labelled: Vec<f64> = Vec::new();
    for (at, (line, points)) in lines.iter().enumerate() {
        let class = CLASSES[at % CLASSES.len()];
        plot.line("whisker", points);
        points.iter().for_each(|point| plot.dot(class, point));
        let last = points.last().map(|last| plot.place(last));
        // Tooltips of the points have what a hidden label would.
        let is_free = |y: &f64| labelled.iter().all(|it| (it - y).abs() >= LABEL);
        if let Some((x, y)) = last.map(|(x, y)| (x, y - 8.0)).filter(|(_, y)| is_free(y)) {
            labelled.push(y);
            let _ = write!(
                plot.svg,
                "<text class=\"value\" x=\"{x:.3}%\" y=\"{:.2}\" dx=\"-8\" \
                 text-anchor=\"end\">{}</text>",
                y.max(ABOVE + 12.0),
                html(&line.label),
            );
        }
    }
    plot.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(x: f64, y: f64, on_front: bool) -> ChartPoint {
        ChartPoint { x, y, tooltip: "<b>".into(), link: Some("/ui/runs/1\"".into()), on_front }
    }

    #[test]
    fn the_points_of_the_front_are_connected_and_texts_stay_texts() {
        let points = [point(1.0, 10.0, true), point(2.0, 5.0, false), point(3.0, 300.0, true)];
        let svg = tradeoff("t", "a", ("<x>", "y"), &points);
        assert_eq!((svg.matches("<circle").count(), svg.matches("class=\"roof\"").count()), (3, 1));
        assert!(!svg.contains("<b>") && !svg.contains("<x>") && !svg.contains("runs/1\""));
        assert!(svg.contains("logarithmic"));
    }

    #[test]
    fn nothing_is_drawn_of_nothing_and_no_place_is_infinite() {
        assert_eq!(tradeoff("t", "a", ("x", "y"), &[]), "");
        assert_eq!(tradeoff("t", "a", ("x", "y"), &[point(f64::NAN, 1.0, true)]), "");
        let one = [ChartLine { label: "<l>".into(), points: vec![point(0.0, 0.0, false)] }];
        let svg = lines("l", "a", ("x", "y"), &one);
        assert!(!svg.contains("NaN") && !svg.contains("inf") && svg.contains("&lt;l&gt;"), "{svg}");
    }
}
