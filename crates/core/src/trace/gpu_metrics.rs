//! Samples of a GPU's metrics: counters read at a fixed rate while a program runs, without replay.
//!
//! A capture has millions of samples, so they are stored in columns of two bytes.

use rayon::prelude::*;

use crate::domain::named_values::named_values;

named_values! {
    /// A sampled metric: percent of the device's peak, or a clock in MHz. Its figures have the same
    /// name.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    GpuMetric {
        SmsActive = "sms_active",
        SmIssue = "sm_issue",
        TensorActive = "tensor_active",
        WarpsInFlight = "warps_in_flight",
        DramRead = "dram_read",
        DramWrite = "dram_write",
        PcieRx = "pcie_rx",
        PcieTx = "pcie_tx",
        SmClock = "sm_clock",
    }
}

impl GpuMetric {
    pub const COUNT: usize = Self::ALL.len();

    /// The metric with this name in an nsys export, such as `SMs Active [Throughput %]`. Names
    /// differ between generations of GPUs.
    pub fn of_export(name: &str) -> Option<Self> {
        let (stem, unit) = name.rsplit_once(" [")?;
        let metric = match stem {
            "SMs Active" | "SM Active" => Self::SmsActive,
            "SM Issue" => Self::SmIssue,
            "Tensor Active" | "Tensor Active / FP16 Active" => Self::TensorActive,
            "Compute Warps in Flight" => Self::WarpsInFlight,
            "DRAM Read Bandwidth" | "DRAM Read Throughput" => Self::DramRead,
            "DRAM Write Bandwidth" | "DRAM Write Throughput" => Self::DramWrite,
            "PCIe RX Throughput" => Self::PcieRx,
            "PCIe TX Throughput" => Self::PcieTx,
            "GPC Clock Frequency" => Self::SmClock,
            _ => return None,
        };
        let expected = if metric.is_clock() { "MHz]" } else { "Throughput %]" };
        (unit == expected).then_some(metric)
    }

    /// Position in [`Self::ALL`].
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// True for a value that the metric can have: a percentage, or a clock in MHz.
    pub const fn is_valid(self, value: i64) -> bool {
        if self.is_clock() { 0 < value && value <= MAX_MHZ } else { 0 <= value && value <= 100 }
    }

    /// True for a clock; the other metrics are percent of a peak.
    pub const fn is_clock(self) -> bool {
        matches!(self, Self::SmClock)
    }
}

/// Maximum clock in MHz. nsys gives some in Hz, although their name has MHz.
pub const MAX_MHZ: i64 = 20_000;

/// Marker of a value that a sample lacks.
const NO_VALUE: u16 = u16::MAX;

/// Samples of one capture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuSamples {
    /// Configured samples per second; `None` if the export lacks it.
    pub rate_hz: Option<u32>,
    /// One record per sampled device, by its number on the host.
    pub devices: Vec<DeviceSamples>,
    /// Rows of the export, and names of metrics in it.
    pub rows: u64,
    pub names: usize,
    /// Names of metrics in the export that are not read.
    pub unread: Vec<String>,
    /// Samples that belong to no known device, which are left out.
    pub refused: Vec<RefusedSamples>,
}

/// Samples of one type of events that cannot be assigned to a device of the kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedSamples {
    /// Type of the events in the export; its lowest byte is the number of a GPU.
    pub type_id: i64,
    pub reason: RefusalReason,
}

/// Reason why samples have no device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// The export lists no GPU of that number.
    UnknownGpu,
    /// Several types of events have that number.
    SeveralSources,
    /// The host has several GPUs, and the export lacks the numbers by which processes call them.
    UnknownNumbering,
}

impl RefusalReason {
    /// Part of a sentence.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownGpu => "the export lists no GPU of that number",
            Self::SeveralSources => "several sources have samples of that number",
            Self::UnknownNumbering => {
                "the host has several GPUs, and the export lacks the numbers by which processes \
                 call them"
            }
        }
    }
}

/// Samples of one device, in order of time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceSamples {
    /// Number of the device on the host, as in kernels.
    pub device: u32,
    /// The buffer of samples overflowed: some are lost, and others may be displaced in time.
    pub overflowed: bool,
    /// Values that are left out: no integers, or outside the range of their metric.
    pub invalid: u64,
    /// End of each sample's period, nanoseconds.
    at_ns: Vec<i64>,
    /// By metric; empty for a metric that the capture lacks.
    columns: [Vec<u16>; GpuMetric::COUNT],
}

impl DeviceSamples {
    pub fn new(device: u32) -> Self {
        Self { device, ..Self::default() }
    }

    /// Adds one value. Values of one sample are usually consecutive.
    #[inline]
    pub fn push(&mut self, at_ns: i64, metric: GpuMetric, value: u16) {
        if self.at_ns.last() != Some(&at_ns) {
            self.at_ns.push(at_ns);
        }
        let (count, value) = (self.at_ns.len(), value.min(NO_VALUE - 1));
        let column = &mut self.columns[metric.index()];
        if column.len() + 1 == count {
            column.push(value);
            return;
        }
        column.resize(count, NO_VALUE);
        if let Some(last) = column.last_mut() {
            *last = value;
        }
    }

    /// The samples of one device from parts in order of time. The last sample of a part may
    /// continue in the next.
    pub fn joined(device: u32, parts: &[Self]) -> Self {
        let mut joined = Self::new(device);
        joined.at_ns.reserve_exact(parts.iter().map(|part| part.at_ns.len()).sum());
        // The position of each part's first sample.
        let mut starts = Vec::with_capacity(parts.len());
        for part in parts {
            let continues = !part.at_ns.is_empty() && joined.at_ns.last() == part.at_ns.first();
            starts.push(joined.at_ns.len() - usize::from(continues));
            joined.at_ns.extend_from_slice(&part.at_ns[usize::from(continues)..]);
            joined.overflowed |= part.overflowed;
            joined.invalid += part.invalid;
        }
        let count = joined.at_ns.len();
        joined.columns.par_iter_mut().enumerate().for_each(|(at, column)| {
            if parts.iter().all(|part| part.columns[at].is_empty()) {
                return;
            }
            column.reserve_exact(count);
            for (part, start) in parts.iter().zip(&starts) {
                let values = &part.columns[at];
                let Some(first) = values.first() else { continue };
                column.resize(column.len().max(*start), NO_VALUE);
                let continues = column.len() > *start;
                if continues && *first != NO_VALUE {
                    column[*start] = *first;
                }
                column.extend_from_slice(&values[usize::from(continues)..]);
            }
        });
        joined
    }

    /// Completes the columns, and sorts the samples unless they are in order.
    pub fn finish(&mut self) {
        let count = self.at_ns.len();
        for column in self.columns.iter_mut().filter(|column| !column.is_empty()) {
            column.resize(count, NO_VALUE);
        }
        if self.at_ns.is_sorted_by(|a, b| a < b) {
            return;
        }
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|at| self.at_ns[*at]);
        let (overflowed, invalid) = (self.overflowed, self.invalid);
        let mut sorted = Self { overflowed, invalid, ..Self::new(self.device) };
        for at in order {
            for metric in GpuMetric::ALL {
                if let Some(value) = self.value(at, *metric) {
                    sorted.push(self.at_ns[at], *metric, value);
                }
            }
        }
        sorted.finish();
        *self = sorted;
    }

    /// End of each sample's period.
    pub fn times(&self) -> &[i64] {
        &self.at_ns
    }

    /// True if the capture has the metric.
    pub fn has(&self, metric: GpuMetric) -> bool {
        !self.columns[metric.index()].is_empty()
    }

    /// Number of samples with a value of the metric.
    pub fn count(&self, metric: GpuMetric) -> usize {
        self.columns[metric.index()].iter().filter(|value| **value != NO_VALUE).count()
    }

    /// Number of samples in these intervals with a value of the metric, and of all in them.
    pub fn count_inside(&self, windows: &[(i64, i64)], metric: GpuMetric) -> (usize, usize) {
        let column = &self.columns[metric.index()];
        let of_window = |(from, to): &(i64, i64)| {
            let at = |time: i64| self.at_ns.partition_point(|at| *at < time);
            let (first, end) = (at(*from), at(*to));
            let values = column.get(first..end.min(column.len())).unwrap_or_default();
            (values.iter().filter(|value| **value != NO_VALUE).count(), end.saturating_sub(first))
        };
        let counts = windows.iter().map(of_window);
        counts.fold((0, 0), |(count, all), it| (count + it.0, all + it.1))
    }

    /// True if each sample has the metric.
    pub fn is_complete(&self, metric: GpuMetric) -> bool {
        let column = &self.columns[metric.index()];
        column.len() == self.at_ns.len() && !column.contains(&NO_VALUE)
    }

    /// A value of the sample at index `at`.
    #[inline]
    pub fn value(&self, at: usize, metric: GpuMetric) -> Option<u16> {
        self.columns[metric.index()].get(at).copied().filter(|value| *value != NO_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(samples: &DeviceSamples, metric: GpuMetric) -> Vec<Option<u16>> {
        (0..samples.times().len()).map(|at| samples.value(at, metric)).collect()
    }

    #[test]
    fn names_of_the_export_are_metrics_by_name_and_unit() {
        let of = GpuMetric::of_export;
        assert_eq!(of("Tensor Active [Throughput %]"), Some(GpuMetric::TensorActive));
        assert_eq!(of("GPC Clock Frequency [MHz]"), Some(GpuMetric::SmClock));
        assert_eq!(of("Compute Warps in Flight [Avg]"), None);
        assert_eq!((of("GR Active [Throughput %]"), of("SMs Active")), (None, None));
        for (at, metric) in GpuMetric::ALL.iter().enumerate() {
            assert_eq!(metric.index(), at);
        }
    }

    #[test]
    fn a_value_that_a_sample_lacks_is_unknown_and_not_zero() {
        let mut samples = DeviceSamples::new(0);
        samples.push(10, GpuMetric::SmsActive, 5);
        samples.push(20, GpuMetric::SmsActive, 6);
        samples.push(20, GpuMetric::DramRead, 70);
        samples.push(30, GpuMetric::SmsActive, 7);
        samples.finish();
        assert_eq!(values(&samples, GpuMetric::DramRead), [None, Some(70), None]);
        assert_eq!(values(&samples, GpuMetric::SmsActive), [Some(5), Some(6), Some(7)]);
        assert!(!samples.has(GpuMetric::PcieRx) && samples.value(0, GpuMetric::PcieRx).is_none());
    }

    #[test]
    fn a_sample_that_two_parts_share_is_one() {
        let [mut first, mut second] = [DeviceSamples::new(0), DeviceSamples::new(0)];
        first.push(10, GpuMetric::SmsActive, 1);
        first.push(20, GpuMetric::SmsActive, 2);
        second.push(20, GpuMetric::DramRead, 3);
        second.push(30, GpuMetric::DramRead, 4);
        let mut joined = DeviceSamples::joined(0, &[first, DeviceSamples::new(0), second]);
        joined.finish();
        assert_eq!(joined.times(), [10, 20, 30]);
        assert_eq!(values(&joined, GpuMetric::SmsActive), [Some(1), Some(2), None]);
        assert_eq!(values(&joined, GpuMetric::DramRead), [None, Some(3), Some(4)]);
    }

    #[test]
    fn samples_out_of_order_are_sorted_and_joined() {
        let mut samples = DeviceSamples::new(0);
        for (at_ns, metric, value) in [
            (30, GpuMetric::SmsActive, 3),
            (10, GpuMetric::SmsActive, 1),
            (30, GpuMetric::DramRead, 4),
        ] {
            samples.push(at_ns, metric, value);
        }
        samples.finish();
        assert_eq!(samples.times(), [10, 30]);
        assert_eq!(values(&samples, GpuMetric::SmsActive), [Some(1), Some(3)]);
        assert_eq!(values(&samples, GpuMetric::DramRead), [None, Some(4)]);
    }
}
