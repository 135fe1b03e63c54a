//! Tests of the findings.

use super::*;

#[test]
fn the_finding_names_each_pass_with_its_attempt_and_time() {
    let pass = |name: &str| FinishedPass {
        name: name.into(),
        attempt: 1,
        started_at: "2026-11-20T09:00:00.000Z".into(),
        ended_at: "2026-11-20T09:00:07.000Z".into(),
        findings: vec![],
        files: vec![],
    };
    let finding = used(&[pass("baseline"), pass("nsys")]);
    assert!(finding.message.contains("baseline, nsys finished in an earlier attempt"));
    assert_eq!(
        finding.evidence["nsys"],
        "attempt 1, 2026-11-20T09:00:00.000Z to 2026-11-20T09:00:07.000Z"
    );
}

#[test]
fn the_finding_names_what_changed() {
    let change = |condition, values: &str| ConditionChange { condition, values: values.into() };
    let finding =
        repeated(&[change("program", "5f then, 81 now"), change("nsys", "1 then, 2 now")]);
    assert!(finding.message.ends_with("program, nsys changed since."), "{}", finding.message);
    assert_eq!(finding.evidence["nsys"], "1 then, 2 now");
}
