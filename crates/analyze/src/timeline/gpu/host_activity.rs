//! Activities of the host that gaps are named by. The start of a name shows the activity.

/// Start of the names of gaps before calls that load code: the host chooses or builds it before the
/// call, which takes little time itself.
pub const LOADING: &str = "preparation of code for";

/// Start of the names of gaps in which the host is in a range of the program, which is not a call.
pub const IN_RANGE: &str = "the range ";

/// Starts of the names of gaps in which the host is in a call of the operating system, which works
/// or waits.
pub const OS_CALL: &str = "the OS call ";
pub const OS_WAIT: &str = "a wait in ";

/// Activity of the host that names a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostActivity {
    /// An operator or a function of CUDA.
    Call,
    /// A range of the program.
    Range,
    /// Code is loaded at the end of the gap.
    Loading,
    /// A call of the operating system.
    OsCall,
    /// A call of the operating system in which the thread waits or sleeps.
    OsWait,
}

impl HostActivity {
    /// The activity that a gap is named by.
    pub fn of(name: &str) -> Self {
        let starts = [
            (IN_RANGE, Self::Range),
            (LOADING, Self::Loading),
            (OS_CALL, Self::OsCall),
            (OS_WAIT, Self::OsWait),
        ];
        starts.into_iter().find(|it| name.starts_with(it.0)).map_or(Self::Call, |it| it.1)
    }

    /// True for a call of the operating system, which works or waits.
    pub fn is_of_os(self) -> bool {
        matches!(self, Self::OsCall | Self::OsWait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_name_shows_the_activity() {
        for (name, activity) in [
            ("the range load_*".to_owned(), HostActivity::Range),
            (format!("{LOADING} cuModuleLoad"), HostActivity::Loading),
            (format!("{OS_CALL}getc"), HostActivity::OsCall),
            (format!("{OS_WAIT}poll"), HostActivity::OsWait),
            ("cudaMalloc".to_owned(), HostActivity::Call),
            ("aten::nonzero".to_owned(), HostActivity::Call),
        ] {
            assert_eq!(HostActivity::of(&name), activity, "{name}");
            assert_eq!(activity.is_of_os(), name.contains("getc") || name.contains("poll"));
        }
    }
}
