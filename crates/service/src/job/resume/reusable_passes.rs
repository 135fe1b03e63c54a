//! The order in which finished passes are used: without a gap, from the first one.

use std::{collections::VecDeque, mem};

use llmprof_core::domain::pass_conditions::PassConditions;

use crate::artifact::finished_passes::{FinishedPass, FinishedPasses};

/// Finished passes of this and of earlier attempts.
#[derive(Debug, Default)]
pub(in crate::job) struct ReusablePasses {
    /// Conditions of this attempt; `None`: nothing is recorded.
    conditions: Option<PassConditions>,
    /// Passes that count for this attempt.
    used: Vec<FinishedPass>,
    /// Passes of earlier attempts that it has not reached yet.
    next: VecDeque<FinishedPass>,
}

impl ReusablePasses {
    /// An attempt under `conditions` that may use `earlier` passes.
    pub fn new(conditions: PassConditions, earlier: Vec<FinishedPass>) -> Self {
        Self { conditions: Some(conditions), used: Vec::new(), next: earlier.into() }
    }

    pub fn are_recorded(&self) -> bool {
        self.conditions.is_some()
    }

    /// The finished pass of this name, which must be the next one. Otherwise an error with the
    /// passes that are left: they are of an order that this attempt does not have.
    pub fn take(&mut self, name: &str) -> Result<FinishedPass, Vec<FinishedPass>> {
        match self.next.pop_front_if(|pass| pass.name == name) {
            Some(pass) => {
                self.used.push(pass.clone());
                Ok(pass)
            }
            None => Err(mem::take(&mut self.next).into()),
        }
    }

    /// Adds a pass that finished in this attempt.
    pub fn add(&mut self, pass: FinishedPass) {
        self.used.push(pass);
    }

    /// The passes to use after an interruption; `None` before the conditions are known.
    pub fn recorded(&self) -> Option<FinishedPasses> {
        let conditions = self.conditions.clone()?;
        let passes = self.used.iter().chain(&self.next).cloned().collect();
        Some(FinishedPasses { conditions, passes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(name: &str) -> FinishedPass {
        FinishedPass {
            name: name.into(),
            attempt: 1,
            started_at: String::new(),
            ended_at: String::new(),
            findings: vec![],
            files: vec![],
        }
    }

    fn names<'a>(passes: impl IntoIterator<Item = &'a FinishedPass>) -> Vec<&'a str> {
        passes.into_iter().map(|pass| pass.name.as_str()).collect()
    }

    fn of(earlier: &[&str]) -> ReusablePasses {
        let earlier = earlier.iter().map(|name| pass(name)).collect();
        ReusablePasses::new(PassConditions::default(), earlier)
    }

    #[test]
    fn passes_are_used_in_order_and_stay_recorded_while_they_are_not_reached() {
        let mut passes = of(&["baseline", "nsys"]);
        assert_eq!(passes.take("baseline").unwrap().name, "baseline");
        assert_eq!(names(&passes.recorded().unwrap().passes), ["baseline", "nsys"]);
        assert_eq!(passes.take("nsys").unwrap().name, "nsys");
        assert!(passes.take("ncu/prefill").unwrap_err().is_empty());
        passes.add(pass("ncu/prefill"));
        assert_eq!(names(&passes.recorded().unwrap().passes), ["baseline", "nsys", "ncu/prefill"]);
    }

    #[test]
    fn a_pass_that_is_repeated_ends_the_use_of_those_after_it() {
        let mut passes = of(&["baseline", "ncu/prefill", "gemm_log"]);
        assert!(passes.take("baseline").is_ok());
        assert_eq!(names(&passes.take("nsys").unwrap_err()), ["ncu/prefill", "gemm_log"]);
        assert_eq!(names(&passes.recorded().unwrap().passes), ["baseline"]);
        assert!(passes.take("gemm_log").unwrap_err().is_empty());
    }

    #[test]
    fn without_conditions_nothing_is_recorded() {
        let mut passes = ReusablePasses::default();
        assert!(passes.take("baseline").unwrap_err().is_empty());
        passes.add(pass("baseline"));
        assert_eq!(passes.recorded(), None);
        assert!(!passes.are_recorded());
    }
}
