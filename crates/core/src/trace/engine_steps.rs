//! Steps of inference engines, by the names of their ranges, which carry the work of the step.
//!
//! The patterns are data: `conf/engines/`.

use super::engines::{Engine, KnownEngine, StepPattern, StepScopes, known};
use crate::domain::named_values::named_values;

/// Longer names are not matched.
const MAX_NAME: usize = 400;

/// Stage of steps that prefill some requests and decode others.
pub const MIXED: &str = "mixed";
/// Stage of steps without requests.
pub const IDLE: &str = "idle";

named_values! {
    /// Work of a step.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    StepClass {
        /// It reads prompts only.
        Prefill = "prefill",
        /// It generates one token, or a few, of each request.
        Decode = "decode",
        /// It does both.
        Mixed = "mixed",
        /// It has no requests: a rank that keeps the others company, or a step that only receives.
        Idle = "idle",
        /// A phase of a decode step: a smaller model proposes tokens.
        Draft = "draft",
        /// A phase of a decode step: the model verifies the proposed tokens.
        Verify = "verify",
        /// A phase of a decode step: the smaller model reads the accepted tokens.
        DraftExtend = "draft_extend",
        /// A mode that is not known: its stage has the engine's own word.
        Other = "other",
    }
}

/// One phase of a decode step by speculation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    pub class: StepClass,
    pub start_ns: i64,
    pub end_ns: i64,
}

impl StepClass {
    /// The stage of such steps; `None` for a mode that is not known.
    pub const fn stage(self) -> Option<&'static str> {
        match self {
            Self::Prefill => Some("prefill"),
            Self::Decode | Self::Draft | Self::Verify | Self::DraftExtend => Some("decode_all"),
            Self::Mixed => Some(MIXED),
            Self::Idle => Some(IDLE),
            Self::Other => None,
        }
    }

    /// True for a part of a decode step by speculation.
    pub const fn is_phase(self) -> bool {
        matches!(self, Self::Draft | Self::Verify | Self::DraftExtend)
    }
}

/// Requests of one kind in a step, and their sums; each `None` if the name does not carry it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepPart {
    pub requests: Option<u64>,
    /// Sum of the query lengths: tokens that the step computes.
    pub tokens: Option<u64>,
    /// Sum of the key lengths: tokens that attention reads.
    pub keys: Option<u64>,
    /// Sum of query length times key length.
    pub products: Option<u64>,
    /// Sum of the squared query lengths.
    pub squares: Option<u64>,
}

impl StepPart {
    /// Pairs of a query and a key that causal attention computes: of q queries that are the last of
    /// k keys, qk - q(q - 1)/2. `None` if a sum is unknown, or if the sums contradict each other.
    pub fn causal_pairs(&self) -> Option<u64> {
        let (tokens, products) = (self.tokens?, self.products?);
        let is_single = self.requests == self.tokens;
        let squares = self.squares.or_else(|| is_single.then_some(tokens))?;
        if products < squares || self.keys.is_some_and(|keys| keys < tokens) {
            return None;
        }
        products.checked_sub(squares.checked_sub(tokens)? / 2)
    }

    /// The counts of `self`; of `other` if `self` has none.
    fn or(self, other: Self) -> Self {
        Self {
            requests: self.requests.or(other.requests),
            tokens: self.tokens.or(other.tokens),
            keys: self.keys.or(other.keys),
            products: self.products.or(other.products),
            squares: self.squares.or(other.squares),
        }
    }
}

/// Counts of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// All requests, if the name does not separate prefill from decode.
    pub requests: Option<u64>,
    /// Requests of a graph of a fixed size, padding included.
    pub padded: Option<u64>,
    pub prefill: StepPart,
    pub decode: StepPart,
}

impl StepCounts {
    /// The counts of `self`; of `other` if `self` has none.
    pub fn or(self, other: Self) -> Self {
        Self {
            requests: self.requests.or(other.requests),
            padded: self.padded.or(other.padded),
            prefill: self.prefill.or(other.prefill),
            decode: self.decode.or(other.decode),
        }
    }

    /// Sets one count; one without a kind is of the class of the step. `None` for a number that is
    /// no count.
    fn set(&mut self, class: Option<StepClass>, key: &str, value: &str) -> Option<()> {
        let (value, padded) = value.split_once('/').map_or((value, None), |it| (it.0, Some(it.1)));
        let number = value.parse::<u64>().ok()?;
        if let Some(padded) = padded {
            self.padded = Some(padded.parse().ok()?);
        }
        let (kind, what) = match key.split_once('_') {
            Some(it) => it,
            None => match class {
                Some(StepClass::Prefill) => ("prefill", key),
                Some(StepClass::Mixed | StepClass::Idle | StepClass::Other) => ("", key),
                _ => ("decode", key),
            },
        };
        let part = match kind {
            "prefill" => &mut self.prefill,
            "decode" => &mut self.decode,
            _ => {
                self.requests = if what == "requests" { Some(number) } else { self.requests };
                return Some(());
            }
        };
        match what {
            "requests" => part.requests = Some(number),
            "tokens" => part.tokens = Some(number),
            "keys" => part.keys = Some(number),
            "products" => part.products = Some(number),
            "squares" => part.squares = Some(number),
            _ => {}
        }
        Some(())
    }

    /// Tokens that a decode step generated, one for each request; `None` if it computed more, since
    /// it may have kept fewer than it computed.
    pub fn generated(&self) -> Option<u64> {
        let requests = self.decode.requests?;
        self.decode.tokens.is_none_or(|tokens| tokens == requests).then_some(requests)
    }
}

/// The work of one step by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineStep<'a> {
    pub engine: &'static str,
    pub class: StepClass,
    /// The engine's own word for the class, if it has one.
    pub mode: Option<&'a str>,
    /// The form of the name: two ranges around one step have different ones.
    pub form: &'static str,
    pub counts: StepCounts,
}

impl<'a> EngineStep<'a> {
    /// The step's stage: of an unknown class, the engine's word.
    pub fn stage(&self) -> Option<&'a str> {
        self.class.stage().or(self.mode)
    }
}

/// The step that a range of this name is; `None` for other ranges.
pub fn engine_step(name: &str) -> Option<EngineStep<'_>> {
    // Cheap, because every range of a capture is asked: each form has a bracket.
    if !name.contains(['[', '(']) {
        return None;
    }
    let like = engines_like(name).flat_map(|it| it.patterns.iter().map(move |form| (it, form)));
    let found = like.filter_map(|(engine, form)| step_by(engine, form, name));
    // One form may contain another, as "draft step[...]" does: the outer one counts.
    found.min_by_key(|it| it.0).map(|it| it.1)
}

/// The engine whose steps have names like this one, in a form that is known or not.
pub fn engine_of_name(name: &str) -> Option<&'static Engine> {
    engines_like(name).map(|it| &it.engine).next()
}

/// The engine with such a scope of a step, all of its scopes, and the scope.
pub fn step_scope(name: &str) -> Option<(&'static Engine, &'static StepScopes, &str)> {
    let short = Some(name).filter(|it| it.len() <= MAX_NAME)?;
    let of = |engine: &'static KnownEngine| {
        engine.scope(short).map(|(scopes, scope)| (&engine.engine, scopes, scope))
    };
    known().iter().find_map(of)
}

fn engines_like(name: &str) -> impl Iterator<Item = &'static KnownEngine> {
    let is_short = name.len() <= MAX_NAME;
    known().iter().filter(move |it| is_short && it.is_like_step(name))
}

/// The step of a name of one form, and where in the name it is.
fn step_by<'a>(
    engine: &'static KnownEngine,
    pattern: &'static StepPattern,
    name: &'a str,
) -> Option<(usize, EngineStep<'a>)> {
    let found = pattern.regex.captures(name)?;
    let at = found.get_match().start();
    let mode = found.name("mode").map(|it| it.as_str());
    let of_mode = mode.map(|mode| pattern.name.class_of(mode));
    let mut counts = StepCounts::default();
    for (key, value) in pattern.name.values(&found, &pattern.regex) {
        counts.set(of_mode, key, value)?;
    }
    let by_requests = match (counts.prefill.requests, counts.decode.requests) {
        (None, None) => None,
        (prefill, decode) => Some(match (prefill.unwrap_or(0), decode.unwrap_or(0)) {
            (0, 0) => StepClass::Idle,
            (_, 0) => StepClass::Prefill,
            (0, _) => StepClass::Decode,
            (_, _) => StepClass::Mixed,
        }),
    };
    // A mode names the larger part if the requests of both parts are written.
    let has_both = counts.prefill.requests.and(counts.decode.requests).is_some();
    let class = if has_both { by_requests } else { of_mode.or(by_requests) }?;
    let (engine, form) = (engine.engine.name.as_str(), pattern.name.example.as_str());
    Some((at, EngineStep { engine, class, mode, form, counts }))
}

#[cfg(test)]
mod tests;
