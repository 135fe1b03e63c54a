//! Lanes of slices on one time scale, as inline SVG.
//!
//! Widths are percentages, so the chart fits any width. Slices too narrow to be seen are merged.
//! Colours are style classes.

use std::fmt::Write;

use super::{axis, svg};
use crate::html::escape as html;

/// Height of a lane's name, of its slices, and of what lies between two lanes, pixels.
const NAME: usize = 16;
const SLICE: usize = 20;
const BETWEEN: usize = 10;
/// Slices narrower than this part of the width are merged with the following ones.
const NARROW: f64 = 0.0008;
/// Width of a letter as a part of a drawing on a desk.
const LETTER: f64 = 0.0075;

/// One lane.
#[derive(Debug, Clone, Default)]
pub struct ChartLane {
    pub name: String,
    pub slices: Vec<Slice>,
}

/// An interval in a lane.
#[derive(Debug, Clone, Default)]
pub struct Slice {
    /// Tooltip.
    pub tooltip: String,
    /// Label, drawn if it fits.
    pub label: String,
    /// Style class.
    pub class: &'static str,
    pub start: f64,
    pub length: f64,
}

/// Settings of a chart.
#[derive(Debug, Clone, Copy)]
pub struct LaneChart<'a> {
    pub id: &'a str,
    pub title: &'a str,
    pub description: &'a str,
    /// Length of the scale, in `unit`.
    pub length: f64,
    pub unit: &'a str,
    /// Largest magnification of the reader, 1 for a still picture: labels that only fit then are
    /// drawn with the magnification that they need.
    pub zoom: f64,
}

/// Draws lanes over a length of a unit; empty text if there is nothing to draw.
pub fn lanes(chart: &LaneChart, lanes: &[ChartLane]) -> String {
    let LaneChart { id, title, description, length, unit, zoom } = *chart;
    let lanes: Vec<&ChartLane> = lanes.iter().filter(|lane| !lane.slices.is_empty()).collect();
    if lanes.is_empty() || !(length > 0.0 && length.is_finite()) {
        return String::new();
    }
    let height = lanes.len() * (NAME + SLICE + BETWEEN);
    let mut svg = svg::open(id, title, description, height + axis::BELOW);
    for (index, lane) in lanes.iter().enumerate() {
        let top = index * (NAME + SLICE + BETWEEN);
        let _ = write!(
            svg,
            "<g><text class=\"value\" x=\"0\" y=\"{}\">{}</text><rect class=\"track\" x=\"0\" \
             y=\"{}\" width=\"100%\" height=\"{SLICE}\"/>",
            top + 12,
            html(&lane.name),
            top + NAME,
        );
        for slice in joined(&lane.slices, length * NARROW / zoom) {
            draw(&mut svg, &slice, chart, top + NAME);
        }
        svg.push_str("</g>");
    }
    axis::across(&mut svg, length, height, unit);
    svg.push_str("</svg>");
    svg
}

fn draw(svg: &mut String, slice: &Slice, chart: &LaneChart, top: usize) {
    let LaneChart { length, zoom, .. } = *chart;
    let from = (slice.start / length).clamp(0.0, 1.0);
    let width = (slice.length / length).clamp(0.0, 1.0 - from);
    let _ = write!(
        svg,
        "<rect class=\"{}\" x=\"{:.3}%\" y=\"{top}\" width=\"{:.3}%\" \
         height=\"{SLICE}\"><title>{}</title></rect>",
        slice.class,
        100.0 * from,
        100.0 * width.max(NARROW / 2.0 / zoom),
        html(&slice.tooltip),
    );
    // The magnification at which the label fits.
    let fits = LETTER * (slice.label.chars().count() + 1) as f64 / width;
    if !slice.label.is_empty() && fits < zoom {
        let middle = 100.0 * (from + width / 2.0);
        let hidden = match fits < 1.0 {
            true => String::new(),
            false => format!(" display=\"none\" data-fits=\"{fits:.2}\""),
        };
        let _ = write!(
            svg,
            "<text class=\"inside\"{hidden} x=\"{middle:.3}%\" y=\"{}\" \
             text-anchor=\"middle\">{}</text>",
            top + 14,
            html(&slice.label)
        );
    }
}

/// Slices by start time; neighbours of one class that are too narrow to be seen are merged.
fn joined(slices: &[Slice], narrow: f64) -> Vec<Slice> {
    let mut sorted: Vec<&Slice> = slices.iter().collect();
    sorted.sort_by(|a, b| a.start.total_cmp(&b.start));
    let mut drawn: Vec<(Slice, usize)> = Vec::new();
    for slice in sorted {
        match drawn.last_mut() {
            Some((last, count))
                if slice.length < narrow
                    && (*count > 1 || last.length < narrow)
                    && last.class == slice.class
                    && slice.start - (last.start + last.length) < narrow
                    && last.length < narrow * 4.0 =>
            {
                last.length = last.length.max(slice.start + slice.length - last.start);
                *count += 1;
                last.label.clear();
            }
            _ => drawn.push((slice.clone(), 1)),
        }
    }
    let merged = |(slice, count): (Slice, usize)| match count {
        1 => slice,
        _ => Slice { tooltip: format!("{count} in a row, the first: {}", slice.tooltip), ..slice },
    };
    drawn.into_iter().map(merged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(start: f64, length: f64) -> Slice {
        Slice { tooltip: "<b>".into(), label: "<i>".into(), class: "k-gemm", start, length }
    }

    fn drawn(length: f64, zoom: f64, of: &[ChartLane]) -> String {
        let chart = LaneChart { id: "x", title: "t", description: "d", length, unit: "µs", zoom };
        lanes(&chart, of)
    }

    fn still(length: f64, of: &[ChartLane]) -> String {
        drawn(length, 1.0, of)
    }

    #[test]
    fn a_label_that_fits_only_magnified_is_hidden_until_then() {
        let lane = [ChartLane { name: "a".into(), slices: vec![slice(0.0, 1.0)] }];
        let zoomed = drawn(100.0, 16.0, &lane);
        assert!(zoomed.contains("display=\"none\" data-fits=\"3.00\""), "{zoomed}");
        assert!(!drawn(100.0, 2.0, &lane).contains("data-fits"));
    }

    #[test]
    fn what_comes_from_outside_stays_text_and_a_label_is_set_where_it_fits() {
        let lane = |slices| vec![ChartLane { name: "<u>".into(), slices }];
        let wide = still(100.0, &lane(vec![slice(0.0, 50.0)]));
        assert!(
            wide.contains("&lt;b&gt;") && wide.contains("&lt;i&gt;") && wide.contains("&lt;u&gt;")
        );
        assert!(!["<b>", "<i>", "<u>"].iter().any(|it| wide.contains(it)));
        assert!(!still(100.0, &lane(vec![slice(0.0, 1.0)])).contains("&lt;i&gt;"));
    }

    #[test]
    fn thousands_of_slices_that_nobody_could_tell_apart_are_drawn_together() {
        let many: Vec<Slice> = (0..10_000).map(|at| slice(f64::from(at) * 0.01, 0.008)).collect();
        let drawn = joined(&many, 100.0 * NARROW);
        assert!(drawn.len() < 500, "{}", drawn.len());
        assert!(drawn[0].tooltip.contains("in a row"));
        let end = drawn.iter().map(|it| it.start + it.length).fold(0.0, f64::max);
        assert!((end - 99.998).abs() < 1e-6, "nothing is lost: {end}");
        assert_eq!(joined(&[slice(0.0, 5.0), slice(5.0, 5.0)], 0.1).len(), 2);
    }

    #[test]
    fn nothing_to_draw_is_no_drawing() {
        assert_eq!(still(1.0, &[]), "");
        let lane = ChartLane { name: "a".into(), slices: vec![slice(0.0, 1.0)] };
        assert_eq!(still(0.0, std::slice::from_ref(&lane)), "");
        assert_eq!(still(f64::NAN, &[lane]), "");
    }
}
