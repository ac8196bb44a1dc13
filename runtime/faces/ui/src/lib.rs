//! The web page of the agent as it is sent: files in the binary, with their headers.
//!
//! ```text
//! build.rs: page/ ─► packed, named by content ─► ASSETS
//! PageRequest { path below /ui/, what the browser has, takes gzip } ─► answer_request ─► status, headers, bytes
//!              assets/NAME ─► the file, or 404
//!              all else ────► index.html, with the way back to /ui/ in its links
//! ```
//! Pure: this crate knows of HTTP only names and texts. Links in the page are relative, so that it
//! works behind a proxy which puts a prefix before every path: only the server knows how deep a
//! path is, and it writes that many `../` into the page. The policy ([`POLICY`]) lets nothing run,
//! load or be sent except from the origin of the page. Start at `page/js/main.js`.

use std::borrow::Cow;

/// What browsers may do with the page: scripts, styles and connections only of its own origin.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                          img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// The headers of every answer: names in lower case, and values.
pub const HEADERS: [(&str, &str); 5] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    // A browser asks each time whether its copy is current, because an upgraded agent has another
    // page.
    ("cache-control", "no-cache"),
];

/// The folder of the files, below `/ui/`.
const FOLDER: &str = "assets/";

/// The placeholder in `index.html` for the way back to `/ui/`.
const WAY_BACK: &str = "%UI%";

/// The largest number of `../` that are written. Paths of the page have two parts.
const DEPTH_MAX: usize = 16;

/// A file of the page.
#[derive(Clone, Copy, Debug)]
struct Asset {
    /// The path of the file in `page/`.
    name: &'static str,
    /// The content type of the file.
    kind: &'static str,
    /// The entity tag, which is derived from the content.
    tag: &'static str,
    plain: &'static [u8],
    /// The compressed content; `None` if it would not be smaller.
    gzip: Option<&'static [u8]>,
}

/// All files, sorted by name.
static ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// The request of a browser.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageRequest<'a> {
    /// The path after `/ui/` as it was sent, with its encoding.
    pub path: &'a str,
    /// The value of the header `If-None-Match`.
    pub has: Option<&'a str>,
    /// The value of the header `Accept-Encoding`.
    pub takes: Option<&'a str>,
}

/// The answer to a browser. [`HEADERS`] go with each answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageAnswer {
    /// A file or the page, with status 200.
    File {
        /// The value of `Content-Type`.
        kind: &'static str,
        /// The value of `ETag`.
        tag: String,
        /// Whether `Content-Encoding` is gzip.
        gzip: bool,
        /// The body as it is sent.
        body: Cow<'static, [u8]>,
    },
    /// The browser has the current content, status 304.
    Unchanged {
        /// The value of `ETag`.
        tag: String,
    },
    /// There is no such file, status 404.
    Missing,
}

/// The answer to a request.
#[must_use]
pub fn answer_request(asked: PageRequest<'_>) -> PageAnswer {
    match asked.path.strip_prefix(FOLDER) {
        Some(name) => match ASSETS.iter().find(|asset| asset.name == name) {
            Some(asset) => file(asset, asked),
            None => PageAnswer::Missing,
        },
        None => page(asked),
    }
}

fn file(asset: &Asset, asked: PageRequest<'_>) -> PageAnswer {
    let tag = format!("\"{}\"", asset.tag);
    if matches_tag(asked.has, &tag) {
        return PageAnswer::Unchanged { tag };
    }
    let packed = asset.gzip.filter(|_| takes_gzip(asked.takes));
    let (gzip, bytes) = (packed.is_some(), packed.unwrap_or(asset.plain));
    PageAnswer::File { kind: asset.kind, tag, gzip, body: Cow::Borrowed(bytes) }
}

/// The page itself, for every path that is not that of a file.
fn page(asked: PageRequest<'_>) -> PageAnswer {
    let Some(index) = ASSETS.iter().find(|asset| asset.name == "index.html") else {
        return PageAnswer::Missing;
    };
    let depth = asked.path.matches('/').count().min(DEPTH_MAX);
    let tag = format!("\"{}-{depth}\"", index.tag);
    if matches_tag(asked.has, &tag) {
        return PageAnswer::Unchanged { tag };
    }
    let text = String::from_utf8_lossy(index.plain);
    let body = text.replace(WAY_BACK, &format!("./{}", "../".repeat(depth)));
    PageAnswer::File { kind: index.kind, tag, gzip: false, body: Cow::Owned(body.into_bytes()) }
}

/// Whether `tag` is among those that a browser has. A proxy may have made it a weak one.
fn matches_tag(has: Option<&str>, tag: &str) -> bool {
    let all = has.unwrap_or_default().split(',').map(str::trim);
    let named = |one: &str| one.strip_prefix("W/").unwrap_or(one) == tag;
    has.is_some_and(|has| has.trim() == "*") || all.into_iter().any(named)
}

/// Whether gzip is among the encodings, and not refused by a quality of 0.
fn takes_gzip(takes: Option<&str>) -> bool {
    takes.unwrap_or_default().split(',').any(|one| {
        let mut parts = one.split(';').map(str::trim);
        let gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        gzip && !parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

#[cfg(test)]
mod tests;
