//! Plots a report: a chart per grid, with logarithmic axes.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::report::{Grid, LabReport, size_of};

type LabDrawingArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type LabDrawingResult = Result<(), DrawingAreaErrorKind<std::io::Error>>;

const CHART_WIDTH: u32 = 480;
const CHART_HEIGHT: u32 = 340;
const COLUMNS: usize = 2;
const FONT: &str = "sans-serif";
/// Colours for the colour-blind (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];
/// Labels on a rate axis, few enough not to overlap.
const RATE_LABELS: usize = 6;

/// Returns a plot of the report as SVG.
///
/// # Errors
///
/// The drawing library's error.
pub fn svg_of(report: &LabReport) -> Result<String, String> {
    let mut text = String::new();
    draw(report, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw(report: &LabReport, text: &mut String) -> LabDrawingResult {
    let columns = COLUMNS.min(report.grids.len()).max(1);
    let rows = report.grids.len().div_ceil(columns).max(1);
    let wide = |count: usize| u32::try_from(count).unwrap_or(1);
    let size = (CHART_WIDTH * wide(columns), CHART_HEIGHT * wide(rows));
    let root = SVGBackend::with_string(text, size).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, grid) in root.split_evenly((rows, columns)).iter().zip(&report.grids) {
        chart(area, grid)?;
    }
    root.present()
}

fn chart(area: &LabDrawingArea<'_>, grid: &Grid) -> LabDrawingResult {
    let all = || grid.series.iter().flat_map(|series| &series.centimegabytes_per_second);
    let bounds = |numbers: Vec<f64>| {
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let most = numbers.iter().copied().fold(0.0_f64, f64::max);
        least..most
    };
    let sizes = bounds(grid.request_bytes.iter().map(|&bytes| to_f64(bytes)).collect());
    let rates = bounds(all().map(|&rate| to_f64(rate.max(1)) / 100.0).collect());
    let mut chart = ChartBuilder::on(area)
        .caption(&grid.title, (FONT, 13))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(52)
        .build_cartesian_2d(
            (sizes.start..sizes.end).log_scale().base(2.0),
            (rates.start / 1.5..rates.end * 1.5).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("request")
        .x_labels(8)
        .y_desc("MB/s")
        .x_label_formatter(&|bytes| size_of(nearest(*bytes)))
        .y_labels(RATE_LABELS)
        .y_label_formatter(&|rate| rate_of(*rate))
        .light_line_style(TRANSPARENT)
        .label_style((FONT, 11))
        .draw()?;
    for (series, colour) in grid.series.iter().zip(COLOURS) {
        let rates = series.centimegabytes_per_second.iter();
        let points: Vec<(f64, f64)> = grid
            .request_bytes
            .iter()
            .zip(rates)
            .map(|(&bytes, &rate)| (to_f64(bytes), to_f64(rate.max(1)) / 100.0))
            .collect();
        chart
            .draw_series([PathElement::new(points.clone(), colour.stroke_width(2))])?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour));
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(222, 222, 222))
        .label_font((FONT, 11))
        .draw()
}

/// Formats an axis label without trailing zeros.
fn rate_of(rate: f64) -> String {
    let text = format!("{rate:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[expect(clippy::as_conversions, reason = "a picture needs no more than 53 bits")]
fn to_f64(number: u64) -> f64 {
    number as f64
}

#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a label of an axis between sizes of requests, which are positive"
)]
fn nearest(number: f64) -> u64 {
    number.round() as u64
}
