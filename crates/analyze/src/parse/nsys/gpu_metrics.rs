//! Samples of the GPUs' metrics, from `GPU_METRICS`: a row for each value, millions per second of
//! a capture, so the table is scanned in parts at once and never held as rows.

use llmprof_core::trace::gpu_metrics::{
    DeviceSamples, GpuMetric, GpuSamples, MAX_MHZ, RefusalReason, RefusedSamples,
};
use rusqlite::Row;

use super::{
    super::ParseError,
    export::{self, Export, TablePart},
    layout::{ColumnError, RowNumbers},
    possible,
};

const TABLE: &str = "GPU_METRICS";
const VALUE: [&str; 4] = ["timestamp", "typeId", "metricId", "value"];
/// Bits of a type of events with the number of its device.
const DEVICE: i64 = 0xff;
/// Maximum number of metrics of a device: the largest sets have 124.
const MAX_METRICS: usize = 4096;

/// Metrics of one type of events, which belongs to one device.
struct EventType {
    id: i64,
    /// By id of the metric.
    metrics: Vec<Option<GpuMetric>>,
}

/// Samples of one part of the table.
struct SamplesPart<'a> {
    types: &'a [EventType],
    /// By metric: those that are read of any type.
    is_read: &'a [bool],
    rows: u64,
    /// In the order of the types.
    samples: Vec<DeviceSamples>,
}

impl EventType {
    fn device(&self) -> u32 {
        u32::try_from(self.id & DEVICE).unwrap_or_default()
    }
}

/// Reads the samples; `None` for an export without the tables of samples.
pub(super) fn read(export: &Export) -> Result<Option<GpuSamples>, ParseError> {
    let has = |table: &str| export.tables().iter().any(|it| it == table);
    if !has(TABLE) && !has("TARGET_INFO_GPU_METRICS") {
        return Ok(None);
    }
    let sql = include_str!("sql/gpu_metrics.sql");
    let name = |row: &Row| {
        let ids: (Option<i64>, Option<i64>) = (row.get(0)?, row.get(1)?);
        Ok((ids, export::string(row, 2)?))
    };
    let (mut types, mut unread): (Vec<EventType>, Vec<String>) = Default::default();
    for ((id, metric), name) in export.rows("TARGET_INFO_GPU_METRICS", sql, name)? {
        let metric = metric.and_then(|metric| usize::try_from(metric).ok());
        let (Some(id), Some(metric @ ..MAX_METRICS)) = (id, metric) else { continue };
        let at = types.iter().position(|it| it.id == id).unwrap_or_else(|| {
            types.push(EventType { id, metrics: Vec::new() });
            types.len() - 1
        });
        let metrics = &mut types[at].metrics;
        metrics.resize(metrics.len().max(metric + 1), None);
        metrics[metric] = GpuMetric::of_export(&name);
        if metrics[metric].is_none() && !unread.contains(&name) {
            unread.push(name);
        }
    }
    if let Some(column) = export.lacks(TABLE, &VALUE)?.first() {
        return Err(export.without(TABLE, column));
    }
    let overflowed = overflowed(export)?;
    let mut is_read = vec![false; MAX_METRICS];
    for (at, metric) in types.iter().flat_map(|it| it.metrics.iter().enumerate()) {
        is_read[at] |= metric.is_some();
    }
    let new = || SamplesPart { types: &types, is_read: &is_read, rows: 0, samples: Vec::new() };
    let mut parts = export.scan_parts(TABLE, VALUE, new)?;
    let rows = parts.iter().map(|part| part.rows).sum();
    let of_type = |(at, kind): (usize, &EventType)| {
        let of_part = |part: &mut SamplesPart| part.samples.get_mut(at).map(std::mem::take);
        let parts: Vec<DeviceSamples> = parts.iter_mut().filter_map(of_part).collect();
        DeviceSamples::joined(kind.device(), &parts)
    };
    let devices: Vec<DeviceSamples> = types.iter().enumerate().map(of_type).collect();
    let (mut devices, refused) = assigned(export, &types, devices)?;
    for device in &mut devices {
        device.finish();
        device.overflowed = overflowed.iter().any(|it| it.is_none_or(|it| it == device.device));
    }
    let names = types.iter().flat_map(|it| &it.metrics).flatten().count() + unread.len();
    Ok(Some(GpuSamples { rate_hz: rate(export)?, rows, names, devices, unread, refused }))
}

/// The samples whose device is certain, by device, and the types of events of the others. `samples`
/// are in the order of `types`.
fn assigned(
    export: &Export,
    types: &[EventType],
    samples: Vec<DeviceSamples>,
) -> Result<(Vec<DeviceSamples>, Vec<RefusedSamples>), ParseError> {
    let ids = |table, sql| export.rows(table, sql, |row: &Row| row.get::<_, Option<u32>>("id"));
    let listed = ids("TARGET_INFO_GPU", include_str!("sql/gpus.sql"))?;
    let numbered = export.rows(
        "TARGET_INFO_CUDA_DEVICE",
        include_str!("sql/cuda_devices.sql"),
        |row: &Row| row.get::<_, Option<u32>>("gpu"),
    )?;
    let has_rows = |it: &DeviceSamples| !it.times().is_empty() || it.invalid > 0;
    let sampled: Vec<(&EventType, DeviceSamples)> =
        types.iter().zip(samples).filter(|(_, it)| has_rows(it)).collect();
    let numbers: Vec<u32> = sampled.iter().map(|(kind, _)| kind.device()).collect();
    let has_several = listed.len() > 1 || numbers.iter().any(|it| *it != numbers[0]);
    let reason = |device: u32| {
        if !listed.is_empty() && !listed.contains(&Some(device)) {
            Some(RefusalReason::UnknownGpu)
        } else if numbers.iter().filter(|it| **it == device).count() > 1 {
            Some(RefusalReason::SeveralSources)
        } else if has_several && numbered.iter().flatten().next().is_none() {
            Some(RefusalReason::UnknownNumbering)
        } else {
            None
        }
    };
    let (mut devices, mut refused) = (Vec::new(), Vec::new());
    for (kind, samples) in sampled {
        match reason(kind.device()) {
            Some(reason) => refused.push(RefusedSamples { type_id: kind.id, reason }),
            None => devices.push(samples),
        }
    }
    devices.sort_by_key(|it: &DeviceSamples| it.device);
    Ok((devices, refused))
}

impl TablePart<4> for SamplesPart<'_> {
    /// Adds one row to its device's samples. A row that is not of integers has no sample.
    #[inline(always)]
    fn take(&mut self, row: &RowNumbers<4>) -> Result<(), ColumnError> {
        self.rows += 1;
        // Most metrics are not read, and the other columns of their rows are not decoded.
        let Ok(metric) = row.get::<u32>(2) else { return Ok(()) };
        if !self.is_read.get(metric as usize).is_some_and(|it| *it) {
            return Ok(());
        }
        let Ok(id) = row.get::<i64>(1) else { return Ok(()) };
        let Some(at) = self.types.iter().position(|it| it.id == id) else { return Ok(()) };
        let metric = self.types[at].metrics.get(metric as usize);
        let Some(&Some(metric)) = metric else { return Ok(()) };
        if self.samples.is_empty() {
            let of_type = |it: &EventType| DeviceSamples::new(it.device());
            self.samples.extend(self.types.iter().map(of_type));
        }
        let samples = &mut self.samples[at];
        let (Ok(at_ns), Ok(mut value)) = (row.get::<i64>(0), row.get::<i64>(3)) else {
            samples.invalid += 1;
            return Ok(());
        };
        if metric.is_clock() && value > MAX_MHZ {
            value = value.saturating_add(500_000) / 1_000_000;
        }
        if metric.is_valid(value) && possible(at_ns, at_ns) {
            samples.push(at_ns, metric, value as u16);
        } else {
            samples.invalid += 1;
        }
        Ok(())
    }
}

/// The configured samples per second.
fn rate(export: &Export) -> Result<Option<u32>, ParseError> {
    let sql = include_str!("sql/gpu_metrics_rate.sql");
    let rates = export.rows("META_DATA_CAPTURE", sql, |row| export::string(row, 0))?;
    Ok(rates.first().and_then(|rate| rate.trim().parse().ok()).filter(|rate| *rate > 0))
}

/// Devices whose buffer of samples overflowed, from messages such as `GPU Metrics [0]: Sampling
/// buffer overflow`; `None` for a message without a device.
fn overflowed(export: &Export) -> Result<Vec<Option<u32>>, ParseError> {
    let sql = include_str!("sql/gpu_metrics_overflows.sql");
    let device = |text: String| -> Option<u32> {
        let (_, rest) = text.split_once('[')?;
        rest.split_once(']')?.0.trim().parse().ok()
    };
    export.rows("DIAGNOSTIC_EVENT", sql, |row| export::string(row, 0).map(device))
}

#[cfg(test)]
mod tests;
