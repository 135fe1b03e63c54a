//! Findings on the causes of the gap ledger.

use super::*;

findings! {
    LEDGER_LONG_LAUNCHES = "ledger_long_launches", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Compare these launches with the others: longer inputs, another process on the \
                 GPU or a lower clock may lengthen them.",
        saving: "the cause's time in which its kernels run alone, above the time of their \
                 launches";
    LEDGER_COPIES_AND_CASTS = "ledger_copies_and_casts", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Keep data on the device, in one dtype and layout through the chain of operators.",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_COLLECTIVE_WAIT = "ledger_collective_wait", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Balance the work of the ranks; the table ranks names the one that the others \
                 wait for.",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_COLLECTIVE_TRANSFER = "ledger_collective_transfer", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Overlap collective operations with computation, send less, or use a faster link.",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_COLLECTIVES = "ledger_collectives", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Overlap collective operations with computation, or send less.",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_MORE_BYTES = "ledger_more_bytes", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Read each operand once: fuse passes over the same data, and check for \
                 uncoalesced strides.",
        saving: "the cause's time in which its kernels run alone, above the time of their \
                 launches";
    LEDGER_TENSOR_CORES = "ledger_tensor_cores", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Use a dtype and sizes supported by tensor cores (bf16 or f16, multiples of 8).",
        saving: "the cause's time in which its kernels run alone, above the time of their \
                 launches";
    LEDGER_TILES = "ledger_tiles", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Choose tiles that divide the product's sizes.",
        saving: "the cause's time in which its kernels run alone, above the time of their \
                 launches";
    LEDGER_WAVES = "ledger_waves", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Launch more blocks: divide the work further, or run small kernels at the same \
                 time.",
        saving: "the cause's time in which its kernels run alone, above the time of their \
                 launches";
    LEDGER_INSTRUCTIONS = "ledger_instructions", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Reduce instructions besides the products: conversions, index arithmetic, \
                 exponentials.",
        saving: "the cause's time in which its kernels run alone, above the time of their \
                 launches";
    LEDGER_OPERAND_TRAFFIC = "ledger_operand_traffic", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Read fewer bytes for each result: quantise the weights or the KV cache to a \
                 smaller dtype, or raise the batch, whose sequences share the weights.",
        saving: "the cause's time in which its kernels run alone, above the time of their \
                 launches";
    LEDGER_MEMORY_TRAFFIC = "ledger_memory_traffic", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Fuse the kernel with its neighbours, so that activations stay on the SM.",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_LATENCY = "ledger_latency", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Use smaller tiles or fewer registers for more warps, or more independent work \
                 per thread.",
        saving: "the cause's time in which its kernels run alone, above the time of their \
                 launches";
    LEDGER_GAP_LONG_CALL = "ledger_gap_long_call", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Make calls that load code, choose an algorithm, compile or allocate before the \
                 measured steps, with each shape that occurs. Move calls that each step makes to \
                 another thread.",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_GAP_HOST = "ledger_gap_host", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Let the host do less between launches: replay a CUDA or HIP graph, compile the \
                 step, or move other work to another thread.",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_GAP_LAUNCH = "ledger_gap_launch", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Launch less often: replay a CUDA or HIP graph, or fuse operators.",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_GAP_GRAPH_LAUNCH = "ledger_gap_graph_launch", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Launch the next replay before the current one ends, and change fewer nodes of the \
                 graph between replays.",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_GAP_SYNC = "ledger_gap_sync", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Keep sampled tokens on the device, and synchronise once per step or less.",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_GAP_COPY = "ledger_gap_copy", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Copy less, and overlapped with kernels.",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_GAP_IN_GRAPH = "ledger_gap_in_graph", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Fuse small kernels: each starts after the one before it.",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_GAP_QUEUED = "ledger_gap_queued", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Fuse small kernels, or start them before the previous one ends (programmatic \
                 dependent launch).",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_OTHER_STAGES = "ledger_other_stages", [Warning],
        fires_on: "the cause of this name in the gap ledger can save at least 3 % of a stage",
        advice: "Keep other work off the GPU meanwhile: the evidence names its process or stage.",
        saving: "the cause's time in which its kernels run alone; of gaps, at most the \
                 unprofiled ones";
    LEDGER_UNEXPLAINED = "ledger_unexplained", [Info],
        fires_on: "no evidence explains at least 10 % of a stage's time",
        advice: "Collect counters of more kernels: profiling.ncu in mode deep, or ncu by hand.";
}
