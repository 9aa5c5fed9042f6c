//! `/metrics`: counts of a server, in the text format of Prometheus.
//!
//! Every number in a pool's status becomes a metric, named by its path in the status. Metrics
//! contain no names of files or filesets, and label a pool by its identity.

use std::fmt::{Debug, Error, Formatter};
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, header};
use axum::response::IntoResponse;
use front::counts::LATENCY_BOUNDS_US;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde_json::Value;

use super::api::{AnonymousPermits, RefusalResponse, waiting_in};
use crate::hub::history::to_float;
use crate::hub::{Hub, ServedPool};
use crate::peer::Peer;
use control::{Answer, JobFacts, Request};

/// Numbers of a status that are counters. All others are gauges.
const COUNTERS: [&str; 33] = [
    "journal_transactions",
    "journal_commits",
    "journal_checkpoints",
    "journal_home_pages",
    "journal_lsn_pages",
    "journal_merges",
    "journal_record_bytes",
    "cache_hits",
    "cache_misses",
    "cache_ahead",
    "cache_ahead_used",
    "segment_cache_hits",
    "segment_cache_misses",
    "segment_cache_ahead_bytes",
    "segment_cache_used_bytes",
    "segment_cache_refused",
    "readahead_read_bytes",
    "readahead_used_bytes",
    "readahead_waits",
    "readahead_refused",
    "cleaner_since_mount_segments",
    "cleaner_since_mount_user_bytes",
    "cleaner_since_mount_moved_bytes",
    "cleaner_since_mount_written_bytes",
    "cleaner_since_mount_read_bytes",
    "discards_discards",
    "discards_bytes",
    "discards_refused",
    "discards_failed",
    "nfs_answered",
    "nfs_failed",
    "nfs_bugs",
    "mount_count",
];

const DEPTH_MAX: usize = 4;

pub(super) async fn show(
    State(hub): State<Arc<Hub>>,
    places: Option<Extension<AnonymousPermits>>,
) -> Result<Response<Body>, RefusalResponse> {
    let text = waiting_in(places, move || text_of(hub)).await?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

pub(super) fn text_of(hub: Arc<Hub>) -> String {
    let mut registry = Registry::with_prefix("holdfast");
    registry.register_collector(Box::new(HubCollector(hub)));
    let mut text = String::new();
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

struct HubCollector(Arc<Hub>);

impl Debug for HubCollector {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Collected")
    }
}

/// Lists whose elements have a `number`, with the label for that number. Elements of other lists
/// have the label `index`, which is their position.
const NUMBERED: [(&str, &str); 1] = [("groups", "group")];

type MetricLabel = Option<(&'static str, u64)>;

struct MetricValue {
    name: String,
    pool: usize,
    which: MetricLabel,
    value: f64,
}

impl Collector for HubCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let hub = &self.0;
        let names: Vec<String> = hub.pools.iter().map(|pool| label_value(&pool.name())).collect();
        encode_operations(hub, &mut encoder)?;
        let shared = |(served, name): (&ServedPool, &String)| {
            let of_pool = |(mount, told, (held, waiting))| {
                let locks = [held, waiting].map(|count| u64::try_from(count).unwrap_or(u64::MAX));
                SharedMountMetrics { pool: name.clone(), mount, told, locks }
            };
            served.mounts.told().into_iter().map(of_pool).collect::<Vec<_>>()
        };
        let shared: Vec<_> = hub.pools.iter().zip(&names).flat_map(shared).collect();
        encode_shared(&shared, &mut encoder)?;
        let mut numbers = Vec::new();
        for index in 0..hub.pools.len() {
            let status = hub.status_of(index);
            let is_ok = status["health"].as_str() == Some("ok");
            let value = f64::from(u8::from(is_ok));
            numbers.push(MetricValue {
                name: "healthy".to_owned(),
                pool: index,
                which: None,
                value,
            });
            let value = f64::from(u8::from(status["is_degraded"].as_bool() == Some(true)));
            numbers.push(MetricValue {
                name: "degraded".to_owned(),
                pool: index,
                which: None,
                value,
            });
            collect(&mut numbers, index, (String::new(), None), &status, 0);
            collect_jobs(hub, index, &mut numbers);
        }
        numbers.sort_by(|a, b| (&a.name, a.pool, a.which).cmp(&(&b.name, b.pool, b.which)));
        for same in numbers.chunk_by(|a, b| a.name == b.name) {
            encode_numbers(&names, same, &mut encoder)?;
        }
        Ok(())
    }
}

/// Escapes a label's value, which the library writes as it is.
fn label_value(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

fn encode_numbers(
    names: &[String],
    same: &[MetricValue],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), Error> {
    let name = &same[0].name;
    let is_counter = COUNTERS.contains(&name.as_str());
    let kind = if is_counter { MetricType::Counter } else { MetricType::Gauge };
    let help = format!("{} of a pool, see `holdfast status`", name.replace('_', " "));
    let mut family = encoder.encode_descriptor(name, &help, None, kind)?;
    for number in same {
        let mut labels = vec![("pool", names[number.pool].clone())];
        labels.extend(number.which.map(|(label, which)| (label, which.to_string())));
        let metric = family.encode_family(&labels)?;
        if is_counter {
            ConstCounter::new(number.value).encode(metric)?;
        } else {
            ConstGauge::new(number.value).encode(metric)?;
        }
    }
    Ok(())
}

fn collect(
    into: &mut Vec<MetricValue>,
    pool: usize,
    (path, which): (String, MetricLabel),
    value: &Value,
    depth: usize,
) {
    if depth > DEPTH_MAX {
        return;
    }
    let of_bool = |value: &Value| value.as_bool().map(|is_on| f64::from(u8::from(is_on)));
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_plain = name.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'_');
                // The keys of this object are names, so they do not become metrics.
                if is_plain {
                    let joint = if path.is_empty() { "" } else { "_" };
                    let path = format!("{path}{joint}{name}");
                    collect(into, pool, (path, which), value, depth + 1);
                }
            }
        }
        Value::Array(list) => {
            let own = NUMBERED.iter().find(|(name, _)| *name == path);
            for (index, value) in (0..).zip(list).filter(|(_, it)| it.is_object()) {
                let number = own.and_then(|(_, label)| Some((*label, value["number"].as_u64()?)));
                let which = number.unwrap_or(("index", index));
                collect(into, pool, (path.clone(), Some(which)), value, depth + 1);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let number = value.as_f64().or_else(|| of_bool(value));
            into.extend(number.map(|value| MetricValue { name: path, pool, which, value }));
        }
    }
}

fn collect_jobs(hub: &Hub, pool: usize, numbers: &mut Vec<MetricValue>) {
    let asked = hub.control(pool, &Request::JobList {}, Peer::own());
    let Ok(Answer::Jobs(jobs)) = asked else { return };
    let count = |is: &dyn Fn(&&JobFacts) -> bool| {
        to_float(u64::try_from(jobs.iter().filter(is).count()).unwrap_or(u64::MAX))
    };
    let counts = [
        ("jobs_running", count(&|job| !job.is_paused && job.failure.is_none())),
        ("jobs_paused", count(&|job| job.is_paused)),
        ("jobs_stopped", count(&|job| job.failure.is_some())),
    ];
    for (name, value) in counts {
        numbers.push(MetricValue { name: name.to_owned(), pool, which: None, value });
    }
}

struct Histogram {
    sum: f64,
    count: u64,
    buckets: Vec<(f64, u64)>,
}

impl EncodeMetric for Histogram {
    fn encode(
        &self,
        mut encoder: prometheus_client::encoding::MetricEncoder<'_>,
    ) -> Result<(), Error> {
        encoder.encode_histogram::<NoLabelSet>(self.sum, self.count, &self.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

struct SharedMountMetrics {
    pool: String,
    /// Device number of the mount.
    mount: String,
    told: front::shared::ViewerCounts,
    /// Locks held, and requests that wait for one.
    locks: [u64; 2],
}

fn encode_shared(
    mounts: &[SharedMountMetrics],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), Error> {
    type Metric = (&'static str, &'static str, bool, fn(&SharedMountMetrics) -> f64);
    let metrics: [Metric; 7] = [
        (
            "shared_notices",
            "Cache invalidations sent to the kernel for changes by others",
            true,
            |mount| to_float(mount.told.notices),
        ),
        ("shared_notices_waiting", "Cache invalidations that are queued", false, |mount| {
            to_float(mount.told.waiting)
        }),
        ("shared_notices_seconds", "Sum of the delays of cache invalidations", true, |mount| {
            to_float(mount.told.delay_ns) / 1e9
        }),
        ("shared_overflows", "Overflows of the queue of cache invalidations", true, |mount| {
            to_float(mount.told.overflows)
        }),
        ("shared_opens_again", "Opens that the kernel was made to repeat", true, |mount| {
            to_float(mount.told.opens_again)
        }),
        ("locks_held", "File locks that processes hold through the mount", false, |mount| {
            to_float(mount.locks[0])
        }),
        ("locks_waiting", "Requests that wait for a file lock", false, |mount| {
            to_float(mount.locks[1])
        }),
    ];
    for (name, help, is_counter, value) in metrics.iter().filter(|_| !mounts.is_empty()) {
        let kind = if *is_counter { MetricType::Counter } else { MetricType::Gauge };
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for mount in mounts {
            let labels = [("pool", &mount.pool), ("mount", &mount.mount)];
            let metric = family.encode_family(&labels)?;
            match is_counter {
                true => ConstCounter::new(value(mount)).encode(metric)?,
                false => ConstGauge::new(value(mount)).encode(metric)?,
            }
        }
    }
    Ok(())
}

fn encode_operations(hub: &Hub, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
    let counts = hub.counts();
    let labels = |front, name: &'static str| [("front", front), ("operation", name)];
    let help = "Operations that failed";
    let mut family =
        encoder.encode_descriptor("operations_failed", help, None, MetricType::Counter)?;
    for (front, count) in &counts {
        let labels = labels(*front, count.name);
        ConstCounter::new(count.failed).encode(family.encode_family(&labels)?)?;
    }
    let help = "Latency of operations, until the reply was queued";
    let name = "operation_duration_seconds";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (front, count) in &counts {
        let bounds = LATENCY_BOUNDS_US.iter().map(|&bound| to_float(bound) / 1e6);
        let bounds = bounds.chain([f64::MAX]);
        let histogram = Histogram {
            sum: to_float(count.latency_ns) / 1e9,
            count: count.answered,
            buckets: bounds.zip(count.buckets).collect(),
        };
        let labels = labels(*front, count.name);
        histogram.encode(family.encode_family(&labels)?)?;
    }
    let Some(nfs) = &hub.nfs else { return Ok(()) };
    let clients = nfs.clients();
    let in_flight: u64 = clients.iter().map(|client| client.in_flight).sum();
    let count = u64::try_from(clients.len()).unwrap_or(u64::MAX);
    for (name, help, value) in [
        ("clients", "Connected NFS clients", count),
        ("requests_in_flight", "NFS requests in progress", in_flight),
    ] {
        let gauge = ConstGauge::new(to_float(value));
        gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Goal: numbers of a disk group are labelled by its number, and numbers in other lists by
    /// their position. A null value is no metric.
    #[test]
    fn disk_groups_go_by_their_numbers() {
        let status = json!({
            "groups": [
                { "number": 0, "kind": "mirror", "used_bytes": 5, "slots": [0, 1] },
                { "number": 3, "kind": "single", "used_bytes": null, "total_bytes": 7 },
            ],
            "members": [{ "slot": 0, "reads": 1 }, { "slot": 4, "reads": 2 }],
        });
        let mut numbers = Vec::new();
        collect(&mut numbers, 0, (String::new(), None), &status, 0);
        let of = |name: &str| -> Vec<(MetricLabel, f64)> {
            let own = numbers.iter().filter(|number| number.name == name);
            own.map(|number| (number.which, number.value)).collect()
        };
        assert_eq!(of("groups_used_bytes"), [(Some(("group", 0)), 5.0)]);
        assert_eq!(of("groups_total_bytes"), [(Some(("group", 3)), 7.0)]);
        let reads = [(Some(("index", 0)), 1.0), (Some(("index", 1)), 2.0)];
        assert_eq!(of("members_reads"), reads);
    }

    #[derive(Debug)]
    struct TwoSharedMounts;

    impl Collector for TwoSharedMounts {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
            let of = |mount: &str, notices| {
                let told = front::shared::ViewerCounts {
                    notices,
                    waiting: 3,
                    delay_ns: 1_500_000_000,
                    overflows: 1,
                    ..front::shared::ViewerCounts::default()
                };
                let (pool, mount) = ("p".to_owned(), mount.to_owned());
                SharedMountMetrics { pool, mount, told, locks: [9, 2] }
            };
            encode_shared(&[of("0:52", 7), of("0:53", 8)], &mut encoder)
        }
    }

    /// Goal: notifications are labelled by shared mount, which is not named.
    #[test]
    fn shared_mounts_are_told_apart() {
        let mut registry = Registry::with_prefix("holdfast");
        registry.register_collector(Box::new(TwoSharedMounts));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("it is memory");
        for line in [
            "# TYPE holdfast_shared_notices counter",
            "holdfast_shared_notices_total{pool=\"p\",mount=\"0:52\"} 7.0",
            "holdfast_shared_notices_total{pool=\"p\",mount=\"0:53\"} 8.0",
            "# TYPE holdfast_shared_notices_waiting gauge",
            "holdfast_shared_notices_waiting{pool=\"p\",mount=\"0:52\"} 3.0",
            "holdfast_shared_notices_seconds_total{pool=\"p\",mount=\"0:53\"} 1.5",
            "holdfast_shared_overflows_total{pool=\"p\",mount=\"0:52\"} 1.0",
            "holdfast_shared_opens_again_total{pool=\"p\",mount=\"0:52\"} 0.0",
            "holdfast_locks_held{pool=\"p\",mount=\"0:52\"} 9.0",
            "holdfast_locks_waiting{pool=\"p\",mount=\"0:53\"} 2.0",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
        }
    }
}
