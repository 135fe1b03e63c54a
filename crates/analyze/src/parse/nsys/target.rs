//! The profiled host, from `TARGET_INFO_GPU` and `TARGET_INFO_SYSTEM_ENV`.
//!
//! Missing facts stay absent: older exports have fewer columns, and a CPU report has no GPU.

use std::collections::BTreeSet;

use llmprof_core::trace::environment::{Environment, Gpu, cuda_version};
use rusqlite::{Result, Row};

use super::{
    super::ParseError,
    export::{Export, string},
};

/// Minimum of a maximum clock: a lower figure has another unit.
const SLOWEST_MHZ: i64 = 100;
/// Minimum of a bandwidth, bytes per second: a lower figure has another unit.
const LEAST_BYTES_PER_S: i64 = 1_000_000_000;

/// Reads host and GPUs. If there are several GPUs, the ones in `used` are kept, by the tool's
/// numbers; all if none was used.
pub fn read(export: &Export, used: &BTreeSet<u32>) -> std::result::Result<Environment, ParseError> {
    let mut gpus = export.rows("TARGET_INFO_GPU", include_str!("sql/gpus.sql"), gpu)?;
    if gpus.iter().any(|gpu| used.contains(&gpu.index)) {
        gpus.retain(|gpu| used.contains(&gpu.index));
    }
    let mut environment = Environment { gpus, ..Environment::default() };
    let fact = |row: &Row| Ok((string(row, "name")?, string(row, "value")?));
    for (name, value) in
        export.rows("TARGET_INFO_SYSTEM_ENV", include_str!("sql/system.sql"), fact)?
    {
        let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        match name.as_str() {
            "CpuDescription" => environment.cpu = value,
            "CpuCores" => environment.cpus = value.and_then(|value| value.parse().ok()),
            "OsDescription" => environment.os = value,
            "SoftwareReleaseVersion" => environment.kernel = value,
            "NvDriverVersion" => environment.driver = value.map(driver_version),
            "CudaDriverVersion" => {
                environment.cuda = value.and_then(|it| cuda_version(it.parse().ok()?));
            }
            _ => {}
        }
    }
    Ok(environment)
}

/// `52510517` as `525.105.17`: nsys before 2024 writes some drivers without their dots. The major
/// version has three digits and the patch has two; other lengths are ambiguous and stay.
fn driver_version(text: String) -> String {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) || text.starts_with('0') {
        return text;
    }
    match text.len() {
        5 => format!("{}.{}", &text[..3], &text[3..]),
        length @ (7 | 8) => {
            let (minor, patch) = text[3..].split_at(length - 5);
            format!("{}.{minor}.{patch}", &text[..3])
        }
        _ => text,
    }
}

fn gpu(row: &Row) -> Result<Gpu> {
    let number = |column: &str| {
        row.get_ref(column)
            .map(|value| value.as_i64_or_null().ok().flatten().filter(|value| *value >= 0))
    };
    let text = |column: &str| {
        row.get_ref(column).map(|value| value.as_str().unwrap_or_default().trim().to_owned())
    };
    let uuid = text("uuid")?;
    let version = number("major")?.zip(number("minor")?);
    let clock_mhz = number("clock_hz")?.map(|hz| hz / 1_000_000).filter(|mhz| *mhz >= SLOWEST_MHZ);
    Ok(Gpu {
        index: number("id")?.and_then(|id| id.try_into().ok()).unwrap_or_default(),
        name: text("name")?,
        uuid: if uuid.is_empty() || uuid.starts_with("GPU-") {
            uuid
        } else {
            format!("GPU-{uuid}")
        },
        memory_bytes: number("memory_bytes")?.unwrap_or_default().cast_unsigned(),
        compute_capability: version.map(|(major, minor)| format!("{major}.{minor}")),
        max_sm_mhz: clock_mhz.and_then(|mhz| mhz.try_into().ok()),
        sm_count: number("sm_count")?
            .filter(|count| *count > 0)
            .and_then(|count| count.try_into().ok()),
        l2_bytes: number("l2_bytes")?.filter(|size| *size > 0).map(i64::cast_unsigned),
        bytes_per_s: number("bytes_per_s")?
            .filter(|rate| *rate >= LEAST_BYTES_PER_S)
            .map(i64::cast_unsigned),
        warps_per_sm: number("warps_per_sm")?
            .filter(|count| *count > 0)
            .and_then(|count| count.try_into().ok()),
        ..Gpu::default()
    })
}

#[cfg(test)]
mod tests {
    use super::driver_version;

    #[test]
    fn a_driver_version_without_dots_gets_them_if_it_can_be_decoded() {
        for (text, version) in [
            ("52510517", "525.105.17"),
            ("5156501", "515.65.01"),
            ("57688", "576.88"),
            ("580.95.05", "580.95.05"),
            ("470141", "470141"),
            ("0", "0"),
            ("515x501", "515x501"),
        ] {
            assert_eq!(driver_version(text.into()), version);
        }
    }
}
