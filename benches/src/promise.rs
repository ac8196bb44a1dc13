//! What was promised and what was measured: a line each when its part of the bench ends.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::machine::quick;
use crate::report::short;

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

/// The promises of one bench.
#[derive(Debug, Default)]
pub struct Promises(Vec<Promise>);

impl Promises {
    /// `value` must not be above `bar`.
    pub fn at_most(&mut self, name: &'static str, value: f64, unit: &'static str, bar: f64) {
        self.add(Promise { name, value, unit, bar: Bar::AtMost(bar) });
    }

    /// `value` must not be below `bar`.
    pub fn at_least(&mut self, name: &'static str, value: f64, unit: &'static str, bar: f64) {
        self.add(Promise { name, value, unit, bar: Bar::AtLeast(bar) });
    }

    /// Print a promise, unless the run is a quick one, whose numbers mean nothing.
    fn add(&mut self, promise: Promise) {
        if !quick() {
            println!("{}", promise.line());
        }
        self.0.push(promise);
    }

    /// All of them, for a file of figures.
    #[must_use]
    pub fn json(&self) -> Value {
        let one = |promise: &Promise| {
            let (side, bar) = match promise.bar {
                Bar::AtMost(bar) => ("at most", bar),
                Bar::AtLeast(bar) => ("at least", bar),
            };
            json!({ "name": promise.name, "value": promise.value, "unit": promise.unit, "bar": bar,
                "side": side, "kept": promise.kept() })
        };
        self.0.iter().map(one).collect()
    }

    /// Print how many were kept, and which were not. A missed promise fails the process only where
    /// `OSTLER_BENCH_STRICT=1`: a loaded machine misses all of them.
    #[must_use]
    pub fn end(self) -> ExitCode {
        if quick() {
            println!("quick run: {} promises not judged", self.0.len());
            return ExitCode::SUCCESS;
        }
        let missed: Vec<&str> =
            self.0.iter().filter(|promise| !promise.kept()).map(|promise| promise.name).collect();
        let of = self.0.len();
        match &*missed {
            [] => println!("{of} of {of} promises kept"),
            names => {
                println!("{} of {of} promises kept; missed: {}", of - names.len(), names.join(", "))
            }
        }
        let strict = std::env::var_os("OSTLER_BENCH_STRICT").is_some_and(|value| value == "1");
        if strict && !self.0.iter().all(Promise::kept) {
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }
}
