//! The steps of an import: what came is laid out as a run's own captures are, so that everything after reads it as a run's.
//!
//! Measures nothing, and tells nothing of this host. The only program that it starts is nsys, to export a report.

use super::{Job, Stop, pretty, yaml};
use crate::{
    artifact::layout,
    parse,
    run::{
        InputFile, Step, StepState,
        import::{CaptureKind, Import},
    },
    trace::environment::Environment,
    worker::steps::Ended,
};

impl Job<'_> {
    /// Makes of what was imported what the analysis reads.
    pub(super) async fn imported(&mut self, import: &Import) -> Result<(), Stop> {
        self.steps.begin(Step::Preflight);
        let ended = self.lay_out().map_or_else(Ended::failed, |()| Ended::well());
        self.steps.end(&ended);
        if ended.state != StepState::Succeeded {
            return Err(Stop(ended));
        }
        if import.files.iter().any(|file| file.kind == CaptureKind::Report) { self.export().await } else { Ok(()) }
    }

    /// What a run's folder tells of itself, where nothing is known.
    fn lay_out(&self) -> Result<(), String> {
        let environment = Environment { llmprof: env!("CARGO_PKG_VERSION").into(), ..Environment::default() };
        self.write(layout::ENV, &pretty(&environment)?)?;
        self.write(layout::INPUTS, &yaml(&Vec::<InputFile>::new())?)
    }

    /// Has the nsys of this host export the report; what it makes is read with the same distrust as what came from outside.
    async fn export(&mut self) -> Result<(), Stop> {
        self.steps.begin(Step::Nsys);
        let (mut leash, lines) = self.leash(Step::Nsys);
        if let Some(space) = &mut leash.space {
            space.most_bytes = space.most_bytes.max(self.order.limits.capture_bytes.saturating_mul(2));
        }
        let pass = self.cx.collector.export(self.dir, &leash).await;
        drop(leash);
        lines.await.ok();
        let mut ended = self.settle(pass);
        if ended.state == StepState::Succeeded
            && let Err(error) = parse::nsys::check(&self.dir.join(layout::NSYS_EXPORT))
        {
            ended = Ended::failed(crate::chain(&error));
        }
        self.steps.end(&ended);
        if ended.state == StepState::Succeeded { Ok(()) } else { Err(Stop(ended)) }
    }
}
