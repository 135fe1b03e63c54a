//! Tests of the causes of outliers.

use serde_json::{Value, json};

use super::{
    super::{stored_answer, unfounded},
    OutlierStep, StepTimes, calls, singly, works,
};

/// The sentence on the outliers of a report.
fn sentence(report: &Value) -> String {
    let report = serde_json::to_vec(report).unwrap();
    assert_eq!(unfounded(&report).unwrap(), [""; 0]);
    let answer = stored_answer(&report).unwrap().remove(0);
    let outliers = answer.sentences.iter().find(|it| it.as_str().contains("more than twice"));
    outliers.unwrap().as_str().to_owned()
}

/// The sentence on an outlier of 40 ms among 20 steps of 4 ms, after its time.
fn causes(fields: &Value) -> String {
    let mut longest = json!({"step": 11, "ms": 40.0, "host_call": null, "host_call_ms": null});
    longest.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let report = json!({
        "only_traced": true,
        "stages": [{
            "stage": "decode_all", "tokens": null, "tokens_per_s": null, "share_pct": null,
            "ms": {"mean": 116.0, "std": null, "min": 116.0, "max": 116.0, "n": 1}
        }],
        "step_batches": [{
            "class": "decode", "mode": null, "requests": 6, "padded_min": null,
            "padded_max": null, "context_min": null, "context_max": null, "steps": 20,
            "ms": {"mean": 5.8, "std": null, "min": 4.0, "max": 40.0, "n": 20},
            "p50_ms": 4.0, "period_ms": null, "busy_pct": null, "tokens_per_s": null
        }],
        "step_times": [{
            "stage": "decode_all", "p50_ms": 4.0, "outliers": 1, "excess_ms": 36.0,
            "ms": {"mean": 5.8, "std": null, "min": 4.0, "max": 40.0, "n": 20},
            "longest": [longest]
        }]
    });
    sentence(&report).rsplit_once("40.0 ms. ").unwrap().1.to_owned()
}

#[test]
fn each_kind_of_call_and_each_cause_names_an_outlier() {
    let call = |cause: &str, name: &str| {
        json!({
            "cause": cause, "host_call": name, "host_call_ms": 36.0, "usual_call_ms": 0.25,
            "idle": [{"cause": cause, "ms": 36.2}]
        })
    };
    let without = |cause: &str| json!({"cause": cause, "idle": [{"cause": cause, "ms": 36.2}]});
    let unexplained = "No operator, range or call of the runtime explains it.";
    let idle = "In it the GPU idles while the host";
    let times = "(36.0 ms; usually 250 us).";
    for (fields, expected) in [
        (
            call("gap_sync", "cudaStreamSynchronize"),
            format!("{idle} waits for it, in cudaStreamSynchronize {times}"),
        ),
        (call("gap_copy", "cudaMemcpy"), format!("{idle} copies data, in cudaMemcpy {times}")),
        (
            call("gap_host", "cuXyzUnknown"),
            format!("{idle} launches nothing, in cuXyzUnknown {times}"),
        ),
        (
            call("gap_graph_launch", "cudaGraphLaunch"),
            format!("{idle} launches a graph, in cudaGraphLaunch {times}"),
        ),
        (
            call("gap_launch", "cuXyzUnknown"),
            format!("{idle} launches the next work, in cuXyzUnknown {times}"),
        ),
        (
            call("gap_host", "hipModuleLaunchKernel"),
            format!("{idle} launches the next work, in hipModuleLaunchKernel {times}"),
        ),
        (
            call("gap_long_call", "cudaMalloc"),
            format!("{idle} launches nothing, in cudaMalloc {times}"),
        ),
        (
            without("gap_wait"),
            "In it the GPU waits with launched work for something that the capture does not \
             record, such as another process or an event of another stream (36.2 ms)."
                .into(),
        ),
        (without("gap_host"), format!("{idle} prepares the next launch (36.2 ms). {unexplained}")),
        (json!({}), unexplained.into()),
    ] {
        assert_eq!(causes(&fields), expected);
    }
}

#[test]
fn a_step_that_captures_a_graph_is_named_by_the_capture_and_not_by_its_calls() {
    for (cause, call) in [
        ("gap_long_call", "cudaGraphInstantiate"),
        ("gap_host", "the range capture"),
        ("gap_launch", "cudaLaunchKernel"),
    ] {
        let fields = json!({
            "cause": cause, "host_call": call, "host_call_ms": 30.0, "captures": 2,
            "capture_ms": 35.0, "single_launches": 409, "idle": [{"cause": cause, "ms": 36.2}]
        });
        assert_eq!(causes(&fields), "In it the host captures 2 graphs (35.0 ms).", "{cause}");
    }
}

#[test]
fn a_collective_kernel_waits_and_others_work() {
    let text = |work: &str| causes(&json!({"longest_work": work, "longest_work_ms": 36.0}));
    for (work, words) in [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "waits for other ranks or transfers"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "waits for other ranks or transfers"),
        ("target_gemm", "works longer"),
        ("copy host_to_device", "works longer"),
    ] {
        let begins = format!("In it the GPU {words}, most of all in ");
        assert!(text(work).starts_with(&begins), "{}", text(work));
    }
}

#[test]
fn a_cause_is_of_the_outliers_that_were_looked_at() {
    let text = |outliers: u64, works: &[Option<&str>]| {
        let outlier = |(at, work): (usize, &Option<&str>)| {
            json!({
                "step": at + 1, "ms": 40.0 - at as f64, "host_call": null, "host_call_ms": null,
                "longest_work": work, "longest_work_ms": work.map(|_| 36.0)
            })
        };
        let longest: Vec<Value> = works.iter().enumerate().map(outlier).collect();
        let report = json!({
            "only_traced": true,
            "stages": [{
                "stage": "decode_all", "tokens": null, "tokens_per_s": null, "share_pct": null,
                "ms": {"mean": 320.0, "std": null, "min": 320.0, "max": 320.0, "n": 1}
            }],
            "step_times": [{
                "stage": "decode_all", "p50_ms": 4.0, "outliers": outliers, "excess_ms": 99.0,
                "ms": {"mean": 16.0, "std": null, "min": 4.0, "max": 40.0, "n": 20},
                "longest": longest
            }]
        });
        sentence(&report).split_once(". ").unwrap().1.to_owned()
    };
    let (gemm, none) = (Some("gemm"), None);
    let works = " the GPU works longer, most of all in gemm";
    let times = |n: usize| ["36.0 ms"; 3][..n].join(", ");
    for (outliers, longest, expected, n) in [
        (1, vec![gemm], "In it", 1),
        (3, vec![gemm; 3], "In them", 3),
        (3, vec![gemm, none, none], "In 1 of them", 1),
        (8, vec![gemm; 8], "In the 3 longest", 3),
        (8, vec![gemm, none, gemm, gemm], "In 2 of the 3 longest", 2),
    ] {
        let expected = format!("{expected}{works} ({}).", times(n));
        assert_eq!(text(outliers, &longest), expected, "{outliers} {longest:?}");
    }
    let unnamed = "No operator, range or call of the runtime explains";
    assert_eq!(text(8, &[none; 8]), format!("{unnamed} the 3 longest."));
    assert_eq!(text(2, &[none; 2]), format!("{unnamed} them."));
}

#[test]
fn a_step_that_replays_no_graph_is_named_by_its_single_launches() {
    let mut fields = json!({"cause": "gap_host", "idle": [{"cause": "gap_host", "ms": 36.2}]});
    fields["single_launches"] = 409.into();
    assert_eq!(
        causes(&fields),
        "In it the host launches 409 kernels one by one; the other steps replay a graph. In it \
         the GPU idles while the host prepares the next launch (36.2 ms)."
    );
}

#[test]
fn single_launches_of_processes_that_differ_are_compared_with_the_steps_of_their_processes() {
    for (outliers, which, numbers, of) in
        [(1, "it", "409", "the process"), (2, "them", "409, 409", "their processes")]
    {
        let outlier = json!({
            "step": 11, "ms": 40.0, "process_p50_ms": 4.0, "host_call": null,
            "host_call_ms": null, "single_launches": 409
        });
        let steps: StepTimes = serde_json::from_value(json!({
            "stage": "decode_all", "p50_ms": 4.0, "outliers": outliers, "excess_ms": 36.0,
            "ms": {"mean": 5.8, "std": null, "min": 4.0, "max": 40.0, "n": 20},
            "longest": vec![outlier; outliers]
        }))
        .unwrap();
        let listed: Vec<(usize, &OutlierStep)> = steps.longest.iter().enumerate().collect();
        let found = singly(&steps, &listed).unwrap();
        let expected = format!(
            " In {which} the host launches {numbers} kernels one by one; the other steps of {of} \
             replay a graph."
        );
        assert_eq!(found.as_str(), expected);
    }
}

#[test]
fn the_usual_time_is_of_each_outliers_process_or_absent() {
    let (one, other) = (Some(0.407), Some(0.136));
    for (usual, words) in [
        (vec![one], "36.0 ms; usually 407 us"),
        (vec![one, one], "36.0 ms, 35.0 ms; usually 407 us"),
        (vec![one, other], "36.0 ms, 35.0 ms; usually 407 us, 136 us"),
        (vec![one, other, one], "36.0 ms, 35.0 ms, 34.0 ms; usually 407 us, 136 us, 407 us"),
        (vec![one, None], "36.0 ms, 35.0 ms"),
        (vec![None, other], "36.0 ms, 35.0 ms"),
        (vec![None, None], "36.0 ms, 35.0 ms"),
    ] {
        let outlier = |(at, usual): (usize, &Option<f64>)| {
            let ms = 36.0 - at as f64;
            json!({
                "step": at + 1, "ms": 40.0, "cause": "gap_sync", "host_call": "cudaStreamSync",
                "host_call_ms": ms, "usual_call_ms": usual, "longest_work": "gemm",
                "longest_work_ms": ms, "usual_work_ms": usual
            })
        };
        let steps: StepTimes = serde_json::from_value(json!({
            "stage": "decode_all", "p50_ms": 4.0, "outliers": usual.len(), "excess_ms": 36.0,
            "ms": {"mean": 5.8, "std": null, "min": 4.0, "max": 40.0, "n": 20},
            "longest": usual.iter().enumerate().map(outlier).collect::<Vec<_>>()
        }))
        .unwrap();
        let listed: Vec<(usize, &OutlierStep)> = steps.longest.iter().enumerate().collect();
        for (sentence, name) in
            [(calls(&steps, &listed), "cudaStreamSync"), (works(&steps, &listed), "gemm")]
        {
            let text = sentence.unwrap().as_str().to_owned();
            assert!(text.ends_with(&format!(" in {name} ({words}).")), "{text}");
        }
    }
}
