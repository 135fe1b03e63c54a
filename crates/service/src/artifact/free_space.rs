//! Free space on the disk of a data folder: the reserve below which submissions are refused, and
//! the space above it that a run needs to start.

use std::{fmt, io, path::Path};

/// Space above the reserve that a run needs for its events, logs and reports. With less, its first
/// files would reach the reserve, and end it.
pub const START_BYTES: u64 = 64 << 20;

/// Free space that is too small, with the smallest sufficient amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LowSpace {
    free: u64,
    required: u64,
    reserve: u64,
}

impl fmt::Display for LowSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { free, required, reserve } = self;
        write!(f, "low disk space: {free} bytes free, ")?;
        if required == reserve {
            write!(f, "limits.free_bytes requires {required}; delete some runs")
        } else {
            write!(
                f,
                "the start of a run requires {required} (limits.free_bytes plus {START_BYTES}); \
                 delete some runs"
            )
        }
    }
}

/// Free space on the disk of `dir`, bytes.
pub fn free_bytes(dir: &Path) -> io::Result<u64> {
    let disk = nix::sys::statvfs::statvfs(dir)?;
    Ok(disk.blocks_available() * disk.fragment_size())
}

/// Refuses a submission if the disk of `dir` has less free space than the `reserve`. If the free
/// space is unknown, the submission is accepted.
pub fn for_submission(dir: &Path, reserve: u64) -> Result<(), LowSpace> {
    free_bytes(dir).map_or(Ok(()), |free| above(free, reserve, 0))
}

/// The same for the start of a run, which needs [`START_BYTES`] above the reserve.
pub fn for_start(dir: &Path, reserve: u64) -> Result<(), LowSpace> {
    free_bytes(dir).map_or(Ok(()), |free| above(free, reserve, START_BYTES))
}

fn above(free: u64, reserve: u64, more: u64) -> Result<(), LowSpace> {
    let required = reserve.saturating_add(more);
    if free < required { Err(LowSpace { free, required, reserve }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_start_of_a_run_needs_more_space_than_its_submission() {
        // Reserve, free space, if a submission is accepted, if a run starts.
        for (reserve, free, submits, starts) in [
            (GIB, 0, false, false),
            (GIB, GIB - 1, false, false),
            (GIB, GIB, true, false),
            (GIB, GIB + START_BYTES - 1, true, false),
            (GIB, GIB + START_BYTES, true, true),
            (0, 0, true, false),
            (0, START_BYTES, true, true),
            (u64::MAX, u64::MAX - 1, false, false),
        ] {
            let found =
                (above(free, reserve, 0).is_ok(), above(free, reserve, START_BYTES).is_ok());
            assert_eq!(found, (submits, starts), "{free} bytes free, reserve {reserve}");
        }
    }

    #[test]
    fn low_space_names_the_setting_and_the_remedy() {
        for more in [0, START_BYTES] {
            let text = above(5, GIB, more).unwrap_err().to_string();
            assert!(text.starts_with("low disk space: 5 bytes free"), "{text}");
            assert!(text.contains("limits.free_bytes"), "{text}");
            assert!(text.ends_with("delete some runs"), "{text}");
        }
    }

    #[test]
    fn an_unknown_amount_refuses_nothing() {
        let missing = Path::new("/nowhere/at/all");
        assert_eq!(for_submission(missing, u64::MAX), Ok(()));
        assert_eq!(for_start(missing, u64::MAX), Ok(()));
    }
}
