//! Headline figures of a run, and the identity of the series that it belongs to.
//!
//! Plain values: the job computes them, the store keeps them, and pages show them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{hex::hex, named_values::named_values, savings::Savings};

named_values! {
    /// Name of a headline figure.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    FigureName {
        /// Time to first token.
        Ttft = "ttft",
        /// Time per output token.
        Tpot = "tpot",
        /// Wall time of a whole repeat of a model or command.
        Wall = "wall",
        /// Output tokens per second of a whole repeat, or of a load.
        TokensPerS = "tokens_per_s",
        /// Share of the stages' time in which the GPU was busy.
        GpuBusy = "gpu_busy",
        /// Model FLOPs utilisation, of the datasheet's dense peak.
        Mfu = "mfu",
        /// Energy per output token.
        Energy = "energy",
    }
}

named_values! {
    /// Statistic of a time or rate over the repeats of a run.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    FigureStatistic {
        Median = "median",
        /// The mean that reports of an earlier version have in place of the median.
        Mean = "mean",
        /// Of a point of an earlier version whose report was not read.
        Unknown = "unknown",
        /// Several runs that differ in it.
        Mixed = "mixed",
    }
}

impl FigureStatistic {
    /// The statistic of several runs; `None` without a run.
    pub fn of_all(runs: impl IntoIterator<Item = Self>) -> Option<Self> {
        let same = |a: Self, b: Self| if a == b { a } else { Self::Mixed };
        runs.into_iter().reduce(same)
    }
}

impl FigureName {
    /// The figures that are times.
    pub const TIMES: &[Self] = &[Self::Ttft, Self::Tpot, Self::Wall];

    /// The unit of its values.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Ttft | Self::Tpot | Self::Wall => "ms",
            Self::TokensPerS => "tokens/s",
            Self::GpuBusy | Self::Mfu => "%",
            Self::Energy => "J/token",
        }
    }

    /// Its title in tables, which names the statistic of a time or rate. The rate of a load is of
    /// all its output tokens.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Ttft => "Median time to first token",
            Self::Tpot => "Median time per output token",
            Self::Wall => "Median wall time",
            Self::TokensPerS => "Median output tokens per second (loads: overall)",
            Self::GpuBusy => "GPU busy",
            Self::Mfu => "MFU",
            Self::Energy => "Energy per token",
        }
    }

    /// The statistic over the repeats of a run with these means, if they are known; `None` for a
    /// figure that is not a time or rate.
    pub fn statistic(self, means: Option<&[Self]>) -> Option<FigureStatistic> {
        let has_one = matches!(self, Self::Ttft | Self::Tpot | Self::Wall | Self::TokensPerS);
        has_one.then(|| match means {
            None => FigureStatistic::Unknown,
            Some(means) if means.contains(&self) => FigureStatistic::Mean,
            Some(_) => FigureStatistic::Median,
        })
    }

    /// Its title for runs with this statistic.
    pub fn title_by(self, statistic: Option<FigureStatistic>) -> String {
        let word = match statistic {
            None | Some(FigureStatistic::Median) => return self.title().to_owned(),
            Some(FigureStatistic::Mean) => "Mean",
            Some(FigureStatistic::Unknown | FigureStatistic::Mixed) => "Median or mean",
        };
        self.title().replacen("Median", word, 1)
    }

    /// Its heading if columns are narrow.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Ttft => "First token (median), ms",
            Self::Tpot => "Per token (median), ms",
            Self::Wall => "Wall (median), ms",
            Self::TokensPerS => "Tokens/s (median)",
            Self::GpuBusy => "GPU busy, %",
            Self::Mfu => "MFU, %",
            Self::Energy => "J/token",
        }
    }

    /// True if a lower value is better.
    pub const fn lower_is_better(self) -> bool {
        matches!(self, Self::Ttft | Self::Tpot | Self::Wall | Self::Energy)
    }

    /// Position in [`FigureName::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Number of headline figures.
pub const FIGURES: usize = FigureName::ALL.len();

/// Headline figures of one run; absent if they were not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Headline {
    /// Time to first token, milliseconds: the median over repeats or requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft: Option<f64>,
    /// Time per output token, milliseconds: the median over repeats, requests or decode steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpot: Option<f64>,
    /// Wall time of a whole repeat of a model or command, milliseconds: the median over repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<f64>,
    /// Output tokens per second of a whole repeat, the median over repeats; of a load, all of its
    /// output tokens over its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
    /// Share of the stages' time in which the GPU was busy, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_busy: Option<f64>,
    /// Percent of the datasheet's dense peak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Joules per output token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<f64>,
}

impl Headline {
    /// One figure.
    pub const fn get(&self, name: FigureName) -> Option<f64> {
        match name {
            FigureName::Ttft => self.ttft,
            FigureName::Tpot => self.tpot,
            FigureName::Wall => self.wall,
            FigureName::TokensPerS => self.tokens_per_s,
            FigureName::GpuBusy => self.gpu_busy,
            FigureName::Mfu => self.mfu,
            FigureName::Energy => self.energy,
        }
    }

    /// The figures of `get`, if finite and positive.
    pub fn of(get: impl Fn(FigureName) -> Option<f64>) -> Self {
        let get = |name| get(name).filter(|value| value.is_finite() && *value > 0.0);
        Self {
            ttft: get(FigureName::Ttft),
            tpot: get(FigureName::Tpot),
            wall: get(FigureName::Wall),
            tokens_per_s: get(FigureName::TokensPerS),
            gpu_busy: get(FigureName::GpuBusy),
            mfu: get(FigureName::Mfu),
            energy: get(FigureName::Energy),
        }
    }

    /// Change of each figure from `earlier`, percent.
    pub fn change_pct(&self, earlier: &Self) -> Self {
        let change = |name| Some(100.0 * (self.get(name)? / earlier.get(name)? - 1.0));
        Self {
            ttft: change(FigureName::Ttft),
            tpot: change(FigureName::Tpot),
            wall: change(FigureName::Wall),
            tokens_per_s: change(FigureName::TokensPerS),
            gpu_busy: change(FigureName::GpuBusy),
            mfu: change(FigureName::Mfu),
            energy: change(FigureName::Energy),
        }
    }
}

/// The facts that runs of one series share, by name: specs/series.md.
pub type SeriesIdentity = BTreeMap<String, String>;

/// Id of a series: the first 32 hexadecimal digits of the SHA-256 of its identity as JSON, whose
/// keys are sorted.
pub fn series_id(identity: &SeriesIdentity) -> String {
    let json = serde_json::to_string(identity).unwrap_or_default();
    let digest = Sha256::digest(json.as_bytes());
    hex(&digest[..16])
}

/// The point of a run in its series.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesPoint {
    pub identity: SeriesIdentity,
    pub headline: Headline,
    /// Figures that are means in place of medians, from a report of an earlier version.
    #[serde(default)]
    pub means: Vec<FigureName>,
    /// Version and commit of llmprof.
    pub build: String,
    /// Version of the GPU driver.
    pub driver: Option<String>,
    pub host: Option<String>,
    /// Product name of the device.
    pub device: Option<String>,
    #[serde(default)]
    pub savings: Savings,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_is_not_a_positive_number_is_absent() {
        let values = [f64::NAN, f64::INFINITY, 0.0, -1.0, 2.0, 1e300, f64::NEG_INFINITY];
        let headline = Headline::of(|name| Some(values[name.index()]));
        let known: Vec<_> =
            FigureName::ALL.iter().filter(|name| headline.get(**name).is_some()).collect();
        assert_eq!(known, [&FigureName::GpuBusy, &FigureName::Mfu]);
    }

    #[test]
    fn the_title_and_heading_of_a_time_or_rate_name_its_statistic() {
        use FigureName::{TokensPerS, Tpot, Ttft, Wall};
        for name in FigureName::ALL {
            let is_median = [Ttft, Tpot, Wall, TokensPerS].contains(name);
            for (means, statistic) in [
                (None, FigureStatistic::Unknown),
                (Some(&[][..]), FigureStatistic::Median),
                (Some(FigureName::ALL), FigureStatistic::Mean),
            ] {
                assert_eq!(name.statistic(means), is_median.then_some(statistic), "{name}");
            }
            for statistic in FigureStatistic::ALL {
                let (title, by) = (name.title(), name.title_by(Some(*statistic)));
                let is_title = !is_median || *statistic == FigureStatistic::Median;
                assert_eq!(by == title, is_title, "{name} {statistic}");
                assert!(!by.contains(','), "a title is a property of a workflow command");
            }
            assert_eq!(name.title().starts_with("Median "), is_median, "{name}");
            assert_eq!(name.heading().contains("(median)"), is_median, "{name}");
            assert!(!name.title().contains(','), "a title is a property of a workflow command");
        }
    }

    #[test]
    fn runs_have_one_statistic_only_if_all_have_it() {
        use FigureStatistic::{Mean, Median, Mixed, Unknown};
        for (runs, expected) in [
            (&[][..], None),
            (&[Mean], Some(Mean)),
            (&[Median, Median, Median], Some(Median)),
            (&[Unknown, Unknown], Some(Unknown)),
            (&[Median, Mean], Some(Mixed)),
            (&[Median, Mean, Mean], Some(Mixed)),
            (&[Unknown, Median], Some(Mixed)),
        ] {
            assert_eq!(FigureStatistic::of_all(runs.iter().copied()), expected, "{runs:?}");
        }
    }

    #[test]
    fn the_id_of_a_series_depends_on_every_fact_and_not_on_their_order() {
        let identity = |pairs: &[(&str, &str)]| -> SeriesIdentity {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let a = series_id(&identity(&[("device", "cpu"), ("dtype", "f32")]));
        assert_eq!(a, series_id(&identity(&[("dtype", "f32"), ("device", "cpu")])));
        assert_eq!(a.len(), 32);
        let others =
            [identity(&[("device", "cpu")]), identity(&[("device", "cpu"), ("dtype", "bf16")])];
        assert!(others.iter().all(|other| series_id(other) != a));
    }
}
