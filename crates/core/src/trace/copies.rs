//! Memory copies and fills on a device.

use super::{call_index::LaunchId, timeline::process_of};

/// Bytes per nanosecond of the fastest link with which pageable memory is copied through a buffer
/// of the driver: PCI Express 5.0 with 16 lanes.
const LINK_BYTES_PER_NS: f64 = 64.0;
/// A smaller copy takes as long from pageable memory: on the link its bytes take at most 1 us.
const MIN_STAGED_BYTES: u64 = 64 << 10;

/// A memory copy or fill on the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryOp {
    pub start_ns: i64,
    pub end_ns: i64,
    pub bytes: u64,
    pub kind: CopyKind,
    pub device: u32,
    /// `None` if the capture lacks it.
    pub stream: Option<u32>,
    pub global_pid: i64,
    /// Joins the operation to its launching call within the process; 0 if unknown.
    pub correlation_id: i64,
    pub graph_node: Option<u64>,
    /// True if the host's side is pageable memory; `None` if unknown, or without such a side.
    pub is_pageable: Option<bool>,
}

impl MemoryOp {
    #[inline]
    pub const fn launch_id(&self) -> LaunchId {
        (process_of(self.global_pid), self.correlation_id)
    }

    /// Upper bound of the time that pinned memory saves, nanoseconds: the duration, less the time
    /// that the link takes for the bytes. `None` for a copy without a side on the host, for memory
    /// that is not known to be pageable, and for few bytes.
    pub fn staged_ns(&self) -> Option<i64> {
        let is_staged = self.kind.is_of_host()
            && self.is_pageable == Some(true)
            && self.bytes >= MIN_STAGED_BYTES;
        let link_ns = (self.bytes as f64 / LINK_BYTES_PER_NS) as i64;
        is_staged.then(|| self.end_ns.saturating_sub(self.start_ns).saturating_sub(link_ns).max(0))
    }
}

/// Direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyKind {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    /// A fill.
    Set,
    Other,
}

impl CopyKind {
    /// True for a copy from or to the host.
    pub const fn is_of_host(self) -> bool {
        matches!(self, Self::HostToDevice | Self::DeviceToHost)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HostToDevice => "host_to_device",
            Self::DeviceToHost => "device_to_host",
            Self::DeviceToDevice => "device_to_device",
            Self::Set => "set",
            Self::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        CopyKind::{DeviceToDevice, DeviceToHost, HostToDevice, Set},
        *,
    };

    #[test]
    fn pinned_memory_saves_the_time_above_the_link_of_large_copies_of_pageable_memory() {
        let copy = |kind, bytes, ns: i64, is_pageable| MemoryOp {
            start_ns: 100,
            end_ns: 100 + ns,
            bytes,
            kind,
            device: 0,
            stream: None,
            global_pid: 0,
            correlation_id: 0,
            graph_node: None,
            is_pageable,
        };
        for (kind, bytes, ns, is_pageable, saved) in [
            (HostToDevice, 6_400_000, 500_000, Some(true), Some(400_000)),
            (DeviceToHost, 6_400_000, 500_000, Some(true), Some(400_000)),
            (DeviceToHost, 6_400_000, 500_000, None, None),
            (HostToDevice, 6_400_000, 500_000, None, None),
            (DeviceToHost, 6_400_000, 90_000, Some(true), Some(0)),
            (HostToDevice, 6_400_000, 500_000, Some(false), None),
            (HostToDevice, 8, 2_000, Some(true), None),
            (DeviceToHost, 65_535, 500_000, Some(true), None),
            (DeviceToDevice, 6_400_000, 500_000, None, None),
            (Set, 6_400_000, 500_000, None, None),
        ] {
            assert_eq!(copy(kind, bytes, ns, is_pageable).staged_ns(), saved, "{kind:?} {bytes}");
        }
    }
}
