//! The command that is proposed after a command on a job file. It has the words of the present
//! command, so that it reads the same file with the same variables and asks the same agent.

use crate::terminal::one_line;
use ostler_model::words::shell_word;

/// Options that are not taken over: those without a value, and the one with a value.
const OWN: [&str; 3] = ["json", "rerun", "detach"];
const OWN_WITH_VALUE: &str = "check-index";

/// The words of the command line that started this program.
pub(super) fn own_words() -> impl Iterator<Item = String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned())
}

/// These words, quoted for a shell, with `instead` in the place of the subcommand `done`.
pub(super) fn next_command(
    words: impl Iterator<Item = String>,
    done: &str,
    instead: &str,
) -> String {
    let (mut command, mut rest) = (vec!["ostler".to_owned()], words.skip(1));
    let shown = |word: &str| shell_word(&one_line(word));
    for word in rest.by_ref() {
        let of_job = command.iter().any(|before| before == "job");
        if of_job && word == done {
            command.push(instead.to_owned());
            break;
        }
        command.push(shown(&word));
    }
    while let Some(word) = rest.next() {
        // An option may begin with one dash or with two.
        let option = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).unwrap_or_default();
        if option == OWN_WITH_VALUE {
            let _value = rest.next();
        } else if takes_value(option) {
            command.push(shown(&word));
            command.extend(rest.next().map(|value| shown(&value)));
        } else if !OWN.contains(&option) && !option.starts_with("check-index=") {
            command.push(shown(&word));
        }
    }
    command.join(" ")
}

/// Is the word after this option its value, whatever that looks like?
fn takes_value(option: &str) -> bool {
    ["var", "var-file"].contains(&option)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &str, done: &str, instead: &str) -> String {
        next_command(words.split('|').map(str::to_owned), done, instead)
    }

    #[test]
    fn the_proposed_command_has_the_words_of_the_plan() {
        let proposed = |words: &str| of(words, "plan", "run --check-index 7");
        assert_eq!(
            proposed("/usr/bin/ostler|job|plan|--json|--var|a=b c|-var-file|plan|web.hcl"),
            "ostler job run --check-index 7 --var 'a=b c' -var-file plan web.hcl"
        );
        assert_eq!(
            proposed("ostler|job|plan|it's.hcl"),
            r"ostler job run --check-index 7 'it'\''s.hcl'"
        );
    }

    #[test]
    fn a_job_is_run_again_with_all_that_it_was_run_with() {
        let again = |words: &str| of(words, "run", "run --rerun");
        assert_eq!(
            again(
                "ostler|-v|job|run|--var|name=two words|--check-index|9|--namespace|prod|my job.hcl"
            ),
            "ostler -v job run --rerun --var 'name=two words' --namespace prod 'my job.hcl'"
        );
        assert_eq!(
            again("ostler|job|run|-check-index=9|-var-file|-json|-rerun|--settle=9s|run"),
            "ostler job run --rerun -var-file -json --settle=9s run"
        );
    }
}
