//! Whole decoders on a GPU: eager, replayed, and compared with the CPU.

use llmprof_core::domain::{dtype::Dtype, model::ModelSpec};

use super::*;
use crate::{
    generate::{ComputedOutputs, Session},
    models::{Decoder, KvCache, Model},
    ops::Sampler,
    prompt::Prompt,
    text::{Batch, TextGeneration, TextSample},
};

/// Max error of a step's logits in half precision, relative to their length.
const LOGITS_ERROR: f32 = 2e-2;

fn session(
    spec: &Spec,
    dtype: DType,
    device: &Device,
    prompt: usize,
    steps: u32,
) -> Result<Session> {
    batch_session(spec, dtype, device, &[prompt], steps)
}

/// A session of a batch of prompts of these lengths.
fn batch_session(
    spec: &Spec,
    dtype: DType,
    device: &Device,
    prompts: &[usize],
    steps: u32,
) -> Result<Session> {
    let model = ModelSpec {
        name: "test".to_owned(),
        description: String::new(),
        dtype: Dtype::Bf16,
        cpu_dtype: Dtype::F32,
        weights: None,
        decoder: spec.clone(),
        vision: None,
    };
    let recorder = Recorder::silent();
    let root = Site::root(weights::synthetic(5, dtype, device), recorder.clone());
    let longest = prompts.iter().max().copied().unwrap_or(0);
    let room = Room { sequences: prompts.len(), positions: longest + steps as usize };
    let sample = |&prompt: &usize| TextSample {
        prompt: Prompt {
            tokens: (0..prompt as u32).map(|i| i * 37 % 1000).collect(),
            images: Vec::new(),
        },
        pages: Vec::new(),
    };
    let samples: Vec<TextSample> = prompts.iter().map(sample).collect();
    let site = root.part("decoder.sample", "");
    let text = TextGeneration {
        model: Model::new(&root, &model, room)?,
        batches: vec![Batch::new(&samples)],
        current: 0,
        sampler: Sampler::new(&site, spec.vocab, prompts.len(), steps as usize + 1)?,
    };
    Ok(Session {
        program: Box::new(text),
        recorder,
        max_new_tokens: steps,
        device: device.clone(),
        graph: None,
        l2_flush: None,
    })
}

#[test]
#[ignore = "needs a GPU"]
fn a_replayed_graph_equals_eager_steps_bit_for_bit() -> Result<()> {
    let gpu = gpu();
    for spec in [decoder(None), decoder(Some(mixture()))] {
        for dtype in DTYPES {
            let mut session = session(&spec, dtype, &gpu, 77, 64)?;
            let eager = session.run()?;
            session.capture()?;
            for _ in 0..2 {
                let replayed = session.run()?;
                assert_eq!(eager.tokens, replayed.tokens, "{dtype:?}");
                assert_eq!(eager.sha256()?, replayed.sha256()?, "{dtype:?}");
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn stages_back_to_back_have_the_outputs_of_a_repeat() -> Result<()> {
    let gpu = gpu();
    for graph in [false, true] {
        let mut session = session(&decoder(Some(mixture())), DType::BF16, &gpu, 77, 20)?;
        let want = session.run()?;
        if graph {
            session.capture()?;
            session.run()?;
        }
        for steady in session.steady(std::time::Duration::from_millis(30))? {
            assert!(steady.instances > 1, "{steady:?}");
        }
        let got = session.program.computed(20)?;
        assert_eq!((&got.tokens, got.sha256()?), (&want.tokens, want.sha256()?), "graph: {graph}");
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn heads_without_a_kernel_decode_eagerly_and_correctly() -> Result<()> {
    let spec = Spec { head_dim: 48, ..decoder(Some(mixture())) };
    let want = session(&spec, DType::F32, &Device::Cpu, 30, 12)?.run()?;
    let mut session = session(&spec, DType::F32, &gpu(), 30, 12)?;
    let refused = session.capture().expect_err("a step that needs the host's position").to_string();
    assert!(refused.contains("has no kernel"), "{refused}");
    assert_eq!(session.run()?.tokens, want.tokens);
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn a_decoder_in_f32_chooses_the_hosts_tokens_over_64_steps() -> Result<()> {
    let gpu = gpu();
    for spec in [decoder(None), decoder(Some(mixture()))] {
        let want = session(&spec, DType::F32, &Device::Cpu, 77, 64)?.run()?;
        let mut session = session(&spec, DType::F32, &gpu, 77, 64)?;
        session.capture()?;
        assert_eq!(session.run()?.tokens, want.tokens);
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn a_batch_generates_the_tokens_of_its_single_runs() -> Result<()> {
    let gpu = gpu();
    let prompts = [77, 5, 1, 77, 130];
    for spec in [decoder(None), Spec { head_dim: 32, qk_norm: true, ..decoder(None) }] {
        for dtype in DTYPES {
            let mut batch = batch_session(&spec, dtype, &gpu, &prompts, 40)?;
            let eager = batch.run()?;
            batch.capture()?;
            for _ in 0..2 {
                let replayed = batch.run()?;
                assert_eq!(eager.tokens, replayed.tokens, "{dtype:?}");
                assert_eq!(eager.sha256()?, replayed.sha256()?, "{dtype:?}");
            }
            for (prompt, tokens) in prompts.into_iter().zip(eager.tokens.chunks(41)) {
                let alone = session(&spec, dtype, &gpu, prompt, 40)?.run()?;
                let same = alone.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
                if same < tokens.len() {
                    let gap = gap_in_errors(&alone, same, tokens[same])?;
                    let is_near_tie = dtype != DType::F32 && gap < 4.0;
                    assert!(is_near_tie, "{dtype:?} {prompt}: token {same}, {gap} errors apart");
                }
            }
        }
    }
    Ok(())
}

/// Difference of the logits of the token generated at `at` and of `other`, over the error that half
/// precision may have in one logit. Products of one row and of many round differently: of two
/// nearly equal logits the other may be larger, and the text after it is another.
fn gap_in_errors(generated: &ComputedOutputs, at: usize, other: u32) -> Result<f32> {
    let logits = generated.values[at].to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    let square: f32 = logits.iter().map(|it| it * it).sum::<f32>() / logits.len() as f32;
    let chosen = logits[generated.tokens[at] as usize];
    Ok((chosen - logits[other as usize]) / (LOGITS_ERROR * square.sqrt()))
}

#[test]
#[ignore = "needs a GPU"]
fn a_batch_of_a_mixture_replays_its_eager_steps_and_logs_its_experts() -> Result<()> {
    let gpu = gpu();
    for prompts in [&[77, 77, 77, 77][..], &[77, 5, 1, 130]] {
        let mut batch = batch_session(&decoder(Some(mixture())), DType::BF16, &gpu, prompts, 20)?;
        let eager = batch.run()?;
        let hit = |session: &Session| {
            let events = session.recorder.drain();
            let experts = |event| match event {
                llmprof_core::trace::event::Event::Experts(it) => {
                    Some((it.step, it.layer, it.distinct))
                }
                _ => None,
            };
            events.into_iter().filter_map(experts).collect::<Vec<_>>()
        };
        let of_eager = hit(&batch);
        batch.capture()?;
        batch.recorder.drain();
        let replayed = batch.run()?;
        assert_eq!(eager.tokens, replayed.tokens, "{prompts:?}");
        assert_eq!(of_eager, hit(&batch), "{prompts:?}");
        let layers = decoder(Some(mixture())).layers - 1;
        assert_eq!(of_eager.len(), 21 * layers, "each forward of each mixture");
        assert!(of_eager.iter().all(|&(_, _, distinct)| (4..=16).contains(&distinct)));
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn a_decoder_in_bf16_is_close_to_the_hosts_f32() -> Result<()> {
    let gpu = gpu();
    for spec in [decoder(None), decoder(Some(mixture()))] {
        // The same weights, rounded: only the arithmetic differs.
        let rounded = |device: &Device, dtype| {
            let source = weights::synthetic(5, DType::BF16, &Device::Cpu);
            Site::root(source.set_dtype(dtype).set_device(device.clone()), Recorder::silent())
        };
        let logits = |site: &Site, tokens: &[u32]| {
            let decoder = Decoder::new(site, &spec, Room::of_one(256))?;
            let room = Room::of_one(256);
            let mut cache = KvCache::new(&spec, room, site.dtype(), site.device())?;
            let mut all = Vec::new();
            for part in std::iter::once(&tokens[..77]).chain(tokens[77..].chunks(1)) {
                let x = decoder.embed(&Tensor::new(part, site.device())?)?;
                cache.cursor.read(&[part.len()])?;
                all.push(decoder.forward(&x, &mut cache)?.get(0)?);
            }
            Tensor::stack(&all, 0)
        };
        let tokens: Vec<u32> = (0..93).map(|i| i * 37 % 1000).collect();
        let want = logits(&rounded(&Device::Cpu, DType::F32), &tokens)?;
        let got = logits(&rounded(&gpu, DType::BF16), &tokens)?;
        // Compares the norm of the difference of each step's logits.
        let got = got.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        let (difference, length) =
            ((got - &want)?.sqr()?.sum(1)?.sqrt()?, want.sqr()?.sum(1)?.sqrt()?);
        let relative = (difference / length)?.to_vec1::<f32>()?;
        // A token whose router is undecided between two experts may use the other one: that is
        // allowed for one step in ten.
        let mut sorted: Vec<f32> =
            relative.iter().map(|far| if far.is_nan() { f32::INFINITY } else { *far }).collect();
        sorted.sort_by(f32::total_cmp);
        let undecided = if spec.moe.is_some() { sorted.len() / 10 } else { 0 };
        let worst = sorted[sorted.len() - 1 - undecided];
        assert!(worst < LOGITS_ERROR, "{relative:?}");
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn a_prompt_of_8192_tokens_is_read() -> Result<()> {
    let mut session = session(
        &Spec { max_positions: 9000, ..decoder(Some(mixture())) },
        DType::BF16,
        &gpu(),
        8192,
        2,
    )?;
    session.capture()?;
    let generated = session.run()?;
    assert_eq!(generated.tokens.len(), 3);
    Ok(())
}
