//! Golden files: texts that a test compares, or writes anew when it is asked to.

use std::io;
use std::path::Path;

/// The variable that asks tests to write their golden files anew.
const BLESS: &str = "OSTLER_BLESS";

/// Whether golden files are written instead of compared.
#[must_use]
pub fn is_blessing() -> bool {
    std::env::var_os(BLESS).is_some()
}

/// Whether a golden file, which may be missing, has this text. Where golden files are written it is
/// given the text first.
///
/// # Errors
/// When the file cannot be written.
pub fn has_text(file: &Path, text: &str) -> io::Result<bool> {
    if is_blessing() {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(file, text)?;
    }
    Ok(std::fs::read_to_string(file).unwrap_or_default() == text)
}
