//! Peak compute and memory rates of a device: from the datasheet, measured on this device, and
//! scaled to observed clocks.
//!
//! A peak at observed clocks is the datasheet's peak times the mean observed clock over the clock
//! of the datasheet's figure (arithmetic units perform a fixed number of operations per cycle).
//! Unknown ceilings are `None`.

use llmprof_core::{domain::device_peaks::DevicePeaks, trace::event::Ceiling};

use crate::{events::Events, power::Power, stats::ratio};

/// The ceilings of one device.
#[derive(Debug, Clone, Default)]
pub struct DeviceCeilings<'a> {
    pub peaks: Option<&'a DevicePeaks>,
    measured: Vec<&'a Ceiling>,
    power: Option<&'a Power>,
}

impl<'a> DeviceCeilings<'a> {
    /// Collects the known ceilings of a pass's device.
    pub fn of(
        events: &Events<'a>,
        peaks: Option<&'a DevicePeaks>,
        power: Option<&'a Power>,
    ) -> Self {
        let peaks = peaks.filter(|_| events.start.is_none_or(|start| !start.is_on_cpu()));
        Self { peaks, measured: events.ceilings.clone(), power }
    }

    /// Datasheet FLOP/s of matrix products in `dtype`.
    pub fn datasheet_flops(&self, dtype: &str) -> Option<f64> {
        self.peaks?.flops_per_s(dtype)
    }

    /// Datasheet bytes per second of device memory.
    pub fn datasheet_bytes(&self) -> Option<f64> {
        self.peaks.map(DevicePeaks::bytes_per_s)
    }

    /// FLOP/s of the best measured matrix product in `dtype`.
    pub fn measured_flops(&self, dtype: &str) -> Option<f64> {
        self.best(|ceiling| ceiling.what == "matmul" && ceiling.dtype == dtype)
    }

    /// Bytes per second of the best measured copy.
    pub fn measured_bytes(&self) -> Option<f64> {
        self.best(|ceiling| ceiling.what == "copy")
    }

    fn best(&self, wanted: impl Fn(&Ceiling) -> bool) -> Option<f64> {
        let matching = self.measured.iter().filter(|ceiling| wanted(ceiling));
        let rates = matching.map(|ceiling| ceiling.per_second);
        rates.filter(|it| it.is_finite() && *it > 0.0).max_by(f64::total_cmp)
    }

    /// Dtypes with a known compute ceiling, without duplicates.
    pub fn dtypes(&self) -> Vec<&str> {
        let printed =
            self.peaks.into_iter().flat_map(|peaks| peaks.dense_tflops.keys().map(String::as_str));
        let measured =
            self.measured.iter().filter(|it| it.what == "matmul").map(|it| it.dtype.as_str());
        let mut dtypes: Vec<&str> = printed.chain(measured).collect();
        dtypes.sort_unstable();
        dtypes.dedup();
        dtypes
    }

    /// Mean SM clock observed in a stage, MHz.
    pub fn sm_mhz(&self, stage: &str) -> Option<f64> {
        self.power?.stages.iter().find(|it| it.stage == stage)?.sm_mhz
    }

    /// `datasheet FLOP/s x observed SM clock / clock of the datasheet's figure`.
    pub fn clocked_flops(&self, dtype: &str, stage: &str) -> Option<f64> {
        Some(
            self.datasheet_flops(dtype)?
                * ratio(self.sm_mhz(stage)?, self.peaks?.boost_mhz(dtype)?)?,
        )
    }

    /// `datasheet bytes/s x observed memory clock / max memory clock`: the datasheet's figure is
    /// assumed to be at the max clock.
    pub fn clocked_bytes(&self, stage: &str) -> Option<f64> {
        let power = self.power?;
        let seen = power.stages.iter().find(|it| it.stage == stage)?.memory_mhz?;
        Some(self.datasheet_bytes()? * ratio(seen, f64::from(power.device.max_memory_mhz?))?)
    }
}
