//! What is answered at which path.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Path, State};
use axum::http::{Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use front::watch::SLOW_FROM;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::guard::Refused;
use super::{Asker, metrics, openapi, page, refusal};
use crate::backend::{BackendError, DAMAGED, DEGRADED};
use crate::bugs;
use crate::control::watch::slow_list;
use crate::control::{Answer, Peer, Request as Control, audited};
use crate::events;
use crate::server::Hub;

/// Longest body.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
/// How long a body may take to come.
const BODY_TIME: std::time::Duration = std::time::Duration::from_secs(10);

type Shared = State<Arc<Hub>>;
type Done = Result<Response<Body>, Refusal>;

/// Why nothing is answered but an error.
pub(super) struct Refusal(Refused);

impl Refusal {
    fn new(status: StatusCode, cause: impl Into<String>) -> Refusal {
        Refusal(Refused::new(status, cause))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response<Body> {
        refusal(&self.0)
    }
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Refusal {
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
    }
}

/// Returns what answers requests about `hub`. [`openapi::ROUTES`] lists the same paths.
pub(super) fn router(hub: &Arc<Hub>) -> Router {
    Router::new()
        .route("/", get(page::show))
        .route("/healthz", get(health))
        .route("/metrics", get(metrics::show))
        .route("/api/v1/openapi.json", get(document))
        .route("/api/v1/server", get(server))
        .route("/api/v1/pools", get(pools))
        .route("/api/v1/pools/{pool}", get(pool))
        .route("/api/v1/pools/{pool}/filesets", get(filesets))
        .route("/api/v1/pools/{pool}/clones", get(clones))
        .route("/api/v1/pools/{pool}/jobs", get(jobs))
        .route("/api/v1/pools/{pool}/exports", get(exports))
        .route("/api/v1/pools/{pool}/schedules", get(schedules))
        .route("/api/v1/pools/{pool}/scrub-schedule", get(scrub_schedule))
        .route("/api/v1/pools/{pool}/control", post(control))
        .route("/api/v1/clients", get(clients))
        .route("/api/v1/operations", get(operations))
        .route("/api/v1/slow", get(slow))
        .route("/api/v1/history", get(history))
        .route("/api/v1/events", get(recent_events))
        .fallback(nothing)
        .method_not_allowed_fallback(other_method)
        .with_state(Arc::clone(hub))
}

async fn nothing() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "there is nothing here: see /api/v1/openapi.json")
}

async fn other_method() -> Refusal {
    let cause = "this is asked for in another way: see /api/v1/openapi.json";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, cause)
}

pub(super) fn json_response(value: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => {
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
        }
    }
}

/// Most of what waits for a thread that may wait, or has one: a client that asks and goes, again
/// and again, leaves no more.
static WAITING: Semaphore = Semaphore::const_new(64);

/// Does `work` on a thread that may wait.
pub(super) async fn waiting<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    // The task's own, not the connection's: one whose client has gone goes on.
    let Ok(place) = WAITING.try_acquire() else {
        let cause = "the server has too much to do: ask again in a moment";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, cause));
    };
    let work = move || {
        let _place = place;
        work()
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| {
        let cause = "the server met a bug: see its log";
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, cause)
    })
}

/// Worker threads for requests without a token: requests with one never wait for these.
#[derive(Clone)]
pub(super) struct PlacesOfAnyone(pub(super) Arc<Semaphore>);

/// As [`waiting`], of a request that may be anyone's.
pub(super) async fn waiting_in<T: Send + 'static>(
    places: Option<Extension<PlacesOfAnyone>>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    let Some(Extension(PlacesOfAnyone(places))) = places else { return waiting(work).await };
    let Ok(place) = places.try_acquire_owned() else {
        let cause = "others ask this already: ask again in a moment, or with the token";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, cause));
    };
    waiting(move || {
        let _place = place;
        work()
    })
    .await
}

/// Answers whether all pools serve, without their names. A degraded pool serves, and so does
/// a pool that has lost files.
async fn health(State(hub): Shared, places: Option<Extension<PlacesOfAnyone>>) -> Done {
    let looked = waiting_in(places, move || {
        let (mut is_ok, mut degraded) = (true, 0);
        for served in &hub.pools {
            let mut status = served.pool.status();
            bugs::add_to(&mut status);
            is_ok &= matches!(status["health"].as_str(), Some("ok" | DEGRADED | DAMAGED));
            degraded += u64::from(status["is_degraded"].as_bool() == Some(true));
        }
        (is_ok, degraded)
    });
    let (is_ok, degraded) = looked.await?;
    let status = if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = json_response(&json!({ "ok": is_ok, "degraded": degraded }));
    *response.status_mut() = status;
    Ok(response)
}

async fn document() -> Response<Body> {
    json_response(&openapi::document())
}

async fn server(State(hub): Shared) -> Response<Body> {
    json_response(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "process": std::process::id(),
        "pools": hub.pools.len(),
        "nfs": hub.nfs.as_ref().map(|nfs| nfs.address.to_string()),
        "started_seconds": hub.started_seconds,
        "now_seconds": events::now_seconds(),
    }))
}

async fn pools(State(hub): Shared) -> Done {
    let list = waiting(move || {
        let facts = |index: usize| {
            let status = hub.status_of(index);
            let served = &hub.pools[index];
            json!({
                "id": served.id,
                "path": served.path.display().to_string(),
                "label": status["label"],
                "health": status["health"],
                "warnings": status["warnings"],
                "space": status["space"],
            })
        };
        (0..hub.pools.len()).map(facts).collect::<Vec<Value>>()
    });
    Ok(json_response(&list.await?))
}

fn index_of(hub: &Hub, id: &str) -> Result<usize, Refusal> {
    hub.pools.iter().position(|served| served.id == id).ok_or_else(|| {
        Refusal::new(StatusCode::NOT_FOUND, "there is no such pool: /api/v1/pools lists them")
    })
}

async fn pool(State(hub): Shared, Path(id): Path<String>) -> Done {
    let index = index_of(&hub, &id)?;
    let status = waiting(move || hub.status_of(index)).await?;
    Ok(json_response(&status))
}

async fn filesets(State(hub): Shared, Path(id): Path<String>) -> Done {
    list_filesets(hub, &id, false).await
}

async fn clones(State(hub): Shared, Path(id): Path<String>) -> Done {
    list_filesets(hub, &id, true).await
}

async fn list_filesets(hub: Arc<Hub>, id: &str, are_clones: bool) -> Done {
    let index = index_of(&hub, id)?;
    let list = waiting(move || {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(slot) = from {
            let request = Control::FilesetList { from: slot };
            let Answer::Filesets { list, next } = hub.control(index, &request, Peer::own())? else {
                break;
            };
            all.extend(list.into_iter().filter(|facts| facts.is_clone == are_clones));
            from = next.filter(|&next| next > slot);
        }
        Ok::<_, BackendError>(all)
    });
    Ok(json_response(&list.await??))
}

async fn jobs(State(hub): Shared, Path(id): Path<String>) -> Done {
    let index = index_of(&hub, &id)?;
    let asked = waiting(move || hub.control(index, &Control::JobList {}, Peer::own()));
    let Answer::Jobs(list) = asked.await?? else { return Ok(json_response(&json!([]))) };
    Ok(json_response(&list))
}

async fn exports(State(hub): Shared, Path(id): Path<String>) -> Done {
    let index = index_of(&hub, &id)?;
    if hub.nfs.is_none() {
        return Ok(json_response(&json!([])));
    }
    let list = waiting(move || {
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let request = Control::ExportList { after: after.clone() };
            let Answer::Exports { list, has_more } = hub.control(index, &request, Peer::own())?
            else {
                return Ok::<_, BackendError>(all);
            };
            after = list.last().map(|facts| facts.export.name.clone()).unwrap_or_default();
            all.extend(list);
            if !has_more || after.is_empty() {
                return Ok(all);
            }
        }
    });
    Ok(json_response(&list.await??))
}

async fn clients(State(hub): Shared) -> Response<Body> {
    json_response(&hub.clients())
}

async fn operations(State(hub): Shared) -> Response<Body> {
    json_response(&hub.operations())
}

async fn schedules(State(hub): Shared, Path(id): Path<String>) -> Done {
    let index = index_of(&hub, &id)?;
    let list = waiting(move || hub.schedule_list(index)).await??;
    let Answer::Schedules(list) = list else { return Ok(json_response(&json!([]))) };
    Ok(json_response(&list))
}

async fn scrub_schedule(State(hub): Shared, Path(id): Path<String>) -> Done {
    let index = index_of(&hub, &id)?;
    let told = waiting(move || hub.scrub_schedule(index, events::now_seconds()));
    Ok(json_response(&told.await?))
}

async fn slow(State(hub): Shared) -> Done {
    let list = waiting(move || slow_list(&hub.watch, 0, SLOW_FROM));
    Ok(json_response(&list.await?))
}

async fn history(State(hub): Shared) -> Response<Body> {
    json_response(&hub.history.samples())
}

async fn recent_events() -> Response<Body> {
    json_response(&events::recent())
}

/// Does what the body asks for.
async fn control(
    State(hub): Shared,
    Path(id): Path<String>,
    Extension(asker): Extension<Asker>,
    request: Request<Body>,
) -> Done {
    let index = index_of(&hub, &id)?;
    let peer =
        asker.peer().ok_or_else(|| Refusal::new(StatusCode::UNAUTHORIZED, "a token is needed"))?;
    let body = tokio::time::timeout(BODY_TIME, to_bytes(request.into_body(), BODY_BYTES_MAX));
    let body = body.await.map_err(|_| {
        Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request took too long to come")
    })?;
    let body = body.map_err(|_| {
        let cause = format!("a request has at most {BODY_BYTES_MAX} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, cause)
    })?;
    let refused = |error| {
        let cause = format!("the request is not understood ({error}): see /api/v1/openapi.json");
        Refusal::new(StatusCode::BAD_REQUEST, cause)
    };
    let request: Control = serde_json::from_slice(&body).map_err(refused)?;
    let who = format!("{:?} as user {}", asker.from, peer.uid);
    let done = waiting(move || audited(&who, &request, || hub.control(index, &request, peer)));
    Ok(json_response(&done.await??))
}
