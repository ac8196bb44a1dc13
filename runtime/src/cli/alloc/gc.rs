//! `ostler gc`

use std::collections::BTreeSet;

use hyper::Method;

use super::super::args::client::GcArgs;
use super::super::asking::{self, Stop, ended};
use super::super::client::Client;
use super::super::client::shapes::Alloc;
use super::super::exit::Exit;
use super::super::output;
use super::super::terminal::Terminal;
use ostler_model::ids::AllocId;

/// Remove allocations that are over.
pub(in crate::cli) async fn gc(args: &GcArgs, terminal: &Terminal) -> Exit {
    ended(collect(args, terminal).await, terminal)
}

async fn collect(args: &GcArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let client = asking::connect(&args.agent)?;
    if let Some(given) = &args.alloc {
        let id = asking::find_alloc(&client, given).await?;
        client.call(Method::GET, &format!("/v1/client/allocation/{id}/gc")).await?;
        output::print(&format!("removed allocation {id}\n"), terminal)?;
        return Ok(Exit::Success);
    }
    let before = ids(&client).await?;
    client.call(Method::PUT, "/v1/system/gc").await?;
    let after = ids(&client).await?;
    let gone = before.difference(&after).count();
    let plural = if gone == 1 { "" } else { "s" };
    output::print(&format!("removed {gone} allocation{plural}\n"), terminal)?;
    Ok(Exit::Success)
}

async fn ids(client: &Client) -> Result<BTreeSet<AllocId>, Stop> {
    let allocs: Vec<Alloc> = client.get("/v1/allocations?namespace=*").await?;
    Ok(allocs.into_iter().map(|alloc| alloc.id).collect())
}
