//! Writer of Perfetto's trace format: tracks, slices, flows and counters, with each text written
//! once.
//!
//! A trace is a list of packets in the wire format of protocol buffers; field numbers are from
//! Perfetto's `trace_packet.proto`, `track_event.proto`, `track_descriptor.proto`,
//! `debug_annotation.proto` and `interned_data.proto`. Only the texts are kept in memory.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use foldhash::fast::RandomState;

/// All packets are of one sequence, so later packets refer to the texts of earlier ones.
const SEQUENCE: u64 = 1;
const FLAG_CLEARED: u64 = 1;
const FLAG_NEEDS_STATE: u64 = 2;
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const COUNTER: u64 = 4;

/// A row of the timeline: of events, of figures, or a process with rows of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Track(u64);

/// An argument of a slice.
#[derive(Debug, Clone)]
pub enum Arg<'a> {
    Text(&'a str),
    Number(u64),
    Flag(bool),
}

/// Name, kind and arguments that slices share.
#[derive(Debug, Clone, Default)]
pub struct SliceTemplate(Vec<u8>);

/// Lists of texts, each with its own numbering.
#[derive(Debug, Clone, Copy)]
enum List {
    Categories = 1,
    Names = 2,
    Labels = 3,
    Values = 29,
}

/// The trace being written.
pub struct Packets<W> {
    out: W,
    /// The current packet and its event.
    packet: Vec<u8>,
    event: Vec<u8>,
    tracks: u64,
    known: [HashMap<String, u64, RandomState>; 4],
}

impl<W: Write> Packets<W> {
    /// Starts a trace.
    pub fn start(out: W) -> io::Result<Self> {
        let mut packets = Self {
            out,
            packet: Vec::new(),
            event: Vec::new(),
            tracks: 0,
            known: Default::default(),
        };
        number(&mut packets.packet, 10, SEQUENCE);
        number(&mut packets.packet, 13, FLAG_CLEARED);
        packets.send()?;
        Ok(packets)
    }

    /// Flushes the trace.
    pub fn end(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    /// A process. Its number orders it among the others.
    pub fn process(&mut self, pid: u32, name: &str) -> io::Result<Track> {
        let mut process = Vec::new();
        number(&mut process, 1, pid.into());
        bytes(&mut process, 6, name.as_bytes());
        self.track(|track| bytes(track, 3, &process))
    }

    /// A row of slices in a process.
    pub fn row(&mut self, of: Track, name: &str) -> io::Result<Track> {
        self.track(|track| {
            bytes(track, 2, name.as_bytes());
            number(track, 5, of.0);
        })
    }

    /// A row of figures in a process.
    pub fn figures(&mut self, of: Track, name: &str, unit: &str) -> io::Result<Track> {
        let mut counter = Vec::new();
        bytes(&mut counter, 6, unit.as_bytes());
        self.track(|track| {
            bytes(track, 2, name.as_bytes());
            number(track, 5, of.0);
            bytes(track, 8, &counter);
        })
    }

    fn track(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<Track> {
        self.tracks += 1;
        let mut track = Vec::new();
        number(&mut track, 1, self.tracks);
        write(&mut track);
        number(&mut self.packet, 10, SEQUENCE);
        bytes(&mut self.packet, 60, &track);
        self.send()?;
        Ok(Track(self.tracks))
    }

    /// Encodes the shared properties of slices.
    pub fn template(
        &mut self,
        kind: &str,
        name: &str,
        args: &[(&str, Arg)],
    ) -> io::Result<SliceTemplate> {
        let (kind, name) = (self.text(List::Categories, kind)?, self.text(List::Names, name)?);
        let mut template = SliceTemplate::default();
        number(&mut template.0, 3, kind);
        number(&mut template.0, 10, name);
        for (label, arg) in args {
            self.annotate(&mut template, label, arg)?;
        }
        Ok(template)
    }

    /// Adds an argument.
    pub fn annotate(
        &mut self,
        template: &mut SliceTemplate,
        label: &str,
        arg: &Arg,
    ) -> io::Result<()> {
        let mut one = Vec::new();
        number(&mut one, 1, self.text(List::Labels, label)?);
        match arg {
            Arg::Text(text) => number(&mut one, 17, self.text(List::Values, text)?),
            Arg::Number(value) => number(&mut one, 3, *value),
            Arg::Flag(value) => number(&mut one, 2, (*value).into()),
        }
        bytes(&mut template.0, 4, &one);
        Ok(())
    }

    /// Writes a slice of a row. Slices of one row do not cross and come outer ones first; times are
    /// nanoseconds.
    pub fn slice(
        &mut self,
        row: Track,
        template: &SliceTemplate,
        times: (u64, u64),
    ) -> io::Result<()> {
        self.slice_of_flow(row, template, times, None)
    }

    /// Writes a slice of a row, with an arrow from the slice of this flow before it.
    pub fn slice_of_flow(
        &mut self,
        row: Track,
        template: &SliceTemplate,
        (from, to): (u64, u64),
        flow: Option<u64>,
    ) -> io::Result<()> {
        self.event.extend_from_slice(&template.0);
        if let Some(flow) = flow {
            fixed(&mut self.event, 47, flow);
        }
        self.happens(SLICE_BEGIN, row, from)?;
        self.happens(SLICE_END, row, to)
    }

    /// Writes a figure at a time.
    pub fn figure(&mut self, row: Track, at: u64, value: f64) -> io::Result<()> {
        fixed(&mut self.event, 44, value.to_bits());
        self.happens(COUNTER, row, at)
    }

    fn happens(&mut self, what: u64, row: Track, at: u64) -> io::Result<()> {
        number(&mut self.event, 9, what);
        number(&mut self.event, 11, row.0);
        number(&mut self.packet, 8, at);
        number(&mut self.packet, 10, SEQUENCE);
        number(&mut self.packet, 13, FLAG_NEEDS_STATE);
        bytes(&mut self.packet, 11, &self.event);
        self.event.clear();
        self.send()
    }

    /// Returns the number of a text; a new text is written first.
    fn text(&mut self, list: List, text: &str) -> io::Result<u64> {
        let known = &mut self.known[match list {
            List::Categories => 0,
            List::Names => 1,
            List::Labels => 2,
            List::Values => 3,
        }];
        if let Some(id) = known.get(text) {
            return Ok(*id);
        }
        let id = known.len() as u64 + 1;
        known.insert(text.to_owned(), id);
        let (mut entry, mut lists) = (Vec::new(), Vec::new());
        number(&mut entry, 1, id);
        bytes(&mut entry, 2, text.as_bytes());
        bytes(&mut lists, list as u32, &entry);
        number(&mut self.packet, 10, SEQUENCE);
        number(&mut self.packet, 13, FLAG_NEEDS_STATE);
        bytes(&mut self.packet, 12, &lists);
        self.send()?;
        Ok(id)
    }

    /// Writes the current packet.
    fn send(&mut self) -> io::Result<()> {
        let mut head = Vec::with_capacity(11);
        varint(&mut head, 1 << 3 | 2);
        varint(&mut head, self.packet.len() as u64);
        self.out.write_all(&head)?;
        self.out.write_all(&self.packet)?;
        self.packet.clear();
        Ok(())
    }
}

// The wire format: <https://protobuf.dev/programming-guides/encoding/>.

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, u64::from(field) << 3);
    varint(out, value);
}

fn fixed(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, u64::from(field) << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    varint(out, u64::from(field) << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}
