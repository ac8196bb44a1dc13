//! Pictures of figures.

use std::path::Path;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::short;
use crate::percentiles::{quantile, size};

const SIZE: (u32, u32) = (760, 420);
/// Points of a distribution that are drawn.
const STEPS: usize = 200;
/// Told apart by people who see few colours, too.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// What an axis shows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Axis<'a> {
    /// Logarithmic, with this label.
    Log(&'a str),
    /// From 0 to 1.
    Share(&'a str),
}

/// One line of a picture.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// Each point was measured.
    pub(super) marked: bool,
}

impl Series {
    /// Which share of the samples is not above a value.
    pub(super) fn distribution(name: &str, samples: &[f64]) -> Self {
        let mut samples = samples.to_vec();
        let shares = (0..=STEPS).map(|step| size(step) / size(STEPS));
        let points = shares.map(|share| (quantile(&mut samples, share), share)).collect();
        Self { name: name.to_owned(), points, marked: false }
    }
}

/// Draw lines; horizontal axis first.
pub(super) fn draw(path: &Path, title: &str, [x, y]: [Axis<'_>; 2], series: &[Series]) {
    let points = || series.iter().flat_map(|one| &one.points);
    let (Axis::Log(x) | Axis::Share(x)) = x;
    let across = around(points().map(|point| point.0));
    match y {
        Axis::Log(y) => {
            let up = around(points().map(|point| point.1));
            lines(path, title, [x, y], across, up.log_scale(), series);
        }
        Axis::Share(y) => lines(path, title, [x, y], across, 0.0..1.0, series),
    }
}

/// A range with all of them inside, for a logarithmic axis.
fn around(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (low, high) = values
        .map(|value| value.max(1e-3))
        .fold((f64::MAX, 1e-3_f64), |(low, high), value| (low.min(value), high.max(value)));
    low.min(high) / 1.3..high * 1.3
}

fn lines<Y>(
    path: &Path,
    title: &str,
    [x_label, y_label]: [&str; 2],
    x: std::ops::Range<f64>,
    y: Y,
    series: &[Series],
) where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).expect("the ground");
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 17))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(x.log_scale(), y)
        .expect("the axes");
    let number = |value: &f64| short(*value);
    chart
        .configure_mesh()
        .x_desc(x_label)
        .y_desc(y_label)
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .light_line_style(RGBColor(240, 240, 240))
        .draw()
        .expect("the mesh");
    for (one, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let points = one.points.iter().map(|(x, y)| (x.max(1e-3), y.max(1e-3)));
        let line = LineSeries::new(points.clone(), colour.stroke_width(2));
        let line = chart.draw_series(line).expect("a line").label(&one.name);
        line.legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        if one.marked {
            let marks = points.map(|point| Circle::new(point, 4, colour.filled()));
            chart.draw_series(marks).expect("its points");
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .draw()
        .expect("the names");
    root.present().expect("the picture is written");
}

/// Draw bars from the left, each with its name above and its value beside it.
pub(super) fn bars(path: &Path, title: &str, unit: &str, bars: &[(&str, f64)]) {
    const TOP: i32 = 48;
    const ROW: i32 = 44;
    const LONGEST: f64 = 580.0;
    let rows = i32::try_from(bars.len()).unwrap_or(0);
    let height = u32::try_from(TOP + ROW * rows).unwrap_or(0);
    let root = SVGBackend::new(path, (SIZE.0, height)).into_drawing_area();
    root.fill(&WHITE).expect("the ground");
    let text = |text: String, at: (i32, i32), size: i32| {
        root.draw(&Text::new(text, at, ("sans-serif", size))).expect("a text");
    };
    text(format!("{title}, {unit}"), (16, 14), 17);
    let largest = bars.iter().map(|bar| bar.1).fold(f64::MIN_POSITIVE, f64::max);
    for ((row, (name, value)), colour) in (0..).zip(bars).zip(COLOURS.iter().cycle()) {
        let top = TOP + ROW * row;
        #[expect(clippy::cast_possible_truncation, reason = "at most the longest bar's")]
        let right = 17 + (value / largest * LONGEST) as i32;
        let bar = Rectangle::new([(16, top + 15), (right, top + 33)], colour.filled());
        root.draw(&bar).expect("a bar");
        text((*name).to_owned(), (16, top), 13);
        text(short(*value), (right + 8, top + 17), 13);
    }
    root.present().expect("the picture is written");
}
