//! Scales of charts from zero: round ticks with their values, and lines at them.

use std::fmt::Write;

use crate::{format::decimals, html::escape as html};

/// Height of the values below a chart, pixels.
pub const BELOW: usize = 18;
/// Maximum number of ticks after zero.
const MAX_TICKS: u32 = 5;
/// Maximum decimals of a tick.
const MAX_PLACES: f64 = 9.0;

/// Round values from zero to at most `max`, each with its text; none without a positive scale.
pub fn ticks(max: f64) -> Vec<(f64, String)> {
    if !(max.is_normal() && max > 0.0) {
        return Vec::new();
    }
    let least = max / f64::from(MAX_TICKS);
    let power = 10f64.powf(least.log10().floor());
    // Equal numbers may differ by rounding.
    let (least, end) = (least * (1.0 - 1e-9), max * (1.0 + 1e-9));
    let steps = [1.0, 2.0, 5.0].map(|it| it * power);
    let step = steps.into_iter().find(|step| *step >= least).unwrap_or(10.0 * power);
    let places = (-step.log10() - 1e-9).ceil().clamp(0.0, MAX_PLACES) as usize;
    let values = (0..=MAX_TICKS).map(|at| f64::from(at) * step).take_while(|it| *it <= end);
    values.map(|value| (value, decimals(value, places))).collect()
}

/// The text of a tick; the last one has the unit.
fn labels(max: f64, unit: &str) -> Vec<(f64, String)> {
    let mut ticks = ticks(max);
    if let Some((_, text)) = ticks.last_mut() {
        *text = format!("{text} {}", html(unit));
    }
    ticks
}

/// Writes values from zero to `max` at the right, each below its line through a plot.
pub fn up(svg: &mut String, max: f64, height: f64, unit: &str) {
    for (value, text) in labels(max, unit).into_iter().skip(1) {
        let y = height * (1.0 - value / max).max(0.0);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{y:.2}\" y2=\"{y:.2}\"/>\
             <text class=\"value\" x=\"100%\" y=\"{:.2}\" text-anchor=\"end\">{text}</text>",
            y + 11.0,
        );
    }
}

/// The anchor of a text at this part of the width, percent, with which it stays in the drawing.
pub fn anchor(x: f64) -> &'static str {
    match x {
        ..4.0 => "start",
        92.0.. => "end",
        _ => "middle",
    }
}

/// Writes vertical lines at the values from zero to `max` through a plot of this height.
pub fn lines(svg: &mut String, max: f64, height: usize) {
    for (value, _) in ticks(max) {
        let x = 100.0 * value / max;
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{x:.3}%\" x2=\"{x:.3}%\" y1=\"0\" y2=\"{height}\"/>"
        );
    }
}

/// Writes the values from zero to `max` below a plot of this height.
pub fn across(svg: &mut String, max: f64, height: usize, unit: &str) {
    for (value, text) in labels(max, unit) {
        let x = 100.0 * value / max;
        let anchor = anchor(x);
        let _ = write!(
            svg,
            "<text class=\"value\" x=\"{x:.3}%\" y=\"{}\" text-anchor=\"{anchor}\">{text}</text>",
            height + BELOW - 6,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_few_and_within_the_scale() {
        let texts = |max: f64| -> Vec<String> { ticks(max).into_iter().map(|it| it.1).collect() };
        assert_eq!(texts(1.0), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(texts(7.3), ["0", "2", "4", "6"]);
        assert_eq!(texts(0.034), ["0.00", "0.01", "0.02", "0.03"]);
        assert_eq!(texts(2600.0), ["0", "1,000", "2,000"]);
        for max in (1..400).map(|it| 1e-4 * 1.07f64.powi(it)) {
            let drawn = ticks(max);
            assert!((3..=6).contains(&drawn.len()), "{max}: {drawn:?}");
            assert!(drawn.iter().all(|it| it.0 <= max * 1.000_001), "{max}: {drawn:?}");
        }
        for none in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-320] {
            assert!(ticks(none).is_empty());
        }
    }

    #[test]
    fn the_last_value_has_the_unit_and_stays_in_the_drawing() {
        let mut svg = String::new();
        across(&mut svg, 100.0, 20, "<ms>");
        assert!(svg.contains("text-anchor=\"end\">100 &lt;ms&gt;</text>"), "{svg}");
        assert!(svg.contains("x=\"0.000%\" y=\"32\" text-anchor=\"start\">0</text>"), "{svg}");
        let mut svg = String::new();
        up(&mut svg, 100.0, 100.0, "W");
        assert_eq!((svg.matches("class=\"grid\"").count(), svg.matches("100 W").count()), (5, 1));
    }
}
