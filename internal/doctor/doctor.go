// Package doctor looks at what a host allows: limits, sysctls, modules, ports, the clock. A
// Check is one value; the programs put those together that matter to them. A check changes
// nothing. What it finds says what that costs and the command that mends it.
//
// Nearly all of it is read below /proc and /sys, and the root of these can be another one: so
// every check is tested both ways on any machine.
package doctor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/dustin/go-humanize/english"
)

// Level is how much a finding matters.
type Level int

// Levels, the worst last.
const (
	OK      Level = iota
	Note          // good to know
	Warning       // it works, and costs something
	Error         // something that was asked for cannot work
)

var levels = [...]string{"ok", "note", "warning", "error"}

func (l Level) String() string {
	if l < 0 || int(l) >= len(levels) {
		return strconv.Itoa(int(l))
	}
	return levels[l]
}

// MarshalText makes JSON have the word.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads it again.
func (l *Level) UnmarshalText(b []byte) error {
	for i, s := range levels {
		if s == string(b) {
			*l = Level(i)
			return nil
		}
	}
	return fmt.Errorf("level %q: want one of %v", b, levels)
}

// Finding is what a check has found.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Found string `json:"found"`
	Cost  string `json:"cost,omitempty"` // what it costs to leave it as it is
	Mend  string `json:"mend,omitempty"` // a command
}

// Check is one thing to look at.
type Check struct {
	Name string
	Look func(*Host) Finding
}

// Host is the machine that is looked at.
type Host struct {
	Root fs.FS  // proc, sys, dev and lib are in it; nil: those of this machine
	PID  string // the process whose limits count; "": this one
	// Unsynchronised asks the kernel whether nothing disciplines its clock; nil: adjtimex(2).
	Unsynchronised func() (bool, error)
}

// Run makes the checks, in their order.
func Run(h *Host, checks []Check) []Finding {
	all := make([]Finding, 0, len(checks))
	for _, c := range checks {
		f := c.Look(h)
		f.Check = c.Name
		all = append(all, f)
	}
	return all
}

// Worst is the worst level of findings.
func Worst(all []Finding) Level {
	worst := OK
	for _, f := range all {
		worst = max(worst, f.Level)
	}
	return worst
}

// Print writes findings for people.
func Print(w io.Writer, all []Finding) error {
	var b strings.Builder
	count := map[Level]int{}
	width := 0
	for _, f := range all {
		count[f.Level]++
		width = max(width, len(f.Check))
	}
	for _, f := range all {
		fmt.Fprintf(&b, "%-8s %-*s  %s\n", f.Level, width, f.Check, f.Found)
		for _, more := range []struct{ word, text string }{{"costs", f.Cost}, {"mend", f.Mend}} {
			if more.text != "" {
				fmt.Fprintf(&b, "%8s %-5s  %s\n", "", more.word, more.text)
			}
		}
	}
	fmt.Fprintf(&b, "\n%d ok, %s, %s, %s\n", count[OK], english.Plural(count[Note], "note", ""), english.Plural(count[Warning], "warning", ""), english.Plural(count[Error], "error", ""))
	_, err := io.WriteString(w, b.String())
	return err
}

// ok, and the functions beside it, make findings.
func ok(format string, a ...any) Finding { return Finding{Found: fmt.Sprintf(format, a...)} }

func note(format string, a ...any) Finding {
	return Finding{Level: Note, Found: fmt.Sprintf(format, a...)}
}

func warning(format string, a ...any) Finding {
	return Finding{Level: Warning, Found: fmt.Sprintf(format, a...)}
}

func failed(format string, a ...any) Finding {
	return Finding{Level: Error, Found: fmt.Sprintf(format, a...)}
}

// unknown is the finding about what could not be read.
func unknown(err error) Finding {
	return note("cannot be told: %v", err)
}

func (f Finding) costs(format string, a ...any) Finding {
	f.Cost = fmt.Sprintf(format, a...)
	return f
}

func (f Finding) mend(format string, a ...any) Finding {
	f.Mend = fmt.Sprintf(format, a...)
	return f
}

// open opens a file of the host; path is absolute.
func (h *Host) open(path string) (fs.File, error) {
	root := h.Root
	if root == nil {
		root = os.DirFS("/")
	}
	return root.Open(path[1:])
}

// fileBound is more than any file of /proc that is read here has, bytes.
const fileBound = 8 << 20

// read returns a file of the host, without the space around it.
func (h *Host) read(path string) (string, error) {
	f, err := h.open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, fileBound))
	return strings.TrimSpace(string(b)), err
}

func (h *Host) exists(path string) bool {
	f, err := h.open(path)
	if err == nil {
		f.Close()
	}
	return !missing(err)
}

// number reads a file that has one.
func (h *Host) number(path string) (int64, error) {
	s, err := h.read(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// process is a file about the process whose limits count.
func (h *Host) process(name string) string {
	pid := h.PID
	if pid == "" {
		pid = "self"
	}
	return "/proc/" + pid + "/" + name
}

// sysctl is the command that changes a setting of the kernel, now and at every start.
func sysctl(key, value string) string {
	return fmt.Sprintf("sysctl -w %s='%s' && echo '%s = %s' >> /etc/sysctl.d/90-softiser.conf", key, value, key, value)
}

// missing reports whether a file is not there.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
