//! Labels of the details page and their metrics, in the spellings of all versions of ncu since
//! 2019.
//!
//! Sources: printed pages of the versions named, and NVIDIA's release notes of Nsight Compute
//! (2019.3.1 for `SOL FB`, 2020.1.1 for `launch__grid_dim_x`). Whole metric names stand for
//! themselves: the option `--metrics` prints them in a section of their own.

use super::values::{
    ACHIEVED, DRAM, DRAM_RATE, DURATION, L1, L2, MEMORY, REGISTERS, SM, THEORETICAL, WAVES,
};

/// The section of metrics that were requested by name.
pub const REQUESTED: &str = "Command line profiler metrics";

/// Sections that show the same labels under two names: until 2021.1, and from 2021.2 on.
const SPEED_OF_LIGHT: &[&str] = &["GPU Speed Of Light", "GPU Speed Of Light Throughput"];
const MEMORY_WORKLOAD: &[&str] = &["Memory Workload Analysis"];
const LAUNCH: &[&str] = &["Launch Statistics"];
const OCCUPANCY: &[&str] = &["Occupancy"];

/// Sections, label, the metric that it shows, and the versions of ncu that print it so.
const LABELS: &[(&[&str], &str, &str, &str)] = &[
    (SPEED_OF_LIGHT, "Duration", DURATION[0], "2019.1 on"),
    (SPEED_OF_LIGHT, "Compute (SM) Throughput", SM, "2022.2 on"),
    (SPEED_OF_LIGHT, "Compute (SM) [%]", SM, "2021.2 to 2022.1"),
    (SPEED_OF_LIGHT, "SM [%]", SM, "2019.1 to 2021.1"),
    (SPEED_OF_LIGHT, "SOL SM", SM, "2019.1 to 2021.1"),
    (SPEED_OF_LIGHT, "Memory Throughput", MEMORY, "2022.2 on"),
    (SPEED_OF_LIGHT, "Memory [%]", MEMORY, "2019.1 to 2022.1"),
    (SPEED_OF_LIGHT, "SOL Memory", MEMORY, "2019.1 to 2021.1"),
    (SPEED_OF_LIGHT, "DRAM Throughput", DRAM[0], "2021.2 on"),
    (SPEED_OF_LIGHT, "SOL DRAM", DRAM[1], "2020.1 to 2021.1"),
    (SPEED_OF_LIGHT, "SOL FB", DRAM[1], "2019.1 to 2019.5"),
    (MEMORY_WORKLOAD, "Memory Throughput", DRAM_RATE, "2019.1 on"),
    (MEMORY_WORKLOAD, "L1/TEX Hit Rate", L1, "2020.1 on"),
    (MEMORY_WORKLOAD, "L1 Hit Rate", L1, "2019.1 to 2019.5"),
    (MEMORY_WORKLOAD, "L2 Hit Rate", L2, "2019.1 on"),
    (LAUNCH, "Registers Per Thread", REGISTERS, "2019.1 on"),
    (LAUNCH, "Waves Per SM", WAVES, "2019.1 on"),
    (OCCUPANCY, "Theoretical Occupancy", THEORETICAL, "2019.1 on"),
    (OCCUPANCY, "Achieved Occupancy", ACHIEVED, "2019.1 on"),
];

/// The metric that the details page shows under this label: of the table, or the one that the label
/// names in full.
pub fn metric<'a>(section: &str, label: &'a str) -> Option<&'a str> {
    let known = LABELS.iter().find(|(of, name, ..)| of.contains(&section) && *name == label);
    // With `--print-metric-name label-name` both are printed.
    let named = || label.split([' ', '(', ')', ',']).find(|word| word.contains("__"));
    known.map(|(_, _, metric, _)| *metric).or_else(named)
}

/// Returns true if a label of the table shows this metric.
pub fn shows(name: &str) -> bool {
    LABELS.iter().any(|(_, _, metric, _)| *metric == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_the_labels_of_every_version() {
        for (label, expected) in
            [("SM [%]", SM), ("Compute (SM) [%]", SM), ("SOL FB", DRAM[1]), ("Memory [%]", MEMORY)]
        {
            assert_eq!(metric("GPU Speed Of Light", label), Some(expected), "{label}");
        }
        assert_eq!(metric("GPU Speed Of Light Throughput", "Memory Throughput"), Some(MEMORY));
        assert_eq!(metric("Memory Workload Analysis", "Memory Throughput"), Some(DRAM_RATE));
        assert_eq!(metric("Occupancy", "Waves Per SM"), None);
    }

    #[test]
    fn a_whole_name_is_itself_wherever_it_stands() {
        for label in [
            "gpu__time_duration.sum",
            "Duration gpu__time_duration.sum",
            "Duration (gpu__time_duration.sum)",
        ] {
            assert_eq!(metric(REQUESTED, label), Some("gpu__time_duration.sum"), "{label}");
        }
    }
}
