//! Rows of an export as values: kernels, calls, copies, graphs, and the numbers of GPUs.

use llmprof_core::trace::{
    clocks::WaitTarget,
    kernel::Kernel,
    timeline::{ApiCall, CopyKind, GraphLaunch, GraphNode, MemoryOp, pid_of, process_of},
};
use rusqlite::{Result, Row};

use super::{
    layout::{ColumnError, RowNumbers},
    names::StringTable,
};

/// Devices that a process numbers differently from the host: process, its number, host's number.
pub(super) struct Gpus(pub(super) Vec<Option<(u32, u32, u32)>>);

impl Gpus {
    /// The host's number of the GPU `device` of `process`; `device` if the export has no mapping.
    #[inline]
    pub(super) fn of(&self, process: i64, device: u32) -> u32 {
        let of_process = |known: &&(u32, u32, u32)| (known.0, known.1) == (pid_of(process), device);
        self.0.iter().flatten().find(of_process).map_or(device, |known| known.2)
    }
}

pub(super) fn gpu(row: &Row) -> Result<Option<(u32, u32, u32)>> {
    let (pid, device, gpu): (Option<u32>, Option<u32>, Option<u32>) =
        (row.get(0)?, row.get(1)?, row.get(2)?);
    Ok(pid
        .zip(device)
        .zip(gpu)
        .map(|((pid, device), gpu)| (pid, device, gpu))
        .filter(|(_, device, gpu)| device != gpu))
}

/// One row per kernel that ran on a device. `correlationId` identifies the launching call in the
/// same process; `graphNodeId` is null unless a CUDA graph was traced by node.
pub(super) const KERNEL: [&str; 18] = [
    "start",
    "end",
    "deviceId",
    "streamId",
    "correlationId",
    "globalPid",
    "shortName",
    "demangledName",
    "registersPerThread",
    "gridX",
    "gridY",
    "gridZ",
    "blockX",
    "blockY",
    "blockZ",
    "graphNodeId",
    "dynamicSharedMemory",
    "mangledName",
];

#[inline]
pub(super) fn kernel(
    row: &RowNumbers<18>,
    names: &mut StringTable,
) -> std::result::Result<Kernel, ColumnError> {
    Ok(Kernel {
        start_ns: row.get(0)?,
        end_ns: row.get(1)?,
        device: row.get(2)?,
        stream: row.get(3)?,
        correlation_id: row.some(4)?.unwrap_or_default(),
        global_pid: row.some(5)?.unwrap_or_default(),
        name: names.index(row.get(6)?),
        full_name: names.index(row.get(7)?),
        registers: row.get(8)?,
        grid: [row.get(9)?, row.get(10)?, row.get(11)?],
        block: [row.get(12)?, row.get(13)?, row.get(14)?],
        graph_node: row.some(15)?.map(i64::cast_unsigned),
        shared_memory: row
            .some::<i64>(16)?
            .and_then(|it| u32::try_from(it).ok())
            .unwrap_or_default(),
    })
}

/// Id of the linker symbol of a kernel; exports of some versions lack it.
#[inline]
pub(super) fn symbol(row: &RowNumbers<18>) -> std::result::Result<Option<i64>, ColumnError> {
    row.some(17)
}

/// One row per call of the CUDA runtime or driver.
pub(super) const CUDA_CALL: [&str; 5] = ["start", "end", "globalTid", "nameId", "correlationId"];
/// One row per traced call of the operating system. These launch nothing, so nothing correlates.
pub(super) const OS_CALL: [&str; 4] = ["start", "end", "globalTid", "nameId"];

#[inline]
pub(super) fn call<const N: usize>(
    row: &RowNumbers<N>,
    names: &mut StringTable,
) -> std::result::Result<ApiCall, ColumnError> {
    Ok(ApiCall {
        start_ns: row.get(0)?,
        end_ns: row.get(1)?,
        global_tid: row.some(2)?.unwrap_or_default(),
        name: names.index(row.get(3)?),
        correlation_id: if N > OS_CALL.len() { row.some(4)?.unwrap_or_default() } else { 0 },
    })
}

/// Kinds of memory in nsys's enumeration `ENUM_CUDA_MEM_KIND`.
const PAGEABLE_MEMORY: i64 = 0;
const UNKNOWN_MEMORY: i64 = 7;

pub(super) fn memory_op(row: &Row) -> Result<MemoryOp> {
    // CUPTI's kinds of copies; a fill has none.
    let stated = row.get::<_, Option<i64>>(2)?;
    let (kind, side) = match stated {
        None => (CopyKind::Set, None),
        Some(1 | 3 | 11) => (CopyKind::HostToDevice, Some(9)),
        Some(2 | 4 | 12) => (CopyKind::DeviceToHost, Some(10)),
        Some(5..=8) => (CopyKind::DeviceToDevice, None),
        Some(_) => (CopyKind::Other, None),
    };
    let is_migration = matches!(stated, Some(11 | 12));
    let memory = side.map(|side| row.get::<_, Option<i64>>(side)).transpose()?.flatten();
    let is_pageable = memory.filter(|it| *it != UNKNOWN_MEMORY).map(|it| it == PAGEABLE_MEMORY);
    Ok(MemoryOp {
        start_ns: row.get(0)?,
        end_ns: row.get(1)?,
        kind,
        bytes: or_zero(row, 3)?.cast_unsigned(),
        device: row.get(4)?,
        global_pid: or_zero(row, 5)?,
        correlation_id: or_zero(row, 6)?,
        graph_node: row.get::<_, Option<i64>>(7)?.map(i64::cast_unsigned),
        stream: row.get::<_, Option<i64>>(8)?.and_then(|it| u32::try_from(it).ok()),
        // Pages of unified memory migrate without a copy of the program.
        is_pageable: if is_migration { Some(false) } else { is_pageable },
    })
}

/// The target of a wait, with the device as written; `None` without a call.
pub(super) fn wait_target(row: &Row) -> Result<Option<WaitTarget>> {
    /// CUPTI's id of no device and no stream, as exports of different versions write it.
    const NONE: [i64; 2] = [-1, u32::MAX as i64];
    let (process, correlation) = (process_of(or_zero(row, 0)?), or_zero(row, 1)?);
    let id = |at: usize| -> Result<Option<u32>> {
        let id = row.get::<_, Option<i64>>(at)?.filter(|it| !NONE.contains(it));
        Ok(id.and_then(|it| u32::try_from(it).ok()))
    };
    let target = WaitTarget { process, correlation, device: id(2)?, stream: id(3)? };
    Ok(Some(target).filter(|_| correlation > 0))
}

pub(super) fn graph_launch(row: &Row) -> Result<GraphLaunch> {
    Ok(GraphLaunch {
        start_ns: row.get(0)?,
        end_ns: row.get(1)?,
        device: row.get::<_, Option<u32>>(2)?.unwrap_or_default(),
        stream: row.get::<_, Option<u32>>(3)?.unwrap_or_default(),
        global_pid: or_zero(row, 4)?,
        correlation_id: or_zero(row, 5)?,
        graph: row.get::<_, Option<i64>>(6)?.map(i64::cast_unsigned),
    })
}

pub(super) fn graph_node(row: &Row) -> Result<GraphNode> {
    Ok(GraphNode {
        at_ns: row.get(0)?,
        global_tid: or_zero(row, 1)?,
        id: row.get::<_, i64>(2)?.cast_unsigned(),
        original: row.get::<_, Option<i64>>(3)?.map(i64::cast_unsigned),
    })
}

pub(super) fn or_zero(row: &Row, column: usize) -> Result<i64> {
    Ok(row.get::<_, Option<i64>>(column)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::timeline::CopyKind::{
        DeviceToDevice, DeviceToHost, HostToDevice, Other, Set,
    };
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn copies_have_the_memory_of_the_host_and_migrations_are_not_of_pageable_memory() {
        let db = Connection::open_in_memory().unwrap();
        let of = |kind: Option<i64>, source: Option<i64>, target: Option<i64>| {
            let sql = "select 0, 9, ?1, 70000, 0, 1, 1, null, 7, ?2, ?3";
            let copy = db.query_row(sql, (kind, source, target), memory_op).unwrap();
            (copy.kind, copy.is_pageable)
        };
        for (kind, source, target, expected) in [
            (Some(1), Some(0), Some(2), (HostToDevice, Some(true))),
            (Some(1), Some(1), Some(2), (HostToDevice, Some(false))),
            (Some(1), None, None, (HostToDevice, None)),
            (Some(2), Some(2), Some(0), (DeviceToHost, Some(true))),
            (Some(2), Some(0), Some(7), (DeviceToHost, None)),
            (Some(11), Some(0), Some(2), (HostToDevice, Some(false))),
            (Some(12), Some(7), Some(7), (DeviceToHost, Some(false))),
            (Some(8), Some(2), Some(2), (DeviceToDevice, None)),
            (Some(13), Some(4), Some(4), (Other, None)),
            (None, None, None, (Set, None)),
        ] {
            assert_eq!(of(kind, source, target), expected, "{kind:?} {source:?} {target:?}");
        }
    }
}
