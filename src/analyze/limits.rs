//! What a device can do at most: as its maker prints it, as this very device was measured, and at the clocks that it ran at.
//!
//! A peak at observed clocks is the datasheet's times the mean observed clock over the clock that the datasheet's figure is for
//! (arithmetic units do a fixed number of operations per cycle). A limit that is not known is `None`.

use super::{device::DevicePeaks, events::Events, power::Power, stats::ratio};
use crate::trace::event::Ceiling;

/// The limits of one device.
#[derive(Debug, Clone, Default)]
pub struct Limits<'a> {
    pub peaks: Option<&'a DevicePeaks>,
    measured: Vec<&'a Ceiling>,
    power: Option<&'a Power>,
}

impl<'a> Limits<'a> {
    /// Gathers what is known of the device of a pass.
    pub fn of(events: &Events<'a>, peaks: Option<&'a DevicePeaks>, power: Option<&'a Power>) -> Self {
        let peaks = peaks.filter(|_| events.start.is_none_or(|start| start.device != "cpu"));
        Self { peaks, measured: events.ceilings.clone(), power }
    }

    /// FLOP/s of matrix products in `dtype`, as the maker prints it.
    pub fn datasheet_flops(&self, dtype: &str) -> Option<f64> {
        self.peaks?.flops_per_s(dtype)
    }

    /// Bytes per second of device memory, as the maker prints it.
    pub fn datasheet_bytes(&self) -> Option<f64> {
        self.peaks.map(DevicePeaks::bytes_per_s)
    }

    /// FLOP/s of the best matrix product that was measured in `dtype`.
    pub fn measured_flops(&self, dtype: &str) -> Option<f64> {
        self.best(|ceiling| ceiling.what == "matmul" && ceiling.dtype == dtype)
    }

    /// Bytes per second of the best copy that was measured.
    pub fn measured_bytes(&self) -> Option<f64> {
        self.best(|ceiling| ceiling.what == "copy")
    }

    fn best(&self, wanted: impl Fn(&Ceiling) -> bool) -> Option<f64> {
        let of = self.measured.iter().filter(|ceiling| wanted(ceiling)).map(|ceiling| ceiling.per_second);
        of.filter(|it| it.is_finite() && *it > 0.0).max_by(f64::total_cmp)
    }

    /// Number formats with a limit of their arithmetic, each once.
    pub fn dtypes(&self) -> Vec<&str> {
        let printed = self.peaks.into_iter().flat_map(|peaks| peaks.dense_tflops.keys().map(String::as_str));
        let measured = self.measured.iter().filter(|it| it.what == "matmul").map(|it| it.dtype.as_str());
        let mut dtypes: Vec<&str> = printed.chain(measured).collect();
        dtypes.sort_unstable();
        dtypes.dedup();
        dtypes
    }

    /// Mean SM clock that was seen in a stage, MHz.
    pub fn sm_mhz(&self, stage: &str) -> Option<f64> {
        self.power?.stages.iter().find(|it| it.stage == stage)?.sm_mhz
    }

    /// `datasheet FLOP/s x observed SM clock / clock of the datasheet's figure`.
    pub fn clocked_flops(&self, dtype: &str, stage: &str) -> Option<f64> {
        Some(self.datasheet_flops(dtype)? * ratio(self.sm_mhz(stage)?, self.peaks?.boost_mhz(dtype)?)?)
    }

    /// `datasheet bytes/s x observed memory clock / highest memory clock`: the datasheet's figure is taken to be for the highest.
    pub fn clocked_bytes(&self, stage: &str) -> Option<f64> {
        let power = self.power?;
        let seen = power.stages.iter().find(|it| it.stage == stage)?.memory_mhz?;
        Some(self.datasheet_bytes()? * ratio(seen, f64::from(power.device.max_memory_mhz?))?)
    }
}
