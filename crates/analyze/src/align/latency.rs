//! The ratio of two mean latencies and its 95 % interval.
//!
//! Both sides are assumed to have the same spread relative to their means, as in Student's test
//! with pooled variance, so a side with one instance borrows the other's spread; the ratio's
//! variance is by the delta method (Casella and Berger, Statistical Inference, 5.5.4).

use serde::{Deserialize, Serialize};

use crate::{align::operation_instances::OperationInstance, compare::student::t95, stats::Spread};

/// Latency per layer and forward: the device time of its kernels.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = AlignmentLatency))]
pub struct Latency {
    /// Means, microseconds.
    pub mock_us: f64,
    pub e2e_us: f64,
    pub mock_instances: u32,
    pub e2e_instances: u32,
    /// Mock over whole model.
    pub ratio: f64,
    /// 95 % interval of the ratio; `null` if both sides have a single instance.
    pub interval: Option<[f64; 2]>,
}

/// Compares instances; `None` if a side has no time.
pub fn latency(mock: &[OperationInstance], e2e: &[OperationInstance]) -> Option<Latency> {
    let us =
        |instances: &[OperationInstance]| Spread::of(instances.iter().map(|it| it.ns as f64 / 1e3));
    let (a, b) = (us(mock)?, us(e2e)?);
    let (ratio, interval) = ratio(&a, &b)?;
    Some(Latency {
        mock_us: a.mean,
        e2e_us: b.mean,
        mock_instances: a.n,
        e2e_instances: b.n,
        ratio,
        interval,
    })
}

/// The ratio of two mean times and its 95 % interval; `None` if a side has no time.
pub fn ratio(a: &Spread, b: &Spread) -> Option<(f64, Option<[f64; 2]>)> {
    if a.mean <= 0.0 || b.mean <= 0.0 {
        return None;
    }
    let ratio = a.mean / b.mean;
    let freedom = (a.n + b.n - 2) as usize;
    let squares = |it: &Spread| (it.std.unwrap_or(0.0) / it.mean).powi(2) * f64::from(it.n - 1);
    let interval = (freedom > 0).then(|| {
        let pooled = ((squares(a) + squares(b)) / freedom as f64).sqrt();
        let half = ratio
            * t95(freedom as f64)
            * pooled
            * (1.0 / f64::from(a.n) + 1.0 / f64::from(b.n)).sqrt();
        [ratio - half, ratio + half]
    });
    Some((ratio, interval))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instances(times: &[i64]) -> Vec<OperationInstance> {
        times.iter().map(|ns| OperationInstance { sequence: 0, ns: *ns }).collect()
    }

    #[test]
    fn a_single_instance_borrows_the_other_sides_spread_and_two_have_no_interval() {
        let borrowed = latency(&instances(&[1000]), &instances(&[900, 1000, 1100])).unwrap();
        let [low, high] = borrowed.interval.unwrap();
        // t for 2 degrees of freedom, 10 % spread, sqrt(1 + 1/3).
        assert!(
            (high - 1.0 - 4.302_652_7 * 0.1 * (4.0f64 / 3.0).sqrt()).abs() < 1e-7
                && (low + high - 2.0).abs() < 1e-9
        );
        assert_eq!(latency(&instances(&[5]), &instances(&[5])).unwrap().interval, None);
        assert_eq!(latency(&instances(&[]), &instances(&[5])), None);
    }
}
