//! `/api/v1/openapi.json`: OpenAPI 3.0 document of the interface, generated from the Rust types.

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::events::LogEvent;
use crate::hub::history::LoadSample;
use control::{
    Answer, ClientFacts, ExportFacts, FilesetFacts, JobFacts, OperationFacts, Request,
    ScrubSchedule, SlowList, SnapshotSchedule,
};

use ResponseSchema::{Json, Other};

pub(super) struct ApiRoute {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) what: &'static str,
    told: ResponseSchema,
}

enum ResponseSchema {
    Json(fn(&mut SchemaGenerator) -> Value),
    Other(&'static str),
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

fn object(_: &mut SchemaGenerator) -> Value {
    json!({ "type": "object" })
}

fn objects(_: &mut SchemaGenerator) -> Value {
    json!({ "type": "array", "items": { "type": "object" } })
}

macro_rules! routes {
    ($($method:literal $path:literal $what:literal => $told:expr;)*) => {
        /// All routes. [`super::api::router`] has the same.
        pub(super) const ROUTES: &[ApiRoute] =
            &[$(ApiRoute { method: $method, path: $path, what: $what, told: $told }),*];
    };
}

routes! {
    "get" "/" "Dashboard" => Other("text/html");
    "get" "/healthz" "Health: 200 if all pools serve, else 503" => Json(object);
    "get" "/metrics" "Metrics in OpenMetrics format" => Other("application/openmetrics-text");
    "get" "/api/v1/openapi.json" "This document" => Json(object);
    "get" "/api/v1/server" "State of the server" => Json(object);
    "get" "/api/v1/pools" "List of pools" => Json(objects);
    "get" "/api/v1/pools/{pool}" "State of a pool" => Json(object);
    "get" "/api/v1/pools/{pool}/filesets" "Filesets of a pool" => Json(of::<Vec<FilesetFacts>>);
    "get" "/api/v1/pools/{pool}/snapshots" "Snapshots of a pool" => Json(of::<Vec<FilesetFacts>>);
    "get" "/api/v1/pools/{pool}/jobs" "Running jobs of a pool" =>
        Json(of::<Vec<JobFacts>>);
    "get" "/api/v1/pools/{pool}/exports" "NFS exports of a pool" =>
        Json(of::<Vec<ExportFacts>>);
    "get" "/api/v1/pools/{pool}/schedules" "Snapshot schedules of a pool" =>
        Json(of::<Vec<SnapshotSchedule>>);
    "get" "/api/v1/pools/{pool}/scrub-schedule" "Scrub schedule of a pool" =>
        Json(of::<ScrubSchedule>);
    "post" "/api/v1/pools/{pool}/control" "Execute a control request" => Json(of::<Answer>);
    "get" "/api/v1/clients" "Connected clients" => Json(of::<Vec<ClientFacts>>);
    "get" "/api/v1/operations" "Operations by kind since the start of the server" =>
        Json(of::<Vec<OperationFacts>>);
    "get" "/api/v1/slow" "Last requests of 250 ms or longer" =>
        Json(of::<SlowList>);
    "get" "/api/v1/history" "Load of the last hour" => Json(of::<Vec<LoadSample>>);
    "get" "/api/v1/events" "Last warnings and errors" => Json(of::<Vec<LogEvent>>);
}

pub(super) fn document() -> Value {
    let mut generator = SchemaSettings::openapi3().into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let mut content = Map::new();
        match &route.told {
            Json(schema) => {
                content
                    .insert("application/json".into(), json!({ "schema": schema(&mut generator) }));
            }
            Other(kind) => {
                content.insert((*kind).into(), json!({ "schema": { "type": "string" } }));
            }
        }
        let mut operation = json!({
            "summary": route.what,
            "responses": {
                "200": { "description": route.what, "content": content },
                "default": { "$ref": "#/components/responses/Refused" },
            },
        });
        if route.path.contains("{pool}") {
            operation["parameters"] = json!([{
                "name": "pool", "in": "path", "required": true, "schema": { "type": "string" },
                "description": "The identity of a pool, as /api/v1/pools lists it",
            }]);
        }
        if route.method == "post" {
            let schema = of::<Request>(&mut generator);
            operation["requestBody"] = json!({
                "required": true, "content": { "application/json": { "schema": schema } },
            });
        }
        if ["/", "/healthz", "/metrics"].contains(&route.path) {
            operation["security"] = json!([]);
        }
        paths.entry(route.path).or_insert_with(|| json!({}))[route.method] = operation;
    }
    let schemas = generator.take_definitions(true);
    let error = json!({
        "type": "object", "required": ["error"], "properties": { "error": { "type": "string" } },
    });
    json!({
        "openapi": "3.0.3",
        "info": { "title": "Holdfast", "version": env!("CARGO_PKG_VERSION") },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "responses": {
                "Refused": {
                    "description": "Why it was not done, and what to do",
                    "content": { "application/json": { "schema": error } },
                },
            },
        },
    })
}
