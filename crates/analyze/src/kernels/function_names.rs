//! Names of a capture's kernels in the form that all tools share.

use foldhash::HashMap;
use llmprof_core::trace::{
    kernel::LaunchKind,
    names::{base_name, signature},
    timeline::Timeline,
};

/// Function name and signature of each kernel, by indices of its short and full name.
#[derive(Debug, Default)]
pub struct FunctionNames(HashMap<(u32, u32), (String, String)>);

impl FunctionNames {
    pub fn of(trace: &Timeline) -> Self {
        let text = |at: u32| trace.text(at);
        let mut names = HashMap::default();
        for kind in trace.kernels.kinds() {
            names.entry((kind.name, kind.full_name)).or_insert_with(|| {
                (base_name(text(kind.name)).to_owned(), signature(text(kind.full_name)))
            });
        }
        Self(names)
    }

    /// Function name and signature of a kernel; the signature is empty if the capture has only the
    /// name.
    pub fn get(&self, kind: &LaunchKind) -> (&str, &str) {
        let names = self.0.get(&(kind.name, kind.full_name));
        names.map_or(("", ""), |(name, signature)| (name, signature))
    }
}
