//! Findings on collective operations across ranks.

use super::*;

findings! {
    COLLECTIVE_STRAGGLER = "collective_straggler", [Warning],
        fires_on: "ranks wait at least 10 % of the time of their collective operations, and one \
                   rank is last in most of them",
        advice: "Look at that rank's work before its collective operations: an uneven share, \
                 another clock of its GPU, a slower host.";
    COLLECTIVE_SKEW = "collective_skew", [Info],
        fires_on: "ranks wait at least 10 % of the time of their collective operations, and \
                   different ranks are last",
        advice: "Divide each step's work evenly over the ranks, and keep their hosts quiet.";
    COLLECTIVES_NOT_JOINED = "collectives_not_joined", [Warning],
        fires_on: "collective operations of a group cannot be paired across its ranks",
        advice: "Record all ranks together, from the same step to the same step.";
    COLLECTIVES_OF_ONE_RANK = "collectives_of_one_rank", [Info],
        fires_on: "the capture has collective operations of one rank alone",
        advice: "Import the captures of all ranks together for waits, transfers and bandwidths.";
    COLLECTIVES_UNPAIRED = "collectives_unpaired", [Info],
        fires_on: "some rank lacks numbers of collective operations that others have",
        advice: "Record all ranks from the same step to the same step.";
    COLLECTIVES_WITHOUT_SIZE = "collectives_without_size", [Info],
        fires_on: "collective operations are joined, and their sizes are not recorded",
        advice: "Record with the profiler of PyTorch, which writes the sizes: kernels have none.";
    COLLECTIVE_CLOCKS_DIFFER = "collective_clocks_differ", [Info],
        fires_on: "the clocks of ranks differ by more than 50 us, or contradict each other",
        advice: "Waits and transfers are uncertain by the spread of the offset.";
    COLLECTIVES_ON_HOST = "collectives_on_host", [Info],
        fires_on: "collective operations ran on the host",
        advice: "Use the backend nccl for tensors on GPUs.";
}
