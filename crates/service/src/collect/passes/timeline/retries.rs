//! Failed attempts to record: whether another one is made, and the error if none succeeds.

use std::time::{Duration, Instant};

use crate::collect::{CollectError, ExitReason, tools::nsys};

/// A failed attempt to record.
pub(super) struct FailedAttempt {
    /// Name of the failed command's log.
    pub log: String,
    pub error: CollectError,
    /// Last time at which the target was running, if it was seen.
    pub target_seen: Option<Instant>,
}

/// Failed attempts that are repeated.
#[derive(Debug, Default)]
pub(super) struct Retries {
    /// Their errors: lines of nsys, or messages.
    pub reasons: Vec<String>,
    /// Error of the first attempt that hung.
    hang: Option<CollectError>,
    /// Longest time from the start of an attempt to the end of its target.
    ran: Duration,
}

impl Retries {
    /// Returns the pause before the next attempt, or the error of the recording. An attempt that
    /// failed by a race or hung is repeated if the target can end again in the time `left`. `ran`:
    /// time from the start of the attempt to the end of its target, if the target was seen.
    pub fn add(
        &mut self,
        error: CollectError,
        race: Option<String>,
        ran: Option<Duration>,
        left: Duration,
    ) -> Result<Duration, CollectError> {
        self.ran = self.ran.max(ran.unwrap_or_default());
        let is_hung = matches!(error, CollectError::Hung { .. });
        let pause = nsys::RETRY_PAUSE * (self.reasons.len() as u32 + 1);
        let can_repeat = self.reasons.len() < nsys::MAX_RETRIES && left > pause + self.ran;
        match race.or_else(|| is_hung.then(|| error.to_string())) {
            Some(reason) if can_repeat => {
                self.reasons.push(reason);
                if is_hung && self.hang.is_none() {
                    self.hang = Some(error);
                }
                Ok(pause)
            }
            _ => Err(self.stated(error)),
        }
    }

    /// Returns the error of the recording, whose `last` attempt failed: the first hang, if the last
    /// attempt also hung, exited or passed the deadline. Any other error has a reason of its own,
    /// such as a full disk.
    fn stated(&mut self, last: CollectError) -> CollectError {
        let follows = matches!(last, CollectError::Hung { .. })
            || matches!(last.ended(), Some(ExitReason::Exited(_) | ExitReason::DeadlinePassed));
        match self.hang.take() {
            Some(hang) if follows => hang,
            _ => last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::process::stall::Stall;

    const LONG: Duration = Duration::from_secs(600);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn hang(seconds: u64) -> CollectError {
        CollectError::Hung { stall: Stall::Idle(s(seconds)), target_seen: true }
    }

    fn ended(ended: ExitReason) -> CollectError {
        CollectError::Ended { what: "nsys profile", ended, last_words: vec![] }
    }

    #[test]
    fn a_hang_is_stated_unless_the_last_attempt_failed_for_a_reason_of_its_own() {
        let empty =
            || CollectError::Empty { what: "nsys profile", file: "x".into(), last_words: vec![] };
        for (last, is_hang) in [
            (hang(21), true),
            (ended(ExitReason::DeadlinePassed), true),
            (CollectError::Unfinished { alone: s(9) }, true),
            (ended(ExitReason::Exited(1)), true),
            (empty(), true),
            (ended(ExitReason::Stopped), false),
            (ended(ExitReason::DiskFull), false),
            (CollectError::NotInstalled { tool: "nsys" }, false),
        ] {
            let own = last.to_string();
            let expected = if is_hang { hang(20).to_string() } else { own.clone() };
            let mut retries = Retries::default();
            assert_eq!(retries.add(hang(20), None, Some(s(1)), LONG).unwrap(), s(1));
            let stated = retries.add(last, None, None, Duration::ZERO).unwrap_err();
            assert_eq!(stated.to_string(), expected, "after {own}");
        }
        let stated = Retries::default().add(ended(ExitReason::Exited(1)), None, None, LONG);
        assert_eq!(stated.unwrap_err().to_string(), ended(ExitReason::Exited(1)).to_string());
    }

    #[test]
    fn an_attempt_is_repeated_twice_and_only_if_its_target_can_end_before_the_deadline() {
        for race in [None, Some("Connection lost.".to_owned())] {
            let add = |retries: &mut Retries, ran: Option<u64>, left: u64| {
                let error = if race.is_none() { hang(20) } else { ended(ExitReason::Exited(0)) };
                retries.add(error, race.clone(), ran.map(s), s(left)).ok()
            };
            let mut retries = Retries::default();
            assert_eq!(add(&mut retries, Some(5), 100), Some(s(1)));
            assert_eq!(add(&mut retries, Some(1), 100), Some(s(2)));
            assert_eq!(add(&mut retries, Some(1), 100), None);
            assert_eq!(retries.reasons.len(), 2);
            // The pause counts, and the longest run of the target.
            for (ran, left, is_repeated) in
                [(Some(5), 6, false), (Some(5), 7, true), (None, 1, false), (None, 2, true)]
            {
                let repeated = add(&mut Retries::default(), ran, left);
                assert_eq!(repeated.is_some(), is_repeated, "{ran:?}, {left} s left");
            }
            let mut retries = Retries::default();
            assert!(add(&mut retries, Some(50), 100).is_some());
            assert!(add(&mut retries, Some(1), 52).is_none(), "the first attempt took 50 s");
        }
    }
}
