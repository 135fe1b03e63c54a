//! Failures of the host, not of a run: it has no more descriptors, processes, memory or space.

use std::{error::Error, io};

use llmprof_core::domain::{
    finding::{Finding, Severity, catalogue},
    outcome::Outcome,
    state::RunState,
};
use nix::errno::Errno;

use crate::artifact::free_space::LowSpace;

/// Exit code of a job that could not leave its result for such a reason (EX_TEMPFAIL).
pub const EXIT: u8 = 75;

/// The finding of a job that ended with [`EXIT`].
pub fn of_exit() -> Finding {
    let message = "the host had no resources to write the result; the run is requeued and no \
                   attempt is counted";
    Finding::new(catalogue::HOST_EXHAUSTED, message)
}

/// Returns the finding of a run that is requeued: one for which the host lacked resources, and that
/// did not succeed.
pub fn of_outcome(outcome: &Outcome) -> Option<&Finding> {
    let findings = outcome.findings.iter().filter(|_| outcome.state != RunState::Succeeded);
    findings.into_iter().find(|finding| finding.id == catalogue::HOST_EXHAUSTED)
}

/// The finding of a run that failed because the disk is full and still has no space for its start:
/// the run is requeued, and starts again when there is space.
pub fn of_full_disk(findings: &[Finding], low: LowSpace) -> Option<Finding> {
    full_disk(findings)?;
    let message = format!("{low}; the run is requeued and no attempt is counted");
    Some(Finding::new(catalogue::HOST_EXHAUSTED, message))
}

/// Returns the reason to repeat a run that failed because the disk was full. There is space now, so
/// the attempt is counted: the run may have filled the disk itself.
pub fn retry_reason(outcome: &Outcome) -> Option<String> {
    let finding = full_disk(&outcome.findings).filter(|_| outcome.state == RunState::Failed);
    finding.map(|finding| finding.message.clone())
}

/// The finding of a disk that was full before a run or during a pass.
fn full_disk(findings: &[Finding]) -> Option<&Finding> {
    findings.iter().find(|finding| {
        finding.id == catalogue::DISK_FULL
            || finding.id == catalogue::DISK_LOW && finding.severity == Severity::Critical
    })
}

/// Returns the finding if the error, or one of its causes, is a failure of the host.
pub fn finding(error: &(dyn Error + 'static)) -> Option<Finding> {
    finding_of(error, |_| true)
}

/// The same for a process with limits of its own on memory: a lack of memory, or of memory for a
/// thread, may be due to them.
pub fn finding_within_limits(error: &(dyn Error + 'static)) -> Option<Finding> {
    finding_of(error, |code| !matches!(code, Errno::ENOMEM | Errno::EAGAIN))
}

fn finding_of(
    error: &(dyn Error + 'static),
    is_of_host: impl Fn(Errno) -> bool,
) -> Option<Finding> {
    let mut cause = Some(error);
    let (lacks, remedy) = loop {
        let error = cause?;
        let code = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        let code = code.map(Errno::from_raw).filter(|code| is_of_host(*code));
        match code.and_then(missing) {
            Some(found) => break found,
            None => cause = error.source(),
        }
    };
    let finding = Finding::new(
        catalogue::HOST_EXHAUSTED,
        format!("the host has no more {lacks}; the run is requeued and no attempt is counted"),
    );
    Some(finding.with("error", llmprof_core::chain(error)).advise(remedy))
}

/// The missing resource and the remedy.
fn missing(error: Errno) -> Option<(&'static str, &'static str)> {
    match error {
        Errno::EMFILE | Errno::ENFILE => {
            Some(("file descriptors", "raise the limit of open files (ulimit -Hn, fs.file-max)"))
        }
        Errno::ENOSPC | Errno::EDQUOT => {
            Some(("space on the disk", "delete runs, or set budgets in [retention]"))
        }
        Errno::ENOMEM => Some(("memory", "stop other work on the host, or add memory")),
        // A new process.
        Errno::EAGAIN => Some(("processes", "raise the limit of processes (ulimit -u, pids.max)")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{artifact::free_space, collect::CollectError};

    #[test]
    fn only_failures_of_the_host_are_found_also_as_causes() {
        let of = |code: Errno| {
            let source = io::Error::from_raw_os_error(code as i32);
            finding(&CollectError::Run { program: "nsys".into(), source })
        };
        for (code, lacks) in [
            (Errno::EMFILE, "file descriptors"),
            (Errno::ENOSPC, "space on the disk"),
            (Errno::ENOMEM, "memory"),
            (Errno::EAGAIN, "processes"),
        ] {
            let found = of(code).unwrap();
            assert!(found.message.contains(lacks), "{}", found.message);
        }
        assert_eq!((of(Errno::ENOENT), of(Errno::EACCES)), (None, None));
        assert_eq!(finding(&io::Error::other("no code")), None);
    }

    #[test]
    fn a_full_disk_is_a_reason_to_repeat_a_failed_run_only() {
        let found = |id, severity| vec![Finding::new(id, "full").severity(severity)];
        let full = found(catalogue::DISK_FULL, Severity::Warning);
        let outcome = |state, findings: &[Finding]| Outcome {
            state,
            failed_step: None,
            message: None,
            findings: findings.to_vec(),
            artifacts: vec![],
            series: None,
        };
        for (state, findings, is_repeated) in [
            (RunState::Failed, full.clone(), true),
            (RunState::Failed, found(catalogue::DISK_LOW, Severity::Critical), true),
            (RunState::Failed, found(catalogue::DISK_LOW, Severity::Warning), false),
            (RunState::Failed, found(catalogue::RUN_TOO_LARGE, Severity::Warning), false),
            (RunState::Failed, vec![], false),
            (RunState::Partial, full.clone(), false),
            (RunState::Succeeded, full.clone(), false),
        ] {
            let reason = retry_reason(&outcome(state, &findings));
            assert_eq!(reason.is_some(), is_repeated, "{state} {findings:?}");
        }
        let low = free_space::for_start(Path::new("/"), u64::MAX).unwrap_err();
        let requeued = of_full_disk(&full, low).unwrap();
        assert!(requeued.message.starts_with("low disk space"), "{}", requeued.message);
        assert_eq!(
            of_outcome(&outcome(RunState::Failed, std::slice::from_ref(&requeued))),
            Some(&requeued)
        );
        assert_eq!(of_full_disk(&[], low), None);
    }

    #[test]
    fn a_lack_of_memory_is_not_the_hosts_where_the_process_has_a_limit() {
        let of = |code: Errno| finding_within_limits(&io::Error::from_raw_os_error(code as i32));
        assert_eq!((of(Errno::ENOMEM), of(Errno::EAGAIN)), (None, None));
        assert!(of(Errno::ENOSPC).is_some() && of(Errno::EMFILE).is_some());
    }
}
