//! Work of the devices in the steps of a stage.

use std::collections::BTreeMap;

use foldhash::HashMap;

use super::{
    StageSteps,
    step_calls::{StepsByProcess, medians},
};
use crate::timeline::{
    activity::{DeviceWork, activities},
    capture::Capture,
};

/// Milliseconds of all work of each name in a step, by name and process: the median over the steps
/// of the process that are not outliers and have such work. Absent if fewer than three have.
pub fn usual_work_ms<'a>(
    capture: &Capture,
    stage: &StageSteps,
    names: &[&'a str],
) -> BTreeMap<(&'a str, i64), f64> {
    if names.is_empty() {
        return BTreeMap::new();
    }
    let steps = StepsByProcess::of(stage);
    let mut places: HashMap<DeviceWork, Option<usize>> = HashMap::default();
    let mut sums: BTreeMap<(usize, usize), i64> = BTreeMap::new();
    for it in activities(capture) {
        let place = *places.entry(it.work).or_insert_with(|| {
            let name = it.work.name(capture.trace);
            names.iter().position(|known| *known == name)
        });
        let Some(place) = place else { continue };
        let parts = steps.parts(it.process, (it.start_ns, it.end_ns));
        for (step, ns) in parts.filter(|(step, ns)| *ns > 0 && !stage.steps[*step].is_outlier()) {
            *sums.entry((place, step)).or_default() += ns;
        }
    }
    medians(capture.trace, stage, names, sums)
}
