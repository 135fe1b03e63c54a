//! Several devices for one run: workers that wait for the same run wait together, and the last that comes takes it for all.
//!
//! Every worker looks at the first run of the queue that its device serves, and at no later one. So a run that wants several devices is not passed
//! by later ones, it gets all at once or none, and of two such runs the earlier gets its devices first: nobody waits for somebody who waits.

use std::collections::{BTreeMap, HashMap};

use tokio::sync::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Context;
use crate::{
    run::RunId,
    store::{Claimed, StoreError},
    trace::device::Device,
};

/// The devices of a pool.
#[derive(Debug)]
pub struct Gang {
    devices: Vec<Device>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The run that an idle device waits for together with others, by the device's name.
    waits: HashMap<String, RunId>,
    /// Devices that another one's worker uses, until it is done.
    lent: HashMap<String, CancellationToken>,
}

/// What a worker is to do.
pub enum Turn {
    /// Carry this run out, with these devices beside the worker's own; they are given back when the guard is dropped.
    Carry(Box<Claimed>, Vec<Device>, DropGuard),
    /// Its device is used by another worker until then.
    Lent(CancellationToken),
    Wait,
}

impl Gang {
    pub fn of(devices: &[Device]) -> Self {
        Self { devices: devices.to_vec(), state: Mutex::default() }
    }

    /// What the worker of `device` is to do next.
    pub async fn turn(&self, cx: &Context, worker: &str, device: &Device, names: &[String]) -> Result<Turn, StoreError> {
        let mut state = self.state.lock().await;
        state.lent.retain(|_, done| !done.is_cancelled());
        if let Some(done) = state.lent.get(&device.name) {
            return Ok(Turn::Lent(done.clone()));
        }
        state.waits.remove(&device.name);
        let most = self.most(device, names);
        let Some((id, gpus)) = cx.store.first_for(&most).await? else { return Ok(Turn::Wait) };
        let mut beside = Vec::new();
        if gpus > 1 {
            state.waits.insert(device.name.clone(), id);
            let others = self.devices.iter().filter(|it| it.name != device.name && state.waits.get(&it.name) == Some(&id));
            beside.extend(others.take(gpus as usize - 1).cloned());
            if beside.len() + 1 < gpus as usize {
                return Ok(Turn::Wait);
            }
        }
        let held: Vec<&str> = std::iter::once(device).chain(&beside).map(|it| it.name.as_str()).collect();
        let Some(run) = cx.store.claim_first(id, worker, &held, cx.lease()).await? else { return Ok(Turn::Wait) };
        let done = CancellationToken::new();
        state.waits.remove(&device.name);
        for other in &beside {
            state.waits.remove(&other.name);
            state.lent.insert(other.name.clone(), done.clone());
        }
        Ok(Turn::Carry(Box::new(run), beside, done.drop_guard()))
    }

    /// By each text that a run may ask for `device` with, how many devices serve it: a run that wants more waits for ever, and nobody waits for it.
    fn most(&self, device: &Device, names: &[String]) -> BTreeMap<String, usize> {
        let serve = |asked: &str| self.devices.iter().filter(|it| !it.is_cpu() && it.serves(asked)).count();
        let all = names.iter().map(String::as_str).chain(["auto"]);
        all.map(|asked| (asked.to_owned(), if device.is_cpu() { 1 } else { serve(asked).max(1) })).collect()
    }
}
