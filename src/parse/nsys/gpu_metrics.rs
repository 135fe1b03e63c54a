//! Samples of the GPUs' metrics, from `GPU_METRICS`: a row for each value, millions per second of
//! a capture, so the table is scanned in parts at once and never held as rows.

use rusqlite::Row;

use super::{
    super::ParseError,
    export::{self, Export},
    layout::{ColumnError, RowNumbers},
    possible,
};
use crate::trace::gpu_metrics::{
    DeviceSamples, GpuMetric, GpuSamples, RefusalReason, RefusedSamples,
};

const TABLE: &str = "GPU_METRICS";
const VALUE: [&str; 4] = ["timestamp", "typeId", "metricId", "value"];
/// Bits of a type of events with the number of its device.
const DEVICE: i64 = 0xff;
/// Maximum number of metrics of a device: the largest sets have 124.
const MAX_METRICS: usize = 4096;
/// Clocks above this are in Hz, although their name has MHz.
const MAX_MHZ: i64 = 100_000;

/// Metrics of one type of events, which belongs to one device.
struct EventType {
    id: i64,
    /// By id of the metric.
    metrics: Vec<Option<GpuMetric>>,
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
    let overflowed = overflowed(export)?;
    let take = |part: &mut Vec<DeviceSamples>, row: &RowNumbers<4>| take(&types, part, row);
    let mut devices: Vec<DeviceSamples> = Vec::new();
    let parts = export.scan_parts(TABLE, VALUE, take)?;
    for (at, kind) in types.iter().enumerate() {
        let count = parts.iter().filter_map(|part| Some(part.get(at)?.times().len())).sum();
        devices.push(DeviceSamples::with_capacity(kind.device(), count));
    }
    for part in parts {
        for (at, samples) in part.into_iter().enumerate() {
            devices[at].append(samples);
        }
    }
    let (mut devices, refused) = assigned(export, &types, devices)?;
    for device in &mut devices {
        device.finish();
        device.overflowed = overflowed.iter().any(|it| it.is_none_or(|it| it == device.device));
    }
    Ok(Some(GpuSamples { rate_hz: rate(export)?, devices, unread, refused }))
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
    let sampled: Vec<(&EventType, DeviceSamples)> =
        types.iter().zip(samples).filter(|(_, it)| !it.times().is_empty()).collect();
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

/// Adds one row to its device's samples, which are in the order of `types`.
#[inline]
fn take(
    types: &[EventType],
    part: &mut Vec<DeviceSamples>,
    row: &RowNumbers<4>,
) -> Result<(), ColumnError> {
    if part.is_empty() {
        part.extend(types.iter().map(|it| DeviceSamples::new(it.device())));
    }
    let (id, metric): (i64, i64) = (row.get(1)?, row.get(2)?);
    let Some(at) = types.iter().position(|it| it.id == id) else { return Ok(()) };
    let metric = usize::try_from(metric).ok().and_then(|it| types[at].metrics.get(it));
    let Some(&Some(metric)) = metric else { return Ok(()) };
    let (at_ns, mut value): (i64, i64) = (row.get(0)?, row.get(3)?);
    if metric.is_clock() && value > MAX_MHZ {
        value = (value + 500_000) / 1_000_000;
    }
    if let (Ok(value), true) = (u16::try_from(value), possible(at_ns, at_ns)) {
        part[at].push(at_ns, metric, value);
    }
    Ok(())
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
