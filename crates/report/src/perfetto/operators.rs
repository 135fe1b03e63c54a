//! Calls of a framework's operators, a row per thread.
//!
//! Calls of one thread nest. If times are rounded, an inner call may end after the outer one: it is
//! cut there, since slices of a row may not cross.

use std::io::{self, Write};

use llmprof_core::trace::timeline::{Timeline, tid_of};

use super::{
    Rows,
    packets::{Arg, Packets, SliceTemplate, Track},
    span,
    window::Window,
};

/// Writes the calls of all threads, which come in order of start by thread.
pub fn operators(
    packets: &mut Packets<impl Write>,
    process: Track,
    nsys: &Timeline,
    window: &Window,
) -> io::Result<()> {
    let signatures = &nsys.framework.signatures;
    let mut templates: Vec<Option<SliceTemplate>> = vec![None; signatures.len()];
    let (mut threads, mut thread, mut open) = (Rows::default(), None, Vec::<i64>::new());
    for call in nsys.framework.iter() {
        if thread != Some(call.global_tid) {
            (thread, open) = (Some(call.global_tid), Vec::new());
        }
        while open.last().is_some_and(|end| *end <= call.start_ns) {
            open.pop();
        }
        let end_ns = open.last().map_or(call.end_ns, |end| call.end_ns.min(*end));
        open.push(end_ns);
        if !window.overlaps(call.start_ns, end_ns) {
            continue;
        }
        let Some(times) = span(window.origin, (call.start_ns, end_ns)) else { continue };
        let row = threads.of(call.global_tid, || {
            packets.row(process, &format!("operators of thread {}", tid_of(call.global_tid)))
        })?;
        let at = call.signature as usize;
        let (Some(signature), Some(known)) = (signatures.get(at), templates.get_mut(at)) else {
            continue;
        };
        if known.is_none() {
            let shapes = format!("{:?}", signature.shapes);
            let about = [("shapes", Arg::Text(&shapes))];
            *known = Some(packets.template("operator", &signature.name, &about)?);
        }
        if let Some(template) = known {
            packets.slice(row, template, times)?;
        }
    }
    Ok(())
}
