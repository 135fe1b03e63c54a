//! Alignments of captures with kernels, order or times that differ.

use super::*;

#[test]
fn a_kernel_that_halves_fails_though_another_makes_up_for_it() -> Result<()> {
    let dir = pair("", "")?;
    let (code, result) = align(&dir, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!(code, Some(0), "{}", lines(&result));
    let kernels = result["kernels"].as_array().unwrap();
    assert_eq!(
        kernels.iter().map(|it| it["e2e"]["calls"].as_u64().unwrap()).sum::<u64>(),
        2_304,
        "of the captures' README"
    );
    assert_eq!(kernels.iter().map(|it| it["mock"]["calls"].as_u64().unwrap()).sum::<u64>(), 288);
    for it in kernels.iter().filter(|it| it["decisive"] == true) {
        assert_eq!(
            (&it["agreement"], &it["far"]),
            (&Value::from("match"), &Value::from(false)),
            "{it:#}"
        );
    }
    // One of two decisive kernels halves and the other takes over its time: the sum stays.
    let time = |it: &Value| {
        it["mock"]["mean_us"].as_f64().unwrap() * it["mock"]["calls"].as_f64().unwrap()
    };
    let short = |it: &Value| {
        it["name"]
            .as_str()
            .unwrap()
            .split(['<', '('])
            .next()
            .unwrap()
            .rsplit([':', ' '])
            .next()
            .unwrap()
            .to_owned()
    };
    let decisive: Vec<&Value> = kernels.iter().filter(|it| it["decisive"] == true).collect();
    let (halved, other) =
        (decisive[0], decisive.iter().find(|it| short(it) != short(decisive[0])).unwrap());
    let grows = 1.0 + 0.55 * time(halved) / time(other);
    let dir = pair(&(scaled(&short(halved), 0.45) + &scaled(&short(other), grows)), "")?;
    let (code, result) = align(&dir, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!((code, with(&result, "fail")), (Some(1), vec!["kernel_time"]), "{}", lines(&result));
    assert!(
        (result["latency"]["ratio"].as_f64().unwrap() - 1.0).abs() < 0.05,
        "the total hides it: {}",
        result["latency"]
    );
    let row = result["kernels"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["name"] == halved["name"])
        .unwrap();
    assert_eq!(
        (&row["agreement"], &row["far"]),
        (&Value::from("differs"), &Value::from(true)),
        "{row:#}"
    );
    for format in ["md", "html"] {
        let sides = ["--mock", "mock.sqlite", "--e2e", "e2e.sqlite", "--format", format];
        let text = String::from_utf8(
            llmprof(&dir, &[&sides[..], &ATTENTION, &["--stage", "decode"]].concat())?.stdout,
        )?;
        assert!(text.contains("2x or more apart") && text.contains("kernel_time"), "{format}");
    }
    fs::write(dir.path().join("loose.toml"), "kernel_time_pct = 1000.0")?;
    assert_eq!(
        align(&dir, &[&ATTENTION, &["--stage", "decode", "--thresholds", "loose.toml"]])?.0,
        Some(0)
    );
    Ok(())
}

#[test]
fn a_capture_that_lost_kernels_decides_nothing() -> Result<()> {
    for lost in ["", " where correlationId % 3 = 0"] {
        let dir = pair(&format!("delete from CUPTI_ACTIVITY_KIND_KERNEL{lost}"), "")?;
        let (code, result) = align(&dir, &[&ATTENTION, &["--stage", "decode"]])?;
        assert_eq!((code, &result["verdict"]), (Some(2), &Value::from("inconclusive")));
        assert_eq!(check(&result, "complete")["verdict"], "inconclusive");
        let advice = check(&result, "complete")["advice"].as_str().unwrap();
        assert!(advice.contains("Capture both sides again"), "{advice}");
    }
    Ok(())
}

#[test]
fn graphs_that_were_traced_as_a_whole_decide_nothing() -> Result<()> {
    let sql = format!(
        "update CUPTI_ACTIVITY_KIND_RUNTIME set nameId = 900000 where correlationId in (select \
         correlationId from CUPTI_ACTIVITY_KIND_KERNEL);
         insert into StringIds (id, value) values (900000, 'cudaGraphLaunch_v10000');
         create table CUPTI_ACTIVITY_KIND_GRAPH_TRACE as select start, end, deviceId, \
         correlationId, globalPid from CUPTI_ACTIVITY_KIND_KERNEL;
         delete from CUPTI_ACTIVITY_KIND_KERNEL where correlationId in ({MEASURED})"
    );
    let dir = pair(&sql, "")?;
    let (code, result) = align(&dir, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!(code, Some(2), "{}", lines(&result));
    let complete = check(&result, "complete");
    assert_eq!(complete["observed"], "the mock has graphs that were not traced by node");
    assert!(complete["advice"].as_str().unwrap().contains("--cuda-graph-trace=node"));
    Ok(())
}

#[test]
fn a_mock_with_warm_up_alone_or_no_work_decides_nothing() -> Result<()> {
    let unmarked = format!("delete from NVTX_EVENTS where {RANGE} = 'measured'");
    let idle = format!(
        "create temp table gone as {MEASURED};
         delete from CUPTI_ACTIVITY_KIND_KERNEL where correlationId in gone;
         delete from CUPTI_ACTIVITY_KIND_RUNTIME where correlationId in gone"
    );
    for (sql, reason) in [
        (unmarked, "mock: all 51 instances are warm-up or excluded"),
        (idle, "mock: none of 16 counted instances has a kernel"),
    ] {
        let (code, result) = align(&pair(&sql, "")?, &[&ATTENTION, &["--stage", "decode"]])?;
        assert_eq!(
            (code, &check(&result, "isolation")["observed"]),
            (Some(2), &Value::from(reason))
        );
        assert!(with(&result, "inconclusive").contains(&"latency"));
    }
    Ok(())
}

#[test]
fn other_kernels_fail_by_name_and_another_grid_by_geometry() -> Result<()> {
    let renamed = "update StringIds set value = 'f32_' || value where id in (select demangledName \
                   from CUPTI_ACTIVITY_KIND_KERNEL)";
    let (code, result) = align(&pair(renamed, "")?, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!(code, Some(1));
    let failed = with(&result, "fail");
    assert!(
        ["names", "missing_kernels", "extra_kernels", "sequence", "matched_time"]
            .iter()
            .all(|it| failed.contains(it)),
        "{failed:?}"
    );
    assert!(
        check(&result, "missing_kernels")["rows"]
            .as_array()
            .unwrap()
            .iter()
            .any(|row| row["note"] == "critical")
    );

    let grown = "update CUPTI_ACTIVITY_KIND_KERNEL set gridX = gridX + 1";
    let (code, result) = align(&pair(grown, "")?, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!((code, with(&result, "fail")), (Some(1), vec!["geometry"]));
    assert_eq!(check(&result, "geometry")["rows"].as_array().unwrap().len(), 18);

    let tiled = "update StringIds set value = replace(value, '64x8_64x16', '128x8_64x8') where id \
                 in (select demangledName from CUPTI_ACTIVITY_KIND_KERNEL)";
    let dir = pair(tiled, "")?;
    let (code, result) = align(&dir, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!(code, Some(1));
    assert!(
        check(&result, "names")["rows"][0]["note"]
            .as_str()
            .unwrap()
            .starts_with("on the other side with another tile"),
        "{}",
        lines(&result)
    );
    fs::write(dir.path().join("loose.toml"), format!("names = \"family\"\n{WARM_CACHE}"))?;
    assert_eq!(
        align(&dir, &[&ATTENTION, &["--stage", "decode", "--thresholds", "loose.toml"]])?.0,
        Some(0)
    );
    Ok(())
}

#[test]
fn one_kernel_less_or_more_is_reported_by_name_and_position() -> Result<()> {
    let without = "delete from CUPTI_ACTIVITY_KIND_RUNTIME where correlationId in (select \
                   correlationId from CUPTI_ACTIVITY_KIND_KERNEL k
            join StringIds s on s.id = k.shortName where s.value = 'lean_reduction_kernel');
        delete from CUPTI_ACTIVITY_KIND_KERNEL where shortName in (select id from StringIds where \
        value = 'lean_reduction_kernel')";
    for (mock, e2e, id, counts) in [
        (without, "", "missing_kernels", [17.0, 18.0]),
        ("", without, "extra_kernels", [18.0, 17.0]),
    ] {
        let (code, result) = align(&pair(mock, e2e)?, &[&ATTENTION, &["--stage", "decode"]])?;
        assert_eq!((code, per_instance(&result)), (Some(1), counts.map(Some)));
        let failed = with(&result, "fail");
        assert!(
            ["names", id, "counts", "sequence"].iter().all(|it| failed.contains(it)),
            "{failed:?}"
        );
        assert!(
            check(&result, id)["rows"][0]["what"]
                .as_str()
                .unwrap()
                .contains("lean_reduction_kernel")
        );
        assert_eq!(check(&result, "sequence")["rows"][0]["what"], "place 17");
    }
    Ok(())
}

#[test]
fn kernels_in_another_order_fail_by_sequence_alone() -> Result<()> {
    let dir = pair("", "")?;
    let mock = Connection::open(dir.path().join("mock.sqlite"))?;
    // The first two kernels of the last prefill: two products with the same grid.
    let sql = format!(
        "select k.rowid, k.demangledName from CUPTI_ACTIVITY_KIND_KERNEL k join \
         CUPTI_ACTIVITY_KIND_RUNTIME r using (correlationId)
         join NVTX_EVENTS on r.start between NVTX_EVENTS.start and NVTX_EVENTS.end and {RANGE} = \
         'decoder.self_attn'
         where k.correlationId in ({MEASURED}) order by r.start limit 2"
    );
    let rows: Vec<(i64, i64)> = mock
        .prepare(&sql)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    assert_ne!(rows[0].1, rows[1].1);
    for (row, name) in [(rows[0].0, rows[1].1), (rows[1].0, rows[0].1)] {
        mock.execute(
            "update CUPTI_ACTIVITY_KIND_KERNEL set demangledName = ?2 where rowid = ?1",
            [row, name],
        )?;
    }
    drop(mock);
    let (code, result) = align(&dir, &[&ATTENTION, &["--stage", "prefill"]])?;
    assert_eq!((code, with(&result, "fail")), (Some(1), vec!["sequence"]), "{}", lines(&result));
    Ok(())
}

/// Multiplies all times: a kernel that is longer alone would end after its successor.
fn spread(times: u32) -> String {
    let tables =
        ["KERNEL", "RUNTIME", "MEMCPY", "MEMSET"].map(|it| format!("CUPTI_ACTIVITY_KIND_{it}"));
    let tables = tables.into_iter().chain(["NVTX_EVENTS".into()]);
    let scaled =
        |it| format!("update {it} set start = start * {times}, \"end\" = \"end\" * {times};");
    tables.map(scaled).collect()
}

#[test]
fn a_slower_mock_fails_by_latency_and_a_noisy_one_decides_nothing() -> Result<()> {
    let slower = spread(3);
    let (code, result) = align(&pair(&slower, "")?, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!((code, with(&result, "fail")), (Some(1), vec!["latency", "kernel_time"]));
    assert!(check(&result, "latency")["observed"].as_str().unwrap().ends_with("beyond triage"));

    let noisy = spread(2)
        + "update CUPTI_ACTIVITY_KIND_KERNEL set end = start + (end - start) * (1 + (correlationId \
           / 400) % 5) / 6";
    let (code, result) = align(&pair(&noisy, "")?, &[&ATTENTION, &["--stage", "decode"]])?;
    assert_eq!((code, with(&result, "fail")), (Some(2), vec![]), "{}", lines(&result));
    assert_eq!(check(&result, "latency")["verdict"], "inconclusive");
    Ok(())
}
