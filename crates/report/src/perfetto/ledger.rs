//! The gap ledger as rows of the timeline: per stage the floor and the causes of one repeat, end to
//! end, each with its kernels inside.

use std::io::{self, Write};

use llmprof_analyze::{
    ledger::{Ledger, LedgerCause, LedgerMember, LedgerRow},
    stages::in_sentence,
};

use super::{
    packets::{Arg, Packets, Track},
    size,
};
use crate::kernel_names::KernelNames;

/// Writes a row per stage, from time zero. The difference of the passes has no slice.
pub fn ledger<W: Write>(
    packets: &mut Packets<W>,
    process: Track,
    ledger: &Ledger,
    names: &KernelNames,
) -> io::Result<()> {
    for stage in &ledger.stages {
        let row = packets.row(process, &format!("ledger of {}", in_sentence(&stage.stage)))?;
        let mut at = 0u64;
        for cause in ledger.of_stage(&stage.stage) {
            let Ok(ns @ 1..) = u64::try_from(cause.ns) else { continue };
            if cause.cause == LedgerCause::PassDifference {
                continue;
            }
            let to = at.saturating_add(ns);
            write_cause(packets, row, cause, (at, to))?;
            let mut inside = at;
            for member in ledger.members(&stage.stage, cause.cause) {
                let end = inside.saturating_add(u64::try_from(member.ns).unwrap_or(0)).min(to);
                if end > inside {
                    write_member(packets, row, &names.of_member(member), (inside, end))?;
                }
                inside = end;
            }
            at = to;
        }
    }
    Ok(())
}

fn write_cause<W: Write>(
    packets: &mut Packets<W>,
    row: Track,
    cause: &LedgerRow,
    times: (u64, u64),
) -> io::Result<()> {
    let saving = u64::try_from(cause.max_saving_ns).unwrap_or(0);
    let about = [
        ("pass", Arg::Text(&cause.pass)),
        ("counters", Arg::Text(&cause.counter)),
        ("samples", Arg::Number(cause.samples)),
        ("max saving ns", Arg::Number(saving)),
    ];
    let template = packets.template("ledger", cause.cause.as_str(), &about)?;
    packets.slice(row, &template, times)
}

fn write_member<W: Write>(
    packets: &mut Packets<W>,
    row: Track,
    member: &LedgerMember,
    times: (u64, u64),
) -> io::Result<()> {
    let operator = member.operator.as_deref().unwrap_or_default();
    let sizes = [("grid", member.grid), ("block", member.block)];
    let sizes = sizes.map(|(name, sides)| (name, sides.map(size)));
    let mut about = vec![("operator", Arg::Text(operator))];
    about.extend(member.full_name.as_deref().map(|name| ("full name", Arg::Text(name))));
    for (name, text) in &sizes {
        about.extend(text.as_deref().map(|text| (*name, Arg::Text(text))));
    }
    about.push(("evidence", Arg::Text(&member.evidence)));
    let template = packets.template("ledger", &member.name(), &about)?;
    packets.slice(row, &template, times)
}
