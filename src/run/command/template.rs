//! Arguments with holes: `--tokens={tokens}`. What fills a hole is taken as it is, and is never looked through for holes.

use std::{ffi::OsString, fmt, path::Path};

use serde::{Deserialize, Serialize};

/// Hole for a folder that the command may write its files to.
pub const OUT: &str = "out";
/// Hole for a free port of this host.
pub const PORT: &str = "port";

/// A text and the holes in it, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(pub Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Text(String),
    Hole(String),
}

impl Template {
    /// Reads `text`; `{{` and `}}` stand for braces.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.contains('\0') {
            return Err("it holds a NUL");
        }
        let (mut parts, mut plain, mut letters) = (Vec::new(), String::new(), text.chars().peekable());
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
                            None => return Err("a { has no }"),
                        }
                    }
                    if !plain.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut plain)));
                    }
                    parts.push(Part::Hole(name));
                }
                '}' => return Err("a } has no {"),
                letter => plain.push(letter),
            }
        }
        if !plain.is_empty() || parts.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self(parts))
    }
}

/// A part of an argument whose parameters are filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    Text(String),
    /// The folder of the pass.
    Out,
    /// The port of the pass.
    Port,
}

/// One argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pieces(pub Vec<Piece>);

impl Pieces {
    /// The argument of one pass.
    pub fn argument(&self, out: &Path, port: u16) -> OsString {
        let mut argument = OsString::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => argument.push(text),
                Piece::Out => argument.push(out),
                Piece::Port => argument.push(port.to_string()),
            }
        }
        argument
    }

    /// Says whether it asks for the port.
    pub fn has_port(&self) -> bool {
        self.0.contains(&Piece::Port)
    }
}

impl fmt::Display for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => f.write_str(text),
            Piece::Out => write!(f, "{{{OUT}}}"),
            Piece::Port => write!(f, "{{{PORT}}}"),
        })
    }
}
