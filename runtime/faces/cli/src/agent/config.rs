//! The configuration of an agent: its file, overridden by the flags of the command line.

use crate::args::agent::{AgentCommandArgs, LogFormat};
use crate::input;
use crate::logging;
use crate::start::{AgentStartError, absolute_path};
use ostler_agent::RAW_EXEC;
use ostler_model::config::{AgentConfig, ClusterConfig};
use ostler_model::log_config::{AgentLogConfig, LogLevel};

/// The command line that started an agent. A reload of the configuration uses it again.
pub(super) struct AgentInvocation<'a> {
    /// The flags of `ostler agent`, as the command line gave them.
    pub args: &'a AgentCommandArgs,
    /// How often `-v` was given.
    pub verbose: u8,
}

impl AgentInvocation<'_> {
    /// Read the file and override it with the flags of the command line.
    ///
    /// # Errors
    /// When the file cannot be used, or a flag contradicts it.
    pub(super) fn read_config(&self) -> Result<AgentConfig, AgentStartError> {
        let args = self.args;
        let mut config =
            input::read_config(args.config.as_deref()).map_err(AgentStartError::Input)?;
        if let Some(dir) = &args.plugin_dir {
            config.plugin_dir = Some(absolute_path(dir.clone())?);
        }
        if let Some(dir) = &args.jobs_dir {
            config.jobs_dir = Some(absolute_path(dir.clone())?);
        }
        let cluster = args.to.override_cluster(config.cluster.clone());
        config.cluster = match &args.node_class {
            None => cluster,
            class => ClusterConfig { node_class: class.clone(), ..cluster },
        };
        if let Some(at) = args.http {
            config.cluster.http.address = Some(at.ip());
            config.cluster.http.port = Some(at.port());
        }
        if args.dev {
            apply_dev_mode(&mut config)?;
        }
        Ok(config)
    }

    /// The configuration of the log, overridden by the flags of the command line.
    pub(super) fn log_config(&self, config: &AgentLogConfig) -> AgentLogConfig {
        let of_verbose = match self.verbose {
            0 => None,
            1 => Some(LogLevel::Debug),
            _ => Some(LogLevel::Trace),
        };
        let level = self.args.log_level.or(of_verbose).or(config.level);
        let json = self.args.log_format.map(|form| form == LogFormat::Json).or(config.json);
        AgentLogConfig { level: level.or(Some(LogLevel::Info)), json, file: config.file.clone() }
    }

    /// The flag or variable that overrides the configuration's `log_level`; `None` without one.
    pub(super) fn level_override(&self) -> Option<&'static str> {
        let verbose = (self.verbose > 0).then_some("-v");
        let flag = self.args.log_level.map(|_| "--log-level");
        logging::level_variable().or(flag).or(verbose)
    }

    /// The flag that overrides the configuration's `log_json`; `None` without one.
    pub(super) fn format_override(&self) -> Option<&'static str> {
        self.args.log_format.map(|_| "--log-format")
    }
}

/// `--dev`: nothing is kept, and tasks may be programs of the node.
fn apply_dev_mode(config: &mut AgentConfig) -> Result<(), AgentStartError> {
    if let Some(dir) = &config.data_dir {
        return Err(AgentStartError::Agent(format!(
            "an agent with --dev keeps everything in memory, and the configuration names the data directory {}; \
             leave one of them out",
            dir.display()
        )));
    }
    let raw_exec = config.plugins.entry(RAW_EXEC.to_owned()).or_default();
    raw_exec.enabled.get_or_insert(true);
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, CliCommand};

    fn with<T>(args: &[&str], look: impl FnOnce(AgentInvocation<'_>) -> T) -> T {
        let cli = Cli::try_parse_from([&["ostler"], args].concat()).unwrap();
        let CliCommand::Agent(args) = cli.command else { panic!("another command") };
        look(AgentInvocation { args: &args, verbose: cli.verbose })
    }

    #[test]
    fn the_command_line_comes_before_the_configuration_of_the_log() {
        let config = AgentLogConfig {
            level: Some(LogLevel::Warn),
            json: Some(true),
            ..AgentLogConfig::default()
        };
        let log = |args: &[&str]| {
            let log = with(args, |given| given.log_config(&config));
            (log.level.unwrap(), log.json.unwrap())
        };
        assert_eq!(log(&["agent"]), (LogLevel::Warn, true));
        assert_eq!(log(&["-v", "agent"]), (LogLevel::Debug, true));
        let flags = ["-v", "agent", "--log-level", "ERROR", "--log-format", "text"];
        assert_eq!(log(&flags), (LogLevel::Error, false));
        let unsaid = with(&["agent"], |given| given.log_config(&AgentLogConfig::default()));
        assert_eq!(unsaid.level, Some(LogLevel::Info));
    }

    #[test]
    fn an_agent_for_development_runs_programs_of_the_node_and_keeps_nothing() {
        let config =
            with(&["agent", "--dev"], |given| given.read_config()).unwrap_or_else(|_| panic!());
        assert_eq!(config.plugins[RAW_EXEC].enabled, Some(true));
        let mut kept = AgentConfig { data_dir: Some("/kept".into()), ..AgentConfig::default() };
        let Err(AgentStartError::Agent(said)) = apply_dev_mode(&mut kept) else { panic!("taken") };
        assert!(said.contains("/kept") && said.contains("--dev"), "{said}");
        let mut off = AgentConfig::default();
        off.plugins.entry(RAW_EXEC.to_owned()).or_default().enabled = Some(false);
        apply_dev_mode(&mut off).unwrap_or_else(|_| panic!());
        assert_eq!(off.plugins[RAW_EXEC].enabled, Some(false), "the configuration says no");
        let wrong = Cli::try_parse_from(["ostler", "agent", "--dev", "--data-dir", "/x"]);
        assert!(wrong.is_err());
    }
}
