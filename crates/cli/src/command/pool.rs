//! `holdfast pool`: lists the pools that are found, and gives one another name.

use std::fmt::Write;

use serde_json::json;

use super::controlled::{ControlledPool, Opener};
use crate::args::pool::{PoolArgs, PoolCommand};
use crate::exit;
use crate::output::Output;
use crate::table::Column::{Left, Right};
use control::Request;
use control::size::ByteSize;
use server::backend::Backend;
use server::pool_names::{self, FoundPool};
use server::status::take_name;

pub(crate) fn run(args: &PoolArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    match &args.command {
        PoolCommand::List { places } => {
            let found = pool_names::list(places, backend)?;
            let columns = [Left("NAME"), Left("ID"), Left("STATE"), Right("SIZE"), Left("DEVICES")];
            output.list(
                &found,
                "No pools are found: -d FOLDER looks elsewhere.",
                columns,
                |pool| {
                    let devices = pool.devices.iter().map(|path| path.display().to_string());
                    [
                        pool.name.clone().unwrap_or_default(),
                        pool.id.clone(),
                        state_of(pool),
                        ByteSize(pool.size_bytes).to_string(),
                        devices.collect::<Vec<_>>().join(" "),
                    ]
                },
            );
        }
        PoolCommand::Rename { pool, name } => {
            let at = ControlledPool::find(pool, Opener { backend, members: &args.members }, true)?;
            let (pool, done) = (at.pool.clone(), rename(&at, backend, name));
            let old = at.finish(done)?;
            // Without the record, or while a mount has the name, a scan finds the pool.
            let _ = take_name(name, &pool);
            let path = pool.display();
            let facts = json!({ "renamed": path.to_string(), "from": old, "to": name });
            output.fact(&format!("{path} is called {name}"), &facts);
        }
    }
    Ok(exit::DONE)
}

/// Renames the pool, and returns its old name.
fn rename(at: &ControlledPool, backend: &dyn Backend, name: &str) -> anyhow::Result<String> {
    let own = pool_names::list(std::slice::from_ref(&at.pool), backend)?;
    let (id, old) = own.into_iter().next().map(|own| (own.id, own.name)).unwrap_or_default();
    let id = at.id.as_ref().unwrap_or(&id);
    pool_names::refuse_taken(name, id, backend)?;
    at.ask(&Request::PoolRename { name: name.to_owned() })?;
    Ok(old.unwrap_or_default())
}

fn state_of(pool: &FoundPool) -> String {
    let mut text = pool.state.to_owned();
    if pool.state == "incomplete" {
        let _ = write!(text, ": {} of {} devices", pool.devices.len(), pool.device_count);
    }
    if pool.is_copy {
        text = format!("copy, {text}");
    }
    text
}
