//! The command lines that advice has people type: all of them are written here, and nowhere else.
//!
//! Each is a function of what goes into it. [`all`] has one of each, so that the command line's own tests read every
//! one of them as it is typed.

use ostler_model::words::shell_word;

/// What stands for a word of a command line in the list of them.
macro_rules! sample {
    ($word:ident) => {
        stringify!($word)
    };
    ($word:ident $sample:literal) => {
        $sample
    };
}

/// Functions that make a command line in backticks, and a list with one line of each; `word = "1"` has what stands
/// there for one that is no name.
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

        /// One of each, with the name of what goes into it in its place.
        #[must_use]
        pub fn all() -> Vec<String> {
            vec![$($name($(sample!($word $($sample)?)),*)),*]
        }
    };
}

commands! {
    /// Give a job again, although nothing of it changed: what has ended of it runs again.
    run_again() = "`ostler job run --rerun FILE`";
    /// Give a job that was corrected.
    run_corrected() = "`ostler job run FILE`";
    /// Everything that is wrong with a job file.
    validate() = "`ostler job validate FILE`";
    /// A job and its allocations.
    job_status(job) = "`ostler job status {job}`";
    /// The kept versions of a job, whole.
    job_versions(job) = "`ostler job history --json {job}`";
    /// Go back to an earlier version of a job.
    revert(job, version = "0") = "`ostler job revert {job} {version}`";
    /// Stop a job.
    stop_job(job) = "`ostler job stop {job}`";
    /// One allocation for a group that has none.
    scale_to_one(job, group) = "`ostler job scale {job} {group} 1`";
    /// What a task said on its standard error.
    task_errors(alloc, task) = "`ostler alloc logs --stderr {alloc} {task}`";
    /// The allocations.
    allocs() = "`ostler alloc status`";
    /// Stop an allocation.
    stop_alloc(alloc) = "`ostler alloc stop {alloc}`";
    /// Stop an allocation whose tasks wait for their `shutdown_delay`, at once.
    stop_without_delay(alloc) = "`ostler alloc stop --no-shutdown-delay {alloc}`";
    /// Why something is as it is.
    explain(what) = "`ostler explain {what}`";
    /// Why a plugin is as it is, whatever else has its name.
    explain_plugin(plugin) = "`ostler explain --kind plugin {plugin}`";
    /// The deployments.
    deployments() = "`ostler deployment list`";
    /// Accept the canaries of a deployment.
    promote(deployment) = "`ostler deployment promote {deployment}`";
    /// Give a deployment up.
    fail_deployment(deployment) = "`ostler deployment fail {deployment}`";
    /// Let a deployment go on.
    resume_deployment(deployment) = "`ostler deployment resume {deployment}`";
    /// Set a variable of the default namespace.
    put_variable(path) = "`ostler var put {path} KEY=VALUE`";
    /// Set a variable.
    put_variable_in(namespace, path) = "`ostler var put --namespace {namespace} {path} KEY=VALUE`";
    /// The services that run.
    services() = "`ostler service list`";
    /// What the node has and uses.
    node_use() = "`ostler node status --stats`";
    /// What the node has, with what it says of itself.
    node() = "`ostler node status`";
    /// The devices.
    devices() = "`ostler device list`";
    /// Remove what has ended.
    collect() = "`ostler gc`";
    /// The plugins.
    plugins() = "`ostler plugin list`";
    /// How all plugins do.
    plugins_status() = "`ostler plugin status`";
    /// How one plugin does.
    plugin_status(plugin) = "`ostler plugin status {plugin}`";
    /// What a plugin asks for.
    inspect_plugin(file) = "`ostler plugin inspect {file}`";
    /// The last calls of a plugin, as a file.
    record_plugin(plugin) = "`ostler plugin record {plugin}`";
    /// End a quarantine.
    lift_plugin(plugin) = "`ostler plugin lift {plugin}`";
    /// Put another version of a plugin in its place.
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
