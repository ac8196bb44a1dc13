//! Job files for stock servers.

use std::fmt;

/// A job of one group with one task, which is a shell script unless it says something else.
#[derive(Clone, Debug)]
pub struct StockJob<'a> {
    pub name: &'a str,
    pub kind: &'a str,
    pub driver: &'a str,
    pub script: &'a str,
    pub count: usize,
    /// Goes into the job.
    pub of_job: &'a str,
    /// Goes into the group.
    pub of_group: &'a str,
    /// Goes into the task.
    pub of_task: &'a str,
    /// In place of the script.
    pub config: Option<&'a str>,
}

impl<'a> StockJob<'a> {
    /// A service that runs this.
    pub const fn service(name: &'a str, script: &'a str) -> Self {
        let (kind, driver) = ("service", "raw_exec");
        let (of_job, of_group, of_task) = ("", "", "");
        Self { name, kind, driver, script, count: 1, of_job, of_group, of_task, config: None }
    }

    pub const fn batch(name: &'a str, script: &'a str) -> Self {
        Self { kind: "batch", ..Self::service(name, script) }
    }
}

impl fmt::Display for StockJob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind, driver, script, count, of_job, of_group, of_task, config } = self;
        let script = serde_json::to_string(script).unwrap();
        let shell = format!("command = \"/bin/sh\"\n    args = [\"-c\", {script}]");
        let config = config.unwrap_or(&shell);
        write!(
            f,
            "job \"{name}\" {{\n datacenters = [\"dc1\"]\n type = \"{kind}\"\n {of_job}\n group \"g\" {{\n  \
             count = {count}\n  {of_group}\n  task \"t\" {{\n   driver = \"{driver}\"\n   config {{\n    {config}\n   \
             }}\n   resources {{\n    cpu = 20\n    memory = 32\n   }}\n   {of_task}\n  }}\n }}\n}}\n"
        )
    }
}
