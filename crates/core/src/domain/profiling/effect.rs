//! Settings of a request that have no effect.

use serde_json::Value;

use super::Profiling;

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

    /// A sentence for each pass that is off here although its settings differ from `preset`.
    pub fn unused(&self, preset: &Self) -> Vec<String> {
        let (Ok(Value::Object(own)), Ok(preset)) =
            (serde_json::to_value(self), serde_json::to_value(preset))
        else {
            return Vec::new();
        };
        let mut notes = Vec::new();
        for (pass, settings) in &own {
            // The passes with sampled metrics read settings of the timeline pass, too.
            let is_read = pass == "nsys" && self.gpu_metrics.enabled;
            if settings["enabled"] != false || is_read {
                continue;
            }
            let Some(settings) = settings.as_object() else { continue };
            let changed = settings
                .iter()
                .filter(|(name, value)| *name != "enabled" && preset[pass][name] != **value)
                .map(|(name, _)| format!("profiling.{pass}.{name}"));
            let changed: Vec<String> = changed.collect();
            if !changed.is_empty() {
                notes.push(format!(
                    "no effect: {}; the pass is off, and profiling.{pass}.enabled = true turns it \
                     on",
                    changed.join(", ")
                ));
            }
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::mode::Mode;

    fn unused(mode: &Mode, change: Value) -> Vec<String> {
        let Value::Object(change) = change else { panic!("a change is an object") };
        let preset = Profiling::bundled(mode).unwrap();
        preset.with_changes(change).unwrap().unused(&preset)
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
}
