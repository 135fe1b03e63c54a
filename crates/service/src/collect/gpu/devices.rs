//! Devices with workers: the configured ones, else every GPU, else the CPU.
//!
//! Pure selection from the facts of driver and runner. `cuda:INDEX` is nvidia-smi's index; a
//! selected device is bound to its UUID, because indices change.

use llmprof_core::{
    domain::device::{CPU, Device},
    trace::environment::{Driver, Gpu},
};

use super::nvml::NoGpu;

/// Selected devices, with notes for the operator.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceSelection {
    pub devices: Vec<Device>,
    pub notes: Vec<String>,
}

/// True if the selection depends on the runner's features.
pub fn needs_runner(configured: &[String], driver: &Result<Driver, NoGpu>) -> bool {
    configured.is_empty() && driver.as_ref().is_ok_and(|driver| !driver.gpus.is_empty())
}

/// Selects devices. `runner` is true if model-runner was built for CUDA, or the reason why that is
/// unknown; `visible` is the service's `CUDA_VISIBLE_DEVICES`, which a scheduler sets.
pub fn select(
    configured: &[String],
    driver: &Result<Driver, NoGpu>,
    runner: &Result<bool, String>,
    visible: Option<&str>,
) -> DeviceSelection {
    let gpus = driver.as_ref().map_or(&[][..], |driver| &driver.gpus);
    if configured.is_empty() {
        return discover(gpus, driver, runner, visible);
    }
    let mut chosen = DeviceSelection::default();
    let known: Vec<Device> =
        gpus.iter().flat_map(|gpu| std::iter::once(whole(gpu)).chain(instances(gpu))).collect();
    for name in configured {
        let device = match known.iter().find(|device| device.names().contains(&name.as_str())) {
            Some(device) => device.clone(),
            None if name == CPU => Device::cpu(),
            None => {
                chosen.notes.push(format!(
                    "worker.devices: the driver has no device {name}; its runs will fail"
                ));
                Device::unknown(name)
            }
        };
        if !chosen.devices.contains(&device) {
            chosen.devices.push(device);
        }
    }
    chosen
}

fn discover(
    gpus: &[Gpu],
    driver: &Result<Driver, NoGpu>,
    runner: &Result<bool, String>,
    visible: Option<&str>,
) -> DeviceSelection {
    let mut notes = Vec::new();
    if let Err(error @ (NoGpu::Broken(_) | NoGpu::NoSuchDevice { .. })) = driver {
        notes.push(format!("{}; runs execute on the CPU", llmprof_core::chain(error)));
    }
    let mut devices = Vec::new();
    for gpu in gpus {
        let parts = parts(gpu);
        if parts.is_empty() {
            notes.push(format!(
                "GPU {} ({}) is in MIG mode and has no instance",
                gpu.index, gpu.uuid
            ));
        }
        devices.extend(parts.into_iter().filter(|part| is_visible(part, gpu, visible)));
    }
    let why_not = match runner {
        _ if devices.is_empty() => None,
        Ok(true) => None,
        Ok(false) => Some("the model runner was not built with the feature cuda".to_owned()),
        Err(why) => Some(format!("the features of the model runner are unknown: {why}")),
    };
    if let Some(why) = why_not {
        notes.push(format!("{why}: the GPUs are not used, and runs execute on the CPU"));
        devices.clear();
    }
    if devices.is_empty() {
        devices.push(Device::cpu());
    }
    DeviceSelection { devices, notes }
}

/// Devices of a GPU: the GPU itself, or its instances.
pub fn parts(gpu: &Gpu) -> Vec<Device> {
    if gpu.mig == Some(true) { instances(gpu).collect() } else { vec![whole(gpu)] }
}

fn whole(gpu: &Gpu) -> Device {
    Device {
        name: format!("cuda:{}", gpu.index),
        uuid: Some(gpu.uuid.clone()),
        product: Some(gpu.name.clone()),
        memory_bytes: Some(gpu.memory_bytes),
    }
}

fn instances(gpu: &Gpu) -> impl Iterator<Item = Device> {
    gpu.instances.iter().map(|instance| Device {
        name: instance.uuid.clone(),
        uuid: Some(instance.uuid.clone()),
        product: Some(instance.name.clone()),
        memory_bytes: instance.memory_bytes,
    })
}

/// CUDA's rule: indices or prefixes of UUIDs; the first invalid entry ends the list.
fn is_visible(device: &Device, gpu: &Gpu, visible: Option<&str>) -> bool {
    let Some(visible) = visible else { return true };
    let words = visible
        .split(',')
        .map(str::trim)
        .take_while(|word| word.parse::<u32>().is_ok() || is_uuid_start(word));
    let names = |word: &str| {
        word.parse() == Ok(gpu.index)
            || is_uuid_start(word)
                && [Some(&gpu.uuid), device.uuid.as_ref()]
                    .into_iter()
                    .flatten()
                    .any(|it| it.starts_with(word))
    };
    words.into_iter().any(names)
}

fn is_uuid_start(word: &str) -> bool {
    word.starts_with("GPU-") || word.starts_with("MIG-")
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::environment::GpuInstance;

    use super::*;

    fn host(gpus: u32) -> Result<Driver, NoGpu> {
        let gpu = |index| Gpu {
            index,
            uuid: format!("GPU-{index}"),
            name: "NVIDIA H200".into(),
            ..Gpu::default()
        };
        Ok(Driver { gpus: (0..gpus).map(gpu).collect(), ..Driver::default() })
    }

    /// Names of the selected devices, and the number of notes.
    fn selected(
        configured: &[&str],
        driver: &Result<Driver, NoGpu>,
        cuda: bool,
        visible: Option<&str>,
    ) -> (Vec<String>, usize) {
        let configured: Vec<String> = configured.iter().map(|it| (*it).to_owned()).collect();
        let chosen = select(&configured, driver, &Ok(cuda), visible);
        (chosen.devices.into_iter().map(|it| it.name).collect(), chosen.notes.len())
    }

    fn names(names: &[&str], notes: usize) -> (Vec<String>, usize) {
        (names.iter().map(|it| (*it).to_owned()).collect(), notes)
    }

    #[test]
    fn every_gpu_is_a_device_and_the_cpu_is_not() {
        assert_eq!(selected(&[], &host(2), true, None), names(&["cuda:0", "cuda:1"], 0));
        let device = select(&[], &host(1), &Ok(true), None).devices.remove(0);
        assert_eq!(
            (device.uuid.as_deref(), device.product.as_deref()),
            (Some("GPU-0"), Some("NVIDIA H200"))
        );
    }

    #[test]
    fn without_a_gpu_or_a_runner_for_it_the_cpu_is_the_device() {
        assert_eq!(selected(&[], &Err(NoGpu::NoDriver), true, None), names(&["cpu"], 0));
        assert_eq!(selected(&[], &host(0), true, None), names(&["cpu"], 0));
        assert_eq!(selected(&[], &host(2), false, None), names(&["cpu"], 1));
        let unknown = select(
            &[],
            &host(2),
            &Err("it exited with code 127: libcuda.so.1: cannot open".into()),
            None,
        );
        assert!(unknown.devices == [Device::cpu()] && unknown.notes[0].contains("libcuda.so.1"));
    }

    #[test]
    fn a_gpu_in_mig_mode_has_a_worker_per_instance() {
        let mut driver = host(3);
        let gpus = &mut driver.as_mut().unwrap().gpus;
        gpus[1].mig = Some(true);
        gpus[1].instances = ["MIG-a", "MIG-b"]
            .map(|uuid| GpuInstance { uuid: uuid.into(), ..GpuInstance::default() })
            .to_vec();
        gpus[2].mig = Some(true);
        assert_eq!(selected(&[], &driver, true, None), names(&["cuda:0", "MIG-a", "MIG-b"], 1));
        assert_eq!(selected(&["MIG-b"], &driver, true, None), names(&["MIG-b"], 0));
    }

    #[test]
    fn devices_hidden_by_a_scheduler_are_not_used() {
        assert_eq!(selected(&[], &host(4), true, Some("2,0")), names(&["cuda:0", "cuda:2"], 0));
        assert_eq!(selected(&[], &host(4), true, Some("GPU-3")), names(&["cuda:3"], 0));
        assert_eq!(selected(&[], &host(4), true, Some("1,NoDevFiles,2")), names(&["cuda:1"], 0));
        assert_eq!(selected(&[], &host(4), true, Some("")), names(&["cpu"], 0));
    }

    #[test]
    fn configured_devices_are_selected_by_index_or_uuid_once() {
        assert_eq!(
            selected(&["cpu", "GPU-1", "cuda:1"], &host(2), false, None),
            names(&["cpu", "cuda:1"], 0)
        );
        let missing = select(&["cuda:5".to_owned()], &host(2), &Ok(true), None);
        assert_eq!((missing.devices[0].uuid.as_deref(), missing.notes.len()), (None, 1));
    }
}
