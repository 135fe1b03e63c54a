//! Points under roofs on two logarithmic scales, as inline SVG.
//!
//! Horizontal positions are percentages, so the chart fits any width and text keeps its size.
//! Colours are style classes.

use std::fmt::Write;

use super::svg;
use crate::{format::scaled, html::escape as html};

/// Height of the plot, and what is left above and below it for text, pixels.
const HEIGHT: f64 = 320.0;
const ABOVE: f64 = 18.0;
const BELOW: usize = 38;
/// Number of labelled points: more would overlap.
const NUMBERED: usize = 16;
/// Two points whose numbers would lie closer than this, as parts of the width and in pixels, get
/// them on different sides.
const NEAR: (f64, f64) = (0.05, 16.0);
/// Maximum number of decades; lower points are drawn at the edge.
const DECADES: f64 = 12.0;

/// A limit: a slope of bytes per second up to the ridge, flat beyond it.
#[derive(Debug, Clone)]
pub struct RoofLine {
    pub label: String,
    pub flops_per_s: f64,
    pub bytes_per_s: f64,
    pub measured: bool,
}

/// One kernel.
#[derive(Debug, Clone)]
pub struct Dot {
    pub number: usize,
    pub tooltip: String,
    pub class: &'static str,
    pub flops_per_byte: f64,
    pub flops_per_s: f64,
}

/// Whole decades around values.
struct Scale {
    from: f64,
    to: f64,
}

impl Scale {
    fn around(values: impl Iterator<Item = f64>) -> Option<Self> {
        let logs: Vec<f64> =
            values.filter(|it| *it > 0.0 && it.is_finite()).map(f64::log10).collect();
        let (low, high) = logs
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), it| (a.min(*it), b.max(*it)));
        let to = (high + 0.15).ceil();
        (low <= high).then(|| Self { from: (low - 0.05).floor().max(to - DECADES), to })
    }

    /// Part of the scale below the value.
    fn part(&self, value: f64) -> f64 {
        ((value.log10() - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    fn decades(&self) -> impl Iterator<Item = f64> {
        (self.from as i32..=self.to as i32).map(|power| 10f64.powi(power))
    }
}

/// Draws the points; empty text if there is none.
pub fn scatter(
    id: &str,
    title: &str,
    description: &str,
    roofs: &[RoofLine],
    dots: &[Dot],
) -> String {
    let ridges = || roofs.iter().map(|it| it.flops_per_s / it.bytes_per_s);
    let across = Scale::around(
        dots.iter().map(|it| it.flops_per_byte).chain(ridges().map(|ridge| ridge * 4.0)),
    );
    let up = Scale::around(
        dots.iter().map(|it| it.flops_per_s).chain(roofs.iter().map(|it| it.flops_per_s)),
    );
    let (Some(across), Some(up)) = (across.filter(|_| !dots.is_empty()), up) else {
        return String::new();
    };
    let x = |value: f64| 100.0 * across.part(value);
    let y = |value: f64| ABOVE + HEIGHT * (1.0 - up.part(value));

    let mut svg = svg::open(id, title, description, (ABOVE + HEIGHT) as usize + BELOW);
    for value in across.decades() {
        let (x, bottom) = (x(value), ABOVE + HEIGHT);
        let anchor = if x < 1.0 {
            "start"
        } else if x > 99.0 {
            "end"
        } else {
            "middle"
        };
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{x:.3}%\" x2=\"{x:.3}%\" y1=\"{ABOVE}\" y2=\"{bottom}\"/>\
             <text class=\"value\" x=\"{x:.3}%\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            bottom + 16.0,
            plain(value),
        );
    }
    for value in up.decades() {
        let y = y(value);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{y:.2}\" y2=\"{y:.2}\"/>\
             <text class=\"value\" x=\"2\" y=\"{:.2}\">{}</text>",
            y - 3.0,
            scaled(value, "FLOP/s").replace(".00", "").replace(".0 ", " "),
        );
    }
    let _ = write!(
        svg,
        "<text class=\"label\" x=\"100%\" y=\"{}\" text-anchor=\"end\">FLOP per byte of device \
         memory</text>",
        ABOVE + HEIGHT + 33.0
    );
    for roof in roofs {
        draw_roof(&mut svg, roof, &across, &up);
    }
    draw_dots(&mut svg, dots, &across, &up);
    svg.push_str("</svg>");
    svg
}

/// The slope is cut where it leaves the plot.
fn draw_roof(svg: &mut String, roof: &RoofLine, across: &Scale, up: &Scale) {
    let (left, bottom) = (10f64.powf(across.from), 10f64.powf(up.from));
    let ridge = roof.flops_per_s / roof.bytes_per_s;
    let start = left.max(bottom / roof.bytes_per_s).min(ridge);
    let at = |intensity: f64, flops: f64| {
        (100.0 * across.part(intensity), ABOVE + HEIGHT * (1.0 - up.part(flops)))
    };
    let (from, knee) = (at(start, start * roof.bytes_per_s), at(ridge, roof.flops_per_s));
    let class = if roof.measured { "roof measured" } else { "roof" };
    let label = html(&roof.label);
    let ((x1, y1), (x2, y2)) = (from, knee);
    // The measured roof lies below the datasheet's, and so does its label.
    let below = y2 + if roof.measured { 14.0 } else { -5.0 };
    let _ = write!(
        svg,
        "<g><title>{label}</title>\
         <line class=\"{class}\" x1=\"{x1:.3}%\" y1=\"{y1:.2}\" x2=\"{x2:.3}%\" y2=\"{y2:.2}\"/>\
         <line class=\"{class}\" x1=\"{x2:.3}%\" y1=\"{y2:.2}\" x2=\"100%\" y2=\"{y2:.2}\"/>\
         <text class=\"label\" x=\"100%\" y=\"{below:.2}\" text-anchor=\"end\">{label}</text></g>",
    );
}

fn draw_dots(svg: &mut String, dots: &[Dot], across: &Scale, up: &Scale) {
    // Positions of the number next to a point, tried in turn.
    const SIDES: [(f64, f64); 4] = [(11.0, 4.0), (-11.0, 4.0), (0.0, -10.0), (0.0, 19.0)];
    let mut taken: Vec<(f64, f64)> = Vec::new();
    for (index, dot) in dots.iter().enumerate() {
        let part = across.part(dot.flops_per_byte);
        let y = ABOVE + HEIGHT * (1.0 - up.part(dot.flops_per_s));
        let _ = write!(
            svg,
            "<circle class=\"dot {}\" cx=\"{:.3}%\" cy=\"{y:.2}\" \
             r=\"6\"><title>{}</title></circle>",
            dot.class,
            100.0 * part,
            html(&dot.tooltip),
        );
        if index >= NUMBERED {
            continue;
        }
        // The width on a desktop, where neighbouring positions are distinct.
        let place = |(right, down): (f64, f64)| (part + right / 1000.0, y + down);
        let clear = |it: &(f64, f64)| {
            taken
                .iter()
                .all(|at| (at.0 - it.0).abs() > NEAR.0 / 2.0 || (at.1 - it.1).abs() > NEAR.1)
        };
        let side = SIDES.into_iter().find(|side| clear(&place(*side))).unwrap_or(SIDES[0]);
        taken.push(place(side));
        let anchor = if side.0 > 0.0 {
            "start"
        } else if side.0 < 0.0 {
            "end"
        } else {
            "middle"
        };
        let _ = write!(
            svg,
            "<text class=\"label\" x=\"{:.3}%\" y=\"{:.2}\" dx=\"{}\" text-anchor=\"{anchor}\" \
             aria-hidden=\"true\">{}</text>",
            100.0 * part,
            y + side.1,
            side.0,
            dot.number,
        );
    }
}

/// A power of ten with its prefix.
fn plain(value: f64) -> String {
    if value >= 1e4 {
        scaled(value, "").replace(".00", "").replace(".0 ", " ").trim_end().to_owned()
    } else if value >= 1.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.*}", (-value.log10()).round() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dot(flops_per_byte: f64, flops_per_s: f64) -> Dot {
        Dot { number: 1, tooltip: "<k>".into(), class: "decode", flops_per_byte, flops_per_s }
    }

    #[test]
    fn a_point_at_the_ridge_lies_on_its_roof() {
        let roof =
            RoofLine { label: "f32".into(), flops_per_s: 1e12, bytes_per_s: 1e12, measured: false };
        let drawn = scatter("r", "t", "d", &[roof], &[dot(1.0, 1e12)]);
        let of = |from: &str, name: &str| {
            let rest =
                drawn.split_once(from).unwrap().1.split_once(&format!("{name}=\"")).unwrap().1;
            rest.split_once('"').unwrap().0.to_owned()
        };
        assert_eq!(
            (of("class=\"roof\"", "x2"), of("class=\"roof\"", "y2")),
            (of("<circle", "cx"), of("<circle", "cy"))
        );
        assert!(drawn.contains("&lt;k&gt;") && !drawn.contains("NaN") && !drawn.contains("inf"));
    }

    #[test]
    fn nothing_is_drawn_of_nothing_and_hostile_figures_stay_inside() {
        assert_eq!(scatter("r", "t", "d", &[], &[]), "");
        let drawn = scatter("r", "t", "d", &[], &[dot(1e-300, 1e300), dot(1e9, 1.0)]);
        assert!(
            !drawn.contains("NaN")
                && !drawn.contains("inf")
                && drawn.matches("<circle").count() == 2
        );
        assert!(drawn.matches("class=\"grid\"").count() <= 30);
    }
}
