//! The sentence on the share of a capture in which its GPUs work.

use llmprof_analyze::timeline::device_totals::DeviceTotals;

use super::cited::{Cited, Figure, Row};
use crate::format::{count, share};

/// Difference of the shares of GPUs, percent, above which no mean stands for them.
const UNEQUAL_PCT: f64 = 5.0;

/// The busy share of the GPUs: each of two, or the range of more, if they differ.
pub fn sentence(totals: &DeviceTotals) -> Option<Cited> {
    let row = Row::of("aggregates");
    let mean = row.figure("devices.busy_pct", totals.busy_pct?);
    let window = row.figure("devices.window_ms", totals.window_ms).short();
    if totals.devices == 1 {
        return Some(Cited::of(
            "The GPU computes or copies {} of the {} ms from the first recorded work to the last.",
            [mean.shown(share), window],
        ));
    }
    let least = totals.min_busy_pct.map(|it| row.figure("devices.min_busy_pct", it));
    let most = totals.max_busy_pct.map(|it| row.figure("devices.max_busy_pct", it));
    let differ = |(least, most): &(Figure, Figure)| most.value() - least.value() > UNEQUAL_PCT;
    let busy = match least.zip(most).filter(differ) {
        Some((least, most)) if totals.devices == 2 => {
            Cited::of("{} and {}", [most.shown(share), least.shown(share)])
        }
        Some((least, most)) => Cited::of("{} to {}", [least.shown(share), most.shown(share)]),
        None => Cited::of("on average {}", [mean.shown(share)]),
    };
    let gpus = row.count("devices.devices", totals.devices).shown(|it| count(it as u64));
    Some(Cited::of(
        "{} GPUs compute or copy {} of the {} ms from the first recorded work of any GPU to the \
         last.",
        [gpus, busy, window],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_that_differ_have_their_own_shares_and_no_mean() {
        for (devices, shares, expected) in [
            (2, Some((9.3, 80.2)), "80 % and 9.3 %"),
            (8, Some((9.3, 80.2)), "9.3 % to 80 %"),
            (2, Some((43.0, 47.0)), "on average 45 %"),
            (8, Some((43.0, 47.0)), "on average 45 %"),
            // Older reports.
            (2, None, "on average 45 %"),
        ] {
            let totals = DeviceTotals {
                devices,
                window_ms: 399.0,
                busy_pct: Some(45.0),
                min_busy_pct: shares.map(|it| it.0),
                max_busy_pct: shares.map(|it| it.1),
                ..DeviceTotals::default()
            };
            assert_eq!(
                sentence(&totals).unwrap().as_str(),
                format!(
                    "{devices} GPUs compute or copy {expected} of the 399 ms from the first \
                     recorded work of any GPU to the last."
                )
            );
        }
    }
}
