//! A picture of a report: what each node costs in each phase.

use std::fmt::Write as _;

use super::report::ScaleReport;

const WIDTH: u32 = 760;
const TOP: u32 = 48;
const ROW: u32 = 44;
/// Of the longest bar.
const LONGEST: f64 = 560.0;
/// To the servers, and from them; told apart by people who see few colours, too.
const COLOURS: [&str; 2] = ["#0072b2", "#d55e00"];

/// Bars of bytes per node and minute, as SVG.
#[must_use]
pub fn svg(report: &ScaleReport) -> String {
    let nodes = report.plan.nodes;
    let bars: Vec<(&str, [f64; 2])> = report
        .phases
        .iter()
        .map(|phase| {
            let each = phase.traffic.map(|traffic| phase.each_minute(traffic.bytes, nodes));
            (phase.name, each)
        })
        .collect();
    let largest = bars.iter().flat_map(|(_, both)| both).copied().fold(1.0_f64, f64::max);
    let rows = u32::try_from(bars.len()).unwrap_or(0);
    let height = TOP.saturating_add(ROW.saturating_mul(rows));
    let mut svg = String::new();
    // Writing into a string does not fail.
    let _fine = write_bars(&mut svg, (nodes, height), &bars, largest);
    svg
}

fn write_bars(
    svg: &mut String,
    (nodes, height): (usize, u32),
    bars: &[(&str, [f64; 2])],
    largest: f64,
) -> std::fmt::Result {
    writeln!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="13">"##
    )?;
    writeln!(svg, r##"<rect width="100%" height="100%" fill="#ffffff"/>"##)?;
    writeln!(
        svg,
        r##"<text x="16" y="24" font-size="17">{nodes} nodes: bytes of each in a minute, to the servers and from them</text>"##
    )?;
    for (row, (name, both)) in (0_u32..).zip(bars) {
        let top = TOP.saturating_add(ROW.saturating_mul(row));
        writeln!(svg, r##"<text x="16" y="{}">{name}</text>"##, top.saturating_add(20))?;
        for (line, (bytes, colour)) in (0_u32..).zip(both.iter().zip(COLOURS)) {
            let y = top.saturating_add(line.saturating_mul(16)).saturating_add(4);
            let length = bytes / largest * LONGEST;
            writeln!(
                svg,
                r##"<rect x="110" y="{y}" width="{length:.1}" height="14" fill="{colour}"/>"##
            )?;
            writeln!(
                svg,
                r##"<text x="{:.1}" y="{}" font-size="11">{bytes:.0}</text>"##,
                116.0 + length,
                y.saturating_add(11)
            )?;
        }
    }
    writeln!(svg, "</svg>")
}
