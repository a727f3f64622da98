package svgplot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func draw(t *testing.T, f *Figure) string {
	t.Helper()
	var b bytes.Buffer
	if err := f.Write(&b); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(bytes.NewReader(b.Bytes())) // it is well-formed
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return b.String()
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, b.String())
		}
	}
}

func plain(v float64) string { return fmt.Sprintf("%g!", v) }

// Values stand where they belong, a gap is one, and a value alone is seen.
func TestWhereValuesStand(t *testing.T) {
	nan := math.NaN()
	f := Figure{Title: "t", Span: 10, Marks: []float64{5}, Panels: []Panel{{Title: "p", Text: plain, Lines: []Line{
		{Name: "a", Points: []Point{{0, 0}, {5, 50}, {6, nan}, {10, 100}}},
		{Name: "b", Colour: 1, Style: Dashed, Points: []Point{{0, nan}}},
	}}}}
	svg := draw(t, &f)
	top := 28.0 + legend
	for _, want := range []string{
		fmt.Sprintf(`<path class="line c0 s0" d="M78.0 %.1fL479.0 %.1fM880.0 %.1fh1.5"/>`, top+panelHeight, top+panelHeight/2, top),
		fmt.Sprintf(`<path class="mark" d="M479.0 %.1fv190"/>`, top), ">100!</text>", ">20!</text>", ">0!</text>", ">10 s</text>", ">t</text>", ">p</text>", ">b</text>",
		`prefers-color-scheme: dark`,
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("there is no %s in\n%s", want, svg)
		}
	}
	if n := strings.Count(svg, `class="line c1 s1"`); n != 1 { // in the legend only
		t.Errorf("a line without a value is drawn %d times", n)
	}
}

func TestScales(t *testing.T) {
	for _, c := range []struct {
		values []float64
		log    bool
		least  float64
		ticks  []float64
	}{
		{[]float64{3, 97}, false, 0, []float64{0, 20, 40, 60, 80, 100}},
		{[]float64{0.3}, false, 0, []float64{0, 0.1, 0.2, 0.3}},
		{[]float64{0.3}, false, 5, []float64{0, 1, 2, 3, 4, 5}},
		{nil, false, 0, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
		{[]float64{0, math.Inf(1)}, false, 0, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
		{[]float64{3, 80}, true, 0, []float64{2, 5, 10, 20, 50, 100}},
		{[]float64{10, 10}, true, 0, []float64{10, 20}},
		{[]float64{3, 80000, 0, -1}, true, 0, []float64{1, 10, 100, 1000, 10000, 100000}},
		{nil, true, 0, []float64{1, 2, 5, 10}},
	} {
		p := Panel{Log: c.log, Least: c.least, Lines: []Line{{}}}
		for _, v := range c.values {
			p.Lines[0].Points = append(p.Lines[0].Points, Point{0, v})
		}
		s := p.scale()
		same := slices.EqualFunc(s.ticks, c.ticks, func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) })
		if !same {
			t.Errorf("%v, log %t: %v, want %v", c.values, c.log, s.ticks, c.ticks)
		}
		for _, v := range c.values {
			if at := s.at(v); s.has(v) && !(at >= -1e-9 && at <= 1+1e-9) {
				t.Errorf("%v stands at %v of %v", v, at, s.ticks)
			}
		}
	}
}

func TestTicks(t *testing.T) {
	for span, want := range map[float64]string{0: "[0]", 0.35: "[0 0.05 0.1 0.15 0.2 0.25 0.3 0.35]", 10: "[0 1 2 3 4 5 6 7 8 9 10]", 61: "[0 10 20 30 40 50 60]", math.NaN(): "[0]"} {
		if got := fmt.Sprint(ticks(span, 10)); got != want {
			t.Errorf("%v: %s, want %s", span, got, want)
		}
	}
}

// Names are text, whatever is in them, and a figure without anything is one.
func TestTextAndNothing(t *testing.T) {
	svg := draw(t, &Figure{Title: "<script>\"'&\x00\x1b]", Subtitle: []string{"</svg>", "\xff"}, Panels: []Panel{{Text: plain}, {Text: plain, Log: true}}})
	if strings.Contains(svg, "<script>") || strings.Count(svg, "</svg>") != 1 {
		t.Error(svg)
	}
}
