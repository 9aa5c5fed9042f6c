//! `/`: the dashboard page, whose script fetches the facts with the token.

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;

use super::guard::HttpRefusal;
use super::refusal;

/// The page. `{{NONCE}}` stands for the nonce of the content security policy.
const PAGE: &str = include_str!("dashboard.html");

pub(super) async fn show() -> Response<Body> {
    let mut random = [0; 16];
    if getrandom::fill(&mut random).is_err() {
        let cause = "there are no random numbers";
        return refusal(&HttpRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, cause));
    }
    let nonce: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let page = PAGE.replace("{{NONCE}}", &nonce);
    let kind = "text/html; charset=utf-8".to_owned();
    let headers = [(header::CONTENT_TYPE, kind), (header::CONTENT_SECURITY_POLICY, policy)];
    (headers, page).into_response()
}
