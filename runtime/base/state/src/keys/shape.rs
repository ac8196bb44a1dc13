//! The parts of a key, as bytes and as text. Names hold neither a NUL byte nor a slash, so the
//! parts are never ambiguous.
//!
//! ```text
//! allocation       id[16]                            ID
//! task             id[16] 80 name… 00                ID/task/NAME
//! job              id…                               ID
//! ended places     id… 00 group… 00 block[4]         ID/ended/GROUP/BLOCK
//! variable         namespace… 00 path…               NAMESPACE/PATH
//! any other        name…                             NAME
//! ```
//! Bytes sort as keys do within an allocation. In the id of a job as text a slash is written `%2F`,
//! and a per cent sign is written `%25`. The path of a variable is everything after its namespace.

use std::fmt;

use uuid::Uuid;

use super::text::KeyTextError;
use super::{EndedBlock, KeyError};
use ostler_model::ids::{AllocId, GroupName, JobId, Namespace, PluginName, TaskName};
use ostler_model::vars::VarKey;

/// Stands before the name of a task, behind the id of its allocation.
pub(super) const TASK: u8 = 0x80;
/// Ends a name that something follows. No name holds it.
pub(super) const END: u8 = 0x00;

/// The first byte of a group of keys, and the first characters of their texts.
#[derive(Clone, Copy)]
pub(crate) struct KeyArea {
    pub(crate) byte: u8,
    pub(crate) text: &'static str,
}

pub(crate) const META: KeyArea = KeyArea { byte: 0x01, text: "meta/" };
pub(crate) const ALLOC: KeyArea = KeyArea { byte: 0x10, text: "allocation/" };
pub(crate) const LEDGER: KeyArea = KeyArea { byte: 0x20, text: "device/" };
pub(crate) const PLUGIN: KeyArea = KeyArea { byte: 0x30, text: "plugin/" };
pub(crate) const NODE: KeyArea = KeyArea { byte: 0x40, text: "node/" };
pub(crate) const MANAGER: KeyArea = KeyArea { byte: 0x50, text: "manager/" };
pub(crate) const JOB: KeyArea = KeyArea { byte: 0x60, text: "job/" };
pub(crate) const VARIABLE: KeyArea = KeyArea { byte: 0x70, text: "variable/" };
pub(crate) const NAMESPACE: KeyArea = KeyArea { byte: 0x80, text: "namespace/" };

impl KeyArea {
    /// The text between the area's text and `end`.
    pub(crate) fn text_between<'a>(self, text: &'a str, end: &str) -> Option<&'a str> {
        text.strip_prefix(self.text)?.strip_suffix(end)
    }
}

/// The parts of a key.
pub(crate) trait KeyShape: Sized {
    /// References to the parts.
    type Refs<'a>;

    /// Append the bytes of the parts.
    fn push(parts: Self::Refs<'_>, out: &mut Vec<u8>);

    /// The parts of these bytes; `None` if they are of another shape.
    fn parse(bytes: &[u8]) -> Option<Result<Self, KeyError>>;

    /// Write the text of the parts.
    fn show(parts: Self::Refs<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// The parts of this text; `None` if it is of another shape.
    fn read(text: &str) -> Option<Result<Self, KeyTextError>>;

    /// The allocation that they name.
    fn alloc(_: Self::Refs<'_>) -> Option<AllocId> {
        None
    }
}

impl KeyShape for () {
    type Refs<'a> = ();

    fn push((): (), _: &mut Vec<u8>) {}

    fn parse(bytes: &[u8]) -> Option<Result<Self, KeyError>> {
        bytes.is_empty().then_some(Ok(()))
    }

    fn show((): (), _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }

    fn read(text: &str) -> Option<Result<Self, KeyTextError>> {
        text.is_empty().then_some(Ok(()))
    }
}

impl KeyShape for (AllocId,) {
    type Refs<'a> = (&'a AllocId,);

    fn push((id,): Self::Refs<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(id.as_bytes());
    }

    fn parse(bytes: &[u8]) -> Option<Result<Self, KeyError>> {
        let id = bytes.try_into().ok()?;
        Some(Ok((AllocId::new(Uuid::from_bytes(id)),)))
    }

    fn show((id,): Self::Refs<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{id}")
    }

    fn read(text: &str) -> Option<Result<Self, KeyTextError>> {
        let id = name_text(text)?.parse();
        Some(id.map(|id| (id,)).map_err(KeyTextError::Name))
    }

    fn alloc((id,): Self::Refs<'_>) -> Option<AllocId> {
        Some(*id)
    }
}

impl KeyShape for (AllocId, TaskName) {
    type Refs<'a> = (&'a AllocId, &'a TaskName);

    fn push((id, task): Self::Refs<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(id.as_bytes());
        out.push(TASK);
        out.extend_from_slice(task.as_str().as_bytes());
        out.push(END);
    }

    fn parse(bytes: &[u8]) -> Option<Result<Self, KeyError>> {
        let (id, rest) = bytes.split_first_chunk::<16>()?;
        let [TASK, name @ .., END] = rest else { return None };
        let task = utf8(name).and_then(|name| TaskName::new(name).map_err(KeyError::Name));
        Some(task.map(|task| (AllocId::new(Uuid::from_bytes(*id)), task)))
    }

    fn show((id, task): Self::Refs<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{id}/task/{task}")
    }

    fn read(text: &str) -> Option<Result<Self, KeyTextError>> {
        let (id, task) = text.split_once("/task/")?;
        let (id, task) = (name_text(id)?, name_text(task)?);
        let parts = id.parse().and_then(|id| Ok((id, TaskName::new(task)?)));
        Some(parts.map_err(KeyTextError::Name))
    }

    fn alloc((id, _): Self::Refs<'_>) -> Option<AllocId> {
        Some(*id)
    }
}

impl KeyShape for (PluginName,) {
    type Refs<'a> = (&'a PluginName,);

    fn push((name,): Self::Refs<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(name.as_str().as_bytes());
    }

    fn parse(bytes: &[u8]) -> Option<Result<Self, KeyError>> {
        let name = utf8(bytes).and_then(|name| PluginName::new(name).map_err(KeyError::Name));
        Some(name.map(|name| (name,)))
    }

    fn show((name,): Self::Refs<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{name}")
    }

    fn read(text: &str) -> Option<Result<Self, KeyTextError>> {
        let name = PluginName::new(name_text(text)?);
        Some(name.map(|name| (name,)).map_err(KeyTextError::Name))
    }
}

impl KeyShape for (Namespace,) {
    type Refs<'a> = (&'a Namespace,);

    fn push((name,): Self::Refs<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(name.as_str().as_bytes());
    }

    fn parse(bytes: &[u8]) -> Option<Result<Self, KeyError>> {
        let name = utf8(bytes).and_then(|name| Namespace::new(name).map_err(KeyError::Namespace));
        Some(name.map(|name| (name,)))
    }

    fn show((name,): Self::Refs<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{name}")
    }

    fn read(text: &str) -> Option<Result<Self, KeyTextError>> {
        let name = Namespace::new(name_text(text)?);
        Some(name.map(|name| (name,)).map_err(KeyTextError::Namespace))
    }
}

impl KeyShape for (JobId,) {
    type Refs<'a> = (&'a JobId,);

    fn push((job,): Self::Refs<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(job.qualified_id().as_bytes());
    }

    fn parse(bytes: &[u8]) -> Option<Result<Self, KeyError>> {
        (!bytes.contains(&END)).then(|| parse_job(bytes).map(|job| (job,)))
    }

    fn show((job,): Self::Refs<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape_job(job))
    }

    fn read(text: &str) -> Option<Result<Self, KeyTextError>> {
        Some(read_job(name_text(text)?).map(|job| (job,)))
    }
}

impl KeyShape for (Box<EndedBlock>,) {
    type Refs<'a> = (&'a Box<EndedBlock>,);

    fn push((of,): Self::Refs<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(of.job.qualified_id().as_bytes());
        out.push(END);
        out.extend_from_slice(of.group.as_str().as_bytes());
        out.push(END);
        out.extend_from_slice(&of.block.to_be_bytes());
    }

    fn parse(bytes: &[u8]) -> Option<Result<Self, KeyError>> {
        let (job, more) = bytes.split_at(bytes.iter().position(|byte| *byte == END)?);
        let ([END, group @ .., END], block) = more.split_last_chunk::<4>()? else { return None };
        let parse = || {
            let job = parse_job(job)?;
            let group = GroupName::new(utf8(group)?).map_err(KeyError::Name)?;
            Ok((Box::new(EndedBlock { job, group, block: u32::from_be_bytes(*block) }),))
        };
        Some(parse())
    }

    fn show((of,): Self::Refs<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/ended/{}/{}", escape_job(&of.job), of.group, of.block)
    }

    fn read(text: &str) -> Option<Result<Self, KeyTextError>> {
        let mut parts = text.splitn(4, '/');
        let (job, "ended", group, block) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?)
        else {
            return None;
        };
        let block = name_text(block)?;
        let read = || {
            let group = GroupName::new(group).map_err(KeyTextError::Name)?;
            let number: Option<u32> = block.parse().ok();
            // Only the exact spelling is accepted: `+1` and `01` are other texts of the same number.
            let number = number.filter(|number| number.to_string() == block);
            let (job, block) =
                (read_job(job)?, number.ok_or_else(|| KeyTextError::unknown(block))?);
            Ok((Box::new(EndedBlock { job, group, block }),))
        };
        Some(read())
    }
}

impl KeyShape for (Box<VarKey>,) {
    type Refs<'a> = (&'a Box<VarKey>,);

    fn push((of,): Self::Refs<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(of.namespace.as_str().as_bytes());
        out.push(END);
        out.extend_from_slice(of.path.as_str().as_bytes());
    }

    /// A namespace is never empty.
    fn parse(bytes: &[u8]) -> Option<Result<Self, KeyError>> {
        let end = bytes.iter().position(|byte| *byte == END).filter(|end| *end > 0)?;
        let ((namespace, _), (_, path)) =
            (bytes.split_at_checked(end)?, bytes.split_at_checked(end.checked_add(1)?)?);
        let parse = || VarKey::new(utf8(namespace)?, utf8(path)?).map_err(KeyError::Variable);
        Some(parse().map(|key| (Box::new(key),)))
    }

    fn show((of,): Self::Refs<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", of.namespace, of.path)
    }

    fn read(text: &str) -> Option<Result<Self, KeyTextError>> {
        let (namespace, path) = text.split_once('/')?;
        let key = VarKey::new(namespace, path).map_err(KeyTextError::Variable);
        Some(key.map(|key| (Box::new(key),)))
    }
}

/// A text that can be one name.
fn name_text(text: &str) -> Option<&str> {
    (!text.contains('/')).then_some(text)
}

fn utf8(bytes: &[u8]) -> Result<&str, KeyError> {
    std::str::from_utf8(bytes).map_err(|_| KeyError::NotUtf8)
}

fn parse_job(bytes: &[u8]) -> Result<JobId, KeyError> {
    JobId::from_qualified(utf8(bytes)?).map_err(KeyError::Name)
}

fn escape_job(id: &JobId) -> String {
    id.qualified_id().replace('%', "%25").replace('/', "%2F").replace(' ', "%20")
}

fn read_job(text: &str) -> Result<JobId, KeyTextError> {
    let id =
        JobId::from_qualified(text.replace("%20", " ").replace("%2F", "/").replace("%25", "%"));
    let id = id.map_err(KeyTextError::Name)?;
    // Only the exact spelling is accepted: `%2f` is another text.
    (escape_job(&id) == text).then_some(id).ok_or_else(|| KeyTextError::unknown(text))
}
