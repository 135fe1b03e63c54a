//! Groups of GPUs for one run: workers of one run wait together, and the last to arrive claims it
//! for all.
//!
//! Every worker looks only at the first run of the queue that its device serves. So later runs do
//! not overtake a run that needs several devices, it gets all of them at once, and of two such runs
//! the earlier gets its devices first: there is no deadlock.

use std::collections::{BTreeMap, HashMap};

use llmprof_core::domain::{device::Device, ids::RunId};
use tokio::sync::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Context;
use crate::store::{ClaimedRun, ClaimedSession, StoreError};

/// The devices of a pool.
#[derive(Debug)]
pub struct GpuGroup {
    devices: Vec<Device>,
    state: Mutex<GroupState>,
}

#[derive(Debug, Default)]
struct GroupState {
    /// Idle devices by name, each with the run for which it waits.
    waiting: HashMap<String, RunId>,
    /// Devices lent to the worker of another one, until it is done.
    lent: HashMap<String, CancellationToken>,
}

/// Next action of a worker.
pub enum ClaimTurn {
    /// Run this with these devices in addition to the worker's own, which are returned when the
    /// guard is dropped.
    Run(Box<ClaimedRun>, Vec<Device>, DropGuard),
    /// The same with a session, which holds the devices until it ends.
    Session(Box<ClaimedSession>, Vec<Device>, DropGuard),
    /// Wait: another worker uses the device until the token fires.
    Lent(CancellationToken),
    Wait,
}

enum ClaimedWork {
    Run(Box<ClaimedRun>),
    Session(Box<ClaimedSession>),
}

impl GpuGroup {
    pub fn of(devices: &[Device]) -> Self {
        Self { devices: devices.to_vec(), state: Mutex::default() }
    }

    /// Claims the next run or session for the worker of `device`, if all its devices are free.
    pub async fn next_turn(
        &self,
        cx: &Context,
        worker: &str,
        device: &Device,
        names: &[String],
    ) -> Result<ClaimTurn, StoreError> {
        let mut state = self.state.lock().await;
        state.lent.retain(|_, done| !done.is_cancelled());
        if let Some(done) = state.lent.get(&device.name) {
            return Ok(ClaimTurn::Lent(done.clone()));
        }
        state.waiting.remove(&device.name);
        let limits = self.max_devices(device, names);
        let run = cx.store.first_for(&limits).await?;
        let session = cx.store.first_session_for(&limits, run.map(|it| it.0)).await?;
        // No run has the id of a session.
        let session_run = session.map(|(id, gpus)| (RunId(id.0), gpus));
        let Some((id, gpus)) = session_run.or(run) else {
            return Ok(ClaimTurn::Wait);
        };
        let mut others = Vec::new();
        if gpus > 1 {
            state.waiting.insert(device.name.clone(), id);
            let waiting = self
                .devices
                .iter()
                .filter(|it| it.name != device.name && state.waiting.get(&it.name) == Some(&id));
            others.extend(waiting.take(gpus as usize - 1).cloned());
            if others.len() + 1 < gpus as usize {
                return Ok(ClaimTurn::Wait);
            }
        }
        let held: Vec<&str> =
            std::iter::once(device).chain(&others).map(|it| it.name.as_str()).collect();
        let claimed = match session {
            Some((id, _)) => cx
                .store
                .claim_session(id, worker, &held, cx.lease())
                .await?
                .map(|it| ClaimedWork::Session(Box::new(it))),
            None => cx
                .store
                .claim_first(id, worker, &held, cx.lease())
                .await?
                .map(|it| ClaimedWork::Run(Box::new(it))),
        };
        let Some(claimed) = claimed else { return Ok(ClaimTurn::Wait) };
        let done = CancellationToken::new();
        state.waiting.remove(&device.name);
        for other in &others {
            state.waiting.remove(&other.name);
            state.lent.insert(other.name.clone(), done.clone());
        }
        Ok(match claimed {
            ClaimedWork::Run(run) => ClaimTurn::Run(run, others, done.drop_guard()),
            ClaimedWork::Session(it) => ClaimTurn::Session(it, others, done.drop_guard()),
        })
    }

    /// Number of devices that serve each text by which a run may request `device`. A run that
    /// requests more stays queued and blocks no other run.
    fn max_devices(&self, device: &Device, names: &[String]) -> BTreeMap<String, usize> {
        let serving = |requested: &str| {
            self.devices.iter().filter(|it| !it.is_cpu() && it.matches(requested)).count()
        };
        let requests = names.iter().map(String::as_str).chain(["auto"]);
        requests
            .map(|it| (it.to_owned(), if device.is_cpu() { 1 } else { serving(it).max(1) }))
            .collect()
    }
}
