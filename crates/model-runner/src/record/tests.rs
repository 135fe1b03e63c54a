//! Events of a recorder without a profiler.

use candle_core::{DType, Device, Tensor};

use super::*;

#[test]
fn events_nest_by_time_and_have_their_stage() -> anyhow::Result<()> {
    let recorder = Recorder::silent();
    let (module, double) =
        (recorder.operator("m", "module"), recorder.operator("m.double", "elementwise"));
    let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
    recorder.start_repeat(true, 4);
    {
        let _stage = recorder.range("prefill");
        let _scope = module.enter();
        double.call(&[&x], 7, || &x * 2.0)?;
        recorder.experts(3, 2, 8);
    }
    let events = recorder.drain();
    let [Event::Op(call), Event::Experts(experts), Event::Op(scope), Event::Range(stage)] =
        &events[..]
    else {
        panic!("unexpected events: {events:?}");
    };
    assert!(stage.start_ns <= scope.start_ns && scope.start_ns <= call.start_ns);
    assert!(call.end_ns <= scope.end_ns && scope.end_ns <= stage.end_ns);
    assert_eq!((call.stage.as_str(), call.warmup, call.repeat), ("prefill", true, 4));
    assert_eq!((&call.shapes[..], call.flops, call.bytes), (&[vec![2, 3]][..], 7, 48));
    assert_eq!((experts.distinct, experts.total, experts.stage.as_str()), (2, 8, "prefill"));
    assert!(recorder.drain().is_empty(), "a drain takes everything");
    Ok(())
}

#[test]
fn closing_a_range_restores_the_stage() {
    let recorder = Recorder::silent();
    let outer = recorder.range("decode_all");
    drop(recorder.decode_step(5));
    assert_eq!((recorder.0.stage.get(), recorder.0.step.get()), ("decode_all", None));
    drop(outer);
    assert_eq!(recorder.0.stage.get(), "");
}

#[test]
fn without_operators_stages_are_recorded_alone() -> anyhow::Result<()> {
    let recorder = Recorder::silent();
    recorder.record_operators(false, true);
    let (module, double) =
        (recorder.operator("m", "module"), recorder.operator("m.double", "elementwise"));
    let x = Tensor::ones(2, DType::F32, &Device::Cpu)?;
    {
        let _stage = recorder.range("prefill");
        let _scope = module.enter();
        assert_eq!(double.call(&[&x], 7, || &x * 2.0)?.to_vec1::<f32>()?, [2.0, 2.0]);
    }
    let events = recorder.drain();
    assert!(matches!(&events[..], [Event::Range(range)] if range.name == "prefill"), "{events:?}");
    Ok(())
}
