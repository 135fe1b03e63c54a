//! Permission of the kernel to sample CPUs, for the doctor and for runs that request samples.

use std::fs;

use llmprof_core::{
    domain::{
        finding::catalogue,
        profiling::{CpuScope, NsysSettings},
    },
    trace::checkup::CheckResult,
};

use super::found;
use crate::collect::tools::permission::{PERFMON, SYS_ADMIN, has_capability, is_root};

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// Facts that decide the permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingRights {
    /// The kernel's `perf_event_paranoid`; `None` if unknown.
    pub paranoid: Option<i32>,
    /// The service is root, which nsys requires at a higher level, and has CAP_PERFMON or
    /// CAP_SYS_ADMIN, which the kernel requires.
    pub privileged: bool,
}

impl SamplingRights {
    pub fn read() -> Self {
        let level = fs::read_to_string(PARANOID).ok();
        Self {
            paranoid: level.and_then(|level| level.trim().parse().ok()),
            privileged: is_root() && has_capability(PERFMON | SYS_ADMIN),
        }
    }

    /// Returns the level and its maximum if the level forbids `scope`.
    fn violation(self, scope: CpuScope) -> Option<(i32, i32)> {
        let max = match scope {
            CpuScope::None => return None,
            CpuScope::ProcessTree => 2,
            CpuScope::SystemWide => 0,
        };
        let level = self.paranoid.filter(|level| *level > max && !self.privileged)?;
        Some((level, max))
    }
}

/// Checks for the doctor that nsys may sample the CPU, which no bundled mode requests.
pub fn perf_events(rights: SamplingRights) -> CheckResult {
    let Some(level) = rights.paranoid else {
        return Ok(
            "perf_event_paranoid is unknown; llmprof does not sample the CPU by default".into()
        );
    };
    if rights.violation(CpuScope::ProcessTree).is_some() {
        let message =
            format!("perf_event_paranoid is {level}: nsys cannot sample the CPU, off by default");
        let remedy = "sudo sysctl kernel.perf_event_paranoid=2";
        return Err(found(catalogue::PERF_EVENTS_RESTRICTED, message, remedy));
    }
    let scope = match rights.violation(CpuScope::SystemWide) {
        Some(_) => "its process tree, but not all processes (system-wide)",
        None => "all processes",
    };
    let by_root = if rights.privileged { ", which does not limit root" } else { "" };
    Ok(format!("perf_event_paranoid is {level}{by_root}: nsys may sample {scope}"))
}

/// Checks that nsys may take the samples and context switches that `settings` request.
pub fn cpu_sampling(settings: &NsysSettings, rights: SamplingRights) -> CheckResult {
    let scope = settings.cpu_scope();
    let Some((level, max)) = rights.violation(scope) else {
        return Ok(format!("nsys may sample the CPU: {scope}"));
    };
    let message = format!(
        "perf_event_paranoid is {level}, and {scope} sampling needs at most {max}: the timeline \
         will lack CPU samples or context switches"
    );
    let remedy = format!(
        "sudo sysctl kernel.perf_event_paranoid={max}, or start the service as root with \
         CAP_PERFMON (in a container: --cap-add PERFMON)"
    );
    let finding = found(catalogue::CPU_SAMPLING_DENIED, message, remedy);
    Err(finding.with("requested", scope).with("perf_event_paranoid", level))
}

#[cfg(test)]
mod tests {
    use llmprof_core::{
        domain::{finding::Severity, mode::Mode, profiling::Profiling},
        trace::checkup::{CheckState, HostCheck},
    };

    use super::*;

    fn rights(paranoid: i32) -> SamplingRights {
        SamplingRights { paranoid: Some(paranoid), privileged: false }
    }

    fn settings(sample: CpuScope, cpuctxsw: CpuScope) -> NsysSettings {
        NsysSettings { sample, cpuctxsw, ..Profiling::bundled(&Mode::DEEP).unwrap().nsys }
    }

    #[test]
    fn a_process_tree_is_sampled_up_to_level_2_and_all_processes_up_to_level_0() {
        use CpuScope::{None, ProcessTree, SystemWide};
        for (sample, cpuctxsw, max) in [
            (ProcessTree, None, 2),
            (None, ProcessTree, 2),
            (SystemWide, None, 0),
            (ProcessTree, SystemWide, 0),
        ] {
            let settings = settings(sample, cpuctxsw);
            assert!(cpu_sampling(&settings, rights(max)).is_ok());
            let finding = cpu_sampling(&settings, rights(max + 1)).unwrap_err();
            assert_eq!(
                (finding.id.as_str(), finding.severity),
                ("cpu_sampling_denied", Severity::Warning)
            );
            let advice = finding.advice.as_ref().unwrap();
            assert!(advice.contains(&format!("perf_event_paranoid={max}")), "{advice}");
        }
        assert!(cpu_sampling(&settings(None, None), rights(4)).is_ok(), "nothing is sampled");
    }

    #[test]
    fn a_privileged_service_samples_at_any_level_and_an_unknown_level_is_not_a_problem() {
        let system_wide = settings(CpuScope::SystemWide, CpuScope::SystemWide);
        let privileged = SamplingRights { privileged: true, ..rights(4) };
        assert!(cpu_sampling(&system_wide, privileged).is_ok());
        let allowed = perf_events(privileged).unwrap();
        let reason = "perf_event_paranoid is 4, which does not limit root: nsys may sample all";
        assert!(allowed.starts_with(reason), "{allowed}");
        let unknown = SamplingRights { paranoid: None, privileged: false };
        assert!(cpu_sampling(&system_wide, unknown).is_ok() && perf_events(unknown).is_ok());
    }

    #[test]
    fn restricted_perf_events_are_not_a_warning_since_the_cpu_is_not_sampled() {
        let allowed = perf_events(rights(2)).unwrap();
        assert!(allowed.starts_with("perf_event_paranoid is 2: nsys may sample its process tree"));
        assert!(perf_events(rights(0)).unwrap().ends_with("nsys may sample all processes"));
        let check = HostCheck::of("perf_event_paranoid", perf_events(rights(4)));
        assert_eq!(
            (check.state, check.remedy.as_deref()),
            (CheckState::Ok, Some("sudo sysctl kernel.perf_event_paranoid=2"))
        );
    }
}
