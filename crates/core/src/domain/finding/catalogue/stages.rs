//! Findings on stages, steps and operators.

use super::*;

findings! {
    STAGE_DOMINATES = "stage_dominates", [Info],
        fires_on: "one stage takes at least 1.2 times as long as the other",
        advice: "Optimise the longer stage first.";
    OPERATOR_DOMINATES = "operator_dominates", [Info],
        fires_on: "one operator takes at least 20 % of a stage, and 1.2 times the next",
        advice: "Fuse it, reshape it or change its algorithm.",
        saving: "the operator's own time";
    TIME_BETWEEN_OPERATORS = "time_between_operators", [Warning],
        fires_on: "on a CPU, a runner's operators cover less than 90 % of a stage's time",
        advice: "Look for copies and small loops on the host.",
        saving: "the time outside operators";
    EXPERTS_COLLAPSED = "experts_collapsed", [Warning],
        fires_on: "layers hit less than half the experts of an even router",
        advice: "Balance the router: decode looks cheaper than with trained weights.";
    EXPERT_IMBALANCE = "expert_imbalance", [Info],
        fires_on: "of three layers or more, one hits less than 70 % as many experts as the \
                   median layer",
        advice: "Check that layer's router: it reads fewer weights than the other layers.";
    COST_DISAGREES = "cost_disagrees", [Warning],
        fires_on: "counted FLOPs differ from the architecture's by more than 0.1 %",
        advice: "Look for an operator that the records or the cost model lack.";
    NO_DATASHEET_PEAK = "no_datasheet_peak", [Info],
        fires_on: "no peak is known for the device and dtype",
        advice: "State the peaks of the device with their source in a file (`--devices FILE`, or \
                 the setting tools.devices).";
    NO_MEASURED_PEAK = "no_measured_peak", [Info],
        fires_on: "the runner measured no ceiling",
        advice: "Let the run finish: ceilings are measured last.";
    GPU_NAME_DOUBTED = "gpu_name_doubted", [Warning],
        fires_on: "a trace names a GPU of NVIDIA and has calls of HIP, or a GPU of AMD and calls \
                   of CUDA",
        advice: "Check whether the host that recorded the file has the GPUs that the file names.";
    NO_KERNEL_DATA = "no_kernel_data", [Info],
        fires_on: "there are no kernels",
        advice: "Run on a host with an NVIDIA GPU and nsys.";
    STATED_MODEL_ON_SEVERAL_GPUS = "stated_model_on_several_gpus", [Warning],
        fires_on: "a model is stated, and the capture has work of several GPUs or processes, or is \
                   of one of several ranks",
        advice: "Run it on one GPU for floors and MFU.";
    STATED_MODEL_REFUTED = "stated_model_refuted", [Critical],
        fires_on: "the stated model, its dtype or its sizes need more than the device can do, or \
                   contradict the capture's shapes, kernels or steps: no figure of it is given",
        advice: "State the model, dtype and sizes that ran, or omit model_config. If they are \
                 right, the ranges of the stages do not contain all of their work.";
    STATED_STEPS_DIFFER = "stated_steps_differ", [Warning],
        fires_on: "the stated `new_tokens` is neither the number of decode steps nor one more",
        advice: "State the tokens of one repeat, or leave new_tokens out.";
    STEPS_INFERRED = "steps_inferred", [Info],
        fires_on: "no range of the capture is a stage, and the order of launches shows steps",
        advice: "Open ranges called prefill and decode_all around the steps, to have them named.";
    STEPS_UNCLEAR = "steps_unclear", [Warning],
        fires_on: "no range of the capture is a stage, and some sequences of kernels have no \
                   class",
        advice: "Open ranges called prefill and decode_all around the steps.";
    STEP_NAMES_UNKNOWN = "step_names_unknown", [Warning],
        fires_on: "names of ranges look like names of an engine's steps, and show neither class \
                   nor requests in a known form",
        advice: "Name the ranges that are stages: `--stage prefill=RANGE`, or `stage` of an \
                 import.";
    STEPS_LEFT_OUT = "steps_left_out", [Warning],
        fires_on: "some steps of a stage lack recorded work, launching calls or their range, and \
                   others do not; or the recording starts or ends inside a step",
        advice: "Record the calls and the work of the GPU for the whole window, in every process \
                 and thread of the engine.";
    STAGES_EXCLUDED = "stages_excluded", [Warning],
        fires_on: "a range filter leaves out every range that is a stage",
        advice: "Include a range around a stage (`--include-ranges`), or exclude none around all \
                 of them (`--exclude-ranges`).";
    WORK_BEFORE_RECORDING = "work_before_recording", [Info],
        fires_on: "a capture has kernels that were launched before its first call: with stages, \
                   at least 1 % of the kernel time",
        advice: "Synchronise the device before the recording starts, or start it earlier.";
    DECODE_LAUNCH_BOUND = "decode_launch_bound", [Warning],
        fires_on: "the GPU is idle during 30 % or more of the traced decode, without long calls \
                   and the gaps of few outlier steps, and of the unprofiled one if it was timed",
        advice: "Replay decode as a CUDA or HIP graph, or fuse operators: the GPU waits for \
                 launches.",
        saving: "the GPU's idle time in decode";
    DECODE_EAGER = "decode_eager", [Warning],
        fires_on: "each decode step of the traced pass launches 50 kernels or more, and no \
                   graph is replayed",
        advice: "Replay decode as a CUDA or HIP graph: one launch per step.",
        saving: "the GPU's idle time in decode";
    VISION_DOMINATES_PREFILL = "vision_dominates_prefill", [Info],
        fires_on: "vision takes at least 50 % of prefill",
        advice: "Send smaller pages or fewer crops, or cache the image embeddings of repeated \
                 pages.",
        saving: "vision's time";
    LOAD_DOMINATES = "load_dominates", [Info],
        fires_on: "loading takes at least 10 passes and 5 seconds",
        advice: "Keep the process alive between requests, so that it loads once.";
}
