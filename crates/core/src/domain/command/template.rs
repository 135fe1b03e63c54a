//! Arguments with placeholders: `--tokens={tokens}`. Values are inserted verbatim and never
//! expanded again.

use std::{ffi::OsString, fmt, path::Path};

use serde::{Deserialize, Serialize};

/// Placeholder of a folder for the command's files.
pub const OUT: &str = "out";
/// Placeholder of a free port of this host.
pub const PORT: &str = "port";

/// Texts and placeholders of one argument, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(pub Vec<TemplatePart>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatePart {
    Text(String),
    Placeholder(String),
}

impl Template {
    /// Parses `text`; `{{` and `}}` are braces.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.contains('\0') {
            return Err("contains a NUL byte");
        }
        let (mut parts, mut plain, mut letters) =
            (Vec::new(), String::new(), text.chars().peekable());
        while let Some(letter) = letters.next() {
            match letter {
                '{' | '}' if letters.peek() == Some(&letter) => {
                    letters.next();
                    plain.push(letter);
                }
                '{' => {
                    let mut name = String::new();
                    loop {
                        match letters.next() {
                            Some('}') => break,
                            Some(letter) => name.push(letter),
                            None => return Err("unmatched {"),
                        }
                    }
                    if !plain.is_empty() {
                        parts.push(TemplatePart::Text(std::mem::take(&mut plain)));
                    }
                    parts.push(TemplatePart::Placeholder(name));
                }
                '}' => return Err("unmatched }"),
                letter => plain.push(letter),
            }
        }
        if !plain.is_empty() || parts.is_empty() {
            parts.push(TemplatePart::Text(plain));
        }
        Ok(Self(parts))
    }
}

/// A part of an argument with its parameters filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentPiece {
    Text(String),
    /// The folder of the pass.
    Out,
    /// The port of the pass.
    Port,
}

/// An argument with its parameters filled in, and placeholders of the pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ArgumentTemplate(pub Vec<ArgumentPiece>);

impl ArgumentTemplate {
    /// The argument of one pass.
    pub fn argument(&self, out: &Path, port: u16) -> OsString {
        let mut argument = OsString::new();
        for piece in &self.0 {
            match piece {
                ArgumentPiece::Text(text) => argument.push(text),
                ArgumentPiece::Out => argument.push(out),
                ArgumentPiece::Port => argument.push(port.to_string()),
            }
        }
        argument
    }

    /// True if it contains the port.
    pub fn has_port(&self) -> bool {
        self.0.contains(&ArgumentPiece::Port)
    }
}

impl fmt::Display for ArgumentTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            ArgumentPiece::Text(text) => f.write_str(text),
            ArgumentPiece::Out => write!(f, "{{{OUT}}}"),
            ArgumentPiece::Port => write!(f, "{{{PORT}}}"),
        })
    }
}
