//! Enums whose variants have one lower-case name in JSON, the database and the command line.

/// Declares an enum with one name per variant, `ALL`, `as_str`, `Display` and `FromStr`.
///
/// The names are `tt`: the derive of a schema does not see a `literal` that passed through a macro
/// and would list the variants instead.
#[macro_export]
macro_rules! named_values {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$vdoc:meta])* $variant:ident = $text:tt),+ $(,)?
    }) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(serde::Serialize, serde::Deserialize)]
        $(#[$doc])*
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// Every variant, in order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The variant's name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::domain::named_values::UnknownName;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                match s {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(Self::Err { name: s.to_owned(), known: &[$($text),+] }),
                }
            }
        }
    };
}

pub use named_values;

/// A name that no variant has.
#[derive(Debug, thiserror::Error)]
#[error("unknown name {name:?}; expected {}", known.join(", "))]
pub struct UnknownName {
    pub name: String,
    pub known: &'static [&'static str],
}
