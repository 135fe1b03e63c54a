//! Devices that execute runs: the CPU, a GPU, or a MIG instance of a GPU.
//!
//! Plain values. The UUID identifies a GPU; its index depends on the installed GPUs and on those
//! visible to a process.

use serde::{Deserialize, Serialize};

pub const CPU: &str = "cpu";
/// Name of the only visible GPU inside a process.
pub const ONLY_GPU: &str = "cuda:0";

/// A device that has a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Device {
    /// `cpu`, `cuda:INDEX` in the order of nvidia-smi, or the UUID of an instance.
    #[cfg_attr(feature = "schema", schema(example = "cuda:0"))]
    pub name: String,
    /// Value of CUDA_VISIBLE_DEVICES for its processes; `null` for the CPU, and for a GPU whose
    /// UUID the driver does not report.
    #[cfg_attr(feature = "schema", schema(example = "GPU-6c35a1a0-0c3b-4f6e-9f41-2f1f6f2b1a77"))]
    pub uuid: Option<String>,
    /// Product name as the driver reports it.
    #[cfg_attr(feature = "schema", schema(example = "NVIDIA H200"))]
    pub product: Option<String>,
    pub memory_bytes: Option<u64>,
}

impl Device {
    /// Returns the CPU.
    pub fn cpu() -> Self {
        Self::unknown(CPU)
    }

    /// Returns a device with a name and no other property.
    pub fn unknown(name: &str) -> Self {
        Self { name: name.to_owned(), uuid: None, product: None, memory_bytes: None }
    }

    pub fn is_cpu(&self) -> bool {
        self.name == CPU
    }

    /// Names that select this device and no other.
    pub fn names(&self) -> Vec<&str> {
        let uuid = self.uuid.as_deref().filter(|uuid| *uuid != self.name);
        std::iter::once(self.name.as_str()).chain(uuid).collect()
    }

    /// The GPU model as requests name it: `h200` for NVIDIA H200.
    pub fn model(&self) -> Option<String> {
        let product = self.product.as_deref()?.to_ascii_lowercase();
        Some(product.trim_start_matches("nvidia ").replace(' ', "-"))
    }

    /// True if a request for `device` may run here.
    pub fn matches(&self, device: &str) -> bool {
        device == "auto"
            || self.names().contains(&device)
            || self.model().is_some_and(|model| model == device)
    }

    /// Name of the device inside a process that is confined to it.
    pub fn visible_name(&self) -> &str {
        if self.uuid.is_some() { ONLY_GPU } else { &self.name }
    }

    /// Name of a worker on it; `unique` distinguishes it from the device's earlier workers.
    pub fn worker(&self, unique: &str) -> String {
        format!("{}:{unique}", self.name)
    }

    /// True if `worker` is the name of a worker on it.
    pub fn has_worker(&self, worker: &str) -> bool {
        worker.strip_prefix(&self.name).is_some_and(|rest| rest.starts_with(':'))
    }
}

/// True if `text` is a valid device: `auto`, `cpu`, `cuda:INDEX`, or a UUID of a GPU or instance.
pub fn is_device(text: &str) -> bool {
    let index = text.strip_prefix("cuda:").is_some_and(|index| {
        matches!(index.as_bytes(), [b'0'..=b'9'] | [b'1'..=b'9', b'0'..=b'9'])
    });
    let uuid =
        ["GPU-", "MIG-"].iter().find_map(|kind| text.strip_prefix(kind)).is_some_and(is_uuid);
    matches!(text, "auto" | CPU) || index || uuid
}

/// True if `text` is a valid GPU model: 2 to 64 lower-case letters, digits, dots, dashes and
/// underscores.
pub fn is_model(text: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    (2..=64).contains(&text.len())
        && text.as_bytes()[0].is_ascii_lowercase()
        && text.bytes().all(allowed)
}

/// Lower-case hexadecimal digits in groups of 8, 4, 4, 4 and 12.
fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    let good = |group: &&str| group.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str) -> Device {
        Device { uuid: Some("GPU-1".into()), ..Device::unknown(name) }
    }

    #[test]
    fn a_gpu_is_asked_for_by_index_and_by_uuid_and_named_cuda_0_inside() {
        let gpu = gpu("cuda:3");
        assert!(
            gpu.matches("auto")
                && gpu.matches("cuda:3")
                && gpu.matches("GPU-1")
                && !gpu.matches("cuda:0")
                && !gpu.matches("cpu")
        );
        assert_eq!(
            (
                gpu.visible_name(),
                Device::cpu().visible_name(),
                Device::unknown("cuda:3").visible_name()
            ),
            ("cuda:0", "cpu", "cuda:3")
        );
    }

    #[test]
    fn a_gpu_is_requested_by_its_model() {
        let h200 = Device { product: Some("NVIDIA H200".into()), ..gpu("cuda:0") };
        let a100 = Device { product: Some("NVIDIA A100-SXM4-80GB".into()), ..gpu("cuda:1") };
        assert!(
            h200.matches("h200")
                && !h200.matches("a100-sxm4-80gb")
                && a100.matches("a100-sxm4-80gb")
        );
        for device in [h200, a100] {
            assert!(is_model(&device.model().unwrap()));
        }
        assert!(
            !Device::cpu().matches("h200") && !is_model("H200") && !is_model("h") && !is_model("")
        );
    }

    #[test]
    fn a_worker_belongs_to_one_device() {
        assert!(gpu("cuda:1").has_worker(&gpu("cuda:1").worker("77:x")));
        assert!(!gpu("cuda:1").has_worker(&gpu("cuda:10").worker("77:x")));
    }

    #[test]
    fn a_device_has_one_of_five_forms() {
        let uuid = "6c35a1a0-0c3b-4f6e-9f41-2f1f6f2b1a77";
        for good in
            ["auto", "cpu", "cuda:0", "cuda:17", &format!("GPU-{uuid}"), &format!("MIG-{uuid}")]
        {
            assert!(is_device(good), "{good}");
        }
        for bad in [
            "",
            "gpu",
            "cuda:",
            "cuda:01",
            "cuda:100",
            "GPU-1",
            uuid,
            &format!("GPU-{uuid}0"),
            "MIG-GPU-6c35a1a0/7/0",
        ] {
            assert!(!is_device(bad), "{bad}");
        }
    }
}
