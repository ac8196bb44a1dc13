//! Writes values in the formats of other programs.

pub(crate) mod json;
pub(crate) mod time;
pub(crate) mod toml;
pub(crate) mod yaml;
pub(crate) mod yaml_words;
