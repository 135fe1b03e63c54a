//! Links to the form of a run again, with settings that make its trace lighter.

use llmprof_analyze::stages::overhead::lighter::{SETTINGS_EVIDENCE, SETTINGS_SEPARATOR};
use llmprof_core::domain::finding::Finding;
use serde::Serialize;

/// A form that a finding leads to.
#[derive(Debug, Serialize)]
pub struct LighterForm {
    finding: String,
    /// Findings of one rule differ by their messages.
    message: String,
    /// Changes of the settings, each on a line.
    settings: String,
}

/// The forms of a run's findings.
pub fn forms(findings: &[Finding]) -> Vec<LighterForm> {
    findings.iter().filter_map(of_finding).collect()
}

fn of_finding(finding: &Finding) -> Option<LighterForm> {
    let settings = finding.evidence.get(SETTINGS_EVIDENCE)?;
    Some(LighterForm {
        finding: finding.id.clone(),
        message: finding.message.clone(),
        settings: settings.replace(SETTINGS_SEPARATOR, "\n"),
    })
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::finding::catalogue;

    use super::*;

    #[test]
    fn a_form_has_each_lighter_setting_of_its_finding_on_a_line() {
        let found = Finding::new(catalogue::OVERHEAD_HIGH, "Tracing lengthened decode by 30 %.");
        assert!(of_finding(&found).is_none());
        let settings = [r#"nsys.trace=["cuda","nvtx"]"#, "nsys.sample=none"];
        let found = found.with(SETTINGS_EVIDENCE, settings.join(SETTINGS_SEPARATOR));
        let form = of_finding(&found).unwrap();
        assert_eq!(form.settings.lines().collect::<Vec<_>>(), settings);
    }
}
