//! The web page of the agent, as it is sent: files in the binary, and what is said with them.
//!
//! ```text
//! build.rs: page/ ─► packed, named by content ─► ASSETS
//! PageAsked { path below /ui/, what the browser has, takes gzip } ─► answer ─► status, headers, bytes
//!              assets/NAME ─► the file, or 404
//!              all else ────► index.html, with the way back to /ui/ in its links
//! ```
//! Pure: nothing here knows of HTTP beyond names and texts. Links in the page are relative, so that it works
//! behind a proxy which puts a prefix before every path: the server alone knows how deep a path is, and
//! writes that many `../` into the page. The policy ([`POLICY`]) lets nothing run, load or be sent but from
//! where the page came from.

use std::borrow::Cow;

/// What browsers may do with the page: scripts, styles and connections of its own origin alone.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                          img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// What is said with every answer: names in lower case, and values.
pub const HEADERS: [(&str, &str); 5] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    // A browser asks each time whether what it has is what there is: an agent that was upgraded has another page.
    ("cache-control", "no-cache"),
];

/// The folder of the files, below `/ui/`.
const FOLDER: &str = "assets/";

/// What stands in `index.html` for the way back to `/ui/`.
const WAY_BACK: &str = "%UI%";

/// Most `../` that are written: paths of the page have two parts.
const DEPTH_MAX: usize = 16;

/// A file of the page.
#[derive(Clone, Copy, Debug)]
struct Asset {
    /// Its path in `page/`.
    name: &'static str,
    /// Its content type.
    kind: &'static str,
    /// Names its content.
    tag: &'static str,
    plain: &'static [u8],
    /// Absent: it would not be smaller.
    gzip: Option<&'static [u8]>,
}

/// All of them, by name.
static ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// What a browser asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageAsked<'a> {
    /// The path after `/ui/`, as it was sent: what is encoded in it stays so.
    pub path: &'a str,
    /// Its `If-None-Match`.
    pub has: Option<&'a str>,
    /// Its `Accept-Encoding`.
    pub takes: Option<&'a str>,
}

/// What it is answered. [`HEADERS`] go with each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageAnswer {
    /// 200.
    File {
        /// Content type.
        kind: &'static str,
        /// `ETag`.
        tag: String,
        /// `Content-Encoding` is gzip.
        gzip: bool,
        /// The body.
        body: Cow<'static, [u8]>,
    },
    /// 304: the browser has it.
    Unchanged {
        /// `ETag`.
        tag: String,
    },
    /// 404.
    Missing,
}

/// What is to be sent.
#[must_use]
pub fn answer(asked: PageAsked<'_>) -> PageAnswer {
    match asked.path.strip_prefix(FOLDER) {
        Some(name) => match ASSETS.iter().find(|asset| asset.name == name) {
            Some(asset) => file(asset, asked),
            None => PageAnswer::Missing,
        },
        None => page(asked),
    }
}

fn file(asset: &Asset, asked: PageAsked<'_>) -> PageAnswer {
    let tag = format!("\"{}\"", asset.tag);
    if knows(asked.has, &tag) {
        return PageAnswer::Unchanged { tag };
    }
    let packed = asset.gzip.filter(|_| takes_gzip(asked.takes));
    let (gzip, bytes) = (packed.is_some(), packed.unwrap_or(asset.plain));
    PageAnswer::File { kind: asset.kind, tag, gzip, body: Cow::Borrowed(bytes) }
}

/// The page itself, for whatever path is not that of a file.
fn page(asked: PageAsked<'_>) -> PageAnswer {
    let Some(index) = ASSETS.iter().find(|asset| asset.name == "index.html") else {
        return PageAnswer::Missing;
    };
    let depth = asked.path.matches('/').count().min(DEPTH_MAX);
    let tag = format!("\"{}-{depth}\"", index.tag);
    if knows(asked.has, &tag) {
        return PageAnswer::Unchanged { tag };
    }
    let text = String::from_utf8_lossy(index.plain);
    let body = text.replace(WAY_BACK, &format!("./{}", "../".repeat(depth)));
    PageAnswer::File { kind: index.kind, tag, gzip: false, body: Cow::Owned(body.into_bytes()) }
}

/// Is `tag` among those that a browser has? A proxy may have made it a weak one.
fn knows(has: Option<&str>, tag: &str) -> bool {
    let all = has.unwrap_or_default().split(',').map(str::trim);
    let named = |one: &str| one.strip_prefix("W/").unwrap_or(one) == tag;
    has.is_some_and(|has| has.trim() == "*") || all.into_iter().any(named)
}

/// Is gzip among the encodings, and not refused by a quality of 0?
fn takes_gzip(takes: Option<&str>) -> bool {
    takes.unwrap_or_default().split(',').any(|one| {
        let mut parts = one.split(';').map(str::trim);
        let gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        gzip && !parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

#[cfg(test)]
mod tests;
