//! Peak performance of devices from their datasheets: the values of `conf/devices.toml`, and of a
//! file of the operator.
//!
//! Devices are matched by their exact names. A MIG instance has another name and gets no peaks.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Peaks of one device, from its datasheet.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DevicePeaks {
    /// Name for people.
    pub name: String,
    /// The names that the driver gives the device.
    pub reported_as: Vec<String>,
    /// Dense TFLOP/s by dtype, accumulated in f32, without structured sparsity.
    pub dense_tflops: BTreeMap<String, f64>,
    /// SM clock of each of these figures, MHz; required for peaks at observed clocks.
    #[serde(default)]
    pub boost_mhz: BTreeMap<String, f64>,
    /// Memory bandwidth, GB/s (10^9).
    pub memory_gb_s: f64,
    /// Source of the figures.
    pub source: String,
}

impl DevicePeaks {
    /// Peak FLOP/s of matrix products in `dtype`.
    pub fn flops_per_s(&self, dtype: &str) -> Option<f64> {
        self.dense_tflops.get(dtype).map(|tflops| tflops * 1e12)
    }

    /// SM clock of the peak in `dtype`, MHz.
    pub fn boost_mhz(&self, dtype: &str) -> Option<f64> {
        self.boost_mhz.get(dtype).copied()
    }

    /// Peak bytes per second of device memory.
    pub fn bytes_per_s(&self) -> f64 {
        self.memory_gb_s * 1e9
    }
}

/// Every device with known peaks.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Devices {
    pub device: Vec<DevicePeaks>,
}

/// An invalid table of devices.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    #[error("cannot parse the table of devices")]
    Syntax(#[from] toml::de::Error),
    #[error("device {0:?} has a peak that is not a positive number")]
    Peak(String),
    #[error("two devices are reported as {0:?}")]
    Twice(String),
}

impl Devices {
    /// Parses the table from TOML.
    pub fn from_toml(text: &str) -> Result<Self, DevicesError> {
        let devices: Self = toml::from_str(text)?;
        let mut seen = BTreeMap::new();
        for device in &devices.device {
            let mut peaks = device
                .dense_tflops
                .values()
                .chain(device.boost_mhz.values())
                .chain([&device.memory_gb_s]);
            if !peaks.all(|peak| peak.is_finite() && *peak > 0.0) {
                return Err(DevicesError::Peak(device.name.clone()));
            }
            for name in &device.reported_as {
                if seen.insert(name.to_lowercase(), &device.name).is_some() {
                    return Err(DevicesError::Twice(name.clone()));
                }
            }
        }
        Ok(devices)
    }

    /// These devices and others; of two with one name, this table's is found.
    pub fn before(mut self, others: Self) -> Self {
        self.device.extend(others.device);
        self
    }

    /// Finds a device by its full product name, with or without `NVIDIA`.
    pub fn find(&self, gpu_name: &str) -> Option<&DevicePeaks> {
        let wanted = model(gpu_name.trim());
        let matches = |device: &&DevicePeaks| {
            device.reported_as.iter().any(|name| model(name).eq_ignore_ascii_case(wanted))
        };
        self.device.iter().find(matches)
    }
}

/// The product name without `NVIDIA`, which drivers report since version 470.
pub fn model(name: &str) -> &str {
    match name.split_once(' ') {
        Some((vendor, model)) if vendor.eq_ignore_ascii_case("NVIDIA") => model,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Devices {
        Devices::from_toml(include_str!("../../../../conf/devices.toml")).unwrap()
    }

    #[test]
    fn the_shipped_table_reads_and_gives_dense_figures() {
        let devices = shipped();
        let h200 = devices.find("NVIDIA H200").unwrap();
        assert_eq!(h200.flops_per_s("bf16"), Some(989e12));
        assert_eq!(h200.bytes_per_s(), 4.8e12);
        assert!(devices.device.iter().all(|device| !device.source.is_empty()));
    }

    #[test]
    fn a_peak_is_operations_per_cycle_times_its_clock() {
        // SMs, and FLOPs per SM and cycle on tensor cores (f16 and bf16, accumulated in f32) and in
        // f32, from the whitepapers.
        for (name, sms, tensor, f32) in [
            ("NVIDIA H200", 132.0, 4096.0, 256.0),
            ("NVIDIA H100 80GB HBM3", 132.0, 4096.0, 256.0),
            ("NVIDIA H100 PCIe", 114.0, 4096.0, 256.0),
            ("NVIDIA A100-SXM4-80GB", 108.0, 2048.0, 128.0),
            ("NVIDIA L40S", 142.0, 1024.0, 256.0),
            ("NVIDIA L40", 142.0, 512.0, 256.0),
            ("NVIDIA L4", 58.0, 1024.0, 256.0),
            ("NVIDIA GeForce RTX 4090", 128.0, 512.0, 256.0),
            ("NVIDIA GeForce RTX 5090", 170.0, 512.0, 256.0),
            ("NVIDIA GH200 480GB", 132.0, 4096.0, 256.0),
            ("NVIDIA GH200 144G HBM3e", 132.0, 4096.0, 256.0),
            ("NVIDIA A10", 72.0, 1024.0, 256.0),
            ("Tesla V100-SXM2-16GB", 80.0, 1024.0, 128.0),
            ("Tesla T4", 40.0, 1024.0, 128.0),
            ("NVIDIA GeForce RTX 3090", 82.0, 512.0, 256.0),
        ] {
            let devices = shipped();
            let device = devices.find(name).unwrap();
            // Datasheets round f32 peaks to two digits, and tensor core peaks of three old or small
            // cards.
            let coarse =
                ["Tesla V100-SXM2-16GB", "Tesla T4", "NVIDIA GeForce RTX 3090"].contains(&name);
            let coarse_f32 = name == "Tesla T4";
            let tensor_tolerance = if coarse { 3e-3 } else { 2e-3 };
            let f32_tolerance = if coarse_f32 { 6e-3 } else { 5e-3 };
            for (dtype, each, tolerance) in [
                ("bf16", tensor, tensor_tolerance),
                ("f16", tensor, tensor_tolerance),
                ("f32", f32, f32_tolerance),
            ] {
                // Devices older than Ampere have no bf16.
                let Some(listed) = device.flops_per_s(dtype) else {
                    assert!(dtype == "bf16" && name.starts_with("Tesla"), "{name}: {dtype}");
                    continue;
                };
                let computed = sms * each * device.boost_mhz(dtype).unwrap() * 1e6;
                assert!(
                    (computed / listed - 1.0).abs() < tolerance,
                    "{name}, {dtype}: {computed}, listed {listed}"
                );
            }
        }
    }

    #[test]
    fn each_name_finds_its_own_device_and_no_shorter_one() {
        let devices = shipped();
        for (reported, name, memory_gb_s) in [
            ("NVIDIA H100 NVL", "H100 NVL", 3900.0),
            ("NVIDIA H100 PCIe", "H100 PCIe 80 GB", 2000.0),
            ("NVIDIA H100 80GB HBM3", "H100 SXM 80 GB", 3350.0),
            ("NVIDIA H200", "H200 SXM", 4800.0),
            ("NVIDIA H200 NVL", "H200 NVL", 4800.0),
            ("NVIDIA A10", "A10", 600.0),
            ("NVIDIA A100-SXM4-80GB", "A100 SXM 80 GB", 2039.0),
            ("Tesla V100-PCIE-32GB", "V100 PCIe", 900.0),
            ("NVIDIA L40S", "L40S", 864.0),
            ("GeForce RTX 3090", "GeForce RTX 3090", 936.0),
        ] {
            let found = devices.find(reported).unwrap();
            assert_eq!((found.name.as_str(), found.memory_gb_s), (name, memory_gb_s), "{reported}");
        }
        for other in ["NVIDIA A10G", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA H100", "NVIDIA"] {
            assert_eq!(devices.find(other), None, "{other}");
        }
        // Volta and Turing do not support bf16.
        assert!(
            ["Tesla T4", "Tesla V100-SXM2-32GB"].iter().all(|name| devices
                .find(name)
                .unwrap()
                .flops_per_s("bf16")
                .is_none())
        );
    }

    #[test]
    fn an_instance_of_a_device_has_no_peaks() {
        assert_eq!(shipped().find("NVIDIA H200 MIG 1g.18gb"), None);
        assert_eq!(shipped().find(""), None);
    }

    #[test]
    fn a_peak_that_is_not_positive_is_rejected() {
        let text = "[[device]]\nname='x'\nreported_as=['x']\ndense_tflops={bf16=-1.0}\n\
                    memory_gb_s=1.0\nsource='s'";
        assert!(matches!(Devices::from_toml(text), Err(DevicesError::Peak(name)) if name == "x"));
    }
}
