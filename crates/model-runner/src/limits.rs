//! Limits of a request: the model's context and this machine's memory.
//!
//! Checked before anything is built, so that a run that cannot fit is refused with a message
//! instead of being killed by the kernel. Never allocates.

use candle_core::Device;
use llmprof_core::domain::runner::RunnerRequest;

/// Refuses a request that cannot fit.
pub fn check(request: &RunnerRequest, prompt_tokens: usize, device: &Device) -> Result<(), String> {
    if request.repeats == 0 {
        return Err("repeats is 0; request 1 or more".to_owned());
    }
    let (new, context) = (request.cache_room() as usize, request.model.decoder.max_positions);
    if prompt_tokens + new > context {
        return Err(format!(
            "{prompt_tokens} prompt tokens and {new} new tokens exceed the context of {context}; \
             request fewer"
        ));
    }
    let (batch, samples) = (request.batch as usize, 1 + request.further_samples.len());
    if batch == 0 {
        return Err("batch is 0; request 1 or more".to_owned());
    }
    if batch > 1 && samples > batch {
        return Err(format!(
            "{samples} samples exceed a batch of {batch}; request a batch of {samples} or more, or \
             of 1, which measures each sample alone"
        ));
    }
    if request.target.is_some() {
        return match batch {
            1 => Ok(()),
            _ => Err(format!(
                "a part of a model runs one sequence, not a batch of {batch}; request batch 1, or \
                 the whole model"
            )),
        };
    }
    // A cache may have room for more tokens than are generated.
    let unused = new - request.max_new_tokens as usize;
    let needed = request.model.minimum_bytes(
        request.dtype,
        request.batch,
        prompt_tokens + unused,
        request.max_new_tokens,
    );
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => crate::gpu::free_bytes(cuda)
            .map_or(Ok(()), |free| check_memory(needed, free, "GPU memory")),
        _ => {
            available_memory().map_or(Ok(()), |available| check_memory(needed, available, "memory"))
        }
    }
}

fn check_memory(needed: u128, available: u64, kind: &str) -> Result<(), String> {
    if needed <= u128::from(available) {
        return Ok(());
    }
    let gib = |bytes: u128| bytes as f64 / f64::from(1 << 30);
    Err(format!(
        "the model needs at least {:.1} GiB of {kind}, but {:.1} GiB are free",
        gib(needed),
        gib(available.into())
    ))
}

/// Memory available without swapping, as estimated by the kernel.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_larger_than_memory_is_refused_with_both_figures() {
        assert_eq!(check_memory(8 << 30, 8 << 30, "memory"), Ok(()));
        let refused = check_memory(13 << 30, 8 << 30, "GPU memory").expect_err("refused");
        assert_eq!(
            refused,
            "the model needs at least 13.0 GiB of GPU memory, but 8.0 GiB are free"
        );
    }
}
