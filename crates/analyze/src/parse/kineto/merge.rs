//! Rows of all files as one timeline: processes, threads and devices get distinct numbers, times
//! one zero.
//!
//! Ranks on several hosts may share process ids, and each may call its GPU device 0.

use std::cmp::Reverse;

use foldhash::{HashMap, HashSet};
use llmprof_core::trace::{
    collectives::ProcessRank,
    environment::{Environment, Gpu, cuda_version},
    framework::{FrameworkCall, TimelineTool},
    kernel::{Kernel, TracedKernel, UNNUMBERED_NODE},
    range::{self, Range, RangeSites},
    runtime_call::CallKind,
    timeline::{ApiCall, ApiCalls, Timeline, process_of},
    untimed::TimeFault,
};

use super::{
    copies::Copies,
    event::{DeviceProperties, Integer, last_number},
    findings::{self, FileFacts},
    graph_captures,
    rows::{FileRows, HostRow},
    sites,
    strings::Strings,
    text::{Header, Tables},
    windows::{ProcessKey, Windows, origin, shifted},
};
use crate::parse::{FARTHEST, ParseError, capture_path::CapturePath};

/// Bits of a process or thread in a global id.
const BITS: u32 = 24;

/// Max processes named in a refusal.
const MAX_NAMED: usize = 16;

/// The timeline under way.
#[derive(Debug, Default)]
pub struct Merged {
    trace: Timeline,
    processes: HashSet<i64>,
    /// Number of each device, by file and the file's own number.
    devices: HashMap<(usize, u32), u32>,
    used: HashSet<u32>,
    gpus: Vec<Gpu>,
    facts: Vec<FileFacts>,
    copies: Copies,
    windows: Windows,
}

/// The number itself if it fits and is free, else the lowest free one.
fn free_number(wanted: i64, taken: &mut HashSet<i64>) -> i64 {
    let fits = |it: &i64| (1..1 << BITS).contains(it);
    let wanted = Some(wanted).filter(fits).filter(|it| !taken.contains(it));
    let number = wanted.unwrap_or_else(|| (1..).find(|it| !taken.contains(it)).unwrap_or(1));
    taken.insert(number);
    number
}

impl Merged {
    /// Adds the rows of one file.
    pub fn add(
        &mut self,
        path: &CapturePath,
        header: &Header,
        mut rows: FileRows,
        tables: &mut Tables,
    ) -> Result<(), ParseError> {
        rows.add_device_ranges();
        let foreign = |what: String| ParseError::Foreign { path: path.shown().into(), what };
        if let Some(processes) = several_processes(&rows) {
            return Err(foreign(format!(
                "work of several processes ({processes}) in one trace, as in a merged one; import \
                 the trace of each process as a file of its own, without merged ones"
            )));
        }
        if rows.kernels.is_empty()
            && rows.untimed.kernels.is_empty()
            && rows.calls.is_empty()
            && rows.operators.is_empty()
            && rows.ranges.is_empty()
        {
            return Err(foreign(
                "no kernel, call of the runtime, operator or range is in the trace".into(),
            ));
        }
        if let Some(base) = header.base_ns.filter(|it| !(0..=FARTHEST).contains(it)) {
            return Err(foreign(format!("impossible baseTimeNanoseconds {base}")));
        }
        if self.copies.is_copy(path.name(), header, &rows) {
            return Ok(());
        }
        let captures = graph_captures::captures(path, header, &rows, tables);
        if captures.is_alone {
            // Nothing of it ran in the window: it has neither a process nor a rank of its own.
            captures.add_to(&mut self.trace.graph_captures, None);
            self.trace.graph_captures.files.push(path.name());
            return Ok(());
        }
        let file = self.facts.len();
        self.facts.push(FileFacts::of(path.name(), header, &rows));
        let pid = rows.main_process();
        let wanted = rows.label(pid).map_or(Some(pid), last_number).unwrap_or(0);
        let process = free_number(wanted, &mut self.processes) << BITS;
        let place = process_rank(header, file);
        let rank = place.rank;
        let base = header.base_ns.unwrap_or(0);
        let key = ProcessKey::of(&place, &rows, pid);
        let other = self.windows.add(file, key, process, rows.span(base));
        for own in rows.used_devices() {
            if let Some((other, _)) = other {
                let number = self.device(other, own);
                self.devices.insert((file, own), number);
            }
        }
        // Windows of one process share its clock.
        let place = match other {
            Some((first, owner)) => {
                ProcessRank { file: first as u32, window_of: Some(owner), ..place }
            }
            None => place,
        };
        self.trace.collectives.processes.insert(process, place);
        self.trace.processes.insert(process, process_name(&rows, pid, rank, process));
        captures.add_to(&mut self.trace.graph_captures, Some(process));
        let mut taken = HashSet::default();
        let threads: Vec<i64> =
            rows.threads.iter().map(|(_, tid)| process | free_number(*tid, &mut taken)).collect();
        self.describe(header);
        self.append(file, rows, (base, process), &threads, &tables.strings);
        self.add_gpus(file, &header.devices);
        Ok(())
    }

    /// Notes the batches of all graphs that an engine captured, as a file lists them.
    pub fn list_captures(&mut self, path: &CapturePath, batches: impl IntoIterator<Item = u64>) {
        let captures = &mut self.trace.graph_captures;
        captures.files.push(path.name());
        captures.listed.extend(batches);
        captures.listed.sort_unstable();
        captures.listed.dedup();
    }

    fn describe(&mut self, header: &Header) {
        let trace = &mut self.trace;
        trace.tool_version = trace.tool_version.take().or_else(|| header.version());
        let target = &mut trace.target;
        target.cuda = target.cuda.take().or_else(|| header.driver.and_then(cuda_version));
        let runtime = || header.runtime.and_then(cuda_version);
        target.cuda_runtime = target.cuda_runtime.take().or_else(runtime);
    }

    /// Number of a device of a file in the timeline.
    fn device(&mut self, file: usize, device: u32) -> u32 {
        if let Some(known) = self.devices.get(&(file, device)) {
            return *known;
        }
        let free = |it: &u32| !self.used.contains(it);
        let number = Some(device).filter(free).or_else(|| (0..).find(free)).unwrap_or(device);
        self.used.insert(number);
        self.devices.insert((file, device), number);
        number
    }

    fn append(
        &mut self,
        file: usize,
        mut rows: FileRows,
        (base, process): (i64, i64),
        threads: &[i64],
        strings: &Strings,
    ) {
        let at = |ns: i64| ns.saturating_add(base);
        let devices = rows.used_devices().into_iter();
        let devices: HashMap<u32, u32> = devices.map(|it| (it, self.device(file, it))).collect();
        let sites = sites::call_sites(&rows, threads.len(), strings);
        let of_process = |(correlation, site): (u32, u32)| (process, correlation, site);
        self.trace.framework.call_sites.extend(sites.into_iter().map(of_process));
        let collectives = std::mem::take(&mut rows.collectives);
        let launches = (rows.has_operator_ids(), &rows.calls);
        collectives.add_to(&mut self.trace.collectives, process, launches);
        self.trace.wait_targets.extend(std::mem::take(&mut rows.waits).of(process, &devices));
        self.operators(process, &mut rows, threads, base);
        let overheads = rows.overheads.iter().map(|(start, end)| (process, at(*start), at(*end)));
        self.trace.framework.overheads.extend(overheads);
        let window = rows.window.map(|(start, end)| (process, (at(start), at(end))));
        self.trace.windows.extend(window);
        let graphs = graph_calls(&rows.calls, strings);
        let is_rounded = rows.odd.whole >= rows.kernels.len() as u64;
        let mut place = 0;
        for it in std::mem::take(&mut rows.kernels).iter() {
            let mut it = Kernel::from(it);
            // Kernels of one replay have no ids of their own before 2.12.
            if it.graph_node.is_none() && graphs.contains(&it.correlation_id) {
                place += 1;
                it.graph_node = Some(UNNUMBERED_NODE | (file as u64) << 40 | place);
            }
            (it.start_ns, it.end_ns) = (at(it.start_ns), at(it.end_ns));
            (it.global_pid, it.device) = (process, devices[&it.device]);
            if it.ns() == 0 && !is_rounded {
                self.trace.untimed.add_kernel(it, TimeFault::NoDuration, 0);
            } else {
                self.trace.kernels.push(it);
            }
        }
        let mut untimed = std::mem::take(&mut rows.untimed);
        let moved = |it: TracedKernel| {
            let device = self.device(file, it.device);
            Kernel { global_pid: process, device, start_ns: 0, end_ns: 0, ..it.into() }
        };
        untimed.kernels = untimed.kernels.iter().map(moved).collect();
        self.trace.untimed.append(untimed);
        for mut it in rows.copies {
            (it.start_ns, it.end_ns) = (at(it.start_ns), at(it.end_ns));
            (it.global_pid, it.device) = (process, devices[&it.device]);
            self.trace.copies.push(it);
        }
        for it in rows.calls.iter() {
            let global_tid = threads[it.global_tid as usize];
            let (start_ns, end_ns) = (at(it.start_ns), at(it.end_ns));
            self.trace.cuda_calls.push(ApiCall { start_ns, end_ns, global_tid, ..it });
        }
        let mut sites = RangeSites::default();
        let moved = |it: Range| {
            let thread = (threads[it.global_tid as usize], it.push_pop);
            Range::at(sites.site(it.label(), thread), (at(it.start_ns), it.end_ns.map(at)))
        };
        self.trace.ranges.extend(rows.ranges.into_iter().map(moved));
        self.trace.impossible_rows += rows.odd.impossible;
    }

    /// Adds the operators of a file, and the operator of each of its launches if it is recorded.
    fn operators(&mut self, process: i64, rows: &mut FileRows, threads: &[i64], base: i64) {
        let has_ids = rows.has_operator_ids();
        let mut operators: Vec<HostRow> = std::mem::take(&mut rows.operators);
        operators.sort_by_key(|it| (it.thread, it.start_ns, Reverse(it.end_ns)));
        let first = self.trace.framework.len() as u32;
        let mut of_id: HashMap<u32, u32> = HashMap::default();
        for (at, it) in operators.iter().enumerate() {
            if has_ids && it.external_id != 0 {
                of_id.insert(it.external_id, first + at as u32);
            }
            self.trace.framework.push(FrameworkCall {
                start_ns: it.start_ns.saturating_add(base),
                end_ns: it.end_ns.saturating_add(base),
                global_tid: threads[it.thread as usize],
                signature: it.name,
            });
        }
        let launched = std::mem::take(&mut rows.external_ids);
        let known = |(correlation, id): (u32, u32)| Some((process, correlation, *of_id.get(&id)?));
        self.trace.framework.operators.extend(launched.into_iter().filter_map(known));
    }

    /// Adds the devices of a file that ran work.
    fn add_gpus(&mut self, file: usize, devices: &[DeviceProperties]) {
        let mut numbers: Vec<(u32, u32)> = self
            .devices
            .iter()
            .filter(|((of, _), _)| *of == file)
            .map(|((_, own), number)| (*own, *number))
            .collect();
        numbers.sort_unstable();
        for (own, index) in &numbers {
            let of_own = |it: &&DeviceProperties| it.id.value == Some(i64::from(*own));
            // A process that sees one GPU may number it apart from its kernels.
            let only = || devices.first().filter(|_| (numbers.len(), devices.len()) == (1, 1));
            let is_new = self.gpus.iter().all(|it| it.index != *index);
            let found = devices.iter().find(of_own).or_else(only).filter(|_| is_new);
            if let Some(found) = found {
                self.gpus.push(gpu(*index, found));
            }
        }
    }

    /// The timeline, in order of time from its first event.
    pub fn finish(self, tables: Tables) -> Timeline {
        let Self { mut trace, facts, copies, mut gpus, windows, .. } = self;
        trace.tool = TimelineTool::Pytorch;
        gpus.sort_by_key(|gpu| gpu.index);
        let version = trace.tool_version.as_ref().map(|it| format!(" ({it})")).unwrap_or_default();
        let profiler = Some(format!("{}{version}", trace.tool.as_str()));
        trace.target = Environment { gpus, profiler, ..trace.target };
        trace.framework.signatures = tables.signatures.into_all();
        let origin = origin(&trace);
        // Times without a base are since the start of the host, or of another zero.
        trace.started_unix_ns = Some(origin).filter(|origin| *origin > WALL_CLOCK);
        let moves = windows.moves();
        let by = |process: i64| moves.get(&process).copied().unwrap_or(0) - origin;
        trace.kernels = trace.kernels.map(|_, it| {
            let by = by(it.global_pid);
            (it.start_ns, it.end_ns) = (it.start_ns + by, it.end_ns + by);
        });
        trace.cuda_calls = shifted(&trace.cuda_calls, by);
        for it in &mut trace.copies {
            let by = by(it.global_pid);
            (it.start_ns, it.end_ns) = (it.start_ns + by, it.end_ns + by);
        }
        for it in &mut trace.ranges {
            let by = by(process_of(it.global_tid));
            it.start_ns += by;
            it.end_ns = it.end_ns.map(|end| end + by);
        }
        trace.framework.shift(by);
        for (process, (start, end)) in &mut trace.windows {
            (*start, *end) = (start.saturating_add(by(*process)), end.saturating_add(by(*process)));
        }
        trace.findings = findings::findings(&facts, copies.left_out(), &trace);
        trace.strings = tables.strings.into_names();
        trace.kernels.sort();
        trace.drop_repeated_kernels();
        trace.number_graphs();
        trace.cuda_calls.sort();
        trace.drop_repeated_calls();
        trace.copies.sort_by_key(|copy| copy.start_ns);
        trace.wait_targets.sort_unstable();
        trace.settle_device_times();
        range::sort(&mut trace.ranges);
        trace
    }
}

/// Times after it, September 2001, are of the wall clock; an uptime is less.
const WALL_CLOCK: i64 = 1_000_000_000_000_000_000;

/// Correlation ids of launches of graphs.
fn graph_calls(calls: &ApiCalls, strings: &Strings) -> HashSet<i64> {
    let is_graph = |name: u32| CallKind::of(strings.get(name)) == CallKind::Graph;
    let sites: Vec<bool> = calls.sites().iter().map(|(name, _)| is_graph(*name)).collect();
    let launches = calls.at_sites(&sites);
    launches.map(|(_, _, call)| call.correlation_id).filter(|id| *id != 0).collect()
}

/// The processes of a file that has calls of several, or whose processes are several texts.
fn several_processes(rows: &FileRows) -> Option<String> {
    let labelled = rows.hosts.iter().filter(|it| rows.label(**it).is_some());
    let mut found: Vec<i64> = rows.calling.iter().chain(labelled).copied().collect();
    found.sort_unstable_by_key(|it| (it.abs(), *it));
    found.dedup();
    let name = |it: &i64| rows.label(*it).map_or_else(|| it.to_string(), str::to_owned);
    let names = || found.iter().take(MAX_NAMED).map(name).collect::<Vec<_>>().join(", ");
    (found.len() > 1).then(names)
}

/// Name of a process with its rank, and its own id if it has another number here.
fn process_name(rows: &FileRows, pid: i64, rank: Option<u32>, process: i64) -> String {
    let name = rows.process_names.get(&pid).cloned().unwrap_or_else(|| "process".into());
    let rank = rank.map(|it| format!(", rank {it}")).unwrap_or_default();
    let own = match rows.label(pid) {
        Some(label) => format!(", pid {label}"),
        None if process >> BITS == pid => String::new(),
        None => format!(", pid {pid}"),
    };
    format!("{name}{rank}{own}")
}

fn process_rank(header: &Header, file: usize) -> ProcessRank {
    let small = |integer: Integer| integer.value.and_then(|it| u32::try_from(it).ok());
    let found = header.distributed.as_ref();
    ProcessRank {
        rank: found.and_then(|it| small(it.rank)),
        world_size: found.and_then(|it| small(it.world_size)),
        backend: found.and_then(|it| it.backend.0.clone()),
        file: file as u32,
        window_of: None,
    }
}

fn gpu(index: u32, of: &DeviceProperties) -> Gpu {
    let small = |value: Option<i64>| value.and_then(|it| u32::try_from(it).ok());
    let capability = of.major.value.zip(of.minor.value);
    let warps = of.threads_per_sm.value.zip(of.warp.value.filter(|it| *it > 0));
    // Drivers of AMD may leave out the name. Only their warps have 64 threads; the last digit of
    // their architecture is in no trace.
    let architecture = || match (capability?, of.warp.value?) {
        ((major, minor), 64) => Some(format!("AMD GPU (gfx{major}{minor}x)")),
        ((major, minor), 32) => Some(format!("NVIDIA GPU (sm_{major}{minor})")),
        _ => None,
    };
    Gpu {
        index,
        name: of
            .name
            .0
            .clone()
            .filter(|name| !name.is_empty())
            .or_else(architecture)
            .unwrap_or_default(),
        memory_bytes: of.memory.value.and_then(|it| u64::try_from(it).ok()).unwrap_or(0),
        compute_capability: capability.map(|(major, minor)| format!("{major}.{minor}")),
        sm_count: small(of.sms.value),
        warps_per_sm: warps.and_then(|(threads, warp)| small(Some(threads / warp))),
        ..Gpu::default()
    }
}
