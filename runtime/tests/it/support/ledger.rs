//! What tasks did, as they wrote it down: that nothing of stock servers was lost, started twice or left over.

use std::collections::BTreeMap;

use ostler_testing::servers::is_over;

use super::nomad::{Alloc, NomadServer};
use super::stock_job::StockJob;
use super::system::{processes_of, until};

/// Allocations of the job that goes on.
pub const SERVICES: usize = 3;

/// A place outside of data directories that tasks write to.
pub struct Ledger {
    dir: tempfile::TempDir,
    /// Jobs that end by themselves.
    pub works: usize,
    /// A stock client that is killed while it stops a task says afterwards that the task is complete, whatever
    /// it had done; of a job that ends by itself servers take that for its end. One that is killed before it kept
    /// a task's handle starts the task again, once the plugin has ended the earlier run.
    pub of_stock_client: bool,
}

impl Ledger {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), works: 0, of_stock_client: false }
    }

    /// `then` is what the script does once it has written down that it began.
    fn script(&self, then: &str) -> String {
        let dir = self.dir.path().display();
        // Whoever holds the lock is the only process of its allocation.
        format!(
            "exec 9>>{dir}/$NOMAD_ALLOC_ID.lock; flock -n 9 || echo twice $NOMAD_ALLOC_ID >> {dir}/ledger; \
             echo began $NOMAD_ALLOC_ID >> {dir}/ledger; {then}"
        )
    }

    /// Its processes are found by it.
    fn marked(&self) -> String {
        format!("env {{\n LEDGER = \"{}\"\n }}", self.dir.path().display())
    }

    pub async fn service(&self, server: &NomadServer) {
        let script = self.script("exec sleep 3600");
        let of_task = self.marked();
        let job = StockJob {
            count: SERVICES,
            of_task: &of_task,
            ..StockJob::service("service", &script)
        };
        server.register(&job.to_string()).await;
    }

    pub async fn work(&mut self, server: &NomadServer) {
        self.works += 1;
        let dir = self.dir.path().display();
        let script = self.script(&format!("sleep 1; echo ended $NOMAD_ALLOC_ID >> {dir}/ledger"));
        let name = format!("work{}", self.works);
        let job = StockJob { of_task: &self.marked(), ..StockJob::batch(&name, &script) };
        server.register(&job.to_string()).await;
    }

    /// How often each allocation began and ended, and whether any had two processes at once.
    fn lines(&self) -> BTreeMap<(String, String), usize> {
        let text = std::fs::read_to_string(self.dir.path().join("ledger")).unwrap_or_default();
        let mut counted = BTreeMap::new();
        for line in text.lines() {
            let (what, alloc) = line.split_once(' ').unwrap();
            *counted.entry((what.to_owned(), alloc.to_owned())).or_default() += 1;
        }
        counted
    }

    fn times(&self, what: &str, alloc: &Alloc) -> usize {
        let lines = self.lines();
        lines.get(&(what.to_owned(), alloc.id().to_owned())).copied().unwrap_or_default()
    }

    /// Processes of tasks.
    pub fn processes(&self) -> Vec<u32> {
        let all = processes_of(self.dir.path()).into_iter();
        all.filter(|pid| alloc_of_process(*pid).is_some()).collect()
    }

    /// The allocations whose processes there are, once each.
    pub fn live(&self) -> Vec<String> {
        let mut live: Vec<_> = self.processes().into_iter().filter_map(alloc_of_process).collect();
        live.sort();
        live.dedup();
        live
    }

    /// Did no allocation ever have two processes?
    pub fn never_two_at_once(&self) -> bool {
        self.lines().keys().all(|(what, _)| what != "twice")
    }

    /// Wait until all is as the servers want it, and say what was not so on the way.
    pub async fn comes_to_rest(&self, server: &NomadServer) {
        // What has ended while it should run has another one in its place.
        let is_wanted = |alloc: &&Alloc| alloc.desired() == "run" && !is_over(alloc.status());
        let as_wanted = |allocs: &[Alloc]| {
            let wanted = allocs.iter().filter(is_wanted);
            wanted.clone().count() == SERVICES
                && wanted.clone().all(|alloc| alloc.status() == "running")
        };
        let services = server.allocs("service", "all of them run", as_wanted).await;
        let mut wanted: Vec<_> =
            services.iter().filter(is_wanted).map(|alloc| alloc.id().to_owned()).collect();
        wanted.sort();
        for work in 1..=self.works {
            let done = |allocs: &[Alloc]| {
                let ended = |alloc: &Alloc| {
                    let times = self.times("ended", alloc);
                    let taken_for_it = times > 1 || alloc.desired() == "stop";
                    times == 1 || (self.of_stock_client && taken_for_it)
                };
                allocs.iter().any(|alloc| alloc.status() == "complete" && ended(alloc))
            };
            let allocs = server.allocs(&format!("work{work}"), "it is done", done).await;
            self.each_once(&allocs);
        }
        self.each_once(&services);
        let only_them = async || {
            ostler_model::clock::sleep(std::time::Duration::from_millis(100)).await;
            self.live() == wanted
        };
        until(&format!("{wanted:?} run and nothing else: {:?}", self.live()), only_them).await;
    }

    fn each_once(&self, allocs: &[Alloc]) {
        for alloc in allocs {
            assert_eq!(self.times("twice", alloc), 0, "two processes of {alloc:?}");
            let began = self.times("began", alloc);
            assert!(began <= 1 || self.of_stock_client, "started again: {alloc:?}");
            assert!(began > 0 || alloc.status() != "running", "{alloc:?}");
        }
    }
}

/// By its environment.
fn alloc_of_process(pid: u32) -> Option<String> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let of = variables.find_map(|variable| variable.strip_prefix(b"NOMAD_ALLOC_ID="))?;
    Some(String::from_utf8_lossy(of).into_owned())
}
