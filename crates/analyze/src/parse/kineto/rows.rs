//! Events of one file as compact rows, in the file's own numbers: threads by index, times from the
//! file's zero.
//!
//! An event that lacks its times, or has impossible ones, is counted and left out, never repaired.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};
use llmprof_core::trace::{
    framework::has_values,
    kernel::{Kernel, KernelTrace, UNNUMBERED_NODE},
    names::base_name,
    range::{Range, RangeLabel, RangeSites},
    runtime_call::holds_stream,
    timeline::{ApiCall, ApiCalls, CopyKind, MemoryOp},
    untimed::{TimeFault, UntimedWork},
};
use serde_json::value::RawValue;

use super::{
    category::{Category, direction, is_pageable},
    collectives::FileCollectives,
    device_ranges::DeviceRanges,
    event::{EventFields, Integer, ProcessId},
    launch_args::LaunchArgsTable,
    number::{has_decimals, nanos},
    pairs::OpenPairs,
    signatures::Signatures,
    strings::Strings,
    waits::FileWaits,
};
use crate::parse::{kernel_fault, possible_interval};

/// Most names of unknown categories that are kept.
const MAX_UNKNOWN: usize = 20;

/// A call of an operator, or a frame of Python.
#[derive(Debug, Clone, Copy)]
pub struct HostRow {
    pub start_ns: i64,
    pub end_ns: i64,
    /// Index into [`FileRows::threads`].
    pub thread: u32,
    /// Index of the signature, or of the frame's name.
    pub name: u32,
    /// `External id`; 0 if absent.
    pub external_id: u32,
}

/// Counts of what was not read as usual.
#[derive(Debug, Default)]
pub struct Oddities {
    /// Events by unknown category.
    pub unknown: BTreeMap<String, u64>,
    /// Events of types `B` and `E` that belong to no range.
    pub unpaired: u64,
    /// Events without a name, a time or a duration.
    pub incomplete: u64,
    pub impossible: u64,
    /// Integers and times written as strings.
    pub quoted: u64,
    /// Names whose quotes were escaped.
    pub repaired: u64,
    /// Kernels whose times are whole microseconds, and all kernels.
    pub whole: u64,
}

impl Oddities {
    fn count_unknown(&mut self, category: &str) {
        if self.unknown.len() < MAX_UNKNOWN || self.unknown.contains_key(category) {
            *self.unknown.entry(category.to_owned()).or_default() += 1;
        }
    }
}

/// Rows of one file.
#[derive(Debug, Default)]
pub struct FileRows {
    /// Kernels, whose process is not known before the end.
    pub kernels: KernelTrace,
    /// Kernels and copies without valid times; kernels of duration 0 are in `kernels`.
    pub untimed: UntimedWork,
    pub copies: Vec<MemoryOp>,
    /// Calls of CUDA; the thread is an index into `threads`.
    pub calls: ApiCalls,
    pub ranges: Vec<Range>,
    pub(super) open_pairs: OpenPairs,
    range_sites: RangeSites,
    pub(super) device_ranges: DeviceRanges,
    pub operators: Vec<HostRow>,
    pub frames: Vec<HostRow>,
    pub overheads: Vec<(i64, i64)>,
    /// Start and end of the recording, if the file has them.
    pub window: Option<(i64, i64)>,
    /// Process and thread as written.
    pub threads: Vec<(i64, i64)>,
    thread_index: HashMap<(i64, i64), u32>,
    /// Correlation and `External id` of kernels and copies that have both.
    pub external_ids: Vec<(u32, u32)>,
    /// Processes with CUDA calls, and all processes of the host.
    pub calling: HashSet<i64>,
    pub hosts: HashSet<i64>,
    /// Processes named by a text: the first has the number -1, the next -2.
    labels: Vec<String>,
    label_index: HashMap<String, i64>,
    pub process_names: HashMap<i64, String>,
    pub launch_args: LaunchArgsTable,
    /// Names of calls that make a stream wait for another one.
    pub waits_on_stream: HashSet<u32>,
    pub collectives: FileCollectives,
    pub waits: FileWaits,
    pub events: u64,
    pub odd: Oddities,
}

impl FileRows {
    /// Adds an event.
    pub fn push(&mut self, event: EventFields, strings: &mut Strings, known: &mut Signatures) {
        self.events += 1;
        match event.ph.0.as_deref() {
            Some("X") => {}
            Some("M") => return self.metadata(event),
            Some(half @ ("B" | "E")) => return self.add_half(&event, half == "B"),
            // Marks, flows and counters have no duration.
            Some("i" | "I" | "n" | "s" | "t" | "f" | "b" | "e" | "C" | "c" | "R") => return,
            _ => {
                self.odd.incomplete += 1;
                return;
            }
        }
        let text = event.cat.0.as_deref().unwrap_or_default();
        let category = Category::of(text);
        match category {
            Category::Redundant => return,
            Category::Wait => return self.waits.add(&event.args.0),
            Category::Unknown => return self.odd.count_unknown(text),
            Category::Window => return self.add_window(&event),
            _ => {}
        }
        let (Some(name), Some((start_ns, end_ns))) = (&event.name.0, self.times(&event, &category))
        else {
            self.odd.incomplete += 1;
            return;
        };
        let is_unrecorded = TimeFault::of(start_ns, end_ns).is_some();
        let is_reversed = start_ns >= 0 && possible_interval(end_ns, start_ns);
        let is_read = match category {
            Category::Kernel => is_unrecorded || is_reversed,
            Category::Copy | Category::Fill => is_unrecorded,
            Category::Range => is_reversed,
            _ => false,
        };
        if !is_read && (start_ns < 0 || !possible_interval(start_ns, end_ns)) {
            self.odd.impossible += 1;
            return;
        }
        let at = (start_ns, end_ns);
        match category {
            Category::Kernel => self.kernel(&event, at, strings.index(name), strings),
            Category::Copy => self.copy(&event, at, direction(name)),
            Category::Fill => self.copy(&event, at, CopyKind::Set),
            Category::Call => self.call(&event, at, strings),
            Category::Range => {
                let end_ns = Some(end_ns).filter(|end| *end >= start_ns);
                self.range(&event, (start_ns, end_ns), name);
            }
            Category::Operator => {
                let args = &event.args.0;
                let dims = args.input_dims.as_deref().map_or("", |it| it.get());
                let types = args.input_types.as_deref().map_or("", |it| it.get());
                // For other operators, no value changes the work.
                let values = args.concrete_inputs.as_deref().filter(|_| has_values(name));
                let values = values.map_or("", |it| it.get());
                let row = self.host(&event, at, known.index(name, dims, types, values));
                self.collectives.operator(name, args, (row.thread, at.0, at.1));
                self.operators.push(row);
            }
            Category::DeviceRange => {
                let id = self.small(event.args.0.external_id);
                self.device_ranges.add(name, id, at);
            }
            Category::Frame => {
                let row = self.host(&event, at, strings.index(name));
                self.frames.push(row);
            }
            Category::Overhead => self.overheads.push(at),
            Category::Window | Category::Wait | Category::Redundant | Category::Unknown => {}
        }
    }

    /// Sets the time of the recording, which the profiler writes once.
    fn add_window(&mut self, event: &EventFields) {
        let times = self.times(event, &Category::Window);
        let is_known = |it: &(i64, i64)| it.0 >= 0 && possible_interval(it.0, it.1);
        self.window = self.window.or(times.filter(is_known));
    }

    fn metadata(&mut self, event: EventFields) {
        if let (Some("process_name"), Some(name)) = (event.name.0.as_deref(), event.args.0.name.0)
            && event.pid != ProcessId::default()
        {
            let pid = self.process(&event.pid);
            self.process_names.insert(pid, name);
        }
    }

    /// Number of a process in this file.
    pub(super) fn process(&mut self, pid: &ProcessId) -> i64 {
        let Some(label) = &pid.label else { return self.number(pid.number).unwrap_or(0) };
        if let Some(known) = self.label_index.get(label) {
            return *known;
        }
        self.labels.push(label.clone());
        let number = -(self.labels.len() as i64);
        self.label_index.insert(label.clone(), number);
        number
    }

    /// The text that names a process.
    pub fn label(&self, process: i64) -> Option<&str> {
        let at = usize::try_from(-1 - process).ok()?;
        self.labels.get(at).map(String::as_str)
    }

    /// Start and end of an event. A kernel without a duration ends at its start.
    fn times(&mut self, event: &EventFields, category: &Category) -> Option<(i64, i64)> {
        let is_kernel = matches!(category, Category::Kernel);
        let (ts, dur) = (event.ts.as_deref()?.get(), event.dur.as_deref());
        let dur = dur.map(RawValue::get).or(is_kernel.then_some("null"))?;
        self.odd.quoted += u64::from(ts.starts_with('"') || dur.starts_with('"'));
        if is_kernel {
            self.odd.whole += u64::from(!has_decimals(ts) && !has_decimals(dur));
        }
        let start = nanos(ts)?;
        let ns = nanos(dur).or((is_kernel && dur == "null").then_some(0))?;
        // A sum beyond 2^63 is an impossible time.
        Some((start, start.checked_add(ns).unwrap_or(i64::MIN)))
    }

    pub(super) fn number(&mut self, integer: Integer) -> Option<i64> {
        self.odd.quoted += u64::from(integer.quoted);
        integer.value
    }

    /// A number of 32 bits; 0 if it is absent or larger.
    fn small(&mut self, integer: Integer) -> u32 {
        self.number(integer).and_then(|it| u32::try_from(it).ok()).unwrap_or(0)
    }

    fn thread(&mut self, event: &EventFields) -> u32 {
        let pid = self.process(&event.pid);
        let thread = (pid, self.number(event.tid).unwrap_or(0));
        self.hosts.insert(pid);
        self.thread_of(thread)
    }

    /// Number of a thread, given as process and thread as written.
    pub(super) fn thread_of(&mut self, thread: (i64, i64)) -> u32 {
        *self.thread_index.entry(thread).or_insert_with(|| {
            self.threads.push(thread);
            self.threads.len() as u32 - 1
        })
    }

    fn host(&mut self, event: &EventFields, (start_ns, end_ns): (i64, i64), name: u32) -> HostRow {
        let external_id = self.small(event.args.0.external_id);
        HostRow { start_ns, end_ns, thread: self.thread(event), name, external_id }
    }

    /// Device and correlation id of work, whose `External id` is noted.
    fn work(&mut self, event: &EventFields) -> (u32, i64) {
        let args = &event.args.0;
        let device =
            if args.device.value.is_some() { args.device } else { event.pid.last_number() };
        let (correlation, external) = (self.small(args.correlation), self.small(args.external_id));
        if correlation != 0 && external != 0 {
            self.external_ids.push((correlation, external));
        }
        (self.small(device), correlation.into())
    }

    fn kernel(
        &mut self,
        event: &EventFields,
        (start_ns, end_ns): (i64, i64),
        full_name: u32,
        strings: &mut Strings,
    ) {
        let args = &event.args.0;
        let (device, correlation_id) = self.work(event);
        let stream = if args.stream.value.is_some() { args.stream } else { event.tid };
        let graph = args.graph_id.value.unwrap_or(0).cast_unsigned() << 32;
        // CUPTI's id of a node holds its graph.
        let node = |id: u64| if id >> 32 == 0 { graph | id } else { id };
        let id = args.graph_node_id.value.filter(|it| *it != 0).map(i64::cast_unsigned);
        let graph_node = id.map(|id| node(id) & !UNNUMBERED_NODE);
        let full_name = strings.demangled(full_name);
        let name = strings.shortened(full_name, base_name);
        self.collectives.kernel(strings.get(name), args);
        let kernel = Kernel {
            name,
            full_name,
            device,
            stream: self.small(stream),
            start_ns,
            end_ns,
            global_pid: 0,
            correlation_id,
            grid: args.grid.0,
            block: args.block.0,
            registers: self.small(args.registers),
            shared_memory: self.small(args.shared_memory),
            graph_node,
        };
        match kernel_fault(start_ns, end_ns) {
            None | Some(TimeFault::NoDuration) => self.kernels.push(kernel),
            Some(fault) => self.untimed.add_kernel(kernel, fault, start_ns - end_ns),
        }
    }

    fn copy(&mut self, event: &EventFields, (start_ns, end_ns): (i64, i64), kind: CopyKind) {
        let (device, correlation_id) = self.work(event);
        let bytes = self.number(event.args.0.bytes).and_then(|it| u64::try_from(it).ok());
        if let Some(fault) = TimeFault::of(start_ns, end_ns) {
            self.untimed.add_copy(fault);
            return;
        }
        let stream = self.number(event.args.0.stream).and_then(|it| u32::try_from(it).ok());
        self.copies.push(MemoryOp {
            start_ns,
            end_ns,
            bytes: bytes.unwrap_or(0),
            kind,
            device,
            stream,
            global_pid: 0,
            correlation_id,
            graph_node: None,
            is_pageable: is_pageable(event.name.0.as_deref().unwrap_or_default()),
        });
    }

    fn call(&mut self, event: &EventFields, (start_ns, end_ns): (i64, i64), strings: &mut Strings) {
        let text = event.name.0.as_deref().unwrap_or_default();
        let name = strings.index(text);
        if holds_stream(text) {
            self.waits_on_stream.insert(name);
        }
        let thread = self.thread(event);
        let (global_tid, (process, _)) = (thread.into(), self.threads[thread as usize]);
        self.calling.insert(process);
        let args = &event.args.0;
        let correlation = self.small(args.correlation);
        self.launch_args.add(correlation, args, strings);
        let correlation_id = correlation.into();
        self.calls.push(ApiCall { name, start_ns, end_ns, global_tid, correlation_id });
    }

    /// Adds a range; without an end if none is recorded.
    pub(super) fn range(&mut self, event: &EventFields, times: (i64, Option<i64>), name: &str) {
        let name = range_name(name);
        let thread = self.thread(event);
        self.collectives.range(name, (thread, times.0, times.1.unwrap_or(times.0)));
        self.range_on(thread, times, name);
    }

    /// Adds a range on a thread of this file.
    pub(super) fn range_on(&mut self, thread: u32, times: (i64, Option<i64>), name: &str) {
        let global_tid = i64::from(thread);
        let label = RangeLabel { domain: String::new(), name: name.to_owned() };
        let label = self.range_sites.label(label);
        let site = self.range_sites.site(&label, (global_tid, true));
        self.ranges.push(Range::at(site, times));
    }

    /// The process that launches, else the first.
    pub fn main_process(&self) -> i64 {
        let pid = self.calling.iter().next().or_else(|| self.hosts.iter().min());
        pid.copied().unwrap_or(0)
    }

    /// True if `External id` names operators: in 1.13 a kernel's `External id` is its correlation
    /// id.
    pub fn has_operator_ids(&self) -> bool {
        self.external_ids.iter().any(|(correlation, external)| correlation != external)
    }
}

/// The profiler numbers its steps; instances of one range share a name.
pub(super) fn range_name(name: &str) -> &str {
    if name.starts_with("ProfilerStep#") { "ProfilerStep" } else { name }
}
