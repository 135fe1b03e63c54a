//! Findings of the readers of files.

use super::*;

findings! {
    EVENTS_CUT = "events_cut", [Warning],
        fires_on: "the events of the runner end within a line, or before the last event";
    EVENTS_WITHOUT_END = "events_without_end", [Warning],
        fires_on: "the events of the runner end within a line, or before the last event";
    POWER_CUT = "power_cut", [Warning],
        fires_on: "the samples of power and clocks end early";
    OPERATORS_NOT_JOINED = "operators_not_joined", [Warning],
        fires_on: "the runner's events and the timeline have no common clock";
    KERNEL_RECORDS_REPEATED = "kernel_records_repeated", [Warning],
        fires_on: "kernel records of the export occur twice; each counts once";
    NSYS_COLUMNS_MISSING = "nsys_columns_missing", [Warning],
        fires_on: "a table of the export lacks columns that join its rows, or names that rows \
                   refer to";
    NSYS_EXPORT_WAL = "nsys_export_wal", [Info],
        fires_on: "the export is in the write-ahead mode of SQLite and may lack rows";
    NCU_PAGE_CUT = "ncu_page_cut", [Warning],
        fires_on: "a page of ncu ends within a launch";
    NCU_SECTIONS_UNREAD = "ncu_sections_unread", [Info, Warning],
        fires_on: "sections or metrics of a page are unknown";
    NCU_VALUES_UNREADABLE = "ncu_values_unreadable", [Warning],
        fires_on: "counters of a page are not numbers or have no known unit";
    NCU_GEOMETRY_MISSING = "ncu_geometry_missing", [Info],
        fires_on: "launches of a page have no grid or block";
    TRACE_HEADER_MISSING = "trace_header_missing", [Warning],
        fires_on: "a trace of PyTorch is a list of events without a header";
    TRACE_EVENTS_INCOMPLETE = "trace_events_incomplete", [Warning],
        fires_on: "events of a trace have no name, type or time";
    TRACE_EVENTS_UNKNOWN = "trace_events_unknown", [Info],
        fires_on: "events of a trace have an unknown category or type";
    TRACE_NUMBERS_QUOTED = "trace_numbers_quoted", [Info],
        fires_on: "numbers of a trace are written as text";
    TRACE_NAMES_REPAIRED = "trace_names_repaired", [Info],
        fires_on: "names of a trace have quotes or line ends without a backslash";
    TRACE_TIMES_COARSE = "trace_times_coarse", [Warning],
        fires_on: "times of a trace are whole microseconds, and kernels take less than 10 us";
    TRACE_STACKS_RECORDED = "trace_stacks_recorded", [Warning],
        fires_on: "a trace of PyTorch has Python stacks, which lengthen the host's time",
        advice: "Record without with_stack before acting on gaps between launches.";
    TRACE_RANKS_INCOMPLETE = "trace_ranks_incomplete", [Warning],
        fires_on: "a capture lacks ranks of its program, or has several files of one";
    TRACE_REPEATED = "trace_repeated", [Warning],
        fires_on: "a trace is given twice";
    TRACE_CLOCKS_DIFFER = "trace_clocks_differ", [Warning],
        fires_on: "some traces of a capture have a base time and some do not";
    TRACE_ACTIVITIES_MISSING = "trace_activities_missing", [Warning],
        fires_on: "a trace has copies, and neither kernels nor calls of the runtime";
}
