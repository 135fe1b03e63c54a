//! Every work on files of unbounded size stops inside one file of 50 GiB, within a slice.
//!
//! The gate of the work stands for a slow disk: it counts slices, and stops the work in one of
//! them. No test measures time.

use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use llmprof_core::{
    domain::{pass_conditions::PassConditions, run_files::ArtifactRecord},
    layout,
};
use tokio_util::sync::CancellationToken;

use super::{backup, durable, finished_passes, folder, manifest, packed, size_limit, verify};
use crate::runtime::{
    self,
    work::{SLICE, SlicedWork, is_stopped},
};

const LARGE: u64 = 50 << 30;
const PATH: &str = "nsys/run.sqlite";
/// Slice in which the work is stopped.
const STOP_AT: u64 = 20;

/// A folder with one sparse file.
fn run() -> (tempfile::TempDir, ArtifactRecord) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("nsys")).unwrap();
    File::create(dir.path().join(PATH)).unwrap().set_len(LARGE).unwrap();
    let (path, media_type) = (PATH.into(), String::new());
    (dir, ArtifactRecord { path, bytes: LARGE, sha256: String::new(), media_type, step: None })
}

/// Asserts that `act` stops in the slice in which its token fires.
#[track_caller]
fn assert_stops<T>(act: impl FnOnce(&SlicedWork) -> io::Result<T>) {
    let (stop, slices) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
    let (cancel, counted) = (stop.clone(), Arc::clone(&slices));
    let work = SlicedWork::new(&stop).with_gate(move |bytes| {
        assert!(bytes <= SLICE as u64);
        if counted.fetch_add(1, Ordering::SeqCst) + 1 == STOP_AT {
            cancel.cancel();
        }
        true
    });
    let Err(error) = act(&work) else { panic!("it was not stopped") };
    assert!(is_stopped(&error), "{error}");
    assert_eq!(slices.load(Ordering::SeqCst), STOP_AT, "no slice follows the stop");
    assert!(work.progress().0 <= STOP_AT * SLICE as u64);
}

fn has_manifest(dir: &Path) -> bool {
    dir.join(layout::MANIFEST).exists()
}

#[test]
fn a_seal_stops_inside_a_file_and_leaves_no_manifest() {
    let (dir, _) = run();
    assert_stops(|work| manifest::seal(dir.path(), u64::MAX, work));
    assert!(!has_manifest(dir.path()));
    // Behind the sync, while the file is hashed.
    let stop = CancellationToken::new();
    let (cancel, mut hashed) = (stop.clone(), 0);
    let work = SlicedWork::new(&stop).with_gate(move |bytes| {
        hashed += u64::from(bytes > 0);
        if hashed == STOP_AT {
            cancel.cancel();
        }
        true
    });
    let stopped = manifest::seal(dir.path(), u64::MAX, &work).unwrap_err();
    assert!(is_stopped(&stopped) && !has_manifest(dir.path()));
    let (done, total) = work.progress();
    assert!(done > 0 && done <= STOP_AT * SLICE as u64, "{done}");
    assert_eq!(total, LARGE, "progress counts bytes");
}

#[test]
fn a_file_over_the_limit_is_dropped_and_not_hashed() {
    let (dir, _) = run();
    fs::write(dir.path().join("report.md"), "# report").unwrap();
    let work = SlicedWork::default();
    let sealed = manifest::seal(dir.path(), 1 << 20, &work).unwrap();
    let paths: Vec<_> = sealed.artifacts.iter().map(|it| it.path.as_str()).collect();
    assert_eq!(paths, [layout::DROPPED, layout::MANIFEST, "report.md"]);
    assert_eq!(sealed.finding.as_ref().unwrap().evidence[PATH], "53687091200 bytes (0 on disk)");
    assert!(work.progress().0 < 4096);
    let again = manifest::seal(dir.path(), 1 << 20, &work).unwrap();
    assert_eq!(again, sealed, "the finding remains where a seal is repeated");
}

#[test]
fn verifying_scrubbing_packing_and_hashing_stop_inside_a_file() {
    let (dir, artifact) = run();
    let packing = tempfile::tempdir().unwrap();
    let artifacts = std::slice::from_ref(&artifact);
    assert_stops(|work| verify::faults(dir.path(), artifacts, true, work));
    assert_stops(|work| verify::scrub(dir.path(), artifacts, work));
    assert_stops(|work| packed::pack(dir.path(), &artifact, packing.path(), work));
    assert!(fs::read_dir(packing.path()).unwrap().next().is_none());
    assert_stops(|work| packed::hash_content(&dir.path().join(PATH), work));
    let file = File::open(dir.path().join(PATH)).unwrap();
    assert_stops(|work| durable::sync_in_slices(&file, dir.path(), work));
}

#[test]
fn a_backup_and_a_restore_stop_inside_a_file_and_leave_no_part_of_it() {
    let (dir, artifact) = run();
    let to = tempfile::tempdir().unwrap();
    let artifact = ArtifactRecord { sha256: "ab".repeat(32), ..artifact };
    assert_stops(|work| backup::keep(to.path(), dir.path(), &artifact, work));
    let objects = to.path().join("objects/ab");
    assert!(fs::read_dir(&objects).unwrap().next().is_none());
    File::create(objects.join(&artifact.sha256)).unwrap().set_len(LARGE).unwrap();
    let new = tempfile::tempdir().unwrap();
    assert_stops(|work| backup::bring_back(to.path(), new.path(), &artifact, work));
    assert!(fs::read_dir(new.path().join("nsys")).unwrap().next().is_none());
}

#[test]
fn the_seal_of_a_pass_and_its_check_stop_inside_a_file() {
    let (dir, artifact) = run();
    fs::write(dir.path().join(layout::PROGRESS), "").unwrap();
    assert_stops(|work| finished_passes::seal(dir.path(), "nsys", u64::MAX, work));
    let over = finished_passes::seal(dir.path(), "nsys", LARGE - 1, &SlicedWork::default());
    assert!(over.unwrap_err().to_string().contains("53687091200 bytes"));
    let pass = finished_passes::FinishedPass {
        name: "nsys".into(),
        attempt: 1,
        started_at: String::new(),
        ended_at: String::new(),
        findings: vec![],
        files: vec![artifact],
    };
    let passes = vec![pass];
    let record = finished_passes::FinishedPasses { conditions: PassConditions::default(), passes };
    finished_passes::write(dir.path(), &record).unwrap();
    assert_stops(|work| finished_passes::read(dir.path(), work));
}

#[test]
fn walks_and_removals_stop_between_entries() {
    let dir = tempfile::tempdir().unwrap();
    for at in 0..100 {
        fs::create_dir_all(dir.path().join(format!("{at}/a"))).unwrap();
        fs::write(dir.path().join(format!("{at}/a/file")), "").unwrap();
    }
    let stopped = CancellationToken::new();
    stopped.cancel();
    let never = SlicedWork::new(&stopped);
    assert!(is_stopped(&size_limit::files(dir.path(), &never).unwrap_err()));
    assert_eq!(size_limit::files(dir.path(), &SlicedWork::default()).unwrap().len(), 100);
    assert_stops(|work| folder::remove_tree(dir.path(), work));
    assert!(dir.path().exists());
    folder::remove_tree(dir.path(), &SlicedWork::default()).unwrap();
    assert!(!dir.path().exists());
}

#[tokio::test]
async fn work_stops_when_its_caller_is_dropped() {
    let (dir, _) = run();
    let (sender, ended) = tokio::sync::oneshot::channel();
    let (started, starts) = tokio::sync::oneshot::channel();
    let mut started = Some(started);
    let work = SlicedWork::default().with_gate(move |bytes| {
        if let Some(started) = started.take_if(|_| bytes > 0) {
            started.send(()).unwrap();
        }
        true
    });
    let path = dir.path().to_owned();
    let seal = async {
        runtime::stoppable(&work, move |work| {
            sender.send(manifest::seal(&path, u64::MAX, work).map_err(|it| is_stopped(&it))).ok();
            Ok(())
        })
        .await
    };
    tokio::select! {
        _ = seal => panic!("50 GiB are not hashed"),
        _ = starts => {}
    }
    assert!(ended.await.unwrap().unwrap_err());
}
