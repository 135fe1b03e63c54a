//! Rows on power, energy and clocks in the report of an alignment.

use llmprof_analyze::align::{PowerScope, SideFacts, SidePower};
use llmprof_core::domain::digits;

use crate::format::{UNKNOWN, known, proportional_half, with_interval};

/// A figure of the power of a side.
type Figure = fn(&SidePower) -> Option<f64>;

/// Each fact with its values of the mock and of the whole model; none if neither was sampled.
pub fn power_rows(mock: &SideFacts, whole: &SideFacts) -> Vec<[String; 3]> {
    if mock.power.or(whole.power).is_none() {
        return Vec::new();
    }
    let sides = [mock, whole];
    let scopes = sides.map(|it| it.power.and_then(|power| power.scope));
    let covered = scopes.map(|it| it.map_or(UNKNOWN, scope_name).to_owned());
    let bounded: [(String, Figure); 2] =
        [("mean GPU power, W".into(), |it| it.mean_w), (energy_fact(scopes), |it| it.energy_j)];
    let plain: [(&str, Figure); 2] =
        [("mean SM clock, MHz", |it| it.sm_mhz), ("time throttled, %", |it| it.throttled_pct)];
    let row = |name: String, [mock, whole]: [String; 2]| [name, mock, whole];
    let mut rows = vec![row("work that the power covers".into(), covered)];
    for (name, field) in bounded {
        rows.push(row(name, sides.map(|side| power_figure(side, field))));
    }
    for (name, field) in plain {
        let figure = |side: &SideFacts| known(side.power.as_ref().and_then(field), digits::figure);
        rows.push(row(name.into(), sides.map(figure)));
    }
    rows
}

fn scope_name(scope: PowerScope) -> &'static str {
    match scope {
        PowerScope::Part => "the part, which runs alone",
        PowerScope::WholeModel => "all layers and the head of the model",
    }
}

/// The fact about energy, with the reason if joules of both sides cannot be compared.
fn energy_fact(scopes: [Option<PowerScope>; 2]) -> String {
    let energy = "energy of the GPU in one instance of the stage, J";
    match scopes {
        [Some(mock), Some(whole)] if mock == whole => energy.to_owned(),
        [Some(_), Some(_)] => format!("{energy} (not comparable: the sides cover different work)"),
        _ => format!("{energy} (comparable only if both sides cover the same work)"),
    }
}

/// A figure of the power of a side, `512.3 ± 1.9` if its interval is known.
fn power_figure(side: &SideFacts, field: Figure) -> String {
    let Some((value, power)) = side.power.as_ref().and_then(|it| Some((field(it)?, it))) else {
        return UNKNOWN.into();
    };
    match proportional_half(value, power.mean_w, power.mean_w_half_width) {
        Some(half) => with_interval(value, half),
        None => digits::figure(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn side(power: Value) -> SideFacts {
        serde_json::from_value(json!({
            "name": "a", "isolated_by": "", "ranges": 1, "counted": 1, "left_out": 0,
            "instances": 1, "kernels": 1, "kernels_per_instance": null,
            "distinct_sequences": 1, "replayed_kernels": 0, "power": power,
        }))
        .unwrap()
    }

    fn sampled(half: Option<f64>, scope: Option<&str>) -> SideFacts {
        side(json!({
            "mean_w": 500.0, "mean_w_half_width": half, "energy_j": 2.0, "sm_mhz": null,
            "throttled_pct": null, "scope": scope,
        }))
    }

    #[test]
    fn energy_has_the_relative_interval_of_the_power() {
        let energy = |half| power_figure(&sampled(half, None), |it| it.energy_j);
        assert_eq!([energy(Some(5.0)), energy(None)], ["2.00 ± 0.02", "2.00"]);
        assert_eq!(power_figure(&sampled(Some(5.0), None), |it| it.sm_mhz), UNKNOWN);
    }

    #[test]
    fn joules_of_different_work_are_shown_with_the_reason_why_they_are_not_compared() {
        let rows = |scopes: [Option<&str>; 2]| {
            let [mock, whole] = scopes.map(|scope| sampled(None, scope));
            power_rows(&mock, &whole)
        };
        let [part, whole] = [Some("part"), Some("whole_model")];
        for (scopes, reason) in [
            ([part, whole], "not comparable: the sides cover different work"),
            ([whole, part], "not comparable: the sides cover different work"),
            ([part, None], "comparable only if both sides cover the same work"),
            ([None, None], "comparable only if both sides cover the same work"),
            ([part, part], "one instance of the stage, J"),
            ([whole, whole], "one instance of the stage, J"),
        ] {
            let rows = rows(scopes);
            let [energy, of_mock, of_whole] = &rows[2];
            assert!(energy.contains(reason), "{scopes:?}: {energy}");
            assert_eq!(energy.ends_with(')'), scopes[0] != scopes[1] || scopes[0].is_none());
            assert_eq!([of_mock.as_str(), of_whole.as_str()], ["2.00", "2.00"]);
        }
        let rows = rows([part, whole]);
        let [_, of_mock, of_whole] = &rows[0];
        assert!(of_mock.contains("alone") && of_whole.contains("all layers"));
        assert!(power_rows(&side(Value::Null), &side(Value::Null)).is_empty());
    }
}
