//! The cores of the host: which thread was on each of them, and the functions of samples of the
//! threads that call CUDA.

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use foldhash::HashMap;
use llmprof_analyze::host_cpu::Names;
use llmprof_core::trace::timeline::{Timeline, pid_of, process_of, tid_of};

use super::{
    CORES,
    packets::{Arg, Packets, SliceTemplate, Track},
    span,
    window::Window,
};

/// Writes the cores of the traced pass, or the part of it in its window.
pub fn cores(
    packets: &mut Packets<impl Write>,
    nsys: &Timeline,
    window: &Window,
) -> io::Result<()> {
    let Some(host) = &nsys.host_cpu else { return Ok(()) };
    let names = Names::of(nsys);
    let process = packets.process(CORES, &window.name("cores of the host in the traced pass"))?;
    let mut rows: HashMap<u32, Track> = HashMap::default();
    let mut threads: HashMap<i64, SliceTemplate> = HashMap::default();
    let used: BTreeSet<u32> = host.runs().map(|it| it.core).collect();
    for core in used {
        rows.insert(core, packets.row(process, &format!("core {core}"))?);
    }
    for run in window.inside(host.runs(), |it| it.start_ns) {
        let times = span(window.origin, (run.start_ns, run.end_ns));
        let (Some(times), Some(row)) = (times, rows.get(&run.core)) else { continue };
        let template = match threads.get(&run.global_tid) {
            Some(known) => known.clone(),
            None => {
                let template = thread(packets, &names, run.global_tid)?;
                threads.entry(run.global_tid).or_insert(template).clone()
            }
        };
        packets.slice(*row, &template, times)?;
    }
    samples(packets, process, nsys, window)
}

/// The slices of one thread on cores.
fn thread(
    packets: &mut Packets<impl Write>,
    names: &Names,
    global_tid: i64,
) -> io::Result<SliceTemplate> {
    let (process, thread) = (pid_of(global_tid), tid_of(global_tid));
    let of_process = names.process(process_of(global_tid)).unwrap_or_default();
    let name = names.thread(global_tid).unwrap_or_else(|| of_process.clone());
    let name = if name.is_empty() { format!("thread {thread}") } else { name };
    let about = [
        ("process", Arg::Text(&of_process)),
        ("process id", Arg::Number(process.into())),
        ("thread id", Arg::Number(thread.into())),
    ];
    packets.template("thread", &name, &about)
}

/// A row of samples for each thread that calls CUDA.
fn samples(
    packets: &mut Packets<impl Write>,
    process: Track,
    nsys: &Timeline,
    window: &Window,
) -> io::Result<()> {
    let Some(host) = &nsys.host_cpu else { return Ok(()) };
    let callers = nsys.cuda_calls.threads();
    let (names, mut rows) = (Names::of(nsys), HashMap::<i64, Track>::default());
    let of_callers = host.samples().filter(|it| callers.contains(&it.global_tid));
    for it in window.inside(of_callers, |it| it.at_ns) {
        let (Some(times), Some(function)) =
            (span(window.origin, (it.at_ns, it.at_ns)), it.function)
        else {
            continue;
        };
        let row = match rows.get(&it.global_tid) {
            Some(row) => *row,
            None => {
                let name = format!("samples of thread {}", tid_of(it.global_tid));
                *rows.entry(it.global_tid).or_insert(packets.row(process, &name)?)
            }
        };
        let module = names.module(function);
        let name = names.function(function).unwrap_or_else(|| module.clone());
        let template = packets.template("sample", &name, &[("file", Arg::Text(&module))])?;
        packets.slice(row, &template, times)?;
    }
    Ok(())
}
