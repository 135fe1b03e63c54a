//! The catalogue of findings. Each has a stable id, by which programs refer to it.
//!
//! `specs/findings.md` is generated from it: `LLMPROF_BLESS=1 cargo test --package llmprof-core
//! finding` writes it.

use super::Severity;

/// The properties that all findings of one id share.
#[derive(Debug, PartialEq, Eq)]
pub struct FindingKind {
    /// Snake case.
    pub id: &'static str,
    /// The usual one, then others that depend on the evidence.
    pub severities: &'static [Severity],
    /// The evidence.
    pub fires_on: &'static str,
    /// The remedy of findings that have none of their own.
    pub advice: Option<&'static str>,
    /// Upper bound of the time saved by the remedy; `None` if it is unknown.
    pub max_saving: Option<&'static str>,
}

/// The id of a finding. Only this catalogue makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FindingId(&'static FindingKind);

impl std::ops::Deref for FindingId {
    type Target = FindingKind;

    fn deref(&self) -> &FindingKind {
        self.0
    }
}

impl PartialEq<FindingId> for String {
    fn eq(&self, id: &FindingId) -> bool {
        self == id.id
    }
}

const fn first(of: &'static [&'static str]) -> Option<&'static str> {
    if of.is_empty() { None } else { Some(of[0]) }
}

/// Declares the findings of one topic.
macro_rules! findings {
    ($(
        $name:ident = $id:literal, [$($severity:ident),+],
        fires_on: $fires_on:literal
        $(, advice: $advice:literal)?
        $(, saving: $saving:literal)?;
    )+) => {
        $(
            #[doc = concat!("Fires on: ", $fires_on, ".")]
            pub const $name: FindingId = FindingId(&FindingKind {
                id: $id,
                severities: &[$(Severity::$severity),+],
                fires_on: $fires_on,
                advice: first(&[$($advice)?]),
                max_saving: first(&[$($saving)?]),
            });
        )+

        pub(super) const ALL: &[FindingId] = &[$($name),+];
    };
}

mod collectives;
mod commands;
mod host;
mod kernels;
mod ledger;
mod passes;
mod readers;
mod servers;
mod stages;
mod timeline;

pub use self::{
    collectives::*, commands::*, host::*, kernels::*, ledger::*, passes::*, readers::*, servers::*,
    stages::*, timeline::*,
};

/// All findings, by topic.
pub const TOPICS: [(&str, &[FindingId]); 10] = [
    ("The run, its outputs and its timeline", timeline::ALL),
    ("Stages, steps and operators", stages::ALL),
    ("Collective operations", collectives::ALL),
    ("The gap ledger", ledger::ALL),
    ("Kernels: counters, samples, GEMMs, power", kernels::ALL),
    ("The host, by the preflight and by `llmprof doctor`", host::ALL),
    ("Passes and run steps", passes::ALL),
    ("Servers under a load", servers::ALL),
    ("Commands and imports", commands::ALL),
    ("Readers of files", readers::ALL),
];

/// The finding of this id.
pub fn named(id: &str) -> Option<FindingId> {
    TOPICS.iter().flat_map(|(_, all)| *all).find(|it| it.id == id).copied()
}

/// All findings.
pub fn all() -> impl Iterator<Item = FindingId> {
    TOPICS.into_iter().flat_map(|(_, ids)| ids.iter().copied())
}
