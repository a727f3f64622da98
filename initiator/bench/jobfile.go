package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Limits of a job file: a file that exceeds one is no job file.
const (
	maxJobLine    = 64 << 10
	maxJobLines   = 100_000
	maxInclude    = 16
	globalSection = "global"
)

// KV is one option as written, with where it was written.
type KV struct {
	Key, Value string
	Bare       bool   // no "=": a switch that is turned on
	Pos        string // "file:line", or "--key" on the command line
}

// Section is one [name] of a job file with its options in order. The section
// "global" sets defaults for the jobs that follow it.
type Section struct {
	Name string
	Pos  string
	Opts []KV
}

// ParseJobFile reads a job file:
//
//	; a comment; so is what follows # or ; in a line
//	[global]
//	bs=4k   # of reads and writes
//	time_based
//	[reader]
//	rw=randread
//	size=${SIZE}
//	include other.fio
//
// ${NAME} takes the environment's value; $ncpus, $pagesize and $mb_memory are
// the machine's. Nothing is looked up yet: unknown keys are found by
// [ParseJobs].
//
// With names, only these sections are read, and all that are global; what stands in
// the others is not even looked at.
func ParseJobFile(path string, names ...string) ([]Section, error) {
	p := &jobParser{getenv: os.Getenv, names: names}
	if err := p.file(path, 0); err != nil {
		return nil, err
	}
	all := p.jobs()
	p.sections = slices.DeleteFunc(p.sections, p.skips)
	switch {
	case len(all) > 0 && len(p.jobs()) == 0:
		return nil, fmt.Errorf("%s: no section %s; there are %s", path, strings.Join(p.names, ", "), strings.Join(all, ", "))
	case len(p.sections) == 0:
		return nil, fmt.Errorf("%s: no section: a job file needs at least one [name]", path)
	}
	return p.sections, nil
}

// jobs are the names of the sections so far that are jobs, each once.
func (p *jobParser) jobs() (names []string) {
	for _, s := range p.sections {
		if s.Name != globalSection && !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
	}
	return names
}

// ParseJobText reads a job file's text; name is used in messages.
func ParseJobText(r io.Reader, name string) ([]Section, error) {
	return parseJobText(r, name, os.Getenv)
}

func parseJobText(r io.Reader, name string, getenv func(string) string) ([]Section, error) {
	p := &jobParser{getenv: getenv}
	if err := p.text(r, name, 0); err != nil {
		return nil, err
	}
	return p.sections, nil
}

// skips reports whether a section is not to be read.
func (p *jobParser) skips(s Section) bool {
	return len(p.names) > 0 && s.Name != globalSection && !slices.Contains(p.names, s.Name)
}

type jobParser struct {
	names    []string // of the sections to read; none: all
	sections []Section
	lines    int
	getenv   func(string) string
}

func (p *jobParser) file(path string, depth int) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("job file: %w", err)
	}
	defer f.Close()
	return p.text(f, path, depth)
}

func (p *jobParser) text(r io.Reader, name string, depth int) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 4096), maxJobLine)
	for n := 1; sc.Scan(); n++ {
		if p.lines++; p.lines > maxJobLines {
			return fmt.Errorf("%s:%d: more than %d lines", name, n, maxJobLines)
		}
		if err := p.line(sc.Text(), name, n, depth); err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	if err := sc.Err(); errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("%s: a line is longer than %d bytes", name, maxJobLine)
	} else if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// line takes line n of file name: a section, an option or an include, which may be
// nested depth deep.
func (p *jobParser) line(line, name string, n, depth int) error {
	if i := strings.IndexAny(line, ";#"); i >= 0 {
		line = line[:i]
	}
	if line = strings.TrimSpace(line); line == "" {
		return nil
	}
	pos := name + ":" + strconv.Itoa(n)
	if line[0] == '[' {
		sec, rest, ok := strings.Cut(line[1:], "]")
		if !ok || strings.TrimSpace(rest) != "" || strings.TrimSpace(sec) == "" {
			return fmt.Errorf("bad section header %q (expected [name])", line)
		}
		p.sections = append(p.sections, Section{Name: strings.TrimSpace(sec), Pos: pos})
		return nil
	}
	if n := len(p.sections); n > 0 && p.skips(p.sections[n-1]) {
		return nil
	}
	if arg, ok := strings.CutPrefix(line, "include "); ok {
		if depth == maxInclude {
			return fmt.Errorf("include nested deeper than %d", maxInclude)
		}
		arg = strings.TrimSpace(arg)
		if !filepath.IsAbs(arg) {
			arg = filepath.Join(filepath.Dir(name), arg)
		}
		return p.file(arg, depth+1)
	}
	if len(p.sections) == 0 {
		return fmt.Errorf("option %q before the first [section]", line)
	}
	key, value, eq := strings.Cut(line, "=")
	key = strings.TrimSpace(key)
	if key == "" || strings.ContainsAny(key, " \t") {
		return fmt.Errorf("cannot read %q (expected key=value)", line)
	}
	value, err := p.expand(strings.TrimSpace(value))
	if err != nil {
		return err
	}
	s := &p.sections[len(p.sections)-1]
	s.Opts = append(s.Opts, KV{Key: key, Value: value, Bare: !eq, Pos: pos})
	return nil
}

var variable = regexp.MustCompile(`\$\{([^}]*)\}|\$(ncpus|pagesize|mb_memory)\b`)

// expand replaces ${ENV} and fio's reserved keywords.
func (p *jobParser) expand(s string) (string, error) {
	var err error
	out := variable.ReplaceAllStringFunc(s, func(m string) string {
		switch m {
		case "$ncpus":
			return strconv.Itoa(runtime.NumCPU())
		case "$pagesize":
			return strconv.Itoa(os.Getpagesize())
		case "$mb_memory":
			return strconv.FormatInt(memoryMiB(), 10)
		}
		name := m[2 : len(m)-1]
		v := p.getenv(name)
		if v == "" {
			err = fmt.Errorf("the environment variable %s is not set", name)
		}
		return v
	})
	return out, err
}
