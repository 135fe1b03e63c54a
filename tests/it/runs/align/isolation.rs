//! Isolation of the operation: by range, operator, kernels and sequence.

use super::*;

#[test]
fn an_operation_is_found_by_operator_by_kernels_and_by_the_mocks_sequence() -> Result<()> {
    // Without such a range in the whole model, and without any named if the mock launches nothing
    // else.
    let unmarked = format!("delete from NVTX_EVENTS where {RANGE} = 'decoder.self_attn'");
    let bare = format!(
        "create temp table gone as select correlationId from CUPTI_ACTIVITY_KIND_KERNEL where \
         correlationId not in
             (select r.correlationId from CUPTI_ACTIVITY_KIND_RUNTIME r, NVTX_EVENTS e where \
             r.start between e.start and e.end
              and {RANGE} = 'decoder.self_attn');
         delete from CUPTI_ACTIVITY_KIND_KERNEL where correlationId in gone;
         delete from CUPTI_ACTIVITY_KIND_RUNTIME where correlationId in gone"
    );
    for (mock, named) in [("", &["--range", "decoder.self_attn"][..]), (&bare, &[])] {
        let dir = pair(mock, &unmarked)?;
        let (code, alignment) =
            align(&dir, &[named, &["--include-ranges", "measured", "--stage", "decode"]])?;
        assert_eq!(
            (code, per_instance(&alignment)),
            (Some(0), [Some(18.0); 2]),
            "{}",
            lines(&alignment)
        );
        assert_eq!(alignment["e2e"]["instances"], 128);
        assert_eq!(
            with(&alignment, "warn"),
            ["isolation"],
            "the edges of the operation are not known"
        );
    }
    let dir = pair("", "")?;
    let (code, alignment) = align(
        &dir,
        &[&[
            "--operator",
            "decoder.self_attn",
            "--include-ranges",
            "measured",
            "--stage",
            "prefill",
        ]],
    )?;
    assert_eq!(
        (code, per_instance(&alignment)),
        (Some(0), [Some(17.0); 2]),
        "{}",
        lines(&alignment)
    );
    let (code, alignment) = align(
        &dir,
        &[&[
            "--kernels",
            "native_sdpa",
            "--kernels",
            "CatArray*OpaqueType<2>",
            "--include-ranges",
            "measured",
            "--stage",
            "prefill",
        ]],
    )?;
    assert_eq!(
        (code, per_instance(&alignment)),
        (Some(0), [Some(5.0); 2]),
        "{}",
        lines(&alignment)
    );
    assert_eq!(alignment["e2e"]["instances"], 8);
    Ok(())
}

#[test]
fn a_pattern_that_no_kernel_has_is_inconclusive_even_if_another_one_is_found() -> Result<()> {
    let dir = pair("", "")?;
    let ranges = ["--include-ranges", "measured", "--stage", "prefill"];
    let found = ["--kernels", "native_sdpa", "--kernels", "CatArray*OpaqueType<2>"];
    let (code, alignment) = align(&dir, &[&found, &["--kernels", "nativ_sdpa"], &ranges])?;
    assert_eq!(code, Some(2), "{}", lines(&alignment));
    assert_eq!(
        check(&alignment, "isolation")["observed"],
        "neither side has kernels named like \"nativ_sdpa\""
    );
    Ok(())
}

#[test]
fn another_model_is_not_found() -> Result<()> {
    let dir = pair("", "")?;
    capture("hf-deepseek-decoder", &dir.path().join("e2e.sqlite"), "")?;
    let (code, alignment) =
        align(&dir, &[&["--range", "decoder.self_attn", "--stage", "prefill"]])?;
    assert_eq!(code, Some(2));
    assert_eq!(
        check(&alignment, "isolation")["observed"],
        "whole model: the mock's sequence does not occur in the stage's timeline"
    );
    Ok(())
}

#[test]
fn replayed_kernels_belong_to_the_range_that_was_open_at_capture() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let eager = "update CUPTI_ACTIVITY_KIND_KERNEL set graphNodeId = null;
        update StringIds set value = 'cudaLaunchKernel_v7000' where value like 'cudaGraphLaunch%'";
    capture("torch-cuda-graph-node", &dir.path().join("mock.sqlite"), "")?;
    capture("torch-cuda-graph-node", &dir.path().join("e2e.sqlite"), "")?;
    let stage = ["--stage", "decode=decode_step@LLM"];
    let (code, alignment) = align(&dir, &[&["--range", "layer_*.mlp"], &stage])?;
    assert_eq!(
        (code, &alignment["e2e"]["instances"]),
        (Some(0), &Value::from(24 * 32)),
        "{}",
        lines(&alignment)
    );
    assert_eq!(alignment["e2e"]["replayed_kernels"], alignment["e2e"]["kernels"]);

    capture("torch-cuda-graph-node", &dir.path().join("mock.sqlite"), eager)?;
    let (code, alignment) = align(&dir, &[&["--range", "decode_step"], &stage])?;
    assert_eq!(
        (code, with(&alignment, "fail")),
        (Some(1), vec!["graphs"]),
        "{}",
        lines(&alignment)
    );
    Ok(())
}

#[test]
fn both_sides_of_a_capture_aligned_with_itself_are_cut_by_one_rule_and_never_differ() -> Result<()>
{
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures");
    let mut tried = 0;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().into_string().unwrap();
        let Some(name) = name.strip_suffix(".sqlite.zst") else { continue };
        let dir = tempfile::tempdir()?;
        for side in ["mock.sqlite", "e2e.sqlite"] {
            capture(name, &dir.path().join(side), "")?;
        }
        for how in [&[][..], &["--kernels", "gemm"]] {
            let (code, alignment) = align(&dir, &[how])?;
            assert_ne!(code, Some(1), "{name} {how:?}\n{}", lines(&alignment));
            assert_ne!(code, Some(3), "{name} {how:?}");
            assert_eq!(with(&alignment, "fail"), [""; 0], "{name} {how:?}");
            assert_eq!(alignment["mock"]["kernels"], alignment["e2e"]["kernels"], "{name}");
            tried += 1;
        }
    }
    assert!(tried >= 18, "{tried}");
    Ok(())
}

#[test]
fn a_mock_whose_time_is_mostly_outside_its_usual_sequence_is_not_judged() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for side in ["mock.sqlite", "e2e.sqlite"] {
        capture(E2E, &dir.path().join(side), "")?;
    }
    let (code, alignment) = align(&dir, &[])?;
    assert_eq!(code, Some(2), "{}", lines(&alignment));
    let observed = check(&alignment, "isolation")["observed"].as_str().unwrap();
    assert!(observed.contains("is outside its usual sequence of kernels"), "{observed}");
    Ok(())
}
