//! `command`: run an allow-listed program to completion.

use std::time::Duration;

use crate::bindings::since_0_1::host::command::{CommandError, Host, Output};
use crate::host::CallState;
use ostler_model::grants::{Authority, GrantAddition};
use ostler_process::program::{CommandFailure, run};

impl Host for CallState {
    async fn run(
        &mut self,
        program: String,
        args: Vec<String>,
        timeout: u64,
    ) -> wasmtime::Result<Result<Output, CommandError>> {
        self.budget.charge(program.len() + args.iter().map(String::len).sum::<usize>())?;
        let grant = self.plugin.grants.commands.iter().find(|grant| grant.allows(&program, &args));
        let Some(grant) = grant else {
            let text = format!("running {program} {} is not granted", args.join(" "));
            let denied = self.denial_text(
                &text,
                Authority::Command,
                GrantAddition::Command { program, args },
            );
            return Ok(Err(CommandError::Denied(denied)));
        };
        // In a dry run commands about the node may run. What a command does to a task is not known.
        if let Some(why) = self.plugin.refusal_reason().filter(|_| self.task.is_some()) {
            return Ok(Err(CommandError::Denied(why)));
        }
        // The command runs where I/O is driven. Its time has a separate bound: all commands of one
        // call together have as much time as the guest.
        let left = self.plugin.limits.call_wall_max.saturating_sub(self.host_time.host_work());
        if left.is_zero() {
            return Ok(Err(CommandError::TimedOut));
        }
        let wall = Duration::from_millis(timeout).min(left);
        let work = run(grant.program.clone(), args, wall);
        let done = self.host_time.run_uncharged(self.services.control.spawn(work)).await;
        let answer = match done {
            Ok(Ok(output)) => {
                self.budget.give(output.stdout.len() + output.stderr.len())?;
                Ok(Output {
                    exit_code: output.exit_code,
                    signal: output.signal,
                    stdout: output.stdout,
                    stderr: output.stderr,
                    truncated: output.truncated,
                })
            }
            Ok(Err(CommandFailure::TimedOut)) => Err(CommandError::TimedOut),
            Ok(Err(CommandFailure::NotFound(text))) => Err(CommandError::NotFound(text)),
            Ok(Err(CommandFailure::Failed(text))) => Err(CommandError::Failed(text)),
            Err(error) => Err(CommandError::Failed(error.to_string())),
        };
        Ok(answer)
    }
}
