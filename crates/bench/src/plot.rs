//! Plots a report: a point with an interval per ratio, on a logarithmic axis. A report without
//! ratios gets a point with a range per rate.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::number::{to_f64, to_u64};
use crate::report::BenchReport;

type BenchDrawingArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type BenchDrawingResult = Result<(), DrawingAreaErrorKind<std::io::Error>>;

const WIDTH: u32 = 960;
const ROW_HEIGHT: u32 = 22;
const HEAD_HEIGHT: u32 = 64;
const FOOT_HEIGHT: u32 = 52;
const NAMES_WIDTH: u32 = 210;
const RIGHT_MARGIN: u32 = 24;
const FONT: &str = "sans-serif";
/// Colours for the colour-blind (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
const GRID: RGBColor = RGBColor(222, 222, 222);

#[derive(Clone, Copy, Debug)]
struct Point {
    series: usize,
    middle: f64,
    low: f64,
    high: f64,
}

#[derive(Debug)]
struct Figure {
    title: String,
    series: Vec<String>,
    rows: Vec<(String, Vec<Point>)>,
    /// Whether the axis marks the ratio 1.
    has_unity: bool,
}

/// Returns a plot of the report as SVG, or the drawing library's error.
pub fn svg_of(report: &BenchReport) -> Result<String, String> {
    let figure = figure_of(report);
    let mut text = String::new();
    draw(&figure, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn figure_of(report: &BenchReport) -> Figure {
    let has_ratios = report.results.iter().any(|measured| !measured.ratios.is_empty());
    let mut series: Vec<String> = Vec::new();
    let mut series_of = |name: String| {
        series.iter().position(|known| *known == name).unwrap_or_else(|| {
            series.push(name);
            series.len() - 1
        })
    };
    let mut rows = Vec::new();
    for measured in &report.results {
        let points: Vec<Point> = if has_ratios {
            let points = measured.ratios.iter().map(|compared| Point {
                series: series_of(format!("{} / {}", compared.of, compared.to)),
                middle: compared.ratio.median,
                low: compared.ratio.low,
                high: compared.ratio.high,
            });
            points.collect()
        } else {
            let points = measured.rates.iter().map(|rate| Point {
                series: series_of(rate.target.clone()),
                middle: rate.per_second.median,
                low: rate.per_second.least,
                high: rate.per_second.most,
            });
            points.collect()
        };
        let threads = match measured.threads {
            1 => String::new(),
            count => format!(" ({count} threads)"),
        };
        rows.push((format!("{}{threads}", measured.name), points));
    }
    let what =
        if has_ratios { "Ratio of rates, with its interval" } else { "Rate, with its range" };
    let rounds = if report.rounds == 1 { "round" } else { "rounds" };
    let title = format!("{what}: {} {rounds} at scale {}", report.rounds, report.plan.scale);
    Figure { title, series, rows, has_unity: has_ratios }
}

/// Returns the ends of the axis: powers of two that enclose all points.
fn ends(figure: &Figure) -> (f64, f64) {
    let points = || figure.rows.iter().flat_map(|(_, points)| points);
    let known = |value: &f64| value.is_finite() && *value > 0.0;
    let least = points().map(|point| point.low).filter(known).fold(f64::INFINITY, f64::min);
    let most = points().map(|point| point.high).filter(known).fold(0.0, f64::max);
    let (least, most) =
        if figure.has_unity { (least.min(0.5), most.max(2.0)) } else { (least, most) };
    if !(least.is_finite() && most > 0.0) {
        return (0.5, 2.0);
    }
    (2_f64.powf(least.log2().floor()), 2_f64.powf((most * 1.0001).log2().ceil()))
}

fn draw(figure: &Figure, text: &mut String) -> BenchDrawingResult {
    let row_count = u32::try_from(figure.rows.len()).unwrap_or(u32::MAX).clamp(1, 1000);
    let height = HEAD_HEIGHT + row_count * ROW_HEIGHT + FOOT_HEIGHT;
    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let scale = Scale::new(figure);
    axis(&root, figure, &scale, height)?;
    legend(&root, figure)?;
    let mut top = pixels(HEAD_HEIGHT);
    for (name, points) in &figure.rows {
        row(&root, &scale, top, (name, points))?;
        top += pixels(ROW_HEIGHT);
    }
    root.present()
}

/// Maps a value to a horizontal position in pixels.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn new(figure: &Figure) -> Scale {
        let (low, high) = ends(figure);
        Scale { low, high }
    }

    fn at(&self, value: f64) -> i32 {
        let share = (value / self.low).log2() / (self.high / self.low).log2();
        let width = f64::from(WIDTH - NAMES_WIDTH - RIGHT_MARGIN);
        rounded(f64::from(NAMES_WIDTH) + share.clamp(0.0, 1.0) * width)
    }
}

#[expect(clippy::as_conversions, reason = "a float becomes the nearest pixel, within the picture")]
fn rounded(value: f64) -> i32 {
    value.round() as i32
}

fn pixels(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn style(size: u32) -> TextStyle<'static> {
    TextStyle::from((FONT, size).into_font())
}

fn axis(
    root: &BenchDrawingArea<'_>,
    figure: &Figure,
    scale: &Scale,
    height: u32,
) -> BenchDrawingResult {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    let (top, bottom) = (pixels(HEAD_HEIGHT), pixels(height - FOOT_HEIGHT));
    let centred = style(12).pos(Pos::new(HPos::Center, VPos::Top));
    let steps = (scale.high / scale.low).log2();
    // As many marks as fit, at powers of two.
    let stride = 2_f64.powf((steps / 12.0).ceil().max(1.0));
    let mut mark = scale.low;
    while mark <= scale.high * 1.001 {
        let x = scale.at(mark);
        let colour = if figure.has_unity && (mark - 1.0).abs() < 1e-9 { BLACK } else { GRID };
        root.draw(&PathElement::new(vec![(x, top), (x, bottom)], colour))?;
        let label = if mark >= 1.0 { format!("{mark}") } else { format!("1/{}", 1.0 / mark) };
        root.draw(&Text::new(label, (x, bottom + 6), centred.clone()))?;
        mark *= stride;
    }
    if figure.has_unity {
        let at = |x: f64, text: &str, style: TextStyle<'static>| {
            root.draw(&Text::new(text.to_owned(), (scale.at(x), bottom + 26), style))
        };
        at(1.0, "as fast", centred)?;
        at(scale.low, "slower", style(12))?;
        at(scale.high, "faster", style(12).pos(Pos::new(HPos::Right, VPos::Top)))?;
    }
    Ok(())
}

fn legend(root: &BenchDrawingArea<'_>, figure: &Figure) -> BenchDrawingResult {
    root.draw(&Text::new(figure.title.clone(), (12, 10), style(15)))?;
    let mut x = 14;
    for (index, name) in figure.series.iter().enumerate() {
        root.draw(&Circle::new((x + 4, 44), 4, colour(index).filled()))?;
        root.draw(&Text::new(name.clone(), (x + 14, 37), style(13)))?;
        x += 40 + 8 * i32::try_from(name.len()).unwrap_or(0);
    }
    Ok(())
}

fn colour(series: usize) -> RGBColor {
    COLOURS.get(series % COLOURS.len()).copied().unwrap_or(BLACK)
}

fn row(
    root: &BenchDrawingArea<'_>,
    scale: &Scale,
    top: i32,
    (name, points): (&str, &[Point]),
) -> BenchDrawingResult {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    let middle = top + pixels(ROW_HEIGHT) / 2;
    let left = style(12).pos(Pos::new(HPos::Right, VPos::Center));
    root.draw(&Text::new(name.to_owned(), (pixels(NAMES_WIDTH) - 10, middle), left))?;
    let count = to_f64(to_u64(points.len()));
    for (number, point) in (0_u64..).zip(points) {
        // Spreads the points vertically, so that intervals do not overlap.
        let shift = (to_f64(number) + 0.5) / count - 0.5;
        let y = middle + rounded(shift * f64::from(ROW_HEIGHT) * 0.8);
        let colour = colour(point.series);
        let ends = vec![(scale.at(point.low), y), (scale.at(point.high), y)];
        root.draw(&PathElement::new(ends, colour.stroke_width(2)))?;
        root.draw(&Circle::new((scale.at(point.middle), y), 3, colour.filled()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report;

    #[test]
    fn a_picture_has_a_row_for_each_measure_and_a_point_for_each_ratio() {
        let report = report::tests::example();
        let svg = svg_of(&report).expect("it can be drawn");
        assert!(svg.starts_with("<svg"), "{svg}");
        assert!(svg.contains("create"), "{svg}");
        assert!(svg.contains("fuse / ext4"), "{svg}");
        // One circle in the legend, one in the row.
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn the_axis_encloses_every_point_and_a_report_of_nothing_can_be_drawn() {
        let mut report = report::tests::example();
        let figure = figure_of(&report);
        let (low, high) = ends(&figure);
        assert_eq!((low, high), (0.5, 4.0));
        report.results[0].ratios.clear();
        assert!(svg_of(&report).is_ok());
        report.results.clear();
        assert!(svg_of(&report).is_ok());
    }
}
