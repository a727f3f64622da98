package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// A line of progress never wraps, and says what it can in the room there is.
func TestProgressFits(t *testing.T) {
	p := &progress{verb: "verified", total: 1023 << 30, begun: time.Now().Add(-time.Hour)}
	p.done.Store(511 << 30)
	u := &progress{verb: "written", total: -1, begun: p.begun}
	u.done.Store(511 << 30)
	for columns := 1; columns < 200; columns++ {
		for _, line := range []string{p.line(columns), u.line(columns)} {
			if n := utf8.RuneCountInString(line); n >= columns {
				t.Errorf("%d columns of %d: %s", n, columns, line)
			}
		}
		if line := p.line(columns); columns > 6 && !strings.Contains(line, "49 %") {
			t.Errorf("%d columns: no share in %q", columns, line)
		}
		if line := p.line(columns); columns >= 80 && (!strings.Contains(line, "[=") || !strings.Contains(line, "left") || !strings.Contains(line, "/s")) {
			t.Errorf("%d columns: %s", columns, line)
		}
	}
	if line := p.line(0); !strings.Contains(line, strings.Repeat("=", 14)) {
		t.Errorf("a terminal of unknown width: %s", line)
	}
}
