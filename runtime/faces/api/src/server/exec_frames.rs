//! The frames between a command and its client. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ostler_agent::session::{SessionInput, SessionOutput};
use ostler_model::session::TerminalSize;
use ostler_wire::{ExecBytes, ExecInput, ExecOutput, ExecResult, ExecSize};

/// A frame with output of a command, as the JSON that Nomad's command line reads.
#[must_use]
pub fn exec_frame(output: &SessionOutput) -> String {
    let data = |bytes: &[u8]| ExecBytes { data: STANDARD.encode(bytes).into(), close: false };
    let end = || ExecBytes { close: true, ..ExecBytes::default() };
    let (mut said, none) = (ExecOutput::default(), ExecOutput::default);
    match output {
        SessionOutput::Stdout(bytes) => said.stdout = Some(data(bytes)),
        SessionOutput::StdoutEnd => said.stdout = Some(end()),
        SessionOutput::Stderr(bytes) => said.stderr = Some(data(bytes)),
        SessionOutput::StderrEnd => said.stderr = Some(end()),
        SessionOutput::Exited(code) => {
            let result = Some(ExecResult { exit_code: *code });
            said = ExecOutput { exited: true, result, ..none() };
        }
    }
    // It has only texts, numbers and truth values, which can always be written as JSON.
    serde_json::to_string(&said).unwrap_or_default()
}

/// Parse a frame of the client.
///
/// # Errors
/// Why the frame cannot be read.
pub(super) fn parse_input(frame: &[u8]) -> Result<SessionInput, String> {
    let frame: ExecInput<'_> = serde_json::from_slice(frame)
        .map_err(|error| format!("a frame of a command inside a task must be JSON: {error}"))?;
    match frame {
        ExecInput { stdin: Some(ExecBytes { close: true, .. }), .. } => Ok(SessionInput::End),
        ExecInput { stdin: Some(ExecBytes { data, .. }), .. } => STANDARD
            .decode(data.as_bytes())
            .map(SessionInput::Bytes)
            .map_err(|error| format!("stdin.data must be Base64: {error}")),
        ExecInput { tty_size: Some(size), .. } => Ok(SessionInput::Resize(terminal_size(size))),
        // A sign of life.
        ExecInput { stdin: None, tty_size: None } => Ok(SessionInput::Bytes(Vec::new())),
    }
}

fn terminal_size(ExecSize { height, width }: ExecSize) -> TerminalSize {
    let characters = |number: i64| u16::try_from(number).unwrap_or_default();
    TerminalSize { rows: characters(height), columns: characters(width) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_comes_is_input_its_end_a_size_or_a_sign_of_life() {
        let said = |text: &str| parse_input(text.as_bytes()).unwrap();
        assert_eq!(said(r#"{"stdin":{"data":"bHMK"}}"#), SessionInput::Bytes(b"ls\n".to_vec()));
        assert_eq!(said(r#"{"stdin":{"close":true}}"#), SessionInput::End);
        let size = TerminalSize { rows: 24, columns: 80 };
        assert_eq!(said(r#"{"tty_size":{"height":24,"width":80}}"#), SessionInput::Resize(size));
        let size = TerminalSize { rows: 0, columns: 0 };
        assert_eq!(said(r#"{"tty_size":{"height":-1,"width":70000}}"#), SessionInput::Resize(size));
        for alive in ["{}", r#"{"stdin":null}"#, r#"{"more":1}"#, r#"{"stdin":{"data":null}}"#] {
            assert_eq!(said(alive), SessionInput::Bytes(Vec::new()), "{alive}");
        }
        for wrong in ["", "ls", "7", r#"{"stdin":"ls"}"#, r#"{"stdin":{"data":"?"}}"#] {
            assert!(parse_input(wrong.as_bytes()).unwrap_err().contains(" must be "), "{wrong}");
        }
    }

    /// The texts are those that Nomad's client 1.0.18 wrote for `echo out; echo err >&2; pwd; exit
    /// 3`.
    #[test]
    fn what_goes_is_byte_for_byte_what_a_stock_client_sends() {
        for (output, text) in [
            (SessionOutput::Stdout(b"out\n/\n".to_vec()), r#"{"stdout":{"data":"b3V0Ci8K"}}"#),
            (SessionOutput::Stderr(b"err\n".to_vec()), r#"{"stderr":{"data":"ZXJyCg=="}}"#),
            (SessionOutput::StderrEnd, r#"{"stderr":{"close":true}}"#),
            (SessionOutput::StdoutEnd, r#"{"stdout":{"close":true}}"#),
            (SessionOutput::Exited(3), r#"{"exited":true,"result":{"exit_code":3}}"#),
            (SessionOutput::Exited(0), r#"{"exited":true,"result":{"exit_code":0}}"#),
        ] {
            assert_eq!(exec_frame(&output), text);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _read = parse_input(&bytes);
            let input = serde_json::json!({ "stdin": { "data": STANDARD.encode(&bytes) } });
            prop_assert_eq!(parse_input(input.to_string().as_bytes()), Ok(SessionInput::Bytes(bytes)));
        }
    }
}
