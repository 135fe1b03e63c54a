//! The long tables as CSV, for spreadsheets and scripts: raw figures, one unit per column, empty where unknown.

use std::fmt::Write as _;

use crate::analyze::{
    Analysis,
    cost::{Cost, Traffic},
    counters::KernelCounters,
    regions::RegionCounters,
    roofline::Bound,
};

/// A cell.
enum Cell<'a> {
    Text(&'a str),
    Count(Option<u64>),
    Nanos(i64),
    Figure(Option<f64>),
    Flag(bool),
}
use Cell::{Count, Figure, Flag, Nanos, Text};

/// Kernels by stage and name, warm-up under its own, with their counters; the stage is empty outside all of them.
pub fn kernels(analysis: &Analysis) -> String {
    let head = "stage,kernel,calls,total_ns,mean_ns,median_ns,min_ns,max_ns,std_ns,share_pct,class,engine,device,grid_x,grid_y,grid_z,\
                block_x,block_y,block_z,registers,geometries,full_name,name_variants,ncu_profiled,ncu_geometries,ncu_covered_pct,ncu_mean_ms,sm_pct,\
                dram_pct,achieved_occupancy_pct,tensor_pct,flops_per_byte,stalled_by";
    let rows = analysis.kernels.records.iter().map(|it| {
        let of = it.counters.as_ref();
        let figure = |field: fn(&KernelCounters) -> Option<f64>| Figure(of.and_then(field));
        let spans = &it.launch_ns;
        let mut row = vec![Text(&it.stage), Text(&it.kernel_name), Count(Some(it.calls)), Nanos(spans.total)];
        row.extend([Figure(Some(spans.mean)), Figure(Some(spans.median)), Nanos(spans.min), Nanos(spans.max), Figure(spans.std)]);
        row.extend([Figure(it.share_pct), Text(&it.class), Text(it.engine.as_deref().unwrap_or_default())]);
        row.push(Count(it.device.map(Into::into)));
        row.extend(it.grid.iter().chain(&it.block).map(|side| Count(Some((*side).into()))));
        row.extend([
            Count(Some(it.registers.into())),
            Count(Some(it.geometries)),
            Text(&it.full_name),
            Count(Some(it.name_variants)),
        ]);
        row.extend([Count(of.map(|it| it.profiled)), Count(of.map(|it| it.geometries))]);
        row.extend([figure(|it| it.covered_pct), figure(|it| it.replay_ms), figure(|it| it.sm_pct), figure(|it| it.dram_pct)]);
        row.extend([figure(|it| it.achieved_occupancy_pct), figure(|it| it.tensor_pct), figure(|it| it.flops_per_byte)]);
        row.push(Text(of.and_then(|it| it.stalled_by.as_deref()).unwrap_or_default()));
        row
    });
    csv(head, rows)
}

/// Kernels by stage and full name, warm-up and set-up under their own.
pub fn kernels_full(analysis: &Analysis) -> String {
    let head = "stage,full_name,kernel,class,engine,calls,total_ns,mean_ns,median_ns,min_ns,max_ns,std_ns,share_pct";
    let rows = analysis.kernels.full.iter().map(|it| {
        let spans = &it.launch_ns;
        let mut row = vec![Text(&it.stage), Text(&it.full_name), Text(&it.kernel_name), Text(&it.class)];
        row.extend([Text(it.engine.as_deref().unwrap_or_default()), Count(Some(it.calls)), Nanos(spans.total)]);
        row.extend([Figure(Some(spans.mean)), Figure(Some(spans.median)), Nanos(spans.min), Nanos(spans.max)]);
        row.extend([Figure(spans.std), Figure(it.share_pct)]);
        row
    });
    csv(head, rows)
}

/// Counters by kernel and geometry.
pub fn counters(analysis: &Analysis) -> String {
    let head = "kernel,stage,grid_x,grid_y,grid_z,block_x,block_y,block_z,calls,mean_ms,ncu_profiled,ncu_mean_ms,registers,sm_pct,memory_pct,\
                dram_pct,l1_hit_pct,l2_hit_pct,achieved_occupancy_pct,theoretical_occupancy_pct,tensor_pct,dram_bytes,flops,\
                flops_per_byte,stalled_by,stalled_by_pct";
    let rows = analysis.counters.iter().map(|it| {
        let values = &it.values;
        let stall = values.stalls.first();
        let mut row = vec![Text(&it.kernel_name), Text(&it.stage)];
        row.extend([it.grid, it.block].into_iter().flat_map(|size| [0, 1, 2].map(|at| Count(size.map(|size| size[at].into())))));
        row.extend([Count(it.timeline_calls), Figure(it.timeline_mean_ms), Count(Some(it.profiled))]);
        row.extend([Figure(values.duration_ns.map(|ns| ns / 1e6)), Count(values.registers.map(Into::into))]);
        row.extend(
            [
                values.sm_pct,
                values.memory_pct,
                values.dram_pct,
                values.l1_hit_pct,
                values.l2_hit_pct,
                values.achieved_occupancy_pct,
                values.theoretical_occupancy_pct,
                values.tensor_pct,
                values.dram_bytes,
                values.total_flops(),
                it.flops_per_byte,
            ]
            .map(Figure),
        );
        row.extend([Text(stall.map_or("", |it| &it.reason)), Figure(stall.map(|it| it.share_pct))]);
        row
    });
    csv(head, rows)
}

/// Profiled kernels under the device's roofs.
pub fn roofline(analysis: &Analysis) -> String {
    let head = "stage,kernel,ncu_profiled,geometries,total_ms,share_pct,ncu_mean_ns,flops,format,roof_dtype,dram_bytes,flops_per_byte,\
                flops_per_s,bytes_per_s,datasheet_pct,measured_pct,sm_pct,memory_pct,dram_pct,achieved_occupancy_pct,bound,missing";
    let rows = analysis.roofline.points.iter().map(|it| {
        let mut row = vec![Text(&it.stage), Text(&it.kernel_name), Count(Some(it.profiled)), Count(Some(it.geometries))];
        row.extend([it.timeline_total_ms, it.share_pct, it.replay_ns, it.flops].map(Figure));
        row.extend([Text(it.format.as_deref().unwrap_or_default()), Text(it.roof_dtype.as_deref().unwrap_or_default())]);
        row.extend(
            [it.dram_bytes, it.flops_per_byte, it.flops_per_s, it.bytes_per_s, it.datasheet_pct, it.measured_pct].map(Figure),
        );
        row.extend([it.sm_pct, it.memory_pct, it.dram_pct, it.achieved_occupancy_pct].map(Figure));
        row.extend([Text(it.bound.map_or("", Bound::as_str)), Text(it.missing.as_deref().unwrap_or_default())]);
        row
    });
    csv(head, rows)
}

/// Operators beside the device's ceilings.
pub fn operator_mfu(analysis: &Analysis) -> String {
    let head = "stage,path,op,dtype,time_of,exclusive_ms,exclusive_pct,flops_per_s,bytes_per_s,flops_per_byte,datasheet_pct,measured_pct,clocked_pct,\
                datasheet_bandwidth_pct,measured_bandwidth_pct,clocked_bandwidth_pct";
    let rows = analysis.mfu.operators.iter().map(|it| {
        let mut row = vec![Text(&it.stage), Text(&it.path), Text(&it.op), Text(&it.dtype), Text(&it.time_of)];
        row.extend([Some(it.exclusive_ms), it.exclusive_pct, it.flops_per_s, it.bytes_per_s, it.flops_per_byte].map(Figure));
        row.extend([it.datasheet_pct, it.measured_pct, it.clocked_pct].map(Figure));
        row.extend([it.datasheet_bandwidth_pct, it.measured_bandwidth_pct, it.clocked_bandwidth_pct].map(Figure));
        row
    });
    csv(head, rows)
}

/// Named ranges, a row for each class of the kernels inside after one for all (class empty).
pub fn regions<'a>(analysis: &'a Analysis) -> String {
    let head = "region,domain,ranges,class,kernels,kernel_ms,share_pct,covered_pct,sm_pct,memory_pct,dram_pct,l2_hit_pct,\
                achieved_occupancy_pct,tensor_pct,whole_graphs,graph_ms";
    let rows = analysis.regions.iter().flat_map(|it| {
        let name = || vec![Text(&it.name), Text(&it.domain), Count(Some(it.instances))];
        let figure = |field: fn(&RegionCounters) -> Option<f64>| Figure(it.counters.as_ref().and_then(field));
        let mut all = name();
        all.extend([Text(""), Count(Some(it.kernels)), Figure(Some(it.kernel_ms)), Figure(it.share_pct)]);
        all.extend([figure(|it| it.covered_pct), figure(|it| it.sm_pct), figure(|it| it.memory_pct), figure(|it| it.dram_pct)]);
        all.extend([figure(|it| it.l2_hit_pct), figure(|it| it.achieved_occupancy_pct), figure(|it| it.tensor_pct)]);
        all.extend([Count(Some(it.whole_graphs)), Figure(Some(it.graph_ms))]);
        let class = |class: &'a crate::analyze::regions::RegionClass| {
            let mut row = name();
            row.extend([Text(&class.class), Count(Some(class.kernels)), Figure(Some(class.ms)), Figure(class.share_pct)]);
            row.extend([None; 9].map(Figure));
            row
        };
        let classes: Vec<_> = it.classes.iter().map(class).collect();
        std::iter::once(all).chain(classes)
    });
    csv(head, rows)
}

/// Matrix products by stage and shape.
pub fn gemms(analysis: &Analysis) -> String {
    let head = "stage,m,n,k,batch,left_type,right_type,out_type,left_transposed,right_transposed,compute,function,algorithm,calls,\
                calls_per_step,flops_per_call,total_flops,share_pct";
    let rows = analysis.gemms.records.iter().map(|it| {
        vec![
            Text(&it.stage),
            Count(Some(it.m)),
            Count(Some(it.n)),
            Count(Some(it.k)),
            Count(Some(it.batch)),
            Text(&it.left_type),
            Text(&it.right_type),
            Text(&it.out_type),
            Flag(it.left_transposed),
            Flag(it.right_transposed),
            Text(&it.compute),
            Text(&it.function),
            Text(it.algorithm.as_deref().unwrap_or_default()),
            Count(Some(it.calls)),
            Figure(it.calls_per_step),
            Count(Some(it.flops_per_call)),
            Count(Some(it.total_flops)),
            Figure(it.share_pct),
        ]
    });
    csv(head, rows)
}

/// What each operator needs, from the architecture.
pub fn costs(cost: &Cost) -> String {
    let head = "path,op,parameters,weight_bytes,prefill_calls,prefill_flops,prefill_weight_bytes,prefill_weight_bytes_at_most,\
                prefill_activation_bytes,prefill_kv_read_bytes,prefill_kv_written_bytes,prefill_bytes,prefill_output_bytes,decode_calls,\
                decode_flops,decode_weight_bytes,decode_weight_bytes_at_most,decode_activation_bytes,decode_kv_read_bytes,\
                decode_kv_written_bytes,decode_bytes,decode_output_bytes";
    let stage = |flops: u64, it: &Traffic| {
        let weights = [it.weight_bytes, it.weight_bytes_at_most];
        let others = [it.activation_bytes, it.kv_read_bytes, it.kv_written_bytes, it.bytes, it.output_bytes];
        [it.calls, flops].into_iter().chain(weights).chain(others).map(|count| Count(Some(count))).collect::<Vec<_>>()
    };
    let rows = cost.modules.iter().map(|it| {
        let mut row = vec![Text(&it.path), Text(&it.op), Count(Some(it.parameters)), Count(Some(it.weight_bytes))];
        row.extend(stage(it.prefill_flops, &it.prefill));
        row.extend(stage(it.decode_flops, &it.decode));
        row
    });
    csv(head, rows)
}

fn csv<'a>(head: &str, rows: impl Iterator<Item = Vec<Cell<'a>>>) -> String {
    let mut text = format!("{head}\n");
    for row in rows {
        debug_assert_eq!(row.len(), head.split(',').count());
        let cells: Vec<String> = row.iter().map(cell).collect();
        let _ = writeln!(text, "{}", cells.join(","));
    }
    text
}

fn cell(cell: &Cell) -> String {
    match cell {
        Text(text) => quoted(text),
        Count(count) => count.map_or_else(String::new, |count| count.to_string()),
        Nanos(ns) => ns.to_string(),
        Figure(figure) => figure.filter(|it| it.is_finite()).map_or_else(String::new, |figure| figure.to_string()),
        Flag(flag) => flag.to_string(),
    }
}

/// A text as one field on one line. What a spreadsheet would run as a formula begins with a quote, which it takes for text.
pub fn quoted(text: &str) -> String {
    let mut text: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.starts_with(['=', '+', '-', '@']) {
        text.insert(0, '\'');
    }
    if text.contains(['"', ',']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_one_field_and_no_formula() {
        assert_eq!(quoted("gemm_bf16<128, 64>"), "\"gemm_bf16<128, 64>\"");
        assert_eq!(quoted("a \"b\"\nc"), "\"a \"\"b\"\" c\"");
        assert_eq!(quoted("=cmd()"), "'=cmd()");
        assert_eq!(quoted("\t=cmd()"), "'=cmd()");
    }

    #[test]
    fn what_is_unknown_is_empty() {
        let rows = [vec![Text("x"), Count(None), Figure(Some(f64::NAN)), Flag(true)]];
        assert_eq!(csv("a,b,c,d", rows.into_iter()), "a,b,c,d\nx,,,true\n");
    }
}
