//! Driver and GPUs as NVIDIA's management library (NVML) reports them.
//!
//! The only user of NVML. Changes nothing; finds devices by UUID. Values that a device does not
//! report are absent.

use std::fs;

use llmprof_core::trace::{
    environment::{Driver, Gpu, GpuInstance, GpuProcess},
    power::{POWER_SCHEMA, PowerSample, PowerSource, SampledDevice},
};
use nix::time::{ClockId, clock_gettime};
use nvml_wrapper::{
    Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor,
    enum_wrappers::device::{Clock, TemperatureSensor},
    enums::device::{SampleValue, UsedGpuMemory},
    error::NvmlError,
    structs::device::FieldId,
    sys_exports::field_id::NVML_FI_DEV_POWER_INSTANT,
};

/// Reason why no GPU is available.
#[derive(Debug, thiserror::Error)]
pub enum NoGpu {
    /// No driver is installed or loaded, as on a machine without a GPU.
    #[error("no NVIDIA driver is loaded")]
    NoDriver,
    /// The driver is loaded but does not work.
    #[error("the NVIDIA driver does not respond")]
    Broken(#[source] NvmlError),
    #[error("the driver has no device {uuid}")]
    NoSuchDevice { uuid: String, source: NvmlError },
}

/// Reads driver, CUDA version and GPUs. Blocks: the first call wakes the driver.
pub fn read() -> Result<Driver, NoGpu> {
    let nvml = open()?;
    let count = nvml.device_count().map_err(NoGpu::Broken)?;
    Ok(Driver {
        version: nvml.sys_driver_version().ok(),
        cuda: nvml
            .sys_cuda_driver_version()
            .ok()
            .map(|v| format!("{}.{}", cuda_driver_version_major(v), cuda_driver_version_minor(v))),
        gpus: (0..count)
            .map(|index| gpu(&nvml, index))
            .collect::<Result<_, _>>()
            .map_err(NoGpu::Broken)?,
    })
}

/// Opens the library by the name that drivers install; only development packages install the bare
/// name.
fn open() -> Result<Nvml, NoGpu> {
    let opened =
        Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init().or_else(
            |error| match error {
                NvmlError::LibloadingError(_) => Nvml::init(),
                error => Err(error),
            },
        );
    opened.map_err(|error| match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded => {
            NoGpu::NoDriver
        }
        error => NoGpu::Broken(error),
    })
}

fn gpu(nvml: &Nvml, index: u32) -> Result<Gpu, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let memory = device.memory_info().ok();
    let mig = device.mig_mode().ok().map(|mode| mode.current == 1);
    Ok(Gpu {
        index,
        uuid: device.uuid()?,
        name: device.name()?,
        memory_bytes: memory.as_ref().map_or(0, |memory| memory.total),
        memory_free_bytes: memory.map(|memory| memory.free),
        compute_capability: device
            .cuda_compute_capability()
            .ok()
            .map(|it| format!("{}.{}", it.major, it.minor)),
        mig,
        instances: if mig == Some(true) { instances(&device) } else { Vec::new() },
        processes: processes(&device),
        power_limit_w: power_limit_w(&device),
        max_sm_mhz: device.max_clock_info(Clock::SM).ok(),
        max_memory_mhz: device.max_clock_info(Clock::Memory).ok(),
        ..Gpu::default()
    })
}

fn instances(device: &Device) -> Vec<GpuInstance> {
    let max = device.mig_device_count().unwrap_or(0);
    let instance = |index| {
        let device = device.mig_device_by_index(index).ok()?; // an unused slot
        let memory_bytes = device.memory_info().ok().map(|memory| memory.total);
        Some(GpuInstance {
            uuid: device.uuid().ok()?,
            name: device.name().unwrap_or_default(),
            memory_bytes,
        })
    };
    (0..max).filter_map(instance).collect()
}

fn processes(device: &Device) -> Vec<GpuProcess> {
    let running = device.running_compute_processes().unwrap_or_default();
    let process = |it: &nvml_wrapper::struct_wrappers::device::ProcessInfo| GpuProcess {
        pid: it.pid,
        name: fs::read_to_string(format!("/proc/{}/comm", it.pid))
            .ok()
            .map(|name| name.trim().to_owned()),
        memory_bytes: match it.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
    };
    running.iter().map(process).collect()
}

fn power_limit_w(device: &Device) -> Option<f64> {
    device.enforced_power_limit().ok().map(watts)
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1e3
}

/// Opens one device and calls `each` with its description and a function that reads it once.
///
/// The library stays open until `each` returns.
pub fn watch<T>(
    uuid: &str,
    period_ns: i64,
    each: impl FnOnce(SampledDevice, &mut dyn FnMut() -> PowerSample) -> T,
) -> Result<T, NoGpu> {
    let nvml = open()?;
    let no_such = |source| NoGpu::NoSuchDevice { uuid: uuid.to_owned(), source };
    let device = nvml.device_by_uuid(uuid).map_err(no_such)?;
    // An instance has its own memory, but neither power nor clocks.
    let parent =
        device.mig_is_mig_device_handle().unwrap_or(false).then(|| device.mig_parent_device());
    let parent = parent.transpose().map_err(no_such)?;
    let board = parent.as_ref().unwrap_or(&device);
    let power_source = power_source(board);
    let described = SampledDevice {
        schema: POWER_SCHEMA,
        uuid: uuid.to_owned(),
        board_uuid: board.uuid().map_err(no_such)?,
        name: board.name().unwrap_or_default(),
        gpus: 1,
        period_ns,
        power_source,
        power_limit_w: power_limit_w(board),
        max_sm_mhz: board.max_clock_info(Clock::SM).ok(),
        max_memory_mhz: board.max_clock_info(Clock::Memory).ok(),
    };
    let instant = instant_power(board).is_some();
    Ok(each(described, &mut || read_sample(board, &device, instant)))
}

/// One reading. The energy counter is read first, because it needs the most exact time stamp.
fn read_sample(board: &Device, device: &Device, instant: bool) -> PowerSample {
    let t_ns = now_ns();
    let energy_mj = board.total_energy_consumption().ok();
    let power_w = if instant { instant_power(board) } else { board.power_usage().ok().map(watts) };
    let used = board.utilization_rates().ok();
    PowerSample {
        t_ns,
        power_w,
        energy_mj,
        sm_mhz: board.clock_info(Clock::SM).ok(),
        memory_mhz: board.clock_info(Clock::Memory).ok(),
        gpu_pct: used.as_ref().map(|it| it.gpu),
        memory_pct: used.map(|it| it.memory),
        temperature_c: board.temperature(TemperatureSensor::Gpu).ok(),
        clock_reasons: board.current_throttle_reasons().ok().map(|reasons| reasons.bits()),
        memory_used_bytes: device.memory_info().ok().map(|it| it.used),
    }
}

/// Current power, if the driver reports it in addition to the mean.
fn instant_power(board: &Device) -> Option<f64> {
    let values = board.field_values_for(&[FieldId(NVML_FI_DEV_POWER_INSTANT)]).ok()?;
    match values.into_iter().next()?.ok()?.value.ok()? {
        SampleValue::U32(milliwatts) => Some(watts(milliwatts)),
        SampleValue::U64(milliwatts) => Some(milliwatts as f64 / 1e3),
        SampleValue::F64(_) | SampleValue::I64(_) => None,
    }
}

/// `power_usage` is a mean over a second since Ampere; on GA100 (compute capability 8.0) and older
/// GPUs it is the current power.
fn power_source(board: &Device) -> PowerSource {
    let old = board.cuda_compute_capability().is_ok_and(|it| (it.major, it.minor) <= (8, 0));
    if old || instant_power(board).is_some() { PowerSource::Instant } else { PowerSource::Average }
}

/// The clock of `events.jsonl`.
pub fn now_ns() -> i64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |now| now.tv_sec() * 1_000_000_000 + now.tv_nsec())
}
