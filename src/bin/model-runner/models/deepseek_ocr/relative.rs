//! Relative positions, decomposed: what a query adds to a score for the rows and for the columns between it and a key.
//!
//! The tables are spread out for each size of grid when the model is built; a forward only multiplies and adds.

use candle_core::{Result, Tensor};
use candle_nn::Init;

use super::resample;
use crate::{
    ops::{Matmul, Pointwise},
    site::Site,
};

/// One layer's tables, for each side of a square grid that it meets.
pub struct RelativePositions {
    sides: Vec<Side>,
    rows: Matmul,
    columns: Matmul,
    by_row: Pointwise,
    by_column: Pointwise,
    add_rows: Pointwise,
    add_columns: Pointwise,
}

/// Offsets' vectors from each row (column) to each, `[side, side, head_dim]`.
struct Side {
    side: usize,
    rows: Tensor,
    columns: Tensor,
}

impl RelativePositions {
    /// Builds `rel_pos_h` and `rel_pos_w`, learned for grids of side `learned`, for grids of `sides`.
    pub fn new(site: &Site, head_dim: usize, learned: usize, sides: &[usize]) -> Result<Self> {
        let table = |name| site.get((2 * learned - 1, head_dim), name, Init::Randn { mean: 0.0, stdev: 0.02 });
        let (rows, columns) = (table("rel_pos_h")?, table("rel_pos_w")?);
        let side = |&side: &usize| Ok(Side { side, rows: spread(&rows, side)?, columns: spread(&columns, side)? });
        Ok(Self {
            sides: sides.iter().map(side).collect::<Result<_>>()?,
            rows: Matmul::new(&site.pp("rel_pos_h")),
            columns: Matmul::new(&site.pp("rel_pos_w")),
            by_row: Pointwise::new(&site.pp("by_row")),
            by_column: Pointwise::new(&site.pp("by_column")),
            add_rows: Pointwise::new(&site.pp("add_rel_pos_h")),
            add_columns: Pointwise::new(&site.pp("add_rel_pos_w")),
        })
    }

    /// Adds to `scores` `[batch, side^2, side^2]` what `query` `[batch, side^2, head_dim]` says to each offset.
    pub fn add(&self, query: &Tensor, scores: Tensor, side: usize) -> Result<Tensor> {
        let Some(tables) = self.sides.iter().find(|tables| tables.side == side) else {
            candle_core::bail!("no relative positions were built for a grid of side {side}");
        };
        let (batch, tokens, head_dim) = query.dims3()?;
        let query = query.reshape((batch, side, side, head_dim))?;
        // Queries of one row share their offsets: a product a row, over all of the batch.
        let by_row = self.by_row.run(&[&query], || query.transpose(0, 1)?.reshape((side, batch * side, head_dim)))?;
        let rows = self.rows.forward(&by_row, &tables.rows.t()?)?;
        let rows = rows.reshape((side, batch, side, side))?.transpose(0, 1)?.unsqueeze(4)?;
        let by_column = self.by_column.run(&[&query], || query.permute((2, 0, 1, 3))?.reshape((side, batch * side, head_dim)))?;
        let columns = self.columns.forward(&by_column, &tables.columns.t()?)?;
        let columns = columns.reshape((side, batch, side, side))?.permute((1, 2, 0, 3))?.unsqueeze(3)?;

        let scores = scores.reshape((batch, side, side, side, side))?;
        let scores = self.add_rows.add(&scores, &rows)?;
        self.add_columns.add(&scores, &columns)?.reshape((batch, tokens, tokens))
    }
}

/// Vectors of the offsets `[side, side, head_dim]`, from each place to each, of a table of offsets.
fn spread(table: &Tensor, side: usize) -> Result<Tensor> {
    let table = resample::list(table, 2 * side - 1)?;
    let offsets = (0..side).flat_map(|from| (0..side).map(move |to| (from + side - 1 - to) as u32));
    let offsets = Tensor::from_iter(offsets, table.device())?;
    table.index_select(&offsets, 0)?.reshape((side, side, ()))
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::{record::Recorder, weights};

    fn vectors(x: &Tensor) -> Result<Vec<Vec<f32>>> {
        x.reshape(((), x.dim(candle_core::D::Minus1)?))?.to_vec2()
    }

    #[test]
    fn each_score_gains_its_row_and_its_column() -> anyhow::Result<()> {
        let (side, batch, head_dim, tokens) = (3, 2, 4, 9);
        let site = Site::root(weights::synthetic(7, DType::F32, &Device::Cpu), Recorder::new());
        let positions = RelativePositions::new(&site, head_dim, side, &[2, side])?;
        let table = |name: &str| site.get((2 * side - 1, head_dim), name, Init::Randn { mean: 0.0, stdev: 0.02 });
        let (rows, columns) = (vectors(&table("rel_pos_h")?)?, vectors(&table("rel_pos_w")?)?);
        let query = Tensor::randn(0f32, 1.0, (batch, tokens, head_dim), &Device::Cpu)?;
        let scores = Tensor::randn(0f32, 1.0, (batch, tokens, tokens), &Device::Cpu)?;

        let added = vectors(&positions.add(&query, scores.clone(), side)?)?;
        let (query, scores) = (vectors(&query)?, vectors(&scores)?);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        for (line, query) in query.iter().enumerate() {
            let from = line % tokens;
            for to in 0..tokens {
                let row = &rows[from / side + side - 1 - to / side];
                let column = &columns[from % side + side - 1 - to % side];
                let expected = scores[line][to] + dot(query, row) + dot(query, column);
                assert!((added[line][to] - expected).abs() < 1e-5, "{line} {to}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_grid_that_was_not_built_for_is_refused() -> anyhow::Result<()> {
        let site = Site::root(weights::synthetic(7, DType::F32, &Device::Cpu), Recorder::new());
        let positions = RelativePositions::new(&site, 4, 3, &[3])?;
        let x = Tensor::zeros((1, 4, 4), DType::F32, &Device::Cpu)?;
        assert!(positions.add(&x, x.clone(), 2).is_err());
        Ok(())
    }
}
