//! What a bench measured: printed as tables, kept as JSON, drawn as SVG.
//!
//! ```text
//! bench(name, work) ─► Report: times, figures, curve, bars ─► tables on stdout
//!                                                            ├► NAME.json, NAME-*.svg in ostler-benches/
//!                                                            └► promises
//! ```
//! Files lie in `ostler-benches/` of cargo's target directory; those of a quick run, whose numbers mean
//! nothing, go with the directory of the bench.

mod picture;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use crate::machine::{BenchDir, facts, print_facts, quick};
use crate::percentiles::{micros, quantile, size};
use crate::promise::Promises;
use picture::{Axis, Series};

/// This package, which names its benches.
const MANIFEST: &str = include_str!("../Cargo.toml");
/// Samples of a row in the file; of more, every so many.
const KEPT: usize = 1_000;
/// Fewer samples have no distribution to look at.
const DRAWN_FROM: usize = 20;

/// Figures of one bench.
#[derive(Debug)]
pub struct Report {
    name: &'static str,
    dir: BenchDir,
    out: PathBuf,
    /// What follows `--` on the command line and names no bench: parts of one.
    words: Vec<String>,
    entries: Vec<Value>,
    /// What was promised; judged at the end.
    pub promises: Promises,
}

/// Run a bench: facts of the machine, its work, its promises. Nothing where the command line names
/// other benches (`-- state_commit density`).
#[must_use]
pub fn bench(name: &'static str, work: impl FnOnce(&mut Report)) -> ExitCode {
    let (named, words) = selected(std::env::args().skip(1));
    if !named.is_empty() && !named.iter().any(|one| one == name) {
        return ExitCode::SUCCESS;
    }
    let dir = BenchDir::new();
    print_facts(name, dir.path());
    let out = if quick() { dir.path().join("report") } else { kept() };
    fs::create_dir_all(&out).expect("the directory of the report");
    let promises = Promises::default();
    let mut report = Report { name, dir, out, words, entries: Vec::new(), promises };
    work(&mut report);
    report.end()
}

/// The benches that the command line names, and its other words.
fn selected(args: impl Iterator<Item = String>) -> (Vec<String>, Vec<String>) {
    let benches = MANIFEST.split("[[bench]]").skip(1);
    let benches: Vec<&str> = benches.filter_map(|one| one.split('"').nth(1)).collect();
    args.filter(|arg| !arg.starts_with('-')).partition(|arg| benches.contains(&arg.as_str()))
}

/// `ostler-benches/` in cargo's target directory, which holds `PROFILE/deps/BENCH`.
fn kept() -> PathBuf {
    let executable = std::env::current_exe().expect("the path of this program");
    executable.ancestors().nth(3).expect("a target directory").join("ostler-benches")
}

impl Report {
    /// A directory for the bench's own files, removed at the end.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Which parts are to run: those that the command line names, or else all.
    #[must_use]
    pub fn parts<const N: usize>(&self, parts: [&str; N]) -> [bool; N] {
        let named = |part: &str| self.words.iter().any(|word| word == part);
        let all = !parts.into_iter().any(named);
        parts.map(|part| all || named(part))
    }

    /// Times that were taken in turns; the last row is the baseline. The medians, microseconds.
    pub fn times<const N: usize>(
        &mut self,
        title: &str,
        rows: [(&str, &[Duration]); N],
    ) -> [f64; N] {
        let rows = rows.map(|(name, times)| (name, micros(times)));
        self.samples(title, "µs", rows.each_ref().map(|(name, samples)| (*name, &**samples)))
    }

    /// The same of samples in any unit.
    pub fn samples<const N: usize>(
        &mut self,
        title: &str,
        unit: &str,
        rows: [(&str, &[f64]); N],
    ) -> [f64; N] {
        let sorted = rows.map(|(name, samples)| {
            let mut samples = samples.to_vec();
            let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| quantile(&mut samples, share));
            (name, samples, [p50, p99, max])
        });
        let baseline = sorted.last().map_or(0.0, |(_, _, [p50, ..])| *p50);
        println!("\n{title}, {unit}; times the last row");
        println!(
            "{:<40} {:>12} {:>12} {:>12} {:>8} {:>8}",
            "", "median", "p99", "max", "of", "times"
        );
        let mut entries = Vec::new();
        for (name, samples, [p50, p99, max]) in &sorted {
            let (n, ratio) = (samples.len(), p50 / baseline);
            println!("{name:<40} {p50:>12.1} {p99:>12.1} {max:>12.1} {n:>8} {ratio:>8.2}");
            let kept: Vec<&f64> = samples.iter().step_by(n / KEPT + 1).collect();
            entries.push(json!({ "name": name, "median": p50, "p99": p99, "max": max, "of": n,
                "ratio": ratio, "samples": kept }));
        }
        self.entries.push(json!({ "title": title, "unit": unit, "baseline": "the last row",
            "rows": entries }));
        if sorted.iter().all(|(_, samples, _)| samples.len() >= DRAWN_FROM) || quick() {
            let series =
                sorted.iter().map(|(name, samples, _)| Series::distribution(name, samples));
            let axes = [Axis::Log(unit), Axis::Share("share of all")];
            picture::draw(&self.file(title, "svg"), title, axes, &series.collect::<Vec<_>>());
        }
        sorted.map(|(_, _, [p50, ..])| p50)
    }

    /// Figures that have no distribution: one row a subject.
    pub fn figures(&mut self, title: &str, columns: &[&str], rows: &[(&str, Vec<f64>)]) {
        println!("\n{title}");
        let head: String = columns.iter().map(|column| format!(" {column:>13}")).collect();
        println!("{:<40}{head}", "");
        for (name, values) in rows {
            let values: String =
                values.iter().map(|value| format!(" {:>13}", short(*value))).collect();
            println!("{name:<40}{values}");
        }
        let rows: Vec<Value> = rows.iter().map(|(name, values)| json!([name, values])).collect();
        self.entries.push(json!({ "title": title, "columns": columns, "rows": rows }));
    }

    /// How costs grow with `x`. The exponents fitted to each series, in order.
    pub fn curve<const N: usize>(
        &mut self,
        title: &str,
        x: &str,
        series: [(&str, &[(f64, f64)]); N],
    ) -> [f64; N] {
        println!("\n{title}");
        let exponents = series.map(|(name, points)| {
            let exponent = fitted(points);
            println!("{name}: grows with {x} to the power of {exponent:.3}");
            points.iter().for_each(|(x, y)| println!("{:<40} {x:>12} {:>12}", "", short(*y)));
            exponent
        });
        let drawn = series.iter().zip(exponents);
        let drawn = drawn.map(|((name, points), exponent)| Series {
            name: format!("{name} ~ n^{exponent:.2}"),
            points: points.to_vec(),
            marked: true,
        });
        let axes = [Axis::Log(x), Axis::Log("cost")];
        picture::draw(&self.file(title, "svg"), title, axes, &drawn.collect::<Vec<_>>());
        let entries = series.iter().zip(exponents);
        let entries = entries.map(|((name, points), exponent)| {
            json!({ "name": name, "exponent": exponent, "points": points })
        });
        let entries: Vec<Value> = entries.collect();
        self.entries.push(json!({ "title": title, "x": x, "series": entries }));
        exponents
    }

    /// One figure of several subjects beside each other, such as recorded ones of peers.
    pub fn bars(&mut self, title: &str, unit: &str, bars: &[(&str, f64)]) {
        println!("\n{title}, {unit}");
        bars.iter().for_each(|(name, value)| println!("{name:<52} {:>12}", short(*value)));
        picture::bars(&self.file(title, "svg"), title, unit, bars);
        self.entries.push(json!({ "title": title, "unit": unit, "bars": bars }));
    }

    /// `BENCH-title.svg`.
    fn file(&self, title: &str, extension: &str) -> PathBuf {
        let words =
            title.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let words: Vec<String> = words.take(6).map(str::to_ascii_lowercase).collect();
        self.out.join(format!("{}-{}.{extension}", self.name, words.join("-")))
    }

    fn end(self) -> ExitCode {
        let whole = json!({ "bench": self.name, "machine": facts(self.dir.path()),
            "entries": self.entries, "promises": self.promises.json() });
        let path = self.out.join(format!("{}.json", self.name));
        fs::write(&path, format!("{whole:#}\n")).expect("the figures are written");
        println!("\nfigures and pictures: {}\n", path.display());
        self.promises.end()
    }
}

/// Three digits behind the point for small numbers, none for large ones.
#[must_use]
pub fn short(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

/// The exponent of the power law nearest to the points: the slope of the straight line through their
/// logarithms.
#[must_use]
pub fn fitted(points: &[(f64, f64)]) -> f64 {
    let points = points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0);
    let logs: Vec<(f64, f64)> = points.map(|(x, y)| (x.ln(), y.ln())).collect();
    let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / size(logs.len());
    let (x, y) = (mean(|one| one.0), mean(|one| one.1));
    let both: f64 = logs.iter().map(|one| (one.0 - x) * (one.1 - y)).sum();
    let own: f64 = logs.iter().map(|one| (one.0 - x) * (one.0 - x)).sum();
    both / own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_of_a_power_law_is_found() {
        let cubes: Vec<(f64, f64)> =
            [100.0, 300.0, 1_000.0, 10_000.0].map(|x: f64| (x, 7.0 * x.powf(1.3))).to_vec();
        assert!((fitted(&cubes) - 1.3).abs() < 1e-9, "{}", fitted(&cubes));
    }

    #[test]
    fn names_of_benches_are_told_from_other_words() {
        let args = ["--bench", "state_commit", "starts", "density"].map(str::to_owned);
        let (benches, words) = selected(args.into_iter());
        assert_eq!((benches.len(), words), (2, vec!["starts".to_owned()]));
    }
}
