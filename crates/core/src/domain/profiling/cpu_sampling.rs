//! Scope of CPU sampling: the processes whose samples and context switches nsys records.

use super::{CpuScope, NsysSettings};

impl NsysSettings {
    /// The wider scope of CPU samples and context switches; scopes are ordered by width.
    pub fn cpu_scope(&self) -> CpuScope {
        self.sample.max(self.cpuctxsw)
    }

    /// True if processes outside the recorded process tree are sampled.
    pub fn is_system_wide(&self) -> bool {
        self.cpu_scope() == CpuScope::SystemWide
    }

    /// Error for a service that forbids system-wide sampling; `None` without such sampling.
    pub fn system_wide_refusal(&self) -> Option<String> {
        let fields = [("sample", self.sample), ("cpuctxsw", self.cpuctxsw)];
        let fields = fields.iter().filter(|(_, scope)| *scope == CpuScope::SystemWide);
        let names: Vec<String> = fields.map(|(name, _)| format!("profiling.nsys.{name}")).collect();
        (!names.is_empty()).then(|| {
            format!(
                "{}: system-wide sampling is not allowed on this host; request process-tree, or \
                 ask the operator to set tools.system_wide_sampling = true",
                names.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{mode::Mode, profiling::Profiling};

    fn settings(sample: CpuScope, cpuctxsw: CpuScope) -> NsysSettings {
        NsysSettings { sample, cpuctxsw, ..Profiling::bundled(&Mode::DEEP).unwrap().nsys }
    }

    #[test]
    fn samples_or_context_switches_alone_make_a_recording_system_wide() {
        use CpuScope::{None, ProcessTree, SystemWide};
        for (sample, cpuctxsw, scope) in [
            (None, None, None),
            (None, ProcessTree, ProcessTree),
            (SystemWide, None, SystemWide),
            (ProcessTree, SystemWide, SystemWide),
        ] {
            let settings = settings(sample, cpuctxsw);
            assert_eq!(settings.cpu_scope(), scope);
            assert_eq!(settings.is_system_wide(), scope == SystemWide);
            assert_eq!(settings.system_wide_refusal().is_some(), scope == SystemWide);
        }
    }

    #[test]
    fn a_refusal_names_each_field_and_the_setting_of_the_operator() {
        let of = |sample, cpuctxsw| settings(sample, cpuctxsw).system_wide_refusal().unwrap();
        let both = of(CpuScope::SystemWide, CpuScope::SystemWide);
        assert!(both.starts_with("profiling.nsys.sample, profiling.nsys.cpuctxsw: "), "{both}");
        assert!(both.contains("tools.system_wide_sampling = true"), "{both}");
        let one = of(CpuScope::ProcessTree, CpuScope::SystemWide);
        assert!(one.starts_with("profiling.nsys.cpuctxsw: system-wide sampling is not"), "{one}");
    }
}
