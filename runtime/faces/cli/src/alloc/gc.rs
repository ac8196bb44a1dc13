//! `ostler gc`

use std::collections::BTreeSet;

use serde_json::json;

use crate::answer;
use crate::args::client::GcArgs;
use crate::connect::{self, CliError};
use crate::consent::{self, ConsentRequest};
use crate::exit::Exit;
use crate::terminal::TerminalInfo;
use ostler_api::client::ApiClient;
use ostler_api::routes::endpoints as routes;
use ostler_model::ids::AllocId;
use ostler_model::words::count_noun;

/// Remove allocations that have ended.
pub(crate) async fn gc(args: &GcArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    if let Some(given) = &args.alloc {
        let change = ConsentRequest { verb: "remove", agree: args.agree, terminal };
        let id = consent::find_alloc(&client, given, change).await?;
        client.send_only(&routes::CollectAlloc::request([&id])).await?;
        let text = || format!("removed allocation {id}\n");
        return answer::show(&json!({ "Removed": [id] }), text, terminal);
    }
    let before = list_alloc_ids(&client).await?;
    client.send_only(&routes::CollectGarbage::request([])).await?;
    let after = list_alloc_ids(&client).await?;
    let removed: Vec<&AllocId> = before.difference(&after).collect();
    let text = || format!("removed {}\n", count_noun(removed.len(), "allocation"));
    answer::show(&json!({ "Removed": removed }), text, terminal)
}

async fn list_alloc_ids(client: &ApiClient) -> Result<BTreeSet<AllocId>, CliError> {
    let allocs =
        client.send(&connect::in_namespaces(client, routes::ListAllocs::request([]))).await?;
    Ok(allocs.into_iter().map(|alloc| alloc.id).collect())
}
