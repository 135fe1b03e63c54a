//! Links to the form of a run again, with settings that make its trace lighter.

use llmprof_analyze::stages::overhead::{MODE_EVIDENCE, OS_CALLS, TRACED_EVIDENCE};
use llmprof_core::domain::{finding::Finding, profiling::NsysSettings, subject::RunSpec};
use serde::Serialize;

/// A form that a finding leads to.
#[derive(Debug, Serialize)]
pub struct LighterForm {
    finding: String,
    /// Findings of one rule differ by their messages.
    message: String,
    /// In what it is lighter, after "run again".
    how: String,
    mode: Option<String>,
    setting: Option<String>,
}

/// The forms of a run's findings.
pub fn forms(spec: &RunSpec, findings: &[Finding]) -> Vec<LighterForm> {
    let nsys = spec.passes().and_then(|it| Some(&it.profiling.as_ref()?.nsys));
    findings.iter().filter_map(|finding| of_finding(finding, nsys)).collect()
}

fn of_finding(finding: &Finding, nsys: Option<&NsysSettings>) -> Option<LighterForm> {
    let mode = finding.evidence.get(MODE_EVIDENCE).cloned();
    let setting =
        finding.evidence.get(TRACED_EVIDENCE).and_then(|name| without_os_calls(name, nsys?));
    let in_mode = mode.as_ref().map(|mode| format!("in mode {mode}"));
    let without = setting.as_ref().map(|_| format!("without {OS_CALLS}"));
    let how: Vec<String> = in_mode.into_iter().chain(without).collect();
    (!how.is_empty()).then(|| LighterForm {
        finding: finding.id.clone(),
        message: finding.message.clone(),
        how: how.join(" and "),
        mode,
        setting,
    })
}

/// The setting `name`, a list of traced APIs, without calls of the operating system.
fn without_os_calls(name: &str, nsys: &NsysSettings) -> Option<String> {
    let traced = [("nsys.trace", &nsys.trace), ("nsys.trace_on_cpu", &nsys.trace_on_cpu)];
    let (_, apis) = traced.into_iter().find(|(setting, _)| *setting == name)?;
    let others: Vec<_> = apis.iter().filter(|api| **api != OS_CALLS).collect();
    Some(format!("{name}={}", serde_json::to_string(&others).ok()?))
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::{finding::catalogue, mode::Mode, profiling::Profiling};

    use super::*;

    #[test]
    fn a_form_has_the_lighter_mode_and_the_traced_apis_without_calls_of_the_system() {
        let nsys = Profiling::bundled(&Mode::DEEP).unwrap().nsys;
        let found = Finding::new(catalogue::OVERHEAD_HIGH, "Tracing lengthened decode by 30 %.");
        assert!(of_finding(&found, Some(&nsys)).is_none());
        let found = found.with(TRACED_EVIDENCE, "nsys.trace_on_cpu");
        let form = of_finding(&found, Some(&nsys)).unwrap();
        assert_eq!(form.setting.as_deref(), Some(r#"nsys.trace_on_cpu=["nvtx"]"#));
        let form = of_finding(&found.with(MODE_EVIDENCE, "light"), Some(&nsys)).unwrap();
        assert_eq!(form.how, "in mode light and without osrt");
        assert_eq!(form.mode.as_deref(), Some("light"));
    }
}
