//! Collection modes: the passes of a run, from a single unprofiled pass to every tool. A mode is
//! the name of a preset of settings.

use std::{borrow::Cow, cmp::Ordering, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Maximum length of a name.
const MAX_LEN: usize = 32;

/// Collection mode of a run: `deep`, `light`, `basic` or another preset of this service
/// (`GET /profiling`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schema", schema(
    value_type = String, min_length = 1, max_length = 32, pattern = "^[a-z][a-z0-9_-]{0,31}$",
    example = "deep"
))]
pub struct Mode(Cow<'static, str>);

/// A text that is not a name of a mode.
#[derive(Debug, thiserror::Error)]
#[error(
    "invalid mode {0:?}; expected at most 32 lower-case letters, digits, _ and -, a letter first"
)]
pub struct InvalidMode(String);

impl Mode {
    /// Unprofiled pass, Nsight Systems with graph nodes, Nsight Compute, GEMM log.
    pub const DEEP: Self = Self(Cow::Borrowed("deep"));
    /// Unprofiled pass and a light Nsight Systems pass.
    pub const LIGHT: Self = Self(Cow::Borrowed("light"));
    /// Unprofiled pass, static costs, operators and an early MFU, without Nsight tools.
    pub const BASIC: Self = Self(Cow::Borrowed("basic"));

    /// The bundled modes, deepest first.
    const BUNDLED: [Self; 3] = [Self::DEEP, Self::LIGHT, Self::BASIC];

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Mode {
    fn default() -> Self {
        Self::DEEP
    }
}

impl FromStr for Mode {
    type Err = InvalidMode;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let rest = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-')
        };
        let valid = name.len() <= MAX_LEN
            && name.bytes().next().is_some_and(|first| first.is_ascii_lowercase())
            && name.bytes().all(rest);
        if valid { Ok(Self(name.to_owned().into())) } else { Err(InvalidMode(name.to_owned())) }
    }
}

impl TryFrom<String> for Mode {
    type Error = InvalidMode;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> Self {
        mode.0.into_owned()
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(&self.0)
    }
}

impl Ord for Mode {
    /// The bundled modes come first, deepest first; the others follow by name.
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |mode: &Self| {
            Self::BUNDLED.iter().position(|it| it == mode).unwrap_or(Self::BUNDLED.len())
        };
        rank(self).cmp(&rank(other)).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Mode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_plain_words() {
        for name in ["deep", "nightly-2", "a", "x_y", &"m".repeat(32)] {
            assert_eq!(name.parse::<Mode>().unwrap().as_str(), name);
        }
        for name in ["", "Deep", "2x", "-a", "a b", "a/b", "a.b", "é", &"m".repeat(33)] {
            let error = name.parse::<Mode>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid mode {name:?}; expected")), "{error}");
        }
        assert!(serde_json::from_str::<Mode>("\"../deep\"").is_err());
    }

    #[test]
    fn bundled_modes_come_first_and_the_deepest_of_them_before_all() {
        let mut modes: Vec<Mode> = ["zeta", "basic", "alpha", "light", "deep"]
            .iter()
            .map(|it| it.parse().unwrap())
            .collect();
        modes.sort();
        let names: Vec<&str> = modes.iter().map(Mode::as_str).collect();
        assert_eq!(names, ["deep", "light", "basic", "alpha", "zeta"]);
    }
}
