//! Power, clocks and limits of a GPU during a pass: the lines of `nvml.jsonl`.
//!
//! The wire format between the sampler and the analysis; times are nanoseconds of
//! `CLOCK_MONOTONIC`, the clock of `events.jsonl`. Values that the device does not report are
//! absent.

use serde::{Deserialize, Serialize};

/// Version of the format; readers reject newer versions.
pub const POWER_SCHEMA: u32 = 1;

/// One line of `nvml.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PowerLine {
    /// First line: the sampled device and the sampling settings.
    Device(SampledDevice),
    /// One sample.
    Sample(PowerSample),
    /// Last line: the sampler finished without being killed.
    End(SamplerEnd),
}

/// The sampled device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SampledDevice {
    pub schema: u32,
    /// The device visible to the pass: a GPU or a MIG instance.
    #[cfg_attr(feature = "schema", schema(example = "GPU-6c35a1a0-0c3b-4f6e-9f41-2f1f6f2b1a77"))]
    pub uuid: String,
    /// The GPU that was sampled; a MIG instance has no power or clock sensors.
    pub board_uuid: String,
    #[cfg_attr(feature = "schema", schema(example = "NVIDIA H200"))]
    pub name: String,
    /// GPUs of the pass; each is sampled into a file of its own.
    #[serde(default = "one_gpu")]
    pub gpus: u32,
    /// Target sampling period of the sampler.
    pub period_ns: i64,
    pub power_source: PowerSource,
    pub power_limit_w: Option<f64>,
    pub max_sm_mhz: Option<u32>,
    pub max_memory_mhz: Option<u32>,
}

/// Number of GPUs in samples and reports that do not state it.
pub const fn one_gpu() -> u32 {
    1
}

/// Meaning of a power reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PowerSource {
    /// Instantaneous draw.
    Instant,
    /// Mean over the preceding second, as on most GPUs since Ampere.
    Average,
}

/// The service's latest sample of a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuReading {
    pub uuid: String,
    pub name: String,
    pub sample: PowerSample,
}

/// One sample of a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PowerSample {
    pub t_ns: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    /// Energy since the driver was loaded, millijoules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_mj: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mhz: Option<u32>,
    /// Share of the driver's sampling window in which a kernel ran, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_pct: Option<u32>,
    /// Share of that window in which device memory was read or written, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_pct: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<u32>,
    /// Reasons for the current clocks, as bits of [`REASONS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_reasons: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplerEnd {
    pub t_ns: i64,
    pub samples: u64,
    /// Samples skipped because the previous one took too long.
    pub skipped: u64,
    /// Host time spent sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_ns: Option<i64>,
}

/// The sampler's log of the first GPU of one pass, with the logs of its other GPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct PowerLog {
    pub device: SampledDevice,
    /// In order of time.
    pub samples: Vec<PowerSample>,
    pub end: Option<SamplerEnd>,
    /// The log of each other GPU; `None` if it was not sampled.
    pub others: Vec<Option<PowerLog>>,
}

impl PowerLog {
    /// The logs of all sampled GPUs.
    pub fn each(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.others.iter().flatten())
    }
}

/// A clock reason: its bit in NVML's "clocks event reasons", its name, and whether it means
/// throttling: a slowdown that the operator did not request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReason {
    pub bit: u64,
    pub name: &'static str,
    pub throttles: bool,
}

const fn reason(bit: u64, name: &'static str, throttles: bool) -> ClockReason {
    ClockReason { bit, name, throttles }
}

/// All reasons that NVML documents. Idle clocks and clocks requested by the operator are not
/// throttling.
pub const REASONS: [ClockReason; 9] = [
    reason(0x1, "gpu_idle", false),
    reason(0x2, "applications_clocks_setting", false),
    reason(0x4, "sw_power_cap", true),
    reason(0x8, "hw_slowdown", true),
    reason(0x10, "sync_boost", true),
    reason(0x20, "sw_thermal_slowdown", true),
    reason(0x40, "hw_thermal_slowdown", true),
    reason(0x80, "hw_power_brake_slowdown", true),
    reason(0x100, "display_clock_setting", false),
];

/// The throttling reasons in `bits`. Unknown bits are ignored.
pub fn throttling_reasons(bits: u64) -> impl Iterator<Item = &'static ClockReason> {
    REASONS.iter().filter(move |reason| reason.throttles && bits & reason.bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_requested_clocks_are_not_throttling() {
        assert_eq!(throttling_reasons(0x1 | 0x2 | 0x100 | 0x8000).count(), 0);
        assert_eq!(
            throttling_reasons(0x1 | 0x4 | 0x40).map(|it| it.name).collect::<Vec<_>>(),
            ["sw_power_cap", "hw_thermal_slowdown"]
        );
    }

    #[test]
    fn a_sample_omits_values_that_the_device_does_not_report() {
        let line = PowerLine::Sample(PowerSample {
            t_ns: 5,
            power_w: Some(70.5),
            ..PowerSample::default()
        });
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(text, r#"{"kind":"sample","t_ns":5,"power_w":70.5}"#);
        assert_eq!(serde_json::from_str::<PowerLine>(&text).unwrap(), line);
    }
}
