//! Tile of a GEMM kernel, the part of the result that one block computes, from the kernel's name;
//! and the share of its tiles that a GEMM fills.
//!
//! All sides are in the program's row-major terms: rows of the result first. The libraries are
//! column-major, so the first side in most names is the columns here.

use llmprof_core::trace::gemm::GemmShape;

/// Tile sizes in a kernel's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmTile {
    /// The two sides of the result's tile, in the order of the name.
    pub sides: [u32; 2],
    /// Depth of the tile, along k; `None` if the name has none.
    pub k: Option<u32>,
    pub order: SideOrder,
}

/// Order of the sides in a kernel's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SideOrder {
    RowsFirst,
    ColumnsFirst,
    /// Differs between kernels of the family.
    Unknown,
}

/// A tile in the program's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileSides {
    pub rows: u32,
    pub columns: u32,
    pub k: Option<u32>,
}

/// The tile in a kernel's name, short or full; `None` for kernels without tiles and names of other
/// forms.
///
/// | form | order | source |
/// |---|---|---|
/// | `nvjet_sm90_tst_128x64_64x8_...` | columns x rows, k x stages | grids on an H200 |
/// | `sm90_xmma_gemm_..._tilesize64x128x32_...` | rows x columns x k | logged tiles on an H200 |
/// | `cutlass_80_simt_sgemm_128x32_8x5_...` | columns x rows, k x stages | the same |
/// | `ampere_bf16_..._128x64_..._stages_64x4_tn`, also volta, turing, maxwell | unknown | - |
pub fn tile_of(kernel_name: &str) -> Option<GemmTile> {
    let name = kernel_name.to_ascii_lowercase();
    // The reduction of a GEMM with split k repeats the name of its GEMM.
    if name.contains("split_k_kernel") || name.contains("splitkreduce") {
        return None;
    }
    if let Some((_, sizes)) = name.split_once("tilesize") {
        let word = sizes.split('_').next().unwrap_or_default();
        let [rows, columns, k] = numbers(word)?;
        return tile([rows, columns], Some(k), SideOrder::RowsFirst);
    }
    let (start, order) = match [
        ("nvjet", true),
        ("cutlass_", true),
        ("ampere_", false),
        ("volta_", false),
        ("turing_", false),
        ("maxwell_", false),
    ]
    .into_iter()
    .find_map(|(family, known)| Some((name.find(family)?, known)))?
    {
        (start, true) => (start, SideOrder::ColumnsFirst),
        (start, false) => (start, SideOrder::Unknown),
    };
    let mut words = name[start..].split(['_', '>', '<', '(', ' ']);
    let mut pairs = words.by_ref().filter_map(numbers::<2>);
    let first = pairs.next()?;
    if order == SideOrder::Unknown {
        let stages = name[start..].split_once("_stages_").map(|(_, rest)| rest);
        let k = stages.and_then(|rest| numbers::<2>(rest.split('_').next()?)).map(|[k, _]| k);
        return tile(first, k, order);
    }
    let [k, _stages] = pairs.next()?;
    tile(first, Some(k), order)
}

fn tile(sides: [u32; 2], k: Option<u32>, order: SideOrder) -> Option<GemmTile> {
    let all = sides.iter().chain(&k);
    all.into_iter().all(|side| (1..=4096).contains(side)).then_some(GemmTile { sides, k, order })
}

/// The numbers of a word such as `64x8`, if it is `N` numbers joined by `x`.
fn numbers<const N: usize>(word: &str) -> Option<[u32; N]> {
    let parts: Vec<u32> = word.split('x').map(str::parse).collect::<Result<_, _>>().ok()?;
    parts.try_into().ok()
}

impl GemmTile {
    /// The tile of a launch of `blocks` blocks. If the name leaves the order of the sides open, it
    /// is the one whose tiles fit the grid; `None` if both or neither do.
    pub fn of_launch(&self, shape: &GemmShape, blocks: u64) -> Option<TileSides> {
        let [a, b] = self.sides;
        let sides = |rows, columns| TileSides { rows, columns, k: self.k };
        match self.order {
            SideOrder::RowsFirst => Some(sides(a, b)),
            SideOrder::ColumnsFirst => Some(sides(b, a)),
            SideOrder::Unknown => {
                let fits = |it: &TileSides| {
                    let tiles = it.tiles(shape);
                    tiles > 0 && blocks.is_multiple_of(tiles)
                };
                let [first, second] = [sides(a, b), sides(b, a)];
                match (fits(&first), fits(&second)) {
                    (true, false) => Some(first),
                    (false, true) => Some(second),
                    _ => Some(first).filter(|_| a == b),
                }
            }
        }
    }

    /// Returns true if the logged tile, `128x64`, has the same sides in either order.
    pub fn matches(&self, logged: &str) -> bool {
        let [a, b] = self.sides;
        numbers::<2>(logged).is_none_or(|sides| sides == [a, b] || sides == [b, a])
    }
}

impl TileSides {
    /// Tiles of the result.
    pub fn tiles(&self, shape: &GemmShape) -> u64 {
        let along = |side: u64, tile: u32| side.div_ceil(u64::from(tile.max(1)));
        along(shape.m, self.rows)
            .saturating_mul(along(shape.n, self.columns))
            .saturating_mul(shape.batch)
    }

    /// Share of the computed tiles that is the GEMM, percent: `m n k` over the product of the sides
    /// rounded up to whole tiles.
    pub fn fill_pct(&self, shape: &GemmShape) -> Option<f64> {
        let filled = |side: u64, tile: u32| {
            let tile = u64::from(tile.max(1));
            let padded = side.div_ceil(tile).saturating_mul(tile);
            (padded > 0).then(|| side as f64 / padded as f64)
        };
        let k = self.k.map_or(Some(1.0), |tile| filled(shape.k, tile))?;
        Some(100.0 * filled(shape.m, self.rows)? * filled(shape.n, self.columns)? * k)
    }
}

impl std::fmt::Display for TileSides {
    fn fmt(&self, to: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(to, "{}x{}", self.rows, self.columns)?;
        self.k.map_or(Ok(()), |k| write!(to, "x{k}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(m: u64, n: u64, k: u64, batch: u64) -> GemmShape {
        GemmShape { m, n, k, batch, ..GemmShape::default() }
    }

    /// Order, sides and depth of a name's tile, as text.
    fn found(name: &str) -> String {
        tile_of(name).map_or_else(String::new, |it| {
            let order = match it.order {
                SideOrder::RowsFirst => "rows",
                SideOrder::ColumnsFirst => "columns",
                SideOrder::Unknown => "unknown",
            };
            format!("{order} {}x{} {:?}", it.sides[0], it.sides[1], it.k)
        })
    }

    #[test]
    fn names_of_every_family_give_their_tiles() {
        for (name, expected) in [
            ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "columns 64x8 Some(64)"),
            ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT", "columns 64x8 Some(64)"),
            ("nvjet_tst_128x64_64x8_2x1_v_bz_TNT", "columns 128x64 Some(64)"),
            ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "columns 256x128 Some(64)"),
            (
                "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x128x8_stage3_warpsize1x2x1_ffma_\
                 aligna4_alignc4_execute_kernel__5x_cublas",
                "rows 32x128 Some(8)",
            ),
            (
                "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_\
                 execute_segment_k_off_kernel__5x_cublas",
                "rows 64x64 Some(64)",
            ),
            (
                "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_tn_align1>(T1::Params)",
                "columns 128x32 Some(8)",
            ),
            (
                "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_\
                 tn_align8>(T1::Params)",
                "columns 16x16 Some(128)",
            ),
            (
                "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
                "unknown 128x64 Some(64)",
            ),
            ("ampere_sgemm_128x64_tn", "unknown 128x64 None"),
            ("volta_h884gemm_64x128_ldg8_tn", "unknown 64x128 None"),
        ] {
            assert_eq!(found(name), expected, "{name}");
        }
    }

    #[test]
    fn kernels_without_tiles_and_reductions_have_none() {
        for name in [
            "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float>(T1)",
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_\
             aligna4_alignc4_execute_split_k_kernel__5x_cublas",
            "void gemmSN_TN_kernel<float, (int)128, (int)16, (int)2, (int)4, (int)8>(T1)",
            "void dot_kernel<float, (int)128, (int)0>(T4)",
            "gemv_bf16",
            "nvjet",
            "nvjet_sm90_tst_0x8_64x16_4x1_v_bz_TNT",
            "sm80_xmma_gemm_tilesize32x32",
            "",
        ] {
            assert_eq!(found(name), "", "{name}");
        }
    }

    /// Shapes, names and grids of captures on an H200: each has a block per tile, and one set of
    /// blocks per part of k.
    #[test]
    fn tiles_of_recorded_launches_equal_their_grids() {
        for (name, (m, n, k, batch), blocks) in [
            ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", (1, 5632, 2048, 1), 4 * 22),
            ("nvjet_sm90_tst_8x64_64x16_2x1_v_bz_TNN", (1, 1024, 2048, 1), 2 * 64),
            ("nvjet_sm90_tst_128x72_64x8_2x1_v_bz_TNT", (918, 1280, 1280, 1), 2 * 65),
            ("nvjet_sm90_tst_128x104_64x7_2x1_v_bz_TNT", (918, 1792, 1280, 1), 2 * 63),
            ("_tilesize128x32x8_stage3_", (918, 64, 1280, 1), 8 * 2),
            ("_tilesize32x128x8_stage3_", (16, 128, 864, 1), 1),
            ("_tilesize32x32x8_stage3_", (49, 24, 49, 96), 2 * 96),
            ("cutlass_80_simt_sgemm_32x128_8x5_tn_align1", (119, 16, 128, 1), 1),
        ] {
            let (tile, shape) = (tile_of(name).unwrap(), shape(m, n, k, batch));
            assert_eq!(tile.of_launch(&shape, 0).unwrap().tiles(&shape), blocks, "{name}");
        }
    }

    #[test]
    fn the_grid_decides_the_order_that_a_name_leaves_open() {
        let tile = tile_of("ampere_sgemm_128x64_tn").unwrap();
        let sides =
            |blocks| tile.of_launch(&shape(128, 640, 64, 1), blocks).map(|it| it.to_string());
        // 1 x 10 tiles of 128 rows, or 2 x 5 tiles of 64 rows: no order is known.
        assert_eq!(sides(10), None);
        let sides =
            |blocks| tile.of_launch(&shape(64, 640, 64, 1), blocks).map(|it| it.to_string());
        assert_eq!((sides(5), sides(7)), (Some("64x128".into()), None));
        assert_eq!(sides(10), None, "two parts of k, or the other order");
        let square = tile_of("ampere_sgemm_64x64_tn").unwrap();
        assert!(square.of_launch(&shape(9, 9, 9, 1), 3).is_some(), "both orders are the same");
    }

    #[test]
    fn fill_is_the_product_over_whole_tiles() {
        let sides = TileSides { rows: 64, columns: 128, k: Some(32) };
        assert_eq!(sides.fill_pct(&shape(64, 256, 64, 3)), Some(100.0));
        assert_eq!(sides.fill_pct(&shape(32, 128, 64, 1)), Some(50.0));
        assert_eq!(sides.fill_pct(&shape(32, 64, 16, 1)), Some(12.5));
        assert_eq!(sides.fill_pct(&shape(0, 64, 16, 1)), None);
        let flat = TileSides { k: None, ..sides };
        assert_eq!(flat.fill_pct(&shape(1, 128, 1, 1)), Some(100.0 / 64.0));
        assert_eq!((sides.to_string(), flat.to_string()), ("64x128x32".into(), "64x128".into()));
    }

    #[test]
    fn a_logged_tile_has_the_same_sides_in_either_order() {
        let tile = tile_of("_tilesize32x128x8_").unwrap();
        assert!(tile.matches("128x32") && tile.matches("32x128") && tile.matches("UNDEFINED"));
        assert!(!tile.matches("64x64"));
    }
}
