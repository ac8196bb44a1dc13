//! The command lines that advice tells people to type. All of them are written here, and nowhere
//! else.
//!
//! Each is a function of its words. [`all`] has an example of each, so that the tests of the
//! command line can parse every one as it is typed.

use ostler_model::words::shell_word;

/// The word that stands for a parameter in the list of examples.
macro_rules! sample {
    ($word:ident) => {
        stringify!($word)
    };
    ($word:ident $sample:literal) => {
        $sample
    };
}

/// Defines functions that make a command line in backticks, and a list with one example of each.
/// `word = "1"` gives the example for a word that is not a name.
macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident($($word:ident $(= $sample:literal)?),*) = $line:literal;)*) => {
        $(
            $(#[$doc])*
            #[allow(clippy::useless_format, reason = "some have nothing that goes into them")]
            pub(crate) fn $name($($word: &str),*) -> String {
                $(let $word = shell_word($word);)*
                format!($line)
            }
        )*

        /// An example of each command line, with the name of each parameter in its place.
        #[must_use]
        pub fn all() -> Vec<String> {
            vec![$($name($(sample!($word $($sample)?)),*)),*]
        }
    };
}

commands! {
    /// Register a job again although nothing changed: what has ended of it runs again.
    run_again() = "`ostler job run --rerun FILE`";
    /// Register a job that was corrected.
    run_corrected() = "`ostler job run FILE`";
    /// Show everything that is wrong with a job file.
    validate() = "`ostler job validate FILE`";
    /// Show a job and its allocations.
    job_status(job) = "`ostler job status {job}`";
    /// Show the kept versions of a job as a whole.
    job_versions(job) = "`ostler job history --json {job}`";
    /// Go back to an earlier version of a job.
    revert(job, version = "0") = "`ostler job revert {job} {version}`";
    /// Stop a job.
    stop_job(job) = "`ostler job stop {job}`";
    /// Start one allocation of a group that has none.
    scale_to_one(job, group) = "`ostler job scale {job} {group} 1`";
    /// Show what a task wrote to its standard error.
    task_errors(alloc, task) = "`ostler alloc logs --stderr {alloc} {task}`";
    /// List the allocations of the node.
    allocs() = "`ostler alloc status`";
    /// Stop an allocation.
    stop_alloc(alloc) = "`ostler alloc stop {alloc}`";
    /// Stop an allocation at once although its tasks wait for their `shutdown_delay`.
    stop_without_delay(alloc) = "`ostler alloc stop --no-shutdown-delay {alloc}`";
    /// Explain the state of something.
    explain(what) = "`ostler explain {what}`";
    /// Explain the state of a plugin, even where something else has its name.
    explain_plugin(plugin) = "`ostler explain --kind plugin {plugin}`";
    /// List the deployments of all jobs.
    deployments() = "`ostler deployment list`";
    /// Accept the canaries of a deployment.
    promote(deployment) = "`ostler deployment promote {deployment}`";
    /// Give a deployment up.
    fail_deployment(deployment) = "`ostler deployment fail {deployment}`";
    /// Let a deployment go on.
    resume_deployment(deployment) = "`ostler deployment resume {deployment}`";
    /// Set a variable of the default namespace.
    put_variable(path) = "`ostler var put {path} KEY=VALUE`";
    /// Set a variable of a namespace.
    put_variable_in(namespace, path) = "`ostler var put --namespace {namespace} {path} KEY=VALUE`";
    /// List the services that run.
    services() = "`ostler service list`";
    /// Show what the node has and uses.
    node_use() = "`ostler node status --stats`";
    /// Show what the node has, with its facts.
    node() = "`ostler node status`";
    /// List the devices of the node and their holders.
    devices() = "`ostler device list`";
    /// Remove allocations that have ended.
    collect() = "`ostler gc`";
    /// List the plugins of the node.
    plugins() = "`ostler plugin list`";
    /// Show the state of all plugins.
    plugins_status() = "`ostler plugin status`";
    /// Show the state of one plugin.
    plugin_status(plugin) = "`ostler plugin status {plugin}`";
    /// Show what a plugin asks for.
    inspect_plugin(file) = "`ostler plugin inspect {file}`";
    /// Save the last calls of a plugin to a file.
    record_plugin(plugin) = "`ostler plugin record {plugin}`";
    /// End a quarantine.
    lift_plugin(plugin) = "`ostler plugin lift {plugin}`";
    /// Replace a plugin by another version.
    upgrade_plugin(plugin) = "`ostler plugin upgrade {plugin} --file FILE`";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word_whatever_is_in_it() {
        assert_eq!(job_status("web"), "`ostler job status web`");
        assert_eq!(job_status("it's a job"), r"`ostler job status 'it'\''s a job'`");
        assert_eq!(explain("0000:3b:00.0"), "`ostler explain 0000:3b:00.0`");
    }
}
