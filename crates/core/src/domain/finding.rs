//! Findings: observations worth a reader's attention, each with severity, evidence and advice.

pub mod catalogue;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::catalogue::FindingId;
use super::named_values::named_values;

/// Words that start a sentence with a capital letter; other words may be names, such as `nsys`.
const FIRST_WORDS: [&str; 10] =
    ["a", "an", "another", "cannot", "its", "no", "only", "the", "there", "this"];

named_values! {
    /// Severity of a finding.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    Severity {
        Info = "info",
        Warning = "warning",
        Critical = "critical",
    }
}

/// An observation with its evidence. Only the catalogue and this type's methods make or change one;
/// its fields are read.
///
/// A literal, an update of another finding, and an assignment do not compile:
///
/// ```compile_fail,E0423
/// # use llmprof_core::domain::finding::{Finding, FindingFields};
/// # fn of(fields: FindingFields) {
/// let made = Finding(fields);
/// # }
/// ```
/// ```compile_fail,E0639
/// # use llmprof_core::domain::finding::{FindingFields, Severity};
/// let made = FindingFields {
///     id: String::new(),
///     severity: Severity::Info,
///     message: String::new(),
///     evidence: Default::default(),
///     advice: None,
///     max_saving: None,
/// };
/// ```
/// ```compile_fail,E0639
/// # use llmprof_core::domain::finding::FindingFields;
/// # fn of(fields: FindingFields) {
/// let made = FindingFields { message: String::new(), ..fields };
/// # }
/// ```
/// ```compile_fail,E0594
/// # use llmprof_core::domain::finding::{Finding, catalogue};
/// let mut changed = Finding::new(catalogue::NO_GPU, "no GPU");
/// changed.message = String::new();
/// ```
/// ```
/// # use llmprof_core::domain::finding::{Finding, catalogue};
/// let stated = Finding::new(catalogue::NO_GPU, "no GPU").with("device", "cuda:0");
/// assert_eq!((stated.message.as_str(), stated.evidence["device"].as_str()), ("no GPU", "cuda:0"));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Finding(FindingFields);

/// An observation with its evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct FindingFields {
    /// Stable name of the rule, snake case.
    #[cfg_attr(feature = "schema", schema(example = "nsys_missing"))]
    pub id: String,
    pub severity: Severity,
    /// The observation in one sentence.
    pub message: String,
    /// Rows or figures that support it, by name.
    #[serde(default)]
    pub evidence: BTreeMap<String, String>,
    /// Recommended action.
    pub advice: Option<String>,
    /// Upper bound of the time that the action saves; `null` if it is unknown.
    #[serde(default, alias = "saves_at_most")]
    pub max_saving: Option<Box<Saving>>,
}

/// Time that could be saved: an upper bound, not a promise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Saving {
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    /// Milliseconds per repeat.
    pub ms: Option<f64>,
    /// Share of the stage's mean time without an unrecorded wait, percent.
    pub pct: f64,
}

impl std::ops::Deref for Finding {
    type Target = FindingFields;

    fn deref(&self) -> &FindingFields {
        &self.0
    }
}

#[cfg(feature = "schema")]
impl utoipa::PartialSchema for Finding {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        <FindingFields as utoipa::PartialSchema>::schema()
    }
}

/// The schema of its fields, under its own name.
#[cfg(feature = "schema")]
impl utoipa::ToSchema for Finding {
    fn schemas(
        schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::schema::Schema>)>,
    ) {
        <FindingFields as utoipa::ToSchema>::schemas(schemas);
    }
}

impl Finding {
    /// Creates a finding without evidence, of the usual severity and with the usual advice.
    pub fn new(id: FindingId, message: impl Into<String>) -> Self {
        Self(FindingFields {
            id: id.id.into(),
            severity: id.severities[0],
            message: message.into(),
            evidence: BTreeMap::new(),
            advice: id.advice.map(Into::into),
            max_saving: None,
        })
    }

    /// The same with another severity, which the catalogue has of its id.
    pub fn severity(mut self, severity: Severity) -> Self {
        let is_known = |id: FindingId| self.id == id && id.severities.contains(&severity);
        debug_assert!(catalogue::all().any(is_known), "{severity} of {}", self.id);
        self.0.severity = severity;
        self
    }

    /// The same with its message as a sentence. Checks and errors start with a small letter.
    pub fn as_sentence(mut self) -> Self {
        let first = self.message.split(' ').next().unwrap_or_default();
        if FIRST_WORDS.contains(&first) {
            self.0.message[..1].make_ascii_uppercase();
        }
        self
    }

    /// Adds the finding to `findings`, unless findings with its id have all of its evidence.
    pub fn add_to(self, findings: &mut Vec<Self>) {
        let same: Vec<&Self> = findings.iter().filter(|it| it.id == self.id).collect();
        let has = |name: &String| same.iter().any(|it| it.evidence.contains_key(name));
        if same.is_empty() || !self.evidence.keys().all(has) {
            findings.push(self);
        }
    }

    /// The same with one more row of evidence.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.add_evidence(name, value);
        self
    }

    /// Adds one row of evidence.
    pub fn add_evidence(&mut self, name: &str, value: impl ToString) {
        self.0.evidence.insert(name.into(), value.to_string());
    }

    /// Writes `name` for the file `stored` in the message, as its client knows it.
    pub fn rename_file(&mut self, stored: &str, name: &str) {
        self.0.message = self.0.message.replace(stored, name);
    }

    /// Sets the upper bound of the time that the advice saves.
    pub fn saves(mut self, saving: Option<Saving>) -> Self {
        self.0.max_saving = saving.map(Box::new);
        self
    }

    /// Sets the recommended action.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// The same without advice, next to a finding that has it.
    pub fn without_advice(mut self) -> Self {
        self.0.advice = None;
        self
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

    use super::*;

    #[test]
    fn the_specification_lists_the_catalogue() {
        let mut text = "# Findings\n\n\
             A finding is stated only on its evidence. Programs refer to it by its id, which is \
             stable. Where several severities are given, the evidence decides, and where no \
             advice is given, it depends on the evidence. A finding whose advice can save less \
             than 3 % of its stage is not stated. \
             [docs/troubleshooting.md](../docs/troubleshooting.md) has causes and remedies. \
             Generated from the catalogue: `LLMPROF_BLESS=1 cargo test --package llmprof-core \
             finding` writes it.\n"
            .to_owned();
        for (topic, ids) in catalogue::TOPICS {
            write!(
                text,
                "\n## {topic}\n| Id | Severity | Fires on | Advice | Max saving |\n\
                 | --- | --- | --- | --- | --- |\n"
            )
            .unwrap();
            for id in ids {
                let severities: Vec<&str> = id.severities.iter().map(|it| it.as_str()).collect();
                writeln!(
                    text,
                    "| `{}` | {} | {} | {} | {} |",
                    id.id,
                    severities.join(" or "),
                    id.fires_on,
                    id.advice.unwrap_or_default(),
                    id.max_saving.unwrap_or_default()
                )
                .unwrap();
            }
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../specs/findings.md");
        if std::env::var_os("LLMPROF_BLESS").is_some() {
            fs::write(&path, &text).unwrap();
        }
        assert!(
            fs::read_to_string(&path).is_ok_and(|kept| kept == text),
            "specs/findings.md is out of date; run LLMPROF_BLESS=1 cargo test --package \
             llmprof-core finding"
        );
    }

    #[test]
    fn every_finding_of_the_catalogue_has_an_id_of_its_own_and_its_evidence() {
        let ids: BTreeSet<&str> = catalogue::all().map(|id| id.id).collect();
        assert_eq!(ids.len(), catalogue::all().count());
        assert!(catalogue::all().all(|id| !id.fires_on.is_empty()));
    }

    #[test]
    fn a_finding_is_added_next_to_others_of_its_id_unless_they_have_its_evidence() {
        let dropped = |at, file| Finding::new(catalogue::RUN_TOO_LARGE, "").with(file, at);
        let mut findings = vec![Finding::new(catalogue::DISK_FULL, "")];
        for (at, file) in ["a", "b", "a"].into_iter().enumerate() {
            dropped(at, file).add_to(&mut findings);
        }
        dropped(3, "a").with("b", 3).add_to(&mut findings);
        assert_eq!(findings[1..], [dropped(0, "a"), dropped(1, "b")]);
        dropped(4, "a").with("c", 4).add_to(&mut findings);
        assert_eq!(findings.len(), 4, "each has the evidence of its own message");
    }

    #[test]
    fn a_finding_is_stored_as_its_fields_and_read_as_it_was() {
        let mut finding = Finding::new(catalogue::NO_GPU, "cannot read capture.bin").advise("x");
        finding.rename_file("capture.bin", "run.sqlite");
        finding.add_evidence("devices", 0);
        let finding = finding.without_advice();
        let stored = serde_json::to_value(&finding).unwrap();
        let expected = serde_json::json!({
            "id": "no_gpu", "severity": finding.severity.as_str(), "advice": null,
            "message": "cannot read run.sqlite", "evidence": { "devices": "0" },
            "max_saving": null,
        });
        assert_eq!(stored, expected);
        assert_eq!(serde_json::from_value::<Finding>(stored).unwrap(), finding);
    }

    #[test]
    fn a_sentence_starts_with_a_capital_letter_or_a_name() {
        for (message, sentence) in [
            ("this host has no usable NVIDIA GPU", "This host has no usable NVIDIA GPU"),
            ("cannot read the timeline", "Cannot read the timeline"),
            ("nsys is older than the driver", "nsys is older than the driver"),
            ("prefill, layer 3: no kernels", "prefill, layer 3: no kernels"),
            ("Vision takes 50 % of prefill", "Vision takes 50 % of prefill"),
            ("", ""),
        ] {
            let finding = Finding::new(catalogue::NO_GPU, message);
            assert_eq!(finding.as_sentence().message, sentence);
        }
    }
}
