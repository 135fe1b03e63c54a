//! Conditions under which a pass ran. A later attempt at the same run uses the pass only under
//! equal ones.

use serde::{Deserialize, Serialize};

/// Largest change of the median SM clock, as a share of the earlier one.
pub const MAX_CLOCK_CHANGE: f64 = 0.03;
/// Digits of a hash in a difference.
const SHOWN: usize = 12;

/// Conditions of a pass; `None`: unknown, or not installed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassConditions {
    /// Hash of the program: model-runner, or the command with the files that its arguments name.
    pub program: Option<String>,
    /// Hash of prompt and images, and of names, sizes and times of the files of the weights.
    pub inputs: Option<String>,
    /// Hash of the job's settings, and of the variables that its programs get.
    pub settings: Option<String>,
    /// UUIDs of the GPUs, or `cpu`.
    pub devices: Option<String>,
    /// CPU and kernel; without a GPU also the host's name.
    pub host: Option<String>,
    pub driver: Option<String>,
    pub nsys: Option<String>,
    pub ncu: Option<String>,
    pub llmprof: Option<String>,
}

/// A condition that has changed, with its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionChange {
    pub condition: &'static str,
    /// `5f3c then, 81aa now`.
    pub values: String,
}

impl PassConditions {
    /// Lists the conditions that differ between an earlier attempt and this one. An unknown
    /// program, input, setting, device or host differs from any other.
    pub fn changes(&self, now: &Self) -> Vec<ConditionChange> {
        let differs = |then: &Condition, now: &Condition| {
            then.value != now.value || (then.required && now.value.is_none())
        };
        let pairs = self.listed().into_iter().zip(now.listed());
        let changed = pairs.filter(|(then, now)| differs(then, now));
        let change = |(then, now): (Condition, Condition)| ConditionChange {
            condition: then.name,
            values: format!("{} then, {} now", shown(then.value), shown(now.value)),
        };
        changed.map(change).collect()
    }

    fn listed(&self) -> [Condition<'_>; 9] {
        let required = |name, value| Condition { name, value, required: true };
        let optional = |name, value| Condition { name, value, required: false };
        [
            required("program", self.program.as_deref()),
            required("inputs", self.inputs.as_deref()),
            required("settings", self.settings.as_deref()),
            required("device", self.devices.as_deref()),
            required("host", self.host.as_deref()),
            optional("driver", self.driver.as_deref()),
            optional("nsys", self.nsys.as_deref()),
            optional("ncu", self.ncu.as_deref()),
            required("llmprof", self.llmprof.as_deref()),
        ]
    }
}

/// One condition.
struct Condition<'a> {
    name: &'static str,
    value: Option<&'a str>,
    /// An unknown value differs from any other.
    required: bool,
}

/// The change of the median SM clock, MHz; `None` if both are known and agree.
pub fn clock_change(then: Option<f64>, now: Option<f64>) -> Option<ConditionChange> {
    let agree = |(then, now): (f64, f64)| (now - then).abs() <= MAX_CLOCK_CHANGE * then;
    if then.zip(now).is_some_and(agree) {
        return None;
    }
    let mhz = |clock: Option<f64>| clock.map_or("unknown".into(), |mhz| format!("{mhz:.0} MHz"));
    let values = format!("{} then, {} now", mhz(then), mhz(now));
    Some(ConditionChange { condition: "median SM clock", values })
}

/// A value, of a hash its first digits.
fn shown(value: Option<&str>) -> &str {
    let is_hash = |it: &&str| it.len() == 64 && it.bytes().all(|byte| byte.is_ascii_hexdigit());
    match value {
        Some(hash) if is_hash(&hash) => &hash[..SHOWN],
        Some(value) => value,
        None => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions() -> PassConditions {
        let known = |text: &str| Some(text.to_owned());
        PassConditions {
            program: Some("5f".repeat(32)),
            inputs: known("a"),
            settings: known("b"),
            devices: known("GPU-1"),
            host: known("a CPU"),
            driver: known("580.159"),
            nsys: known("2025.3"),
            ncu: None,
            llmprof: known("0.2.0"),
        }
    }

    #[test]
    fn equal_conditions_have_no_changes_also_without_tools() {
        assert_eq!(conditions().changes(&conditions()), []);
        let bare = PassConditions { driver: None, nsys: None, ..conditions() };
        assert_eq!(bare.changes(&bare), []);
    }

    #[test]
    fn every_condition_counts() {
        type Change = fn(&mut PassConditions);
        let alone: [(Change, &str); 9] = [
            (
                |it| it.program = Some("81".repeat(32)),
                "program: 5f5f5f5f5f5f then, 818181818181 now",
            ),
            (|it| it.inputs = None, "inputs: a then, unknown now"),
            (|it| it.settings = Some("c".into()), "settings: b then, c now"),
            (|it| it.devices = Some("cpu".into()), "device: GPU-1 then, cpu now"),
            (|it| it.host = Some("another".into()), "host: a CPU then, another now"),
            (|it| it.driver = None, "driver: 580.159 then, unknown now"),
            (|it| it.nsys = Some("2025.5".into()), "nsys: 2025.3 then, 2025.5 now"),
            (|it| it.ncu = Some("2025.3".into()), "ncu: unknown then, 2025.3 now"),
            (|it| it.llmprof = Some("0.3.0".into()), "llmprof: 0.2.0 then, 0.3.0 now"),
        ];
        let mut all = conditions();
        for (change, text) in alone {
            let mut now = conditions();
            change(&mut now);
            change(&mut all);
            let changes = conditions().changes(&now);
            let texts: Vec<_> =
                changes.iter().map(|it| format!("{}: {}", it.condition, it.values)).collect();
            assert_eq!(texts, [text]);
        }
        assert_eq!(conditions().changes(&all).len(), alone.len());
    }

    #[test]
    fn an_unknown_condition_is_not_the_same_unknown_condition() {
        let unknown = PassConditions { program: None, devices: None, ..conditions() };
        let changes = unknown.changes(&unknown);
        let names: Vec<_> = changes.iter().map(|it| it.condition).collect();
        assert_eq!(names, ["program", "device"]);
    }

    #[test]
    fn clocks_agree_within_three_percent_and_unknown_ones_never() {
        assert_eq!(clock_change(Some(1980.0), Some(1921.0)), None);
        assert_eq!(clock_change(Some(1980.0), Some(2039.0)), None);
        let change = clock_change(Some(1980.0), Some(1755.0)).unwrap();
        assert_eq!(change.values, "1980 MHz then, 1755 MHz now");
        assert!(clock_change(None, Some(1755.0)).is_some() && clock_change(None, None).is_some());
    }
}
