//! Parts of a request: path parameters, queries, bodies, the requested representation.

pub mod body;
pub mod bounds;
pub mod content_negotiation;
pub mod idempotency;
pub mod params;
pub mod upload;
