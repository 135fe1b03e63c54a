//! Tables of device peaks: the built-in one, and a file of the operator.

use std::path::Path;

use llmprof_core::domain::device_peaks::Devices;

use super::{ConfigError, read};

const BUILT_IN: &str = "conf/devices.toml";
const DEVICES: &str = include_str!("../../../../conf/devices.toml");

/// Returns the built-in table of device peaks.
pub fn devices() -> Result<Devices, ConfigError> {
    parse(DEVICES, Path::new(BUILT_IN))
}

/// The same with the rows of `file`, which are preferred; the built-in table alone if the path is
/// empty.
pub fn devices_with(file: &Path) -> Result<Devices, ConfigError> {
    if file.as_os_str().is_empty() {
        return devices();
    }
    Ok(parse(&read(file)?, file)?.before(devices()?))
}

fn parse(text: &str, path: &Path) -> Result<Devices, ConfigError> {
    Devices::from_toml(text).map_err(|source| ConfigError::Devices { path: path.into(), source })
}
