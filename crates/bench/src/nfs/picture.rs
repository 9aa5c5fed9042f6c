//! Plots response time over throughput.

use plotters::prelude::*;

use super::NfsReport;

type CurveDrawingResult = Result<(), DrawingAreaErrorKind<std::io::Error>>;

const SIZE: (u32, u32) = (720, 480);
const LINE: RGBColor = RGBColor(0, 114, 178);

pub(super) fn svg_of(report: &NfsReport) -> Result<String, String> {
    let mut text = String::new();
    draw(report, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw(report: &NfsReport, text: &mut String) -> CurveDrawingResult {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut points: Vec<(f64, f64)> =
        report.steps.iter().map(|step| (step.throughput, step.mean_ms)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let most = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).fold(0.0, f64::max);
    let (right, top) = ((most(|it| it.0) * 1.1).max(1.0), (most(|it| it.1) * 1.1).max(0.001));
    let NfsReport { address, export, mix, clients, .. } = report;
    let title = format!("NFSv3 at {address}{export}: mix {mix}, {clients} clients");
    let built = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 15))
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..right, 0.0..top);
    let mut chart = built?;
    chart
        .configure_mesh()
        .x_desc("calls answered a second")
        .y_desc("mean response time, ms")
        .light_line_style(WHITE)
        .draw()?;
    let line = PathElement::new(points.clone(), LINE.stroke_width(2));
    chart.draw_series(std::iter::once(line))?;
    chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, LINE.filled())))?;
    root.present()
}
