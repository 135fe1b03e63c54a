//! Fields of an upload: model, labels and rules for ranges, from its query and its form.

use llmprof_core::{
    domain::{
        import::{Import, ImportedFile},
        stated_model::{CaptureStatement, ModelStatement},
        subject::{Common, RunSpec, Subject},
    },
    trace::stage::parse_stages,
};
use sha2::{Digest, Sha256};

use crate::{
    config::Models,
    http::{
        api::runs::{check_labels, check_revision, deduplicated, submissions::Label},
        error::{ApiError, ErrorCode},
        extract::{
            bounds::{check_length, check_range, check_text},
            upload::set_once,
        },
    },
};

const MAX_RULES: usize = 32;
const MAX_TEXT: usize = 200;
/// Time limit of an import.
const IMPORT_TIMEOUT_S: u32 = 1800;

/// Hash of the fields and files of an upload, independent of the form's encoding.
#[derive(Debug, Default)]
pub(super) struct UploadHash(Sha256);

impl UploadHash {
    pub(super) fn add(&mut self, parts: &[&dyn AsRef<[u8]>]) {
        for part in parts {
            let part = (*part).as_ref();
            self.0.update((part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
    }

    pub(super) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// Fields of an upload.
#[derive(Debug, Clone, Default)]
pub(super) struct UploadFields {
    pub(super) name: Option<String>,
    model: Option<String>,
    labels: Vec<Label>,
    revision: Option<String>,
    stages: Vec<String>,
    include_ranges: Vec<String>,
    exclude_ranges: Vec<String>,
    statement: ModelStatement,
    /// Resolved from `statement` by [`Self::check`].
    stated: CaptureStatement,
    /// Check the files only.
    pub(super) dry_run: Option<bool>,
}

impl UploadFields {
    /// Adds fields and hashes them; `code` is the error of an unknown or repeated field.
    pub(super) fn add_all(
        &mut self,
        fields: Vec<(String, String)>,
        hash: &mut UploadHash,
        code: ErrorCode,
    ) -> Result<(), ApiError> {
        for (name, text) in fields {
            hash.add(&[&name, &text]);
            self.add(&name, text).map_err(|message| ApiError::new(code, message))?;
        }
        Ok(())
    }

    fn add(&mut self, name: &str, text: String) -> Result<(), String> {
        match name {
            "name" => set_once(&mut self.name, name, text)?,
            "model" => set_once(&mut self.model, name, text)?,
            "revision" => set_once(&mut self.revision, name, text)?,
            "label" => self.labels.push(Label(text)),
            "stage" => self.stages.push(text),
            "include_ranges" => self.include_ranges.push(text),
            "exclude_ranges" => self.exclude_ranges.push(text),
            "dry_run" => {
                let invalid = |_| format!("dry_run: {text:.20}; expected true or false");
                set_once(&mut self.dry_run, name, text.parse().map_err(invalid)?)?;
            }
            _ => {
                let field = self.statement.field(name).ok_or_else(|| {
                    format!(
                        "unknown field {name:.40}; expected name, model, label, revision, \
                         stage, include_ranges, exclude_ranges, {} or dry_run",
                        ModelStatement::FIELDS.join(", ")
                    )
                })?;
                set_once(field, name, text)?;
            }
        }
        Ok(())
    }

    /// Checks what a query may have less of than a form: the name of a model, not its text.
    pub(super) fn check_query(&self) -> Result<(), ApiError> {
        let model = self.statement.model_config.as_deref().unwrap_or_default();
        check_length("model_config", model, 0..=MAX_TEXT)
    }

    /// Checks the fields against the contract and the configured models.
    pub(super) fn check(&mut self, models: &Models) -> Result<(), ApiError> {
        let invalid = |message: String| ApiError::new(ErrorCode::InvalidRequest, message);
        self.stated =
            self.statement.of_capture(models).map_err(|error| invalid(error.to_string()))?;
        check_labels(&self.labels)?;
        check_revision(self.revision.as_deref())?;
        check_length("name", self.name.as_deref().unwrap_or_default(), 0..=MAX_TEXT)?;
        if let Some(model) = &self.model {
            check_text("model", model, 1..=MAX_TEXT)?;
        }
        for (name, texts) in [
            ("stage", &self.stages),
            ("include_ranges", &self.include_ranges),
            ("exclude_ranges", &self.exclude_ranges),
        ] {
            check_range(name, texts.len(), 0..=MAX_RULES)?;
            for text in texts {
                check_length(&format!("an item of {name}"), text, 1..=MAX_TEXT)?;
            }
        }
        parse_stages(&self.stages).map(drop).map_err(|error| invalid(format!("stage: {error}")))
    }

    /// An import of `files` with these rules.
    pub(super) fn import(&self, files: Vec<ImportedFile>) -> Import {
        let Self { model, stages, include_ranges, exclude_ranges, stated, .. } = self.clone();
        let (computes, new_tokens) = (stated.model.map(Box::new), stated.steps);
        let name = files.first().map(|file| file.name.clone()).unwrap_or_default();
        Import { name, model, files, stages, include_ranges, exclude_ranges, computes, new_tokens }
    }

    pub(super) fn spec(self, import: Import) -> RunSpec {
        let (labels, revision) = (deduplicated(self.labels), self.revision);
        let common = Common { labels, revision, timeout_s: IMPORT_TIMEOUT_S, ..Common::default() };
        RunSpec { subject: Subject::Import(import), common }
    }
}
