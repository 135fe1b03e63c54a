//! Findings on throttled stages, and on figures measured on a whole GPU for a MIG instance.

use llmprof_core::domain::finding::{Finding, catalogue};

use super::{Power, ReasonShare, StagePower};
use crate::stages::in_sentence;

/// Min share of a stage's samples, percent, from which throttling is reported.
const THROTTLED_PCT: f64 = 5.0;

/// Returns the findings on throttling and on shared sensors.
pub fn findings(power: &Power) -> Vec<Finding> {
    let throttled = |it: &StagePower| it.throttled_pct.is_some_and(|share| share >= THROTTLED_PCT);
    let mut found: Vec<Finding> = power
        .stages
        .iter()
        .filter(|it| throttled(it))
        .map(|stage| gpu_throttled(power, stage))
        .collect();
    if power.device.uuid != power.device.board_uuid {
        let message =
            "Power, energy and clocks are those of the whole GPU: a MIG instance has no sensors.";
        found.push(
            Finding::new(catalogue::POWER_OF_WHOLE_GPU, message)
                .with("instance", &power.device.uuid)
                .with("GPU", &power.device.board_uuid),
        );
    }
    found
}

fn gpu_throttled(power: &Power, stage: &StagePower) -> Finding {
    let share = stage.throttled_pct.unwrap_or_default();
    let throttling: Vec<&ReasonShare> = stage.reasons.iter().filter(|it| it.limits).collect();
    let named: Vec<String> =
        throttling.iter().map(|it| format!("{} {:.0} %", it.reason, it.share_pct)).collect();
    let (subject, gpu) = match stage.gpus {
        1 => ("The GPU".to_owned(), power.device.board_uuid.as_str()),
        gpus => (format!("At least one of {gpus} GPUs"), "GPU"),
    };
    let stage_name = in_sentence(&stage.stage);
    let message = format!("{subject} was throttled during {share:.0} % of {stage_name}.");
    let mut finding = Finding::new(catalogue::GPU_THROTTLED, message)
        .with("stage", &stage.stage)
        .with("reasons", named.join(", "))
        .with("samples", stage.samples);
    let of_max = |value: Option<f64>, max: Option<f64>, unit: &str| {
        let max = max.map(|max| format!(" of {max:.0}")).unwrap_or_default();
        value.map(|value| format!("{value:.0}{max} {unit}"))
    };
    let figures = [
        ("mean SM clock", of_max(stage.sm_mhz, power.device.max_sm_mhz.map(f64::from), "MHz")),
        ("mean power", of_max(stage.mean_w, power.device.power_limit_w, "W")),
        ("peak temperature", of_max(power.peak_temperature_c.map(f64::from), None, "°C")),
    ];
    for (name, value) in figures {
        if let Some(value) = value {
            finding = finding.with(name, value);
        }
    }
    let mut advice: Vec<String> = Vec::new();
    for it in throttling {
        let remedy = remedy(&it.reason, gpu);
        if !advice.contains(&remedy) {
            advice.push(remedy);
        }
    }
    finding.advise(advice.join(" "))
}

fn remedy(reason: &str, gpu: &str) -> String {
    match reason {
        "sw_power_cap" => format!(
            "Raise the power limit where the board allows it (sudo nvidia-smi -i {gpu} -pl WATTS), \
             or compare runs at one clock (sudo nvidia-smi -i {gpu} -lgc MHZ)."
        ),
        "sw_thermal_slowdown" | "hw_thermal_slowdown" => format!(
            "The GPU is too hot: check fans and airflow (nvidia-smi -i {gpu} -q -d TEMPERATURE)."
        ),
        "sync_boost" => "Another GPU of its sync boost group limits it: check that GPU.".into(),
        _ => format!(
            "Check the power supply and its brake signal (nvidia-smi -i {gpu} -q -d PERFORMANCE)."
        ),
    }
}
