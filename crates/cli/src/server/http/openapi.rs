//! `/api/v1/openapi.json`: what can be asked, as a document of OpenAPI 3.0, made of the types that
//! are read and written.

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::control::{
    Answer, ClientFacts, ExportFacts, FilesetFacts, JobFacts, OperationFacts, Request,
    ScrubSchedule, SlowList,
};
use crate::events::Kept;
use crate::server::history::Sample;
use crate::server::schedule::Schedule;

/// A path that is answered.
pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) what: &'static str,
    /// What is answered: the schema of its JSON, or of another kind.
    told: Told,
}

enum Told {
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
        /// All of them; [`super::api::router`] has the same.
        pub(super) const ROUTES: &[Route] =
            &[$(Route { method: $method, path: $path, what: $what, told: $told }),*];
    };
}

routes! {
    "get" "/" "The dashboard" => Told::Other("text/html");
    "get" "/healthz" "Whether pools serve (200, 503), and are degraded" => Told::Json(object);
    "get" "/metrics" "All counts, for Prometheus" => Told::Other("application/openmetrics-text");
    "get" "/api/v1/openapi.json" "This document" => Told::Json(object);
    "get" "/api/v1/server" "The server itself" => Told::Json(object);
    "get" "/api/v1/pools" "The pools, in a few words each" => Told::Json(objects);
    "get" "/api/v1/pools/{pool}" "All that a pool tells of itself" => Told::Json(object);
    "get" "/api/v1/pools/{pool}/filesets" "Its filesets" => Told::Json(of::<Vec<FilesetFacts>>);
    "get" "/api/v1/pools/{pool}/clones" "Its clones" => Told::Json(of::<Vec<FilesetFacts>>);
    "get" "/api/v1/pools/{pool}/jobs" "Its jobs that have an end" =>
        Told::Json(of::<Vec<JobFacts>>);
    "get" "/api/v1/pools/{pool}/exports" "What of it is exported" =>
        Told::Json(of::<Vec<ExportFacts>>);
    "get" "/api/v1/pools/{pool}/schedules" "Its clones by schedule" =>
        Told::Json(of::<Vec<Schedule>>);
    "get" "/api/v1/pools/{pool}/scrub-schedule" "How often it is scrubbed, and when next" =>
        Told::Json(of::<ScrubSchedule>);
    "post" "/api/v1/pools/{pool}/control" "Do something" => Told::Json(of::<Answer>);
    "get" "/api/v1/clients" "Who is connected" => Told::Json(of::<Vec<ClientFacts>>);
    "get" "/api/v1/operations" "Operations by kind, since the start" =>
        Told::Json(of::<Vec<OperationFacts>>);
    "get" "/api/v1/slow" "The last requests that took 250 ms or longer" =>
        Told::Json(of::<SlowList>);
    "get" "/api/v1/history" "The last hour" => Told::Json(of::<Vec<Sample>>);
    "get" "/api/v1/events" "The last warnings and errors" => Told::Json(of::<Vec<Kept>>);
}

/// Returns the document.
pub(super) fn document() -> Value {
    let mut generator = SchemaSettings::openapi3().into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let mut content = Map::new();
        match &route.told {
            Told::Json(schema) => {
                content
                    .insert("application/json".into(), json!({ "schema": schema(&mut generator) }));
            }
            Told::Other(kind) => {
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
