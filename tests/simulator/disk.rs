//! The disk of a simulated database: files with their current and their durable content.
//!
//! A killed process leaves the current content, a power cut the durable one and a random part of
//! the sectors that were not synced. Whatever an earlier process still does has no effect.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use llmprof_service::runtime::SimulatedProcess;

use super::random::Random;

/// Bytes that are written as a whole, or not at all.
const SECTOR: usize = 512;

/// A disk. Clones share it.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Number of processes that used the disk before.
    process_number: u64,
    process: Option<Arc<SimulatedProcess>>,
    files: BTreeMap<String, File>,
    /// Writes and syncs so far.
    operations: u64,
    kill_at: Option<u64>,
    fail_at: Option<u64>,
    is_full: bool,
    /// Syncs that are answered and not done: for a test of the invariants.
    ignores_syncs: bool,
}

/// Current and durable content of a file.
#[derive(Clone, Default)]
pub struct File {
    content: Vec<u8>,
    durable: Vec<u8>,
    unsynced: BTreeSet<usize>,
}

/// Reason why an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process was killed, or another one has the disk.
    Dead,
    Failed,
    Full,
}

/// Kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Write,
    Sync,
}

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a durable file.
    pub fn put(&self, name: &str, content: &[u8]) {
        let file = File {
            content: content.to_vec(),
            durable: content.to_vec(),
            unsynced: BTreeSet::new(),
        };
        self.state().files.insert(name.to_owned(), file);
    }

    /// Gives the disk to a new process; returns its number.
    pub fn attach(&self, process: Option<Arc<SimulatedProcess>>) -> u64 {
        let mut state = self.state();
        state.process_number += 1;
        (state.process, state.kill_at, state.fail_at) = (process, None, None);
        (state.is_full, state.operations) = (false, 0);
        state.process_number
    }

    pub fn process_number(&self) -> u64 {
        self.state().process_number
    }

    /// Gives the disk to a new connection of the same process: earlier ones have no effect.
    pub fn connect(&self) {
        self.state().process_number += 1;
    }

    /// Kills the process at a later operation.
    pub fn kill_after(&self, operations: u64) {
        let mut state = self.state();
        state.kill_at = Some(state.operations + operations);
    }

    /// Fails a later operation.
    pub fn fail_after(&self, operations: u64) {
        let mut state = self.state();
        state.fail_at = Some(state.operations + operations);
    }

    pub fn set_full(&self, is_full: bool) {
        self.state().is_full = is_full;
    }

    /// From now on everything succeeds.
    pub fn end_faults(&self) {
        let mut state = self.state();
        (state.kill_at, state.fail_at, state.is_full) = (None, None, false);
    }

    /// Answers syncs without doing them.
    pub fn ignore_syncs(&self) {
        self.state().ignores_syncs = true;
    }

    /// Loses what is not durable, except for a random part.
    pub fn cut_power(&self, random: &mut Random) {
        for file in self.state().files.values_mut() {
            let mut left = file.durable.clone();
            for sector in std::mem::take(&mut file.unsynced) {
                let start = sector * SECTOR;
                let end = (start + SECTOR).min(file.content.len());
                if start >= end || random.chance(50) {
                    continue;
                }
                put(&mut left, start, &file.content[start..end]);
            }
            (file.content, file.durable) = (left.clone(), left);
        }
    }

    /// Performs an operation of a process on its file.
    pub fn access<T>(
        &self,
        process: u64,
        operation: Option<Operation>,
        act: impl FnOnce(&mut BTreeMap<String, File>) -> T,
    ) -> Result<T, Fault> {
        let mut state = self.state();
        let is_dead = state.process.as_ref().is_some_and(|it| it.is_killed());
        if process != state.process_number || is_dead {
            return Err(Fault::Dead);
        }
        if let Some(operation) = operation {
            state.operations += 1;
            if state.kill_at == Some(state.operations) {
                let process = state.process.clone();
                drop(state);
                if let Some(process) = process {
                    process.kill_in_call();
                }
                return Err(Fault::Dead);
            }
            if state.fail_at == Some(state.operations) {
                return Err(Fault::Failed);
            }
            if state.is_full && operation == Operation::Write {
                return Err(Fault::Full);
            }
            if state.ignores_syncs && operation == Operation::Sync {
                return Ok(act(&mut BTreeMap::new()));
            }
        }
        Ok(act(&mut state.files))
    }
}

impl File {
    pub fn len(&self) -> usize {
        self.content.len()
    }

    /// Reads into `into`; returns the number of bytes.
    pub fn read(&self, at: usize, into: &mut [u8]) -> usize {
        let from = self.content.get(at..).unwrap_or_default();
        let count = from.len().min(into.len());
        into[..count].copy_from_slice(&from[..count]);
        into[count..].fill(0);
        count
    }

    pub fn write(&mut self, at: usize, from: &[u8]) {
        put(&mut self.content, at, from);
        self.unsynced.extend(at / SECTOR..(at + from.len()).div_ceil(SECTOR));
    }

    pub fn truncate(&mut self, length: usize) {
        self.content.truncate(length);
    }

    pub fn sync(&mut self) {
        for sector in std::mem::take(&mut self.unsynced) {
            let start = sector * SECTOR;
            let end = (start + SECTOR).min(self.content.len());
            if start < end {
                put(&mut self.durable, start, &self.content[start..end]);
            }
        }
        self.durable.truncate(self.content.len());
    }
}

/// Writes into a file's bytes. What is appended is copied at once: a resize of a vector is a loop
/// over its bytes if nothing is optimised.
fn put(bytes: &mut Vec<u8>, at: usize, from: &[u8]) {
    if bytes.len() < at {
        bytes.resize(at, 0);
    }
    let inside = (bytes.len() - at).min(from.len());
    bytes[at..at + inside].copy_from_slice(&from[..inside]);
    bytes.extend_from_slice(&from[inside..]);
}
