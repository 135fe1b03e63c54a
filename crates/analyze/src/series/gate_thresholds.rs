//! Thresholds of a gate: at most one per figure, and the form in which each was requested.
//!
//! A figure that the request names is decided or inconclusive. Only a member of the group `slower`
//! that was not measured on either side is dropped.

use llmprof_core::domain::{headline::FigureName, named_values::named_values};

/// Threshold of every time in a gate without any, percent.
const DEFAULT_PCT: f64 = 3.0;
/// Accepted thresholds, percent.
pub const THRESHOLD_PCT: std::ops::RangeInclusive<f64> = 0.01..=1000.0;

named_values! {
    /// Request for a figure: by its name, or as one of the times that `slower` stands for.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    FigureRequest {
        Named = "named",
        Slower = "slower",
    }
}

/// A requested figure with its threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FigureThreshold {
    pub figure: FigureName,
    pub pct: f64,
    pub request: FigureRequest,
}

/// The requested figures, in the order of [`FigureName::ALL`], each once.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestedFigures(Vec<FigureThreshold>);

/// A threshold that is not in [`THRESHOLD_PCT`].
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{} is not between {} and {}", .0, THRESHOLD_PCT.start(), THRESHOLD_PCT.end())]
pub struct InvalidThreshold(pub f64);

impl RequestedFigures {
    /// The thresholds of named figures, and of `slower` for each time without its own; without
    /// any, 3 % for `slower`.
    pub fn of(
        slower: Option<f64>,
        named: impl Fn(FigureName) -> Option<f64>,
    ) -> Result<Self, InvalidThreshold> {
        let is_empty = slower.is_none() && FigureName::ALL.iter().all(|it| named(*it).is_none());
        let slower = if is_empty { Some(DEFAULT_PCT) } else { slower };
        let threshold = |figure: &FigureName| {
            let group = slower.filter(|_| FigureName::TIMES.contains(figure));
            let (pct, request) = match (named(*figure), group) {
                (Some(pct), _) => (pct, FigureRequest::Named),
                (None, Some(pct)) => (pct, FigureRequest::Slower),
                (None, None) => return None,
            };
            Some(FigureThreshold { figure: *figure, pct, request })
        };
        let all: Vec<FigureThreshold> = FigureName::ALL.iter().filter_map(threshold).collect();
        let mut given = all.iter().map(|it| it.pct).chain(slower);
        match given.find(|it| !THRESHOLD_PCT.contains(it)) {
            Some(invalid) => Err(InvalidThreshold(invalid)),
            None => Ok(Self(all)),
        }
    }

    /// Each requested figure.
    pub fn iter(&self) -> impl Iterator<Item = &FigureThreshold> {
        self.0.iter()
    }
}
