package bench

import (
	"fmt"
	"io"
	"strings"
	"time"

	"softiser/internal/terminal"
)

// progressLine renders one state of the run as fio's status line:
//
//	Jobs: 1 (f=1): [r(1)][50.0%][r=421MiB/s][r=108k IOPS][eta 00m:02s]
func progressLine(s *Snapshot) string {
	var b strings.Builder
	state := "run"
	if s.Verify {
		state = "verify"
	}
	fmt.Fprintf(&b, "Jobs: %d (f=%d): [%s]", s.Running, s.Running, state)
	if s.Done >= 0 {
		fmt.Fprintf(&b, "[%.1f%%]", 100*s.Done)
	}
	var bw, ios []string
	for d := range datas {
		if s.Bytes[d] == 0 && s.IOs[d] == 0 {
			continue
		}
		letter := dir(d).String()[:1]
		bw = append(bw, letter+"="+binRate(s.Bytes[d]))
		ios = append(ios, letter+"="+num2str(s.IOs[d], 4, 1000, ""))
	}
	if len(bw) > 0 {
		fmt.Fprintf(&b, "[%s][%s IOPS]", strings.Join(bw, ","), strings.Join(ios, ","))
	} else {
		b.WriteString("[stalled]")
	}
	if eta := s.eta(); eta != "" {
		fmt.Fprintf(&b, "[%s]", eta)
	}
	return b.String()
}

// eta says how long the rest will take, if that can be told.
func (s *Snapshot) eta() string {
	if s.Done <= 0 || s.Done >= 1 {
		return ""
	}
	eta := time.Duration(float64(s.Elapsed) * (1 - s.Done) / s.Done).Round(time.Second)
	return fmt.Sprintf("eta %02dm:%02ds", int(eta.Minutes()), int(eta.Seconds())%60)
}

// progress keeps one line of a terminal up to date.
type progress struct {
	w     io.Writer
	width int
}

func (p *progress) tick(s *Snapshot) {
	line := terminal.Fit(terminal.Columns(p.w), progressLine(s))
	pad := max(0, p.width-len(line))
	p.width = len(line)
	fmt.Fprintf(p.w, "\r%s%s", line, strings.Repeat(" ", pad))
}

// clear removes the line.
func (p *progress) clear() {
	if p.width > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.width))
		p.width = 0
	}
}
