//! Routes of the HTTP interface and their handlers.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Path, State};
use axum::http::{Request, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use front::watch::SLOW_FROM;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::guard::HttpRefusal;
use super::{HttpRequester, metrics, openapi, page, refusal};
use crate::backend::{BackendError, DAMAGED, DEGRADED};
use crate::facts::slow_list;
use crate::hub::Hub;
use crate::peer::{Peer, audited};
use crate::{bugs, events};
use control::{Answer, Request as Control};

pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
const BODY_TIME: std::time::Duration = std::time::Duration::from_secs(10);

type HubState = State<Arc<Hub>>;
type ApiResult = Result<Response<Body>, RefusalResponse>;

pub(super) struct RefusalResponse(HttpRefusal);

impl RefusalResponse {
    fn new(status: StatusCode, cause: impl Into<String>) -> RefusalResponse {
        RefusalResponse(HttpRefusal::new(status, cause))
    }
}

impl IntoResponse for RefusalResponse {
    fn into_response(self) -> Response<Body> {
        refusal(&self.0)
    }
}

impl From<BackendError> for RefusalResponse {
    fn from(error: BackendError) -> RefusalResponse {
        RefusalResponse::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
    }
}

/// Returns the router for `hub`. Its paths are those of [`openapi::ROUTES`].
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
        .route("/api/v1/pools/{pool}/snapshots", get(snapshots))
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

async fn nothing(uri: Uri) -> RefusalResponse {
    let is_other_version = uri.path().starts_with("/api/v") && !uri.path().starts_with("/api/v1/");
    let cause = if is_other_version {
        "this server has version 1 of the interface alone: ask below /api/v1, or use a client of \
         the server's version"
    } else {
        "there is nothing here: see /api/v1/openapi.json"
    };
    RefusalResponse::new(StatusCode::NOT_FOUND, cause)
}

async fn other_method() -> RefusalResponse {
    let cause = "this is asked for in another way: see /api/v1/openapi.json";
    RefusalResponse::new(StatusCode::METHOD_NOT_ALLOWED, cause)
}

pub(super) fn json_response(value: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => RefusalResponse::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
            .into_response(),
    }
}

/// Bound of tasks on threads that may block, waiting tasks included. Without it, clients could
/// start any number by disconnecting after each request.
static WAITING: Semaphore = Semaphore::const_new(64);

pub(super) async fn waiting<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RefusalResponse> {
    // The task holds the permit until it ends, even if its client disconnects.
    let Ok(place) = WAITING.try_acquire() else {
        let cause = "the server has too much to do: ask again in a moment";
        return Err(RefusalResponse::new(StatusCode::SERVICE_UNAVAILABLE, cause));
    };
    let work = move || {
        let _place = place;
        work()
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| {
        let cause = "the server met a bug: see its log";
        RefusalResponse::new(StatusCode::INTERNAL_SERVER_ERROR, cause)
    })
}

/// Permits for requests without a token. Such requests take few threads, so that requests with a
/// token need not wait for them.
#[derive(Clone)]
pub(super) struct AnonymousPermits(pub(super) Arc<Semaphore>);

/// Runs `work` on a thread that may block. `places` has the permits for a request without a token.
pub(super) async fn waiting_in<T: Send + 'static>(
    places: Option<Extension<AnonymousPermits>>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RefusalResponse> {
    let Some(Extension(AnonymousPermits(places))) = places else { return waiting(work).await };
    let Ok(place) = places.try_acquire_owned() else {
        let cause = "others ask this already: ask again in a moment, or with the token";
        return Err(RefusalResponse::new(StatusCode::SERVICE_UNAVAILABLE, cause));
    };
    waiting(move || {
        let _place = place;
        work()
    })
    .await
}

/// Returns whether all pools work, without naming them. A pool that is degraded or has lost files
/// counts as working.
async fn health(State(hub): HubState, places: Option<Extension<AnonymousPermits>>) -> ApiResult {
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

async fn server(State(hub): HubState) -> Response<Body> {
    json_response(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "process": std::process::id(),
        "pools": hub.pools.len(),
        "nfs": hub.nfs.as_ref().map(|nfs| nfs.address.to_string()),
        "started_seconds": hub.started_seconds,
        "now_seconds": events::now_seconds(),
    }))
}

async fn pools(State(hub): HubState) -> ApiResult {
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

fn index_of(hub: &Hub, id: &str) -> Result<usize, RefusalResponse> {
    hub.pools.iter().position(|served| served.id == id).ok_or_else(|| {
        RefusalResponse::new(
            StatusCode::NOT_FOUND,
            "there is no such pool: /api/v1/pools lists them",
        )
    })
}

async fn pool(State(hub): HubState, Path(id): Path<String>) -> ApiResult {
    let index = index_of(&hub, &id)?;
    let status = waiting(move || hub.status_of(index)).await?;
    Ok(json_response(&status))
}

async fn filesets(State(hub): HubState, Path(id): Path<String>) -> ApiResult {
    list_filesets(hub, &id, false).await
}

async fn snapshots(State(hub): HubState, Path(id): Path<String>) -> ApiResult {
    list_filesets(hub, &id, true).await
}

async fn list_filesets(hub: Arc<Hub>, id: &str, are_snapshots: bool) -> ApiResult {
    let index = index_of(&hub, id)?;
    let list = waiting(move || {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(slot) = from {
            let request = Control::FilesetList { from: slot };
            let Answer::Filesets { list, next } = hub.control(index, &request, Peer::own())? else {
                break;
            };
            all.extend(list.into_iter().filter(|facts| facts.is_snapshot == are_snapshots));
            from = next.filter(|&next| next > slot);
        }
        Ok::<_, BackendError>(all)
    });
    Ok(json_response(&list.await??))
}

async fn jobs(State(hub): HubState, Path(id): Path<String>) -> ApiResult {
    let index = index_of(&hub, &id)?;
    let asked = waiting(move || hub.control(index, &Control::JobList {}, Peer::own()));
    let Answer::Jobs(list) = asked.await?? else { return Ok(json_response(&json!([]))) };
    Ok(json_response(&list))
}

async fn exports(State(hub): HubState, Path(id): Path<String>) -> ApiResult {
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

async fn clients(State(hub): HubState) -> Response<Body> {
    json_response(&hub.clients())
}

async fn operations(State(hub): HubState) -> Response<Body> {
    json_response(&hub.operations())
}

async fn schedules(State(hub): HubState, Path(id): Path<String>) -> ApiResult {
    let index = index_of(&hub, &id)?;
    let list = waiting(move || hub.schedule_list(index)).await??;
    let Answer::Schedules(list) = list else { return Ok(json_response(&json!([]))) };
    Ok(json_response(&list))
}

async fn scrub_schedule(State(hub): HubState, Path(id): Path<String>) -> ApiResult {
    let index = index_of(&hub, &id)?;
    let told = waiting(move || hub.scrub_schedule(index, events::now_seconds()));
    Ok(json_response(&told.await?))
}

async fn slow(State(hub): HubState) -> ApiResult {
    let list = waiting(move || slow_list(&hub.watch, 0, SLOW_FROM));
    Ok(json_response(&list.await?))
}

async fn history(State(hub): HubState) -> Response<Body> {
    json_response(&hub.history.samples())
}

async fn recent_events() -> Response<Body> {
    json_response(&events::recent())
}

async fn control(
    State(hub): HubState,
    Path(id): Path<String>,
    Extension(asker): Extension<HttpRequester>,
    request: Request<Body>,
) -> ApiResult {
    let index = index_of(&hub, &id)?;
    let peer = asker
        .peer()
        .ok_or_else(|| RefusalResponse::new(StatusCode::UNAUTHORIZED, "a token is needed"))?;
    let body = tokio::time::timeout(BODY_TIME, to_bytes(request.into_body(), BODY_BYTES_MAX));
    let body = body.await.map_err(|_| {
        RefusalResponse::new(StatusCode::REQUEST_TIMEOUT, "the request took too long to come")
    })?;
    let body = body.map_err(|_| {
        let cause = format!("a request has at most {BODY_BYTES_MAX} bytes");
        RefusalResponse::new(StatusCode::PAYLOAD_TOO_LARGE, cause)
    })?;
    let refused = |error| {
        let cause = format!("the request is not understood ({error}): see /api/v1/openapi.json");
        RefusalResponse::new(StatusCode::BAD_REQUEST, cause)
    };
    let request: Control = serde_json::from_slice(&body).map_err(refused)?;
    let who = format!("{:?} as user {}", asker.from, peer.uid);
    let done = waiting(move || audited(&who, &request, || hub.control(index, &request, peer)));
    Ok(json_response(&done.await??))
}
