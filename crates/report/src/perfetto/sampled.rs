//! Metrics that nsys sampled, as counters: of a pass of its own with its ranges, or of the traced
//! pass.

use std::io::{self, Write};

use llmprof_core::trace::{
    gpu_metrics::{DeviceSamples, GpuMetric},
    timeline::Timeline,
};

use super::{
    packets::{Packets, Track},
    span,
    traced::ranges,
    window::Window,
};

/// Writes the metrics and ranges of a pass that sampled, which has a clock of its own.
pub fn sampled(packets: &mut Packets<impl Write>, pid: u32, nsys: &Timeline) -> io::Result<()> {
    let Some(samples) = &nsys.samples else { return Ok(()) };
    let window = Window::of(nsys);
    let rate = samples.rate_hz.map_or_else(String::new, |rate| format!(", {rate} Hz"));
    let name = format!("pass with sampled metrics (nsys{rate})");
    let process = packets.process(pid, &window.name(&name))?;
    ranges(packets, process, nsys, &window)?;
    samples.devices.iter().try_for_each(|it| metrics(packets, process, it, &window))
}

/// Writes a counter for each metric of a device, at each change of its value.
pub fn metrics(
    packets: &mut Packets<impl Write>,
    process: Track,
    samples: &DeviceSamples,
    window: &Window,
) -> io::Result<()> {
    for metric in GpuMetric::ALL.iter().filter(|metric| samples.has(**metric)) {
        let unit = if metric.is_clock() { "MHz" } else { "%" };
        let name = format!("GPU {} {}", samples.device, metric.as_str().replace('_', " "));
        let row = packets.figures(process, &name, unit)?;
        let mut last = None;
        let times = samples.times().iter().copied().enumerate();
        for (at, at_ns) in window.inside(times, |(_, at_ns)| *at_ns) {
            let value = samples.value(at, *metric);
            let Some((at_ns, _)) = span(window.origin, (at_ns, at_ns)) else { continue };
            if let Some(value) = value.filter(|_| value != last) {
                packets.figure(row, at_ns, value.into())?;
                last = Some(value);
            }
        }
    }
    Ok(())
}
