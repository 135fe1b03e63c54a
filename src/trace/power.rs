//! What a GPU said of its power, clocks and limits while a pass ran: the lines of `nvml.jsonl`.
//!
//! The wire format between the sampler and the analysis; times are nanoseconds of `CLOCK_MONOTONIC`, the clock of `events.jsonl`.
//! What the device does not tell is absent.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Version of the format; a reader refuses a newer one.
pub const POWER_SCHEMA: u32 = 1;

/// One line of `nvml.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PowerLine {
    /// First line: which device is sampled, and how.
    Device(SampledDevice),
    /// One look at the device.
    Sample(PowerSample),
    /// Last line: the sampler ended by itself.
    End(SamplerEnd),
}

/// The device that the samples are of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SampledDevice {
    pub schema: u32,
    /// What the pass was confined to: a GPU, or an instance of one.
    #[schema(example = "GPU-6c35a1a0-0c3b-4f6e-9f41-2f1f6f2b1a77")]
    pub uuid: String,
    /// The whole GPU that was sampled: an instance (MIG) has no power or clocks of its own.
    pub board_uuid: String,
    #[schema(example = "NVIDIA H200")]
    pub name: String,
    /// Time between two looks that the sampler aims at.
    pub period_ns: i64,
    pub power_source: PowerSource,
    pub power_limit_w: Option<f64>,
    pub max_sm_mhz: Option<u32>,
    pub max_memory_mhz: Option<u32>,
}

/// What a reading of power is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PowerSource {
    /// The draw at that moment.
    Instant,
    /// A mean over the second before, as most GPUs since Ampere give it.
    Average,
}

/// The last look at a GPU that the service has.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuReading {
    pub uuid: String,
    pub name: String,
    pub sample: PowerSample,
}

/// One look at a device.
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
    /// Share of the driver's own window in which a kernel ran, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_pct: Option<u32>,
    /// Share of that window in which device memory was read or written, percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_pct: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<u32>,
    /// Why the clocks are where they are: the bits of [`REASONS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_reasons: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplerEnd {
    pub t_ns: i64,
    pub samples: u64,
    /// Looks that were left out because the one before took too long.
    pub skipped: u64,
    /// Time spent looking, on a thread of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_ns: Option<i64>,
}

/// What the sampler wrote beside one pass.
#[derive(Debug, Clone, PartialEq)]
pub struct PowerLog {
    pub device: SampledDevice,
    /// In order of time.
    pub samples: Vec<PowerSample>,
    pub end: Option<SamplerEnd>,
}

/// A reason for the clocks: its bit in NVML's "clocks event reasons", its name, and whether it means that the device was slowed down
/// against the wish of whoever set it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReason {
    pub bit: u64,
    pub name: &'static str,
    pub limits: bool,
}

const fn reason(bit: u64, name: &'static str, limits: bool) -> ClockReason {
    ClockReason { bit, name, limits }
}

/// Every reason that NVML documents. Idleness, and clocks that somebody asked for, are no throttling.
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

/// The reasons in `bits` that slow a device down. A bit that is not known here is no evidence of that.
pub fn limits(bits: u64) -> impl Iterator<Item = &'static ClockReason> {
    REASONS.iter().filter(move |reason| reason.limits && bits & reason.bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_wished_for_clocks_are_no_throttling() {
        assert_eq!(limits(0x1 | 0x2 | 0x100 | 0x8000).count(), 0);
        assert_eq!(limits(0x1 | 0x4 | 0x40).map(|it| it.name).collect::<Vec<_>>(), ["sw_power_cap", "hw_thermal_slowdown"]);
    }

    #[test]
    fn a_sample_says_nothing_of_what_the_device_does_not_tell() {
        let line = PowerLine::Sample(PowerSample { t_ns: 5, power_w: Some(70.5), ..PowerSample::default() });
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(text, r#"{"kind":"sample","t_ns":5,"power_w":70.5}"#);
        assert_eq!(serde_json::from_str::<PowerLine>(&text).unwrap(), line);
    }
}
