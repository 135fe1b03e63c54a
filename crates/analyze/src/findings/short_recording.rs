//! The rule on recordings that start after a delay, shortly before the program ends.

use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        units::Nanos,
    },
    trace::Trace,
};

use super::Rule;

/// Length of a recording below which a delay left too little of the program, nanoseconds. A delay
/// has whole seconds.
const SHORT_NS: i64 = 1_000_000_000;

pub const RULES: &[Rule] = &[Rule {
    id: catalogue::RECORDING_SHORT,
    find: |_, trace| find_short_recording(trace).into_iter().collect(),
}];

/// The finding on a recording that its delay left short.
pub fn find_short_recording(trace: &Trace) -> Option<Finding> {
    let delay_s = trace.settings.as_ref()?.nsys.delay_s;
    let recorded_ns = trace.timeline.as_ref()?.recorded_ns?;
    if delay_s == 0 || !(0..SHORT_NS).contains(&recorded_ns) {
        return None;
    }
    let ms = Nanos(recorded_ns).as_ms();
    let length = if ms < 10.0 { format!("{ms:.3} ms") } else { format!("{ms:.0} ms") };
    let message = format!(
        "The recording is {length} long: it started after a delay of {delay_s} s, shortly before \
         the program ended."
    );
    Some(
        Finding::new(catalogue::RECORDING_SHORT, message)
            .with("recording", length)
            .with("nsys.delay_s", delay_s),
    )
}

#[cfg(test)]
mod tests {
    use llmprof_core::{
        domain::{mode::Mode, profiling::Profiling},
        trace::timeline::Timeline,
    };

    use super::*;

    #[test]
    fn only_a_short_recording_after_a_delay_is_stated_with_its_length() {
        let found = |delay_s: u32, recorded_ns: Option<i64>| {
            let mut settings = Profiling::bundled(&Mode::LIGHT).unwrap();
            settings.nsys.delay_s = delay_s;
            let nsys = Some(Timeline { recorded_ns, ..Timeline::default() });
            find_short_recording(&Trace {
                settings: Some(settings),
                timeline: nsys,
                ..Trace::default()
            })
        };
        for (delay_s, recorded_ns, length) in [
            (2, Some(187_000), Some("0.187 ms")),
            (2, Some(0), Some("0.000 ms")),
            (2, Some(SHORT_NS - 1), Some("1000 ms")),
            (2, Some(SHORT_NS), None),
            (2, Some(-1), None),
            (2, None, None),
            (0, Some(187_000), None),
        ] {
            let message = found(delay_s, recorded_ns).map(|it| it.message.clone());
            let start = length.map(|length| format!("The recording is {length} long: "));
            let is_as_expected = match (&message, start) {
                (Some(message), Some(start)) => message.starts_with(&start),
                (None, None) => true,
                _ => false,
            };
            assert!(is_as_expected, "{delay_s} {recorded_ns:?}: {message:?}");
        }
        assert_eq!(find_short_recording(&Trace::default()), None);
    }
}
