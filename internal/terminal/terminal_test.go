package terminal

import (
	"bytes"
	"os"
	"testing"
)

func TestFit(t *testing.T) {
	for _, c := range []struct {
		columns int
		want    string
	}{{0, "a long line"}, {80, "a long line"}, {12, "a long line"}, {11, "a line"}, {7, "a line"}, {6, "a lin"}, {2, "a"}, {1, ""}} {
		if got := Fit(c.columns, "a long line", "a line"); got != c.want {
			t.Errorf("%d columns: %q, want %q", c.columns, got, c.want)
		}
	}
	if null, err := os.Open(os.DevNull); err != nil || Is(null) || Is(&bytes.Buffer{}) {
		t.Errorf("what is none is taken for a terminal (%v)", err)
	} else {
		null.Close()
	}
	if n := Columns(&bytes.Buffer{}); n != 0 {
		t.Errorf("a buffer has %d columns", n)
	}
}
