//! Settings of a request that have no effect.

use serde_json::Value;

use super::Profiling;
use crate::domain::{run_plan::PlannedStep, subject::RunSpec};

/// Settings of the timeline pass that it reads on a GPU only.
const ON_GPU: [&str; 2] = ["cuda_graph_trace", "trace"];

impl Profiling {
    /// Error if the recording would start after the end of each pass; `None` otherwise.
    pub fn late_recording(&self, timeout_s: u32) -> Option<String> {
        let is_recorded = self.nsys.enabled || self.gpu_metrics.enabled;
        (is_recorded && self.nsys.delay_s >= timeout_s).then(|| {
            format!(
                "profiling.nsys.delay_s: {} s is not below timeout_s ({timeout_s} s), so nothing \
                 would be recorded; lower the delay or raise timeout_s",
                self.nsys.delay_s
            )
        })
    }

    /// A sentence for settings of each pass that differ from `preset` and have no effect on the
    /// run of `spec`, whose plan is `steps`: the pass is off or skipped, or does not use the
    /// setting, on the CPU (`on_cpu`) or at all.
    pub fn unused(
        &self,
        preset: &Self,
        spec: &RunSpec,
        steps: &[PlannedStep],
        on_cpu: bool,
    ) -> Vec<String> {
        let (Ok(Value::Object(own)), Ok(base)) =
            (serde_json::to_value(self), serde_json::to_value(preset))
        else {
            return Vec::new();
        };
        let step = |pass: &str| steps.iter().find(|it| it.step.as_str() == pass);
        let runs = |pass: &str| step(pass).is_some_and(|it| it.skipped_because.is_none());
        let mut notes = self.runner.unused(&preset.runner, spec, |it| runs(it.as_str()));
        for (pass, settings) in &own {
            let skipped = step(pass).and_then(|it| it.skipped_because.as_ref());
            // The passes with sampled metrics read settings of the timeline pass, too.
            let is_read = pass == "nsys" && runs("gpu_metrics");
            let why = match skipped {
                Some(reason) => format!("the pass is skipped: {reason}"),
                None if settings["enabled"] == false && !is_read => {
                    format!("the pass is off, and profiling.{pass}.enabled = true turns it on")
                }
                None => continue,
            };
            let Some(settings) = settings.as_object() else { continue };
            let changed = settings
                .iter()
                .filter(|(name, value)| base[pass][name] != **value)
                .filter(|(name, _)| skipped.is_some() || *name != "enabled")
                .map(|(name, _)| format!("profiling.{pass}.{name}"));
            let changed: Vec<String> = changed.collect();
            if !changed.is_empty() {
                notes.push(format!("no effect: {}; {why}", changed.join(", ")));
            }
        }
        if on_cpu && runs("nsys") {
            let is_changed = |name: &&str| own["nsys"][*name] != base["nsys"][*name];
            let changed = ON_GPU.into_iter().filter(is_changed);
            let changed: Vec<String> =
                changed.map(|name| format!("profiling.nsys.{name}")).collect();
            let why = "on the CPU, nsys traces the APIs of profiling.nsys.trace_on_cpu";
            notes.extend(
                (!changed.is_empty()).then(|| format!("no effect: {}; {why}", changed.join(", "))),
            );
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::{
        mode::Mode,
        run_plan::{PlanFacts, plan},
        subject::Subject,
    };

    /// Notes on a change of the mode's settings for a run of a model.
    fn unused_on(facts: PlanFacts, mode: &Mode, change: Value) -> Vec<String> {
        let Value::Object(change) = change else { panic!("a change is an object") };
        let preset = Profiling::bundled(mode).unwrap();
        let settings = preset.with_changes(change).unwrap();
        let mut spec = RunSpec::tiny(mode.clone(), 0, &[]);
        let Subject::Model(subject) = &mut spec.subject else { panic!("a model") };
        subject.passes.profiling = Some(settings.clone());
        settings.unused(&preset, &spec, &plan(&spec, facts), facts.on_cpu)
    }

    fn unused(mode: &Mode, change: Value) -> Vec<String> {
        unused_on(PlanFacts::default(), mode, change)
    }

    #[test]
    fn settings_of_a_pass_that_is_off_are_named() {
        let change = json!({"nsys": {"sample": "system-wide", "delay_s": 3}, "nvml": {"hz": 7}});
        let note = "no effect: profiling.nsys.delay_s, profiling.nsys.sample; the pass is off, and \
                    profiling.nsys.enabled = true turns it on";
        assert_eq!(unused(&Mode::BASIC, change), [note]);
        let off = json!({"ncu": {"enabled": false, "max_launches": 9}});
        let notes = unused(&Mode::DEEP, off);
        assert!(
            notes.len() == 1 && notes[0].contains(": profiling.ncu.max_launches;"),
            "{notes:?}"
        );
    }

    #[test]
    fn settings_that_a_pass_reads_and_those_of_the_preset_are_not_named() {
        let change = json!({"nsys": {"delay_s": 3}});
        assert!(unused(&Mode::LIGHT, change).is_empty());
        let read = json!({"nsys": {"warmup": 0}, "gpu_metrics": {"enabled": true}});
        assert!(unused(&Mode::BASIC, read).is_empty());
        for mode in [Mode::DEEP, Mode::LIGHT, Mode::BASIC] {
            let whole = serde_json::to_value(Profiling::bundled(&mode).unwrap()).unwrap();
            assert!(unused(&mode, whole).is_empty());
            assert!(unused(&mode, json!({"nsys": {"enabled": false}})).is_empty());
        }
    }

    #[test]
    fn settings_of_a_pass_that_is_skipped_are_named_with_the_reason() {
        let on_cpu = PlanFacts { on_cpu: true, ..PlanFacts::default() };
        let change = json!({"ncu": {"enabled": true, "max_launches": 9}});
        assert_eq!(
            unused_on(on_cpu, &Mode::BASIC, change.clone()),
            ["no effect: profiling.ncu.enabled, profiling.ncu.max_launches; the pass is skipped: \
              ncu reads counters of GPU kernels only"]
        );
        assert!(unused(&Mode::BASIC, change).is_empty());
        assert!(unused_on(on_cpu, &Mode::DEEP, json!({})).is_empty(), "nothing was changed");
        let read = json!({"nsys": {"warmup": 0}, "gpu_metrics": {"enabled": true}});
        assert_eq!(unused_on(on_cpu, &Mode::BASIC, read).len(), 2, "nothing reads them");
    }

    #[test]
    fn settings_of_the_timeline_that_the_device_does_not_read_are_named() {
        let on_cpu = PlanFacts { on_cpu: true, ..PlanFacts::default() };
        let change = json!({"nsys": {"trace": ["nvtx"], "cuda_graph_trace": "graph"}});
        let note = "no effect: profiling.nsys.cuda_graph_trace, profiling.nsys.trace; on the CPU, \
                    nsys traces the APIs of profiling.nsys.trace_on_cpu";
        assert_eq!(unused_on(on_cpu, &Mode::DEEP, change.clone()), [note]);
        assert!(unused(&Mode::DEEP, change).is_empty());
        let read = json!({"nsys": {"trace_on_cpu": ["nvtx"]}});
        assert!(unused_on(on_cpu, &Mode::DEEP, read).is_empty());
    }

    #[test]
    fn records_of_the_runner_in_passes_that_do_not_run_are_named() {
        let change = json!({"runner": {"predictions": ["baseline", "ncu"], "memory": true}});
        let note = "no effect: ncu in profiling.runner.predictions; the pass does not run";
        assert_eq!(unused(&Mode::LIGHT, change.clone()), [note]);
        assert!(unused(&Mode::DEEP, change.clone()).is_empty());
        let on_cpu = PlanFacts { on_cpu: true, ..PlanFacts::default() };
        assert_eq!(unused_on(on_cpu, &Mode::DEEP, change), [note]);
        let ranges = json!({"runner": {"operators": ["baseline"], "operator_ranges": ["nsys"]}});
        let notes = unused(&Mode::LIGHT, ranges);
        assert!(
            notes.iter().any(|it| it.starts_with("no effect: nsys in profiling.runner.operator_r")),
            "{notes:?}"
        );
    }

    #[test]
    fn a_command_uses_no_setting_of_the_runner() {
        let preset = Profiling::bundled(&Mode::BASIC).unwrap();
        let change = json!({"runner": {"memory": true, "predictions": []}});
        let Value::Object(change) = change else { panic!("a change is an object") };
        let settings = preset.with_changes(change).unwrap();
        let passes = json!({ "mode": "basic", "repeats": 1, "warmup": 0, "device": "cpu" });
        let common = json!({ "labels": [], "priority": 0, "timeout_s": 60 });
        let subject = json!({ "kind": "command", "call": { "command": "go" }, "passes": passes });
        let spec = json!({ "subject": subject, "common": common });
        let spec: RunSpec = serde_json::from_value(spec).unwrap();
        let notes = settings.unused(&preset, &spec, &plan(&spec, PlanFacts::default()), false);
        assert_eq!(
            notes,
            ["no effect: profiling.runner.predictions, profiling.runner.memory; a command does \
              not use the model runner"]
        );
    }
}
