//! Jobs of a cluster for which the node has no space: requeued, and no attempt is counted.

use serde_json::json;

use crate::{
    slurm::bench::{Bench, attempts},
    support::service::RUNNER,
};

#[tokio::test]
async fn a_job_that_finds_no_space_for_its_result_is_submitted_again_without_counting_the_attempt()
{
    // The collecting job writes no result, and the analysing one finds no state.
    for (separate_analysis, file) in
        [(false, "result.new"), (true, "result.new"), (true, "gathered.new")]
    {
        let Some(mut bench) = Bench::new().await else { return };
        bench.separate_analysis = separate_analysis;
        // The first job finds no space.
        let lines = format!(
            "[ -e {0}/full ] || {{ touch {0}/full; for run in {0}/runs/*-*; do \
             ln -s /dev/full $run/{file}; done; }}\nexec {RUNNER} \"$@\"",
            bench.data.path().display()
        );
        bench.runner(&lines);
        let service = bench.serve();
        let inputs = "inputs-small.yaml";
        let body = json!({
            "repeats": 1, "warmup": 0, "max_new_tokens": 2, "inputs_manifest": inputs
        });
        let id = service.submit(body).await;
        let run = service.end(&id).await;
        assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(1)), "{run:#}");
        assert_eq!(attempts(&service, &id), 2, "{file}");
    }
}
