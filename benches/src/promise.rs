//! The last lines of a bench: what was promised and what was measured.

use std::process::ExitCode;

use crate::machine::quick;

/// Which side of the bar is good.
#[derive(Clone, Copy, Debug)]
enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

#[derive(Debug)]
struct Promise {
    name: &'static str,
    value: f64,
    unit: &'static str,
    bar: Bar,
}

impl Promise {
    fn kept(&self) -> bool {
        match self.bar {
            Bar::AtMost(bar) => self.value <= bar,
            Bar::AtLeast(bar) => self.value >= bar,
        }
    }

    fn line(&self) -> String {
        let bar = match self.bar {
            Bar::AtMost(bar) => format!("<= {bar}"),
            Bar::AtLeast(bar) => format!(">= {bar}"),
        };
        let verdict = if self.kept() { "ok" } else { "missed" };
        format!("promise {} {} {} (bar {bar}): {verdict}", self.name, short(self.value), self.unit)
    }
}

/// Three digits behind the point for small numbers, none for large ones.
fn short(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

/// The promises of one bench.
#[derive(Debug, Default)]
pub struct Promises(Vec<Promise>);

impl Promises {
    /// `value` must not be above `bar`.
    pub fn at_most(&mut self, name: &'static str, value: f64, unit: &'static str, bar: f64) {
        self.0.push(Promise { name, value, unit, bar: Bar::AtMost(bar) });
    }

    /// `value` must not be below `bar`.
    pub fn at_least(&mut self, name: &'static str, value: f64, unit: &'static str, bar: f64) {
        self.0.push(Promise { name, value, unit, bar: Bar::AtLeast(bar) });
    }

    /// Print one line each; none in a quick run, whose numbers mean nothing. A missed promise fails
    /// the process only where `OSTLER_BENCH_STRICT=1`: a loaded machine misses all of them.
    #[must_use]
    pub fn end(self) -> ExitCode {
        if quick() {
            println!("quick run: {} promises not judged", self.0.len());
            return ExitCode::SUCCESS;
        }
        for promise in &self.0 {
            println!("{}", promise.line());
        }
        let strict = std::env::var_os("OSTLER_BENCH_STRICT").is_some_and(|value| value == "1");
        if strict && !self.0.iter().all(Promise::kept) {
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }
}
