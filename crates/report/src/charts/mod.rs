//! Charts as inline SVG: bars, lanes, curves, points under roofs.

pub mod axis;
pub mod figures;
pub mod lanes;
pub mod scatter;
pub mod series;
pub mod svg;
pub mod sweep;
pub mod tiles;
pub mod timeline;
pub mod waterfall;
