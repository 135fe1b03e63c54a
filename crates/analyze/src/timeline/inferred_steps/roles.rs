//! Roles of kernels in a forward, by the name patterns of `conf/steps.toml` and their classes.

use std::sync::LazyLock;

use llmprof_core::trace::{kernel::LaunchKind, names::base_name};
use serde::Deserialize;

use crate::kernels::{
    gemm_tiles::tile_of,
    kernel_classes::{Pattern, classify, computes_products},
};

/// Sides of a tile up to which a GEMM is of few rows.
const FEW: u32 = 16;
/// Sides of a tile from which a GEMM is of many rows.
const MANY: u32 = 64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RoleTable {
    lookup: Vec<Lookup>,
    sampling: Vec<Names>,
    top_k: Vec<Names>,
    continuous: Vec<CacheWrite>,
    xla_cache: Vec<Names>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    #[serde(default)]
    any: Vec<String>,
    #[serde(default)]
    all: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lookup {
    #[serde(default)]
    any: Vec<String>,
    #[serde(default)]
    all: Vec<String>,
    rows: Option<RowsRule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheWrite {
    any: Vec<String>,
    rows: Option<RowsRule>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RowsRule {
    GridX,
    #[serde(rename = "at_most_16")]
    AtMost16,
}

static TABLE: LazyLock<RoleTable> = LazyLock::new(|| {
    toml::from_str(include_str!("../../../../../conf/steps.toml"))
        .expect("the table is embedded: a test reads all of it")
});

impl RowsRule {
    fn rows(this: Option<Self>, kind: &LaunchKind) -> Rows {
        match this {
            None => Rows::Unknown,
            Some(Self::GridX) => Rows::Exactly(kind.grid[0]),
            Some(Self::AtMost16) => Rows::AtMost(16),
        }
    }
}

impl Names {
    fn matches(&self, base: &str, full: &str) -> bool {
        Pattern::holds((&self.any, &self.all), base, full)
    }
}

/// Rows of a forward, as far as a launch shows them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rows {
    #[default]
    Unknown,
    AtMost(u32),
    Exactly(u32),
}

/// Rows of a GEMM by its tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GemmRows {
    Few,
    Many,
    Unclear,
}

/// Role of a launch kind in a forward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelRole {
    /// Products, attention, convolutions, experts and softmax: the layers of a model.
    pub is_compute: bool,
    /// Attention, or the softmax of one made of products.
    pub is_layer: bool,
    pub is_attention: bool,
    pub gemm: Option<GemmRows>,
    pub lookup: Option<Rows>,
    pub is_sampling: bool,
    /// A choice of several values, as of the best beams or of experts.
    pub is_top_k: bool,
    /// Kernel of an engine that batches continuously.
    pub is_continuous: bool,
    /// Rows that it writes to a paged cache of keys and values.
    pub cached: Option<Rows>,
    /// A fusion of XLA that writes to a cache.
    pub writes_cache: bool,
    /// Blocks of an elementwise kernel or a norm, which grow only with the rows.
    pub blocks: u64,
}

/// The role of a kind whose full name is `name`.
pub fn role(name: &str, kind: &LaunchKind) -> KernelRole {
    let full = name.to_lowercase();
    let base = base_name(&full);
    let class = classify(name).class;
    let is = |names: &[Names]| names.iter().any(|it| it.matches(base, &full));
    let lookup = TABLE.lookup.iter().find(|it| Pattern::holds((&it.any, &it.all), base, &full));
    let cache = TABLE.continuous.iter().find(|it| Pattern::holds((&it.any, &[]), base, &full));
    let is_write = |it: &&CacheWrite| it.rows.is_some();
    // Such a kernel adds the parts of a product.
    let is_split = full.contains("splitkreduce") || full.contains("split_k_kernel");
    let is_softmax = class == "softmax";
    KernelRole {
        is_compute: is_softmax || computes_products(class),
        is_layer: is_softmax || class == "attention",
        is_attention: class == "attention",
        gemm: (class == "gemm" && !is_split).then(|| gemm_rows(base, &full)),
        lookup: lookup.map(|it| RowsRule::rows(it.rows, kind)),
        is_sampling: is(&TABLE.sampling),
        is_top_k: is(&TABLE.top_k),
        is_continuous: cache.is_some(),
        cached: cache.filter(is_write).map(|it| RowsRule::rows(it.rows, kind)),
        writes_cache: is(&TABLE.xla_cache),
        blocks: if ["elementwise", "norm"].contains(&class) { kind.blocks() } else { 0 },
    }
}

fn gemm_rows(base: &str, full: &str) -> GemmRows {
    if base.starts_with("gemv") || full.contains("gemvx::kernel") {
        return GemmRows::Few;
    }
    match tile_of(full).map(|tile| tile.sides[0].min(tile.sides[1])) {
        Some(side) if side <= FEW => GemmRows::Few,
        Some(side) if side >= MANY => GemmRows::Many,
        _ => GemmRows::Unclear,
    }
}
