//! Inputs that a sweep needs: prompts of a length, and inputs in the base itself. They are stored
//! like uploaded ones before the sweep, and removed if it is refused.

use std::collections::BTreeMap;

use llmprof_core::domain::ids::InputsId;
use serde_json::{Map, Value, json};

use crate::http::{
    api::{
        inputs,
        runs::{read_inline, submissions::InlineInputs},
    },
    auth::access::Caller,
    error::{ApiError, ErrorCode},
    state::App,
};

/// Inputs that were stored for a sweep.
#[derive(Debug, Default)]
pub(super) struct StoredPrompts {
    by_length: BTreeMap<u64, InputsId>,
    /// Not stored before.
    new: Vec<InputsId>,
}

impl StoredPrompts {
    /// The id of a prompt of so many tokens of a model without a tokenizer, for which bytes are
    /// tokens and one starts the text.
    pub async fn of_length(
        &mut self,
        app: &App,
        caller: &Caller,
        tokens: u64,
    ) -> Result<InputsId, ApiError> {
        if let Some(id) = self.by_length.get(&tokens) {
            return Ok(*id);
        }
        // As of the model runner's benchmarks: no letter is repeated in a row.
        let prompt = (1..tokens).map(|i| char::from(b'a' + (i * 7 % 26) as u8)).collect();
        let inputs = InlineInputs { prompt: Some(prompt), ..InlineInputs::default() };
        let id = self.store(app, caller, &inputs).await?;
        self.by_length.insert(tokens, id);
        Ok(id)
    }

    /// Stores the inputs that a base contains, once for all points, and names them in it.
    pub async fn store_inline(
        &mut self,
        app: &App,
        caller: &Caller,
        base: &mut Map<String, Value>,
    ) -> Result<(), ApiError> {
        let Some(given) = base.get("inputs").filter(|it| it.is_object()) else { return Ok(()) };
        let inline = serde_json::from_value(given.clone()).map_err(|error| {
            ApiError::new(ErrorCode::InvalidRequest, format!("base.inputs: {error}"))
        })?;
        let id = self.store(app, caller, &inline).await?;
        base.insert("inputs".into(), json!(id));
        Ok(())
    }

    async fn store(
        &mut self,
        app: &App,
        caller: &Caller,
        inline: &InlineInputs,
    ) -> Result<InputsId, ApiError> {
        let stored = read_inline(app, inline).await?.store(app, caller.name.clone()).await?;
        if stored.is_new {
            self.new.push(stored.id);
        }
        Ok(stored.id)
    }

    /// Removes the inputs of a refused sweep.
    pub async fn remove(&self, app: &App) -> Result<(), ApiError> {
        for id in &self.new {
            inputs::remove(app, *id).await?;
        }
        Ok(())
    }
}
